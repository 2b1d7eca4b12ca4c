"""Installs the check when an app is finalized, and prepares a worker when it starts. A worker that could not keep its
limits stops."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any

from celery import bootsteps
from celery.utils.log import get_logger
from celery.worker import state as worker_state
from kombu.utils.imports import symbol_by_name

from fleetlimit.celery import compat
from fleetlimit.celery.advice import advice
from fleetlimit.celery.checks import check_tasks, task_advice
from fleetlimit.celery.declared import plan_of
from fleetlimit.celery.header import HEADER, due, is_revoked
from fleetlimit.celery.heard import Receivers
from fleetlimit.celery.message import CAME, came_with
from fleetlimit.celery.presence import Presence, local_time
from fleetlimit.celery.releaser import Releaser
from fleetlimit.celery.rooms import former_rooms, own_room
from fleetlimit.celery.runtime import runtime_of
from fleetlimit.celery.task import install_all, limits_in_use
from fleetlimit.celery.wiring import limiter_of, settings_of
from fleetlimit.errors import ConfigurationError, FleetlimitError, StoreRefused
from fleetlimit.limiter import redis_store
from fleetlimit.store.redis import RedisStore
from fleetlimit.store.room import AT_ONCE

__all__ = ["connect"]

logger = get_logger(__name__)
_CONTROL = "fleetlimit.cli_celery"


def connect() -> None:
    """Install the check in every app of this process, now or when the app is finalized."""
    compat.on_finalize(_on_finalize)
    for app in compat.active_apps():
        if app.finalized:
            _on_finalize(app)
            install_all(app)
    if "celery.worker.control" in sys.modules:
        importlib.import_module(_CONTROL)  # for `celery inspect`; other programs do not need it


def _on_finalize(app: Any) -> None:
    app.steps["worker"].add(WorkerStep)
    app.steps["consumer"].add(ConsumerStep)
    app.on_after_finalize.connect(_after_finalize, weak=False)


def _after_finalize(sender: Any, **_: Any) -> None:
    install_all(sender)


class WorkerStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no type hints
    """Prepares every kind of worker before its pool starts, and runs its releaser after that.

    :raises SystemExit: after one line that says why, if there are limited tasks and no Redis, if a setting is wrong, if
        a task's limit cannot be kept (`check_tasks`), or if Redis refuses a command or the credentials.
    """

    label = "fleetlimit"
    requires = ("celery.worker.components:Pool",)  # no thread of ours may run when the pool forks

    def create(self, worker: Any) -> _Threads | None:
        try:
            return self._create(worker)
        except (ConfigurationError, StoreRefused) as error:
            logger.critical("fleetlimit: this worker cannot start: %s", error)
        raise SystemExit(1)

    def _create(self, worker: Any) -> _Threads | None:
        app = worker.app
        limited = install_all(app)
        if not settings_of(app).enabled:
            logger.warning("fleetlimit: rate limits are off (fleetlimit_enabled=False)")
        else:
            check_tasks(app, worker.pool_cls)
        try:
            limiter = limiter_of(app)
        except ConfigurationError:
            if limited and settings_of(app).enabled:
                raise
            return None  # no task is limited, and there is no Redis in which a task could be parked
        threads: list[Any] = []
        if limited and settings_of(app).enabled:
            settings = settings_of(app)
            for line in (*advice(app, settings), *task_advice(app, limited)):
                logger.warning("fleetlimit: %s", line)
            if store := redis_store(limiter.store):
                threads.append(_presence(store, worker))
            importlib.import_module(_CONTROL)
        ready = worker.fleetlimit_ready = threading.Event()
        releasers = list(_releasers(app, ready, limited=bool(limited)))
        for task in app.tasks.values() if releasers else limited:
            task.Request = _request_class(symbol_by_name(task.Request))
        heard = Receivers(worker, releasers, limited=bool(limited))
        return _Threads([heard, *threads, *releasers])

    def close(self, worker: Any) -> None:
        """Called before any step stops, the consumer's included: let no more tasks go."""
        for part in self.obj.parts if self.obj else ():
            if isinstance(part, Receivers):
                part.halt()


class ConsumerStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no type hints
    """Tells the worker's releasers that its queues are declared. (The signal `worker_ready` would not do, because only
    the command `celery worker` sends it, and not a worker inside another program.)"""

    requires = ("celery.worker.consumer:Tasks",)

    def start(self, consumer: Any) -> None:
        if ready := getattr(consumer.controller, "fleetlimit_ready", None):
            ready.set()


def _releasers(app: Any, ready: threading.Event, *, limited: bool) -> Iterator[Releaser]:
    """The releasers for the room of this worker, and for former rooms in which tasks were left."""
    own, parked, store = None, 0, redis_store(limiter_of(app).store)
    with contextlib.suppress(FleetlimitError):
        own = own_room(app)
        parked = own.parked_for(own.broker).parked if own else 0
    settings = settings_of(app)
    parks = limited and settings.enabled and settings.waiting_room and store
    if parked:
        why = "" if parks else ", and are let go although this worker parks no tasks itself"
        logger.warning("fleetlimit: %d tasks are parked in the waiting room%s", parked, why)
    unknown = store and not own  # the broker does not answer now, and may have parked tasks here
    if parks or parked or unknown:
        with contextlib.suppress(FleetlimitError):
            if own:
                own.register()
        yield Releaser(app, lambda: own_room(app), ready, worker_state.revoked)
    with contextlib.suppress(FleetlimitError):
        for orphan in own.orphans() if own else ():
            logger.warning(
                "fleetlimit: %d tasks are parked for the broker %s, which no worker serves: start its workers, or give "
                "the tasks to this worker's broker with `fleetlimit adopt`", orphan.parked, orphan.broker,
            )  # fmt: skip
    for room in former_rooms(app, own):
        logger.warning("fleetlimit: tasks are parked where the limits were before, and are let go")
        yield Releaser(app, lambda room=room: room, ready, lead_us=AT_ONCE)  # type: ignore[misc]


class _Threads:
    """The parts that run in the worker's main process as long as the worker runs."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def start(self, *_: Any) -> None:
        for part in self.parts:
            part.start()

    def stop(self, *_: Any) -> None:
        for part in reversed(self.parts):
            part.stop()


def _presence(store: RedisStore, worker: Any) -> Presence:
    # Imported here, because programs that only send tasks do not need it.
    from celery.concurrency.prefork import TaskPool

    def processes() -> int:
        if not issubclass(worker.pool_cls, TaskPool):
            return 1
        pool = compat.started_pool(worker)
        now = pool.num_processes if pool else 0  # the pool may grow (`celery control pool_grow`)
        return int(max(worker.max_concurrency or worker.concurrency, now))

    found = Presence(store, runtime_of(worker.app), processes, lambda: limits_in_use(worker.app))
    try:
        found.beat()
    except StoreRefused:
        raise  # a refusal does not pass by itself, and tasks would wait for ever
    except FleetlimitError as error:
        logger.warning(
            "fleetlimit: this worker starts without Redis; limited tasks wait for it: %s", error
        )
    return found


@cache
def _request_class(base: Any) -> Any:
    """A subclass of the worker's own request class with two additions. It tells the pool how the message was
    serialized, because a task that goes back must be published as it came. And it waits by Redis's clock, because an
    ETA is a time on the sender's clock, which may differ from this host's."""
    if getattr(base, "_fleetlimit", False):
        return base

    class Request(base):  # type: ignore[misc]  # Celery has no type hints
        _fleetlimit = True

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if HEADER in self.request_dict or plan_of(self.task).bindings:
                came = came_with(self.message, self.request_dict)
                properties = {**self.request_dict["properties"], CAME: came}
                self.request_dict["properties"] = properties
            if is_revoked(self.request_dict):
                worker_state.revoked.add(self.id)  # Celery's own check comes next
            due_us, countdown = due(self.request_dict)
            if due_us and (eta := local_time(self._app, due_us)):
                self._eta = min(eta, datetime.now(timezone.utc) + timedelta(seconds=countdown))

    return Request
