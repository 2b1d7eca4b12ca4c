"""Which limits a task was declared with, and which units a call of the task asks for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fleetlimit.celery.binding import Binding
from fleetlimit.celery.models import Models, models_of
from fleetlimit.celery.origin import origin_of
from fleetlimit.errors import ConfigurationError
from fleetlimit.limit import RateLimit
from fleetlimit.limiter import merged
from fleetlimit.store.base import Spend

__all__ = ["MARK", "Mark", "Plan", "limits_of", "mark_of", "parameters_of", "plan_of"]

MARK = "__fleetlimit__"
_PLAN = "_fleetlimit_plan"


@dataclass
class Mark:
    """A mark on a limited function: its limits, and whether a task is known whose `before_start` asks for them."""

    bindings: list[Binding]
    owned: bool = False


@dataclass
class Plan:
    """A task's limits, and the names of its arguments."""

    bindings: tuple[Binding, ...]
    signature: inspect.Signature
    #: Makes models of arguments, for a task with `pydantic=True`.
    models: Models | None = None

    def spends(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Spend]:
        """The units that a call asks for. It raises the same errors as `Binding.spend`."""
        if self._same is not None:
            return self._same
        if self.models:
            args, kwargs = self.models.validated(args, kwargs)
        return merged([one.spend(self.signature, args, kwargs) for one in self.bindings])

    @cached_property
    def _same(self) -> list[Spend] | None:
        """The units that every call asks for, if no key or cost depends on the arguments; else None."""
        if any(one.key is not None or not isinstance(one.cost, int) for one in self.bindings):
            return None
        return merged([one.spend(self.signature, (), {}) for one in self.bindings])


def parameters_of(function: Any) -> inspect.Signature:
    """The arguments with which a function is called. For a wrapper that takes any arguments (`*args, **kwargs`) they
    are those of the function inside."""
    bound = False
    while hasattr(function, "__wrapped__") and _stands_for_another(function):
        bound = bound or inspect.ismethod(function)
        function = function.__wrapped__
    found = inspect.signature(function, follow_wrapped=False)
    if bound and not inspect.ismethod(function):
        found = found.replace(parameters=list(found.parameters.values())[1:])
    return found


def _stands_for_another(function: Any) -> bool:
    """Whether a wrapper's own signature says nothing: the wrapper takes any arguments, or `functools.wraps` has copied
    the signature of the function inside (that of a bound method includes the `self` that is given already)."""
    copied = getattr(function, "__signature__", None)
    if copied is not None and copied is getattr(function.__wrapped__, "__signature__", None):
        return True
    kinds = inspect.signature(function, follow_wrapped=False).parameters.values()
    return {one.kind for one in kinds} == {
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    }


def mark_of(function: Any) -> Any:
    return getattr(function, MARK, None)


def limits_of(task: Any) -> tuple[Binding, ...]:
    """All limits of a task (or task class): those in its `limits`, and those in the mark on its function."""
    mark = mark_of(getattr(task, "run", None))
    listed = getattr(task, "limits", None) or ()
    if isinstance(listed, (Binding, RateLimit)):
        listed = (listed,)
    if not isinstance(listed, (list, tuple)):
        return tuple(mark.bindings) if mark else ()  # a task's own `limits`, which are not ours
    return (*(_as_binding(one, task) for one in listed), *(mark.bindings if mark else ()))


def _as_binding(one: Any, task: Any) -> Binding:
    if isinstance(one, Binding):
        return one
    if isinstance(one, RateLimit):
        return Binding(one, None, 1, origin_of(task))
    raise ConfigurationError(f"limits: {one!r:.80} must be rate_limited(...) or a RateLimit")


def plan_of(task: Any, *, anew: bool = False) -> Plan:
    """The plan of a task, which each delivery needs. It is kept on the task, because it never changes between two
    runs."""
    found: Plan | None = None if anew else vars(task).get(_PLAN)
    if found is None:
        found = vars(task)[_PLAN] = Plan(
            limits_of(task), parameters_of(task.run), models_of(task.run)
        )
    return found
