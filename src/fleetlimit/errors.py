"""All errors. Catch `FleetlimitError` for all of them, or the class to which your program can react."""

from __future__ import annotations

from typing import Any

__all__ = [
    "ConfigurationError",
    "CostError",
    "FleetlimitError",
    "KeyValueError",
    "LimitConflictWarning",
    "StateError",
    "StoreRefused",
    "StoreUnavailable",
    "UnknownLimitError",
]


class FleetlimitError(Exception):
    """The base class of all errors of this library. Pickling keeps the text and all attributes, because errors travel
    from a pool process to the worker."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[FleetlimitError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> FleetlimitError:
    """Make an error again after pickling, without calling the class's own `__init__`."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ConfigurationError(FleetlimitError, ValueError):
    """A wrong argument or setting. The text names the argument and its value."""


class CostError(ConfigurationError):
    """A cost above the burst (or below 1). It could never be admitted, so Redis is not asked."""


class UnknownLimitError(ConfigurationError):
    """A name under which no worker and no program has announced a limit. `name` is this name, and `nearest` a known
    name with a similar spelling, or None."""

    def __init__(self, name: str, nearest: str | None) -> None:
        #: What to add to a text about the name: a question, or nothing.
        self.hint = f" Did you mean {nearest}?" if nearest else ""
        super().__init__(
            f"name={name!r}: no worker and no program has announced a limit of this name.{self.hint} "
            "(force=True, or --force, changes it all the same.)"
        )
        self.name, self.nearest = name, nearest


class KeyValueError(FleetlimitError, ValueError):
    """A key or cost could not be computed from a task's arguments. The task then fails; it is never "unlimited"."""


class StateError(FleetlimitError):
    """The data under a limit's key come from another program, or from a later version of fleetlimit. The text names the
    key."""


class StoreUnavailable(FleetlimitError):
    """The store gave no answer in time.

    `__cause__` is the client's own error. Like every `__cause__` it is lost in a pickle, but the text says the same.
    `crowded` is True if the store was not asked, because too many callers of this process ask at once."""

    def __init__(self, text: str, *, crowded: bool = False) -> None:
        super().__init__(text)
        self.crowded = crowded


class StoreRefused(StoreUnavailable):
    """The store, or TLS, refused for a reason that does not pass by itself: wrong credentials, missing permissions, an
    unknown command, or a certificate that is not trusted."""


class LimitConflictWarning(UserWarning):
    """One limit name was defined twice with different numbers."""
