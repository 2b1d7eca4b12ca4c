"""A limit that is bound to a task: it computes the key and the cost of a call from the call's arguments."""

from __future__ import annotations

import inspect
import re
import string
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleetlimit.celery.origin import Origin
from fleetlimit.errors import ConfigurationError, KeyValueError, LimitConflictWarning
from fleetlimit.keys import encode
from fleetlimit.limit import RateLimit
from fleetlimit.store.base import Spend

__all__ = ["Binding", "Template"]

#: Where each limit name was first defined in this process.
_defined: dict[str, tuple[RateLimit, Origin]] = {}
#: The registry in which `warnings` keeps the conflicts that were reported.
_reported: dict[Any, Any] = {}


class Template:
    """A text such as `"{account_id}"` over the names of a task's arguments.

    If a template has several fields, a character that is no letter and no digit must stand between two of them. Their
    values are percent-encoded, so that ("a:b", "c") and ("a", "b:c") stay two different keys.
    """

    def __init__(self, argument: str, text: str) -> None:
        self.argument, self.text = argument, text
        try:
            self._parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ConfigurationError(f"{argument}={text!r}: {error}") from error
        if any(spec or conversion for _, _, spec, conversion in self._parts):
            raise ConfigurationError(f"{argument}={text!r}: format specs and ! are not supported")
        self._fields = [name for _, name, _, _ in self._parts if name is not None]
        self.names = [re.split(r"[.\[]", name)[0] for name in self._fields]
        if not self.names or not all(name.isidentifier() for name in self.names):
            raise ConfigurationError(
                f"{argument}={text!r}: must name one of the task's arguments, such as '{{order_id}}'"
            )
        between = [part[0] for part in self._parts[1 : len(self._fields)]]
        if not all(re.search(r"[^0-9A-Za-z%]", literal) for literal in between):
            raise ConfigurationError(
                f"{argument}={text!r}: put a separator such as ':' between two fields"
            )

    def check(self, signature: inspect.Signature) -> None:
        """:raises ConfigurationError: for a name that is no argument of the task."""
        kinds = [parameter.kind for parameter in signature.parameters.values()]
        if inspect.Parameter.VAR_KEYWORD in kinds:
            return
        for name in self.names:
            if name not in signature.parameters:
                known = ", ".join(signature.parameters) or "none"
                raise ConfigurationError(
                    f"{self.argument}={self.text!r}: the task has no argument {name!r} (it has: {known})"
                )

    def fill(self, arguments: Mapping[str, Any]) -> str:
        values = [self._value(name, arguments) for name in self._fields]
        if len(values) == 1:
            literals = [part[0] for part in self._parts]
            return literals[0] + str(values[0]) + "".join(literals[1:])
        texts = iter(re.sub(r"[^0-9A-Za-z]", _percent, str(value)) for value in values)
        return "".join(
            literal + (next(texts) if name is not None else "")
            for literal, name, _, _ in self._parts
        )

    def value(self, arguments: Mapping[str, Any]) -> Any:
        """The value itself if the template consists of one field; else the filled text."""
        if self.text == f"{{{self._fields[0]}}}":
            return self._value(self._fields[0], arguments)
        return self.fill(arguments)

    def _value(self, name: str, arguments: Mapping[str, Any]) -> Any:
        try:
            value, _ = string.Formatter().get_field(name, (), arguments)
        except (LookupError, AttributeError) as error:
            raise KeyValueError(f"{self.argument}={self.text!r}: {error!r}") from error
        if value is None:
            raise KeyValueError(f"{self.argument}={self.text!r}: {name!r} is None")
        return value


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


Spec = str | int | Callable[..., Any] | Template | None


class Binding:
    """One limit of one task.

    :raises ConfigurationError: at decoration, for a key or cost that can never work.
    """

    def __init__(self, limit: RateLimit, key: Spec, cost: Spec, origin: Origin) -> None:
        self.limit, self.origin = limit, origin
        self.key = Template("key", key) if isinstance(key, str) else key
        self.cost = Template("cost", cost) if isinstance(cost, str) else cost
        if not (self.key is None or isinstance(self.key, Template) or callable(self.key)):
            raise ConfigurationError(f"key={key!r}: must be a template or a callable")
        if not (isinstance(self.cost, Template) or callable(self.cost)):
            limit.check_cost(self.cost)  # type: ignore[arg-type]  # it checks the type
        _define(limit, origin)

    def check(self, signature: inspect.Signature) -> None:
        """:raises ConfigurationError: for a template that names no argument of the task."""
        for spec in (self.key, self.cost):
            if isinstance(spec, Template):
                spec.check(signature)

    def spend(
        self, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Spend:
        """The units that this call asks for.

        :raises KeyValueError: if the key or cost cannot be computed. The call then fails and is never "unlimited".
        :raises CostError: for a cost that can never be admitted.
        """
        try:
            found = _compute(self.key, "key", signature, args, kwargs)
            key = "" if self.key is None else encode(found)
            cost = _compute(self.cost, "cost", signature, args, kwargs)
        except KeyValueError as error:
            raise KeyValueError(f"limit {self.limit.name!r}: {error}") from error
        return Spend(self.limit, key, self.limit.check_cost(cost))


def _compute(
    spec: Spec,
    argument: str,
    signature: inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    if spec is None or isinstance(spec, int):
        return spec
    try:
        if callable(spec):
            return spec(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        for name, parameter in signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                arguments.update(arguments.pop(name))
        return spec.value(arguments)  # type: ignore[union-attr]  # a Template: checked at decoration
    except KeyValueError:
        raise
    except Exception as error:
        raise KeyValueError(f"{argument}: {error!r} for the task's arguments") from error


def _define(limit: RateLimit, origin: Origin) -> None:
    former, its_origin = _defined.setdefault(limit.name, (limit, origin))
    if former == limit:
        return
    if origin.reloads(its_origin):
        _defined[limit.name] = (limit, origin)
        return
    warnings.warn_explicit(
        f"limit {limit.name!r} is defined twice with different numbers: {former} at {its_origin}, "
        f"{limit} at {origin}. They share one state: define it once and use it in both places.",
        LimitConflictWarning,
        origin.file,
        origin.line,
        registry=_reported,
    )
