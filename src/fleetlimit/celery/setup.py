"""What happens at start: the check is installed, and a worker that could not keep its limits stops."""

from __future__ import annotations

import contextlib
import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any

from celery import _state, bootsteps, signals
from celery.utils.log import get_logger
from kombu.utils.imports import symbol_by_name

from fleetlimit.celery.advice import advice
from fleetlimit.celery.config import limiter_of, room_of, settings_of
from fleetlimit.celery.gate import warm
from fleetlimit.celery.message import due, line_of
from fleetlimit.celery.presence import Presence, local_time
from fleetlimit.celery.releaser import Releaser
from fleetlimit.celery.signals import send_events
from fleetlimit.celery.task import install_all
from fleetlimit.errors import ConfigurationError, FleetlimitError, StoreRefused
from fleetlimit.limiter import redis_store
from fleetlimit.store.redis import RedisStore

__all__ = ["connect"]

logger = get_logger(__name__)
_CONTROL = "fleetlimit.celery.control"


def connect() -> None:
    """For every app, those to come and those that exist: install the check when it finalizes."""
    _state.connect_on_app_finalize(_on_finalize)
    for app in _state._get_active_apps():
        if app.finalized:
            _on_finalize(app)
            install_all(app)
    if "celery.worker.control" in sys.modules:
        importlib.import_module(_CONTROL)  # for `celery inspect`; others need not pay for it


def _on_finalize(app: Any) -> None:
    app.steps["worker"].add(WorkerStep)
    app.on_after_finalize.connect(_after_finalize, weak=False)


def _after_finalize(sender: Any, **_: Any) -> None:
    install_all(sender)


class WorkerStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no type hints
    """Prepares every kind of worker before its pool starts, and runs its releaser after.

    :raises SystemExit: after one line that says why, when there are limited tasks and no Redis, a setting is
        wrong, or Redis refuses what an operator must change.
    """

    label = "fleetlimit"
    requires = ("celery.worker.components:Pool",)  # a thread that runs when a pool forks is trouble

    def create(self, worker: Any) -> _Threads | None:
        try:
            return self._create(worker)
        except (ConfigurationError, StoreRefused) as error:
            logger.critical("fleetlimit: this worker cannot start: %s", error)
        raise SystemExit(1)

    def _create(self, worker: Any) -> _Threads | None:
        limited = install_all(worker.app)
        if not limited:
            return None
        app = worker.app
        threads: list[Any] = []
        settings = settings_of(app)
        if not settings.enabled:
            logger.warning("fleetlimit: rate limits are off (fleetlimit_enabled=False)")
            return None
        for line in advice(app, settings):
            logger.warning("fleetlimit: %s", line)
        if store := redis_store(limiter_of(app).store):
            threads.append(_presence(store, worker))
        send_events(worker.task_events)
        importlib.import_module(_CONTROL)
        for task in limited:
            task.Request = _request_class(symbol_by_name(task.Request))
        signals.worker_process_init.connect(lambda **_: warm(app), weak=False)
        signals.task_revoked.connect(_on_revoked)
        if room := room_of(app):
            threads.append(Releaser(app, room))
        return _Threads(threads)


class _Threads:
    """What runs in the worker's main process as long as the worker does."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def start(self, *_: Any) -> None:
        for part in self._parts:
            part.start()

    def stop(self, *_: Any) -> None:
        for part in reversed(self._parts):
            part.stop()


def _presence(store: RedisStore, worker: Any) -> Presence:
    from celery.concurrency.prefork import TaskPool  # not for every program that sends tasks

    def processes() -> int:
        if not issubclass(worker.pool_cls, TaskPool):
            return 1
        started = getattr(worker.pool, "_pool", None)  # it may grow (`celery control pool_grow`)
        now = worker.pool.num_processes if started else 0
        return int(max(worker.max_concurrency or worker.concurrency, now))

    found = Presence(store, processes)
    try:
        found.beat()
    except StoreRefused:
        raise  # it does not pass by itself, and tasks would wait for ever
    except FleetlimitError as error:
        logger.warning("fleetlimit: starts without Redis; limited tasks wait for it: %s", error)
    return found


def _on_revoked(sender: Any, request: Any, **_: Any) -> None:
    """A task revoked or expired while it waited: its place is free. Redis is asked in a thread, for
    this is the consumer's."""
    if line := line_of(request):
        _background().submit(_withdraw, sender.app, *line, request.id)


def _withdraw(app: Any, name: str, key: str, id: str) -> None:
    with contextlib.suppress(FleetlimitError):  # then its ticket runs out
        limiter_of(app).store.withdraw(name, key, id)


@cache
def _background() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "fleetlimit-revoked")


def _request_class(base: Any) -> Any:
    """The worker's own request, which also tells the pool how the message was serialized (a task that
    goes back must be published as it came), and waits by Redis's clock: an ETA is a time on the
    sender's clock, read on this one's."""
    if getattr(base, "_fleetlimit", False):
        return base

    class Request(base):  # type: ignore[misc]  # Celery has no type hints
        _fleetlimit = True

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if self.content_type:
                # RabbitMQ's properties say it anyway; those of Redis do not.
                properties = {**self.request_dict["properties"], "content_type": self.content_type}
                self.request_dict["properties"] = properties
            due_us, countdown = due(self.request_dict)
            if due_us and (eta := local_time(due_us)):
                self._eta = min(eta, datetime.now(timezone.utc) + timedelta(seconds=countdown))

    return Request
