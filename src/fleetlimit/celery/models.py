"""Arguments of tasks with `pydantic=True`. They travel as dictionaries, and the body gets them as models. Keys and
costs are computed from the models as well."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fleetlimit.errors import KeyValueError

__all__ = ["Models", "models_of"]


class Models:
    """Validates a call's arguments in the same way as Celery's wrapper around the function."""

    def __init__(self, wrapper: Callable[..., Any], *, bound: bool) -> None:
        inside = dict(inspect.getclosurevars(wrapper).nonlocals)
        if helper := inside.get("validate_argument"):
            inside = {**inspect.getclosurevars(helper).nonlocals, **inside}
        self._bound = bound
        self._signature: inspect.Signature = inside["task_signature"]
        self._hints = inside.get("type_hints") or {}
        self._strict = bool(inside.get("strict", False))
        about = {"celery_app": inside.get("app"), "celery_task_name": inside.get("task_name")}
        self._context = {**(inside.get("context") or {}), **about}

    def validated(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The arguments, with models instead of dictionaries.

        :raises KeyValueError: for arguments that do not fit the models.
        """
        try:
            first = (None,) if self._bound else ()  # the task itself
            bound = self._signature.bind(*first, *args, **kwargs)
            for name, value in bound.arguments.items():
                if value is not None and (model := self._model(name)):
                    bound.arguments[name] = model.model_validate(
                        value, strict=self._strict, context=self._context
                    )
        except (TypeError, ValueError) as error:
            raise KeyValueError(f"the task's arguments: {error}") from error
        return bound.args[len(first) :], bound.kwargs

    def _model(self, name: str) -> Any:
        """The model in an argument's annotation, which may also be optional; None if there is none."""
        hint = self._hints.get(name, self._signature.parameters[name].annotation)
        for one in (hint, *getattr(hint, "__args__", ())):
            if isinstance(one, type) and hasattr(one, "model_validate"):
                return one
        return None


def models_of(function: Any) -> Models | None:
    """The models of a function that Celery has wrapped for `pydantic=True`; None for other functions."""
    for one in _layers(function):
        plain = getattr(one, "__func__", one)
        scope = getattr(plain, "__globals__", {}).get("__name__")
        if scope == "celery.app.base" and "task_signature" in plain.__code__.co_freevars:
            return Models(plain, bound=inspect.ismethod(one))
    return None


def _layers(function: Any) -> Iterator[Any]:
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)
