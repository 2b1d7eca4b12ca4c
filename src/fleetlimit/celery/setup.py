"""What happens at start: the check is installed, and a worker that could not keep its limits stops."""

from __future__ import annotations

from typing import Any

from celery import _state, bootsteps, signals
from kombu.utils.imports import symbol_by_name

from fleetlimit.celery.config import limiter_of, room_of, settings_of
from fleetlimit.celery.gate import warm
from fleetlimit.celery.releaser import Releaser
from fleetlimit.celery.task import install_all

__all__ = ["connect"]


def connect() -> None:
    """For every app, those to come and those that exist: install the check when it finalizes."""
    _state.connect_on_app_finalize(_on_finalize)
    for app in _state._get_active_apps():
        if app.finalized:
            _on_finalize(app)
            install_all(app)


def _on_finalize(app: Any) -> None:
    app.steps["worker"].add(WorkerStep)
    app.on_after_finalize.connect(_after_finalize, weak=False)


def _after_finalize(sender: Any, **_: Any) -> None:
    install_all(sender)


class WorkerStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no type hints
    """Prepares every kind of worker before its pool starts, and runs its releaser after.

    :raises ConfigurationError: when there are limited tasks and no Redis, or a setting is wrong.
    """

    label = "fleetlimit"
    requires = ("celery.worker.components:Pool",)  # a thread that runs when a pool forks is trouble

    def create(self, worker: Any) -> Releaser | None:
        limited = install_all(worker.app)
        if not limited:
            return None
        settings_of(worker.app)
        limiter_of(worker.app)
        for task in limited:
            task.Request = _request_class(symbol_by_name(task.Request))
        signals.worker_process_init.connect(lambda **_: warm(worker.app), weak=False)
        room = room_of(worker.app)
        return Releaser(worker.app, room) if room else None


def _request_class(base: Any) -> Any:
    """The worker's own request, which also tells the pool how the message was serialized: a task
    that goes back must be published as it came."""
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

    return Request
