"""Receives Celery's signals for one worker: only those of its own app, and only as long as it runs. (Several workers
may run in one process, one after the other or at once, as in tests.)"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from typing import Any

from celery import signals

from fleetlimit.celery import again
from fleetlimit.celery.declared import limits_of
from fleetlimit.celery.gate import came
from fleetlimit.celery.header import HEADER, line_of, ticket_of
from fleetlimit.celery.releaser import Releaser
from fleetlimit.celery.restore import restore
from fleetlimit.celery.runtime import runtime_of
from fleetlimit.celery.start import warm
from fleetlimit.celery.wiring import limiter_of
from fleetlimit.errors import FleetlimitError

__all__ = ["Receivers"]


class Receivers:
    """Made before the pool forks, so that the pool's processes inherit the connected signals, and know whether events
    are sent."""

    def __init__(self, worker: Any, releasers: Sequence[Releaser], *, limited: bool) -> None:
        self._app, self._hostname, self._in_main_thread = worker.app, worker.hostname, False
        self._releasers, self._pid, self._limited = releasers, os.getpid(), limited
        self._connected = {
            signals.worker_shutting_down: self.worker_shutting_down,
            signals.worker_process_init: self.worker_process_init,
            signals.task_revoked: self.task_revoked,
            signals.task_postrun: self.task_postrun,
        }
        if releasers:
            self._connected[signals.task_prerun] = self.task_prerun
        for signal, receiver in self._connected.items():
            signal.connect(receiver, weak=False)
        if worker.task_events:
            runtime_of(self._app).event_senders.append(self)

    def start(self, *_: Any) -> None:
        self._in_main_thread = threading.current_thread() is threading.main_thread()
        if self._in_main_thread:
            runtime_of(self._app).worker_pid = os.getpid()

    def stop(self, *_: Any) -> None:
        for signal, receiver in self._connected.items():
            signal.disconnect(receiver)
        if self in (senders := runtime_of(self._app).event_senders):
            senders.remove(self)
        if self._in_main_thread:
            runtime_of(self._app).worker_pid = 0

    def worker_shutting_down(self, sender: Any, **_: Any) -> None:
        if sender == self._hostname:
            self.halt()

    def halt(self) -> None:
        for one in self._releasers:
            one.halt()

    def worker_process_init(self, **_: Any) -> None:
        if self._limited:
            warm(self._app)
        if os.getpid() != self._pid:
            runtime_of(self._app).worker_pid = os.getpid()

    def task_prerun(self, task: Any, **_: Any) -> None:
        """If a task was parked and no longer has a limit, take it out of its former line, and remove our header before
        its body sees it."""
        if task.app is self._app and HEADER in vars(task.request) and not limits_of(task):
            came(task)
            restore(task.request)

    def task_postrun(self, task: Any, state: str, retval: Any, **_: Any) -> None:
        if task.app is self._app:
            again.on_postrun(task, state, retval)

    def task_revoked(self, sender: Any, request: Any, **_: Any) -> None:
        """Free the place of a task that was revoked or expired while it waited. This runs in the consumer's thread, so
        another thread calls Redis."""
        if sender.app is self._app and (line := line_of(request)):
            runtime_of(self._app).background.submit(_withdraw, self._app, *line, ticket_of(request))


def _withdraw(app: Any, name: str, key: str, id: str) -> None:
    with contextlib.suppress(FleetlimitError):  # then the task's ticket expires
        limiter_of(app).store.withdraw(name, key, id, how="came")
