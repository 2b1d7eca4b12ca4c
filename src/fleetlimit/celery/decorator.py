"""`@rate_limited(...)`, above or below `@app.task`.

Above `@app.task` it binds the limit to the task, as soon as Celery's lazy proxy has made the task. Below `@app.task` it
wraps the function and marks it. Either way the check itself runs in `before_start` (see `task.py`). The wrapper is a
safety net: it checks before the body if no `before_start` was installed for the task.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, cast, overload

from celery.app.task import Task

from fleetlimit.celery import compat
from fleetlimit.celery.binding import Binding
from fleetlimit.celery.declared import MARK, Mark, mark_of, parameters_of
from fleetlimit.celery.gate import enter_function
from fleetlimit.celery.origin import caller, described, naming
from fleetlimit.celery.task import bind_shared, gated, install
from fleetlimit.errors import ConfigurationError
from fleetlimit.limit import DEFAULT_MARGIN, RateLimit

__all__ = ["rate_limited"]

T = TypeVar("T")
Spec = str | Callable[..., Any] | None
_EXAMPLE = '@rate_limited("partner-api", 100, per=60)'


class rate_limited(Binding):  # noqa: N801  # used as a decorator, as functools' classes are
    """Let the whole fleet start this task at most `limit` times per `per`.

    It works above and below `@app.task` and `@shared_task`, on a task class, and stacked for several
    limits (a run then starts only when all of them admit it). The object may also stand in the `limits` of
    a `RateLimitedTask`. Tasks that name the same limit share it.

    :param name: the limit's name, or a `RateLimit`, which then contains all of the limit's numbers.
    :param limit: units per period.
    :param per: the period, in seconds or as a `timedelta`.
    :param burst, margin, on_outage, algorithm, offset, tz: see `RateLimit`.
    :param key: what the limit is counted for: a template over the task's arguments, such as `"{account_id}"`, or a
        callable that takes these arguments. None: one count for all runs.
    :param cost: the units that one run spends: a number, a template or a callable.
    :raises ConfigurationError: at decoration, naming the argument, the value and the place. It is also raised for an
        `async def` below `@app.task`, because Celery would call the function and never run its coroutine.
    """

    @overload
    def __init__(
        self,
        name: str,
        limit: int,
        per: float | timedelta,
        *,
        burst: int | None = None,
        margin: float | str = DEFAULT_MARGIN,
        on_outage: str | None = None,
        algorithm: str = "gcra",
        offset: float | timedelta = 0.0,
        tz: str | None = None,
        key: Spec = None,
        cost: int | str | Callable[..., Any] = 1,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: RateLimit,
        *,
        key: Spec = None,
        cost: int | str | Callable[..., Any] = 1,
    ) -> None: ...

    def __init__(
        self,
        name: Any,
        limit: Any = None,
        per: Any = None,
        *,
        key: Spec = None,
        cost: int | str | Callable[..., Any] = 1,
        **options: Any,
    ) -> None:
        origin = caller(1)
        with naming(f"@rate_limited at {origin}"):
            super().__init__(_limit(name, limit, per, options), key, cost, origin)

    def __call__(self, target: T) -> T:
        """Bind this limit to a function, a task or a task class, and return the limited one."""
        return cast(T, self._on(target))

    def _on(self, target: Any) -> Any:
        if compat.is_proxy(target):
            return self._on_proxy(target)
        if isinstance(target, type) and issubclass(target, Task):
            cls: Any = target
            self._check(cls, inspect.signature(functools.partial(cls.run, None)))
            own: Any = gated(cls)
            own.limits = (*getattr(target, "limits", ()), self)
            return own
        if isinstance(target, Task):
            return self._on_task(target)
        if callable(target):
            return self._on_function(target)
        raise ConfigurationError(f"@rate_limited on {target!r:.80}: must be a task or a function")

    def _check(self, target: Any, signature: inspect.Signature) -> None:
        with naming(described(target)):
            self.check(signature)

    def _on_function(self, function: Any) -> Any:
        self._check(function, parameters_of(function))
        if inspect.iscoroutinefunction(function):
            raise ConfigurationError(
                f"{described(function)}: @rate_limited on an `async def`, which Celery calls without ever "
                "running its coroutine; write a plain `def`. (If the task's class or the worker's pool "
                "runs coroutines, put @rate_limited above @app.task.)"
            )
        if mark_of(function):
            mark_of(function).bindings.append(self)
            return function

        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            enter_function(mark)
            return function(*args, **kwargs)

        # Celery reads this signature without following __wrapped__, so it must be that of `function` itself. (A
        # decorator below that passes an argument of its own takes other arguments than the function that it wraps.)
        limited.__signature__ = inspect.signature(function, follow_wrapped=False)  # type: ignore[attr-defined]
        mark = Mark([self])
        setattr(limited, MARK, mark)
        return limited

    def _on_task(self, task: Any) -> Any:
        self._check(task, parameters_of(task.run))
        task.limits = (*getattr(task, "limits", ()), self)
        install(task)
        return task

    def _on_proxy(self, proxy: Any) -> Any:
        """Bind the limit to a task that does not exist yet. What can be checked is checked now; the rest follows when
        the task exists."""
        promised = compat.promised(proxy)
        if not promised:
            return self._on_task(compat.made(proxy))
        function, name = promised
        self._check(function, parameters_of(function))
        if not compat.when_made(proxy, self._on_task):
            bind_shared(function, name, self)
        return proxy


def _limit(name: Any, limit: Any, per: Any, options: dict[str, Any]) -> RateLimit:
    """The limit that the arguments of `rate_limited` describe.

    :raises ConfigurationError: if a number is missing, or is given twice.
    """
    if compat.is_proxy(name):
        name = compat.made(name)
    if isinstance(name, RateLimit):
        said = {"limit": limit, "per": per}
        given = {one: value for one, value in said.items() if value is not None} | options
        if given:
            listed = ", ".join(f"{one}={value!r}" for one, value in given.items())
            raise ConfigurationError(f"{listed}: all numbers are already in {name}; set them there")
        return name
    if callable(name):
        raise ConfigurationError(
            f"used without parentheses on {described(name)}; write for instance {_EXAMPLE}"
        )
    if limit is None:
        raise ConfigurationError(
            f"limit=None: the limit {name!r} has no number of units; write for instance {_EXAMPLE}"
        )
    return RateLimit(name, limit, per, **options)
