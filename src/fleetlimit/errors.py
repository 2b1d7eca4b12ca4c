"""One error tree: catch `FleetlimitError` for all, or the branch you can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetlimit.limiter import Decision

__all__ = [
    "ConfigurationError",
    "CostError",
    "FleetlimitError",
    "KeyValueError",
    "LimitConflictWarning",
    "RateLimited",
    "StateError",
    "StoreRefused",
    "StoreUnavailable",
]


class FleetlimitError(Exception):
    """Base of every error this library raises."""


class ConfigurationError(FleetlimitError, ValueError):
    """A wrong argument or setting; the text names it and the value that was given."""


class CostError(ConfigurationError):
    """A cost above the burst (or below 1): it could never be admitted, so Redis is not asked."""


class KeyValueError(FleetlimitError, ValueError):
    """A key or cost could not be computed from a task's arguments. Never read as "unlimited"."""


class StateError(FleetlimitError):
    """What is stored under a limit's key was not written by fleetlimit; the text names the key."""


class StoreUnavailable(FleetlimitError):
    """The store gave no answer in time. `__cause__` is the client's own error. `crowded`: it was not asked,
    for too many of this process ask at once."""

    def __init__(self, text: str, *, crowded: bool = False) -> None:
        super().__init__(text)
        self.crowded = crowded

    def __reduce__(self) -> tuple[type[StoreUnavailable], tuple[str]]:
        return type(self), (str(self),)


class StoreRefused(StoreUnavailable):
    """The store, or TLS, refused for a reason that does not pass by itself: wrong credentials, missing
    permissions, an unknown command, a certificate that is not trusted."""


class RateLimited(FleetlimitError):
    """A denial, for callers who prefer an exception (`Decision.raise_if_denied`)."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(f"denied; try again in {decision.retry_after:.3f} s")
        self.decision = decision

    def __reduce__(self) -> tuple[type[RateLimited], tuple[Decision]]:
        return type(self), (self.decision,)  # it travels from a pool process to the worker


class LimitConflictWarning(UserWarning):
    """One limit name was defined twice with different numbers."""
