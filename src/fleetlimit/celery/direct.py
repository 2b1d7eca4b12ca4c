"""Handles a limited task's body that is called as a function inside a worker.

Only a delivery asks for units by itself. If the body runs without a delivery of its own (because another task calls it
as a function, in `celery.map`, in a thread of the worker, or eagerly), the setting `fleetlimit_direct_calls` decides.
Outside a worker such a call is a plain call.
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
#: The longest sleep of a waiting call before it asks again, in microseconds.
_LONGEST_US = 1_000_000


def guard(task: Any) -> None:
    """Put the check in front of a task's body, once, so that every way of calling the body passes it. (A coroutine
    function gets no check, because its call does not run the body yet, and may happen in the thread of an event
    loop.)"""
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

    :raises ConfigurationError: if calls without a limit are refused.
    """
    if vars(task.request).get(ENTERED):
        return  # the task's own delivery, or a call of the task to itself inside its delivery
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
    """The name of the caller of the body; '' outside a worker."""
    others = [one for one in compat.running_tasks() if one is not task]
    requests = [one.request_stack.top for one in others]
    if any(one and not one.called_directly and not one.is_eager for one in requests):
        return str(others[-1].name)
    eager = any(one and one.is_eager for one in (*requests, task.request_stack.top))
    in_worker = runtime_of(task.app).worker_pid == os.getpid()
    return _THREAD if in_worker and not eager else ""


def _complaint(caller: str, called: str) -> str:
    send = (
        f"use a group of {called!r} instead, in which each task is limited"
        if caller in _CANVAS
        else f"send {called!r} as a task of its own to have it limited"
    )
    return (
        f"{caller} calls the limited task {called!r} as a function, and nothing limits such a call: {send}, or set "
        'fleetlimit_direct_calls="wait", so that such calls wait in place for their units, or "ignore" if they need no '
        "limit"
    )


def _wait(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any], settings: Settings) -> None:
    """Wait in the worker, with a place in the line like that of any other task."""
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
    except BaseException:  # for instance a time limit: give up the place in line
        for one in spends:
            store.withdraw(one.limit.name, one.key, id)
        raise
