"""A limited task's body that is called as a function, inside a worker.

Only a delivery asks for units by itself. Where the body runs without one of its own, as a function that another task
calls, in `celery.map`, in a thread of the worker, or eagerly, the setting `fleetlimit_direct_calls` decides. Outside a
worker a call is a plain call.
"""

from __future__ import annotations

import functools
import inspect
import os
import uuid
from typing import Any

from celery.utils.log import get_logger

from fleetlimit import standin
from fleetlimit.celery import compat
from fleetlimit.celery.declared import plan_of
from fleetlimit.celery.gate import ENTERED, acquired
from fleetlimit.celery.runtime import runtime_of
from fleetlimit.celery.settings import Settings
from fleetlimit.celery.start import start
from fleetlimit.celery.wiring import limiter_of, settings_of
from fleetlimit.errors import ConfigurationError
from fleetlimit.store.base import Store, Ticket

__all__ = ["guard"]

logger = get_logger(__name__)

#: Celery's own tasks that call a task once for each element.
_CANVAS = ("celery.map", "celery.starmap")
_THREAD = "a thread of this worker"
#: The longest sleep before it asks again, microseconds.
_LONGEST_US = 1_000_000


def guard(task: Any) -> None:
    """Put the check in front of a task's body, once: however the body is called, it comes by here. (Not the call of a
    coroutine function, which runs nothing yet, and may be in the thread of a loop.)"""
    body = task.run
    if getattr(body, "_fleetlimit_guard", False) or inspect.iscoroutinefunction(
        inspect.unwrap(body)
    ):
        return

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        _called(task, args, kwargs)
        return body(*args, **kwargs)

    run._fleetlimit_guard = True  # type: ignore[attr-defined]
    task.run = run


def _called(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Return when the body may run.

    :raises ConfigurationError: where calls that nothing limits are refused.
    """
    if vars(task.request).get(ENTERED):
        return  # its own delivery, or a call of itself inside it
    caller = _caller(task)
    settings = settings_of(task.app) if caller else None
    if not caller or not settings or not settings.enabled or settings.direct_calls == "ignore":
        return
    if settings.direct_calls == "wait":
        _wait(task, args, kwargs, settings)
    elif settings.direct_calls == "error" or caller in _CANVAS:
        raise ConfigurationError(_complaint(caller, task.name))
    elif runtime_of(task.app).is_new((caller, task.name)):
        logger.warning("fleetlimit: %s", _complaint(caller, task.name))


def _caller(task: Any) -> str:
    """Who calls the body, by name; '' outside a worker."""
    others = [one for one in compat.running_tasks() if one is not task]
    requests = [one.request_stack.top for one in others]
    if any(one and not one.called_directly and not one.is_eager for one in requests):
        return str(others[-1].name)
    eager = any(one and one.is_eager for one in (*requests, task.request_stack.top))
    in_worker = runtime_of(task.app).worker_pid == os.getpid()
    return _THREAD if in_worker and not eager else ""


def _complaint(caller: str, called: str) -> str:
    send = (
        f"use a group of {called!r} in its place, each of whose tasks is limited"
        if caller in _CANVAS
        else f"send {called!r} as a task of its own to have it limited"
    )
    return (
        f"{caller} calls the limited task {called!r} as a function, and nothing limits such a call: {send}, or set "
        'fleetlimit_direct_calls="wait", with which it waits for its units in place ("ignore": such calls are meant)'
    )


def _wait(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any], settings: Settings) -> None:
    """Wait in place, with a place in the line as any task's."""
    store: Store = limiter_of(task.app).store
    spends = plan_of(task).spends(args, kwargs)
    id, seen_us = f"call:{uuid.uuid4().hex}", 0
    try:
        while True:
            ticket = Ticket(
                id=id,
                first_seen_us=seen_us,
                max_sleep_us=settings.max_sleep_us,
                horizon_us=_LONGEST_US,
            )
            outcome = acquired(task.app, store, spends, ticket)
            if outcome.admitted:
                return start(task.app, store, spends, outcome)
            seen_us = outcome.first_seen_us
            standin.sleep(min(outcome.wait_us, _LONGEST_US) / 1e6)
    except BaseException:  # a time limit, for instance: its place is free
        for one in spends:
            store.withdraw(one.limit.name, one.key, id)
        raise
