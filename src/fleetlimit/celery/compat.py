"""All private parts of Celery that fleetlimit needs, in one place.

They were checked on Celery 5.5, 5.6 and 5.7. If a new version moves one of them, `tests/celery/test_compat.py` names
it.
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
    """The task whose body runs in this thread, also if it was called directly; None outside of a task."""
    return _state.get_current_task()


def running_tasks() -> list[Any]:
    """The tasks whose bodies run in this thread, the outermost first."""
    return list(_state._task_stack.stack)


def tasks_of(app: Any) -> list[Any]:
    """The tasks that an app has made so far. (`app.tasks` would also make those that are not made yet.)"""
    return list(app._tasks.values())


def task_named(app: Any, name: str) -> Any:
    """The task of that name among `tasks_of`; None if there is none."""
    return app._tasks.get(name)


def is_proxy(value: Any) -> bool:
    """Whether a value stands for a task that may not exist yet, as the results of `@app.task` and `@shared_task` do."""
    return type(value) in (PromiseProxy, Proxy)


def made(proxy: Any) -> Any:
    """The task that a proxy stands for. It is made now if it does not exist yet."""
    return proxy._get_current_object()


def promised(proxy: Any) -> tuple[Any, str | None] | None:
    """The function of a task that does not exist yet, and (for a `@shared_task`) the name that was given to the task.
    None if the task exists already, or if this version of Celery keeps its function elsewhere."""
    try:
        if type(proxy) is PromiseProxy:
            return object.__getattribute__(proxy, "_Proxy__args")[0], None
        made_by = object.__getattribute__(proxy, "_Proxy__local")
        inside = inspect.getclosurevars(made_by).nonlocals
        return inside["fun"], inside["name"]
    except (AttributeError, LookupError, TypeError):
        return None


def when_made(proxy: Any, function: Callable[[Any], None]) -> bool:
    """Call a function with the task of an app's own proxy once the task is made. False for a `@shared_task`, because
    each app makes a task of its own from it."""
    if type(proxy) is not PromiseProxy:
        return False
    PromiseProxy.__then__(proxy, lambda: function(made(proxy)))
    return True


def started_pool(worker: Any) -> Any:
    """The pool of a prefork worker after it has started; None before that."""
    return worker.pool if getattr(worker.pool, "_pool", None) else None


def hide_settings(pattern: str) -> None:
    """Have `celery report` and `celery inspect conf` hide the values of settings whose names match."""
    hidden = utils.HIDDEN_SETTINGS
    if pattern not in hidden.pattern:
        utils.HIDDEN_SETTINGS = re.compile(f"{hidden.pattern}|{pattern}", hidden.flags)
