"""Puts the check into `before_start`. Celery calls it once per delivery, in the process that would run the body, inside
its own error handling, and never for a direct call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery.app.task import Task

from fleetlimit.celery import compat
from fleetlimit.celery.binding import Binding
from fleetlimit.celery.declared import limits_of, mark_of, parameters_of, plan_of
from fleetlimit.celery.direct import guard
from fleetlimit.celery.gate import enter
from fleetlimit.celery.origin import described, naming
from fleetlimit.errors import ConfigurationError
from fleetlimit.limit import RateLimit

__all__ = [
    "RateLimitedTask",
    "bind_shared",
    "gated",
    "install",
    "install_all",
    "limits_in_use",
    "require_limits",
]


class RateLimitedTask(Task):  # type: ignore[misc]  # Celery has no type hints
    """A task base class for `base=` or the app's `task_cls=`.

    `limits` lists the limits of the task, as `rate_limited(...)` objects or `RateLimit`s. If a task has this `base=`
    and no limits, its worker does not start. If the app has this class as its `task_cls`, tasks without limits are
    allowed.

        @app.task(base=RateLimitedTask, limits=[rate_limited("partner-api", 100, per=60)])
        def charge(order_id): ...
    """

    limits: Sequence[Any] = ()

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Check `limits`, and their templates against the task's own arguments.

        :raises ConfigurationError: naming the task, its place in the code and what is wrong.
        """
        with naming(described(cls)):
            if not isinstance(cls.limits, (list, tuple, Binding, RateLimit)):
                raise ConfigurationError(
                    f"limits={cls.limits!r:.80}: must be a list of rate_limited(...) or RateLimit"
                )
            check(cls)
        super().on_bound(app)

    def before_start(self, task_id: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Ask for this run's units. A denied delivery ends here, and its task is parked or back in its queue.

        :raises ConfigurationError: for a task without limits that was registered after its worker started.
        """
        if not self.limits:
            require_limits(self)
        enter(self)
        super().before_start(task_id, args, kwargs)


def check(task: Any) -> None:
    """:raises ConfigurationError: for a template that names no argument of the task."""
    for binding in limits_of(task):
        binding.check(parameters_of(task.run))


def gated(cls: type[Any]) -> type[Any]:
    """A subclass whose `before_start` asks for units first and then calls the user's `before_start`."""

    def before_start(self: Any, task_id: str, args: Any, kwargs: Any) -> None:
        enter(self)
        super(own, self).before_start(task_id, args, kwargs)

    own: Any = type(
        cls.__name__,
        (cls,),
        {
            "before_start": before_start,
            "_fleetlimit_gated": True,
            "__doc__": cls.__doc__,
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
        },
    )
    return own  # type: ignore[no-any-return]  # `type()` of a type


def install(task: Any) -> bool:
    """Put the check in front of a limited task, once. True if the task is limited."""
    if not limits_of(task):
        return False
    with naming(described(task)):
        check(task)
    plan_of(task, anew=True)
    if mark := mark_of(task.run):
        mark.owned = True
    guard(task)
    if "_fleetlimit_gated" not in vars(type(task)):
        # `before_start` is looked up on the class, which may be the user's own and shared.
        task.__class__ = gated(type(task))
    return True


def require_limits(task: Any) -> None:
    """:raises ConfigurationError: for a task with `base=RateLimitedTask` that has no limit."""
    if not isinstance(task, RateLimitedTask) or isinstance(task, task.app.Task):
        return
    if not limits_of(task):
        raise ConfigurationError(
            f"{described(task)}: base=RateLimitedTask without limits; write for instance "
            'limits=[rate_limited("partner-api", 100, per=60)], or use another base'
        )


#: Limits above a `@shared_task`: the function, the task's given name, the limit.
_shared: list[tuple[Any, str | None, Binding]] = []


def bind_shared(function: Any, name: str | None, binding: Binding) -> None:
    """Bind a limit to the task that each app, now or later, makes from a shared function."""
    _shared.append((function, name, binding))
    for app in compat.active_apps():
        if app.finalized:
            install_all(app)


def install_all(app: Any) -> list[Any]:
    """Put the check in front of all limited tasks of an app.

    :return: these tasks.
    """
    for function, name, binding in _shared:
        task = compat.task_named(
            app, name or app.gen_task_name(function.__name__, function.__module__)
        )
        run = getattr(task, "__wrapped__", None)
        if getattr(run, "__func__", run) is function and binding not in limits_of(task):
            task.limits = (*getattr(task, "limits", ()), binding)
    return [task for task in compat.tasks_of(app) if install(task)]


def limits_in_use(app: Any) -> dict[str, str]:
    """The names of the limits of all tasks of an app, each with its algorithm."""
    limits = [one.limit for task in compat.tasks_of(app) for one in limits_of(task)]
    return {limit.name: limit.algorithm for limit in limits}
