"""One rate limit for a whole Celery fleet, kept in Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetlimit.decision import Decision, RateLimited
from fleetlimit.errors import (
    ConfigurationError,
    CostError,
    FleetlimitError,
    KeyValueError,
    LimitConflictWarning,
    StateError,
    StoreRefused,
    StoreUnavailable,
    UnknownLimitError,
)
from fleetlimit.limit import RateLimit
from fleetlimit.limiter import RateLimiter

if TYPE_CHECKING:
    __version__: str
    from fleetlimit.celery import RateLimitedTask, limits_outage, rate_limited, task_throttled

__all__ = [
    "ConfigurationError",
    "CostError",
    "Decision",
    "FleetlimitError",
    "KeyValueError",
    "LimitConflictWarning",
    "RateLimit",
    "RateLimited",
    "RateLimitedTask",
    "RateLimiter",
    "StateError",
    "StoreRefused",
    "StoreUnavailable",
    "UnknownLimitError",
    "__version__",
    "limits_outage",
    "rate_limited",
    "task_throttled",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # also those that are imported when they are first used


def __getattr__(name: str) -> Any:
    # A program that only needs `RateLimiter` does not have to import Celery.
    if name in ("RateLimitedTask", "limits_outage", "rate_limited", "task_throttled"):
        import fleetlimit.celery

        return getattr(fleetlimit.celery, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("fleetlimit")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
