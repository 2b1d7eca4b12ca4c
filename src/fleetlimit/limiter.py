"""`RateLimiter`: one limit for any Python program that can reach the same Redis."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fleetlimit.errors import ConfigurationError, RateLimited
from fleetlimit.keys import encode
from fleetlimit.limit import RateLimit
from fleetlimit.store.base import Outcome, Spend, Store
from fleetlimit.store.redis import RedisStore

__all__ = ["Decision", "Key", "RateLimiter", "merged"]

Key: TypeAlias = Any  # str | int | UUID | tuple of these; checked by `encode`
#: A limit, or a limit with the key (and cost) it is asked for.
Ask: TypeAlias = "RateLimit | tuple[RateLimit, Key] | tuple[RateLimit, Key, int]"


@dataclass(frozen=True)
class Decision:
    """The answer. True in a boolean context if and only if allowed."""

    #: Whether the units were spent.
    allowed: bool
    #: Seconds until it is worth asking again; > 0 if and only if denied.
    retry_after: float
    #: Units that may start right now after this decision, the least over all limits asked.
    remaining: int
    #: Seconds until the bucket is full again, the most over all limits asked.
    reset_after: float
    #: Tasks waiting in line, the most over all limits asked.
    waiting: int = 0

    def __bool__(self) -> bool:
        return self.allowed

    def raise_if_denied(self) -> None:
        """:raises RateLimited: carrying this decision."""
        if not self.allowed:
            raise RateLimited(self)


class RateLimiter:
    """Ask before you call. Thread- and fork-safe; make one and keep it.

    :param source: a Redis URL, a redis-py client, or a store; None reads `FLEETLIMIT_URL`.
        For a Celery app see `from_app`.
    :raises ConfigurationError: when there is no usable source.
    """

    def __init__(self, source: Any = None) -> None:
        if source is None:
            source = os.environ.get("FLEETLIMIT_URL")
            if not source:
                raise ConfigurationError("source=None, and FLEETLIMIT_URL is not set")
        self.store: Store = source if hasattr(source, "give_back") else RedisStore(source)

    @classmethod
    def from_app(cls, app: Any) -> RateLimiter:
        """The limiter that this Celery app's own tasks use."""
        from fleetlimit.celery.config import limiter_of

        return limiter_of(app)

    def acquire(self, limit: RateLimit | Sequence[Ask], key: Key = None, cost: int = 1) -> Decision:
        """Spend `cost` units, or nothing.

        :param limit: one limit, or several: then all are spent, or none. An element may be a
            limit, `(limit, key)` or `(limit, key, cost)`.
        :param key: what the limit is counted for (a tenant, an account); None: for all together.
        :param cost: units, from 1 to the limit's burst.
        :raises CostError: for a cost that can never be admitted; Redis is not asked.
        :raises KeyValueError: for a key that is no str, int, UUID or tuple of these.
        :raises StoreUnavailable: when Redis gives no answer in time. Whether the units were spent
            is then unknown; the call is never repeated.
        :raises StateError: when foreign data lies at the limit's key.
        """
        return _decision(self.store.acquire(_spends(limit, key, cost)))

    def peek(self, limit: RateLimit | Sequence[Ask], key: Key = None, cost: int = 1) -> Decision:
        """What `acquire` would answer now; spends and writes nothing. Errors as `acquire`."""
        return _decision(self.store.peek(_spends(limit, key, cost)))

    def reset(self, limit: RateLimit, key: Key = None) -> None:
        """Make the bucket full again, and drop foreign data at its keys. Tasks waiting in line
        keep their places."""
        self.store.reset(limit, "" if key is None else encode(key))

    def close(self) -> None:
        """Close the connections; the limiter may be used again."""
        self.store.close()


def merged(spends: Sequence[Spend]) -> list[Spend]:
    """One spend for each (limit, key): costs of the same one add up, and the sum must be possible.

    :raises CostError: for a sum above the burst.
    """
    by_key: dict[tuple[str, str], Spend] = {}
    for one in spends:
        one.limit.check_cost(one.cost)
        former = by_key.get((one.limit.name, one.key))
        cost = one.limit.check_cost(one.cost + (former.cost if former else 0))
        by_key[one.limit.name, one.key] = Spend(one.limit, one.key, cost)
    return list(by_key.values())


def _spends(limit: RateLimit | Sequence[Ask], key: Key, cost: int) -> list[Spend]:
    asks: Sequence[Ask] = [limit] if isinstance(limit, RateLimit) else limit
    spends = []
    for ask in asks:
        one, its_key, its_cost = ask, key, cost
        if isinstance(ask, tuple):
            one, its_key, its_cost = (*ask, cost)[:3]
        if not isinstance(one, RateLimit):
            raise ConfigurationError(f"limit={one!r:.80}: must be a RateLimit")
        spends.append(Spend(one, "" if its_key is None else encode(its_key), its_cost))
    if not spends:
        raise ConfigurationError("limit=[]: needs at least one RateLimit")
    return merged(spends)


def _decision(outcome: Outcome) -> Decision:
    return Decision(
        allowed=outcome.admitted,
        retry_after=outcome.wait_us / 1_000_000,
        remaining=min(one.remaining for one in outcome.readings),
        reset_after=max(one.reset_us for one in outcome.readings) / 1_000_000,
        waiting=max(one.waiting for one in outcome.readings),
    )
