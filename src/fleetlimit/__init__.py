"""One rate limit for a whole Celery fleet, kept in Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetlimit.errors import (
    ConfigurationError,
    CostError,
    FleetlimitError,
    KeyValueError,
    LimitConflictWarning,
    RateLimited,
    StateError,
    StoreRefused,
    StoreUnavailable,
    UnknownLimitError,
)
from fleetlimit.limit import RateLimit
from fleetlimit.limiter import Decision, RateLimiter

if TYPE_CHECKING:
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
    "limits_outage",
    "rate_limited",
    "task_throttled",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # also those that are imported when they are first used


def __getattr__(name: str) -> Any:
    # A program that only wants `RateLimiter` does not pay for importing Celery.
    if name in ("RateLimitedTask", "limits_outage", "rate_limited", "task_throttled"):
        import fleetlimit.celery

        return getattr(fleetlimit.celery, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
