"""Everything that is private in Celery and that fleetlimit needs, in one place.

Checked on Celery 5.5, 5.6 and 5.7. `tests/celery/test_compat.py` names what a new version has moved.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from celery import _state
from celery.app import utils
from celery.local import PromiseProxy, Proxy

__all__ = [
    "active_apps",
    "current_task",
    "hide_settings",
    "is_proxy",
    "made",
    "on_finalize",
    "promised",
    "running_tasks",
    "started_pool",
    "task_named",
    "tasks_of",
    "when_made",
]


def active_apps() -> list[Any]:
    """All apps of this process that exist."""
    return list(_state._get_active_apps())


def on_finalize(function: Callable[[Any], None]) -> None:
    """Call a function with every app, now or later, at the moment when it makes its tasks."""
    _state.connect_on_app_finalize(function)


def current_task() -> Any:
    """The task whose body runs in this thread, also where it was called directly; None outside of a task."""
    return _state.get_current_task()


def running_tasks() -> list[Any]:
    """The tasks whose bodies run in this thread, the outermost first."""
    return list(_state._task_stack.stack)


def tasks_of(app: Any) -> list[Any]:
    """The tasks that an app has. (`app.tasks` would make those that are still to be made.)"""
    return list(app._tasks.values())


def task_named(app: Any, name: str) -> Any:
    """One of `tasks_of`; None if there is none of that name."""
    return app._tasks.get(name)


def is_proxy(value: Any) -> bool:
    """Whether a value stands for a task that may not exist yet: what `@app.task` and `@shared_task` return."""
    return type(value) in (PromiseProxy, Proxy)


def made(proxy: Any) -> Any:
    """What a proxy stands for; it is made now if it was not yet."""
    return proxy._get_current_object()


def promised(proxy: Any) -> tuple[Any, str | None] | None:
    """The function of a task that a proxy promises, and (of a `@shared_task`) the name that was given to the task; None
    if the task exists already, or if this Celery keeps its function elsewhere."""
    try:
        if type(proxy) is PromiseProxy:
            return object.__getattribute__(proxy, "_Proxy__args")[0], None
        made_by = object.__getattribute__(proxy, "_Proxy__local")
        inside = inspect.getclosurevars(made_by).nonlocals
        return inside["fun"], inside["name"]
    except (AttributeError, LookupError, TypeError):
        return None


def when_made(proxy: Any, function: Callable[[Any], None]) -> bool:
    """Call a function with the task of an app's own proxy once it is made. False for a `@shared_task`, of which each app
    makes one."""
    if type(proxy) is not PromiseProxy:
        return False
    PromiseProxy.__then__(proxy, lambda: function(made(proxy)))
    return True


def started_pool(worker: Any) -> Any:
    """The pool of a worker of the prefork kind, once it was started; before that None."""
    return worker.pool if getattr(worker.pool, "_pool", None) else None


def hide_settings(pattern: str) -> None:
    """Have `celery report` and `celery inspect conf` hide the values of settings whose names match."""
    hidden = utils.HIDDEN_SETTINGS
    if pattern not in hidden.pattern:
        utils.HIDDEN_SETTINGS = re.compile(f"{hidden.pattern}|{pattern}", hidden.flags)
