"""One error tree: catch `FleetlimitError` for all, or the branch you can act on."""

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
    """Base of every error this library raises. Pickling keeps its text and all of its attributes, for it
    travels from a pool process to the worker."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[FleetlimitError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> FleetlimitError:
    """An error as it was, whatever its class asks for when one is made."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ConfigurationError(FleetlimitError, ValueError):
    """A wrong argument or setting; the text names it and the value that was given."""


class CostError(ConfigurationError):
    """A cost above the burst (or below 1): it could never be admitted, so Redis is not asked."""


class UnknownLimitError(ConfigurationError):
    """A name under which no worker and no program has announced a limit. `name`: what was given; `nearest`: a
    known name that is spelt like it, or None."""

    def __init__(self, name: str, nearest: str | None) -> None:
        hint = f" Did you mean {nearest}?" if nearest else ""
        super().__init__(
            f"name={name!r}: no worker and no program has announced a limit of this name.{hint} "
            "(To change it all the same: force=True, or --force.)"
        )
        self.name, self.nearest = name, nearest


class KeyValueError(FleetlimitError, ValueError):
    """A key or cost could not be computed from a task's arguments. Never read as "unlimited"."""


class StateError(FleetlimitError):
    """What is stored under a limit's key was not written by fleetlimit; the text names the key."""


class StoreUnavailable(FleetlimitError):
    """The store gave no answer in time.

    `__cause__` is the client's own error; like every `__cause__` it does not travel with a pickle, and the
    text says the same. `crowded`: the store was not asked, because too many callers of this process ask at
    once."""

    def __init__(self, text: str, *, crowded: bool = False) -> None:
        super().__init__(text)
        self.crowded = crowded


class StoreRefused(StoreUnavailable):
    """The store, or TLS, refused for a reason that does not pass by itself: wrong credentials, missing
    permissions, an unknown command, a certificate that is not trusted."""


class LimitConflictWarning(UserWarning):
    """One limit name was defined twice with different numbers."""
