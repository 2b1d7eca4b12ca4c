"""`RateLimiter`: one limit for any Python program that can reach the same Redis."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from fleetlimit import standin
from fleetlimit.errors import ConfigurationError, FleetlimitError, RateLimited
from fleetlimit.keys import encode
from fleetlimit.limit import RateLimit, checked_policy, checked_processes, rules_of
from fleetlimit.store.base import Outcome, Spend, Store
from fleetlimit.store.guard import Guard, Health
from fleetlimit.store.names import Noted, algorithm_in_use, announce, check_known
from fleetlimit.store.parked import Quarantined, Status
from fleetlimit.store.redis import RedisStore
from fleetlimit.store.room import Room
from fleetlimit.store.urls import checked_url

__all__ = ["Decision", "Key", "RateLimiter", "merged", "redis_store"]

logger = logging.getLogger("fleetlimit")

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
    #: Seconds until `remaining` is as large as it can be again, if nothing more is spent; never less than
    #: `retry_after`, and the most over all limits asked. `X-RateLimit-Reset` says the same (docs/algorithms.md
    #: has it for each algorithm): until the bucket is full, the window ends, the newest start of the log
    #: has run out, or the next window of the counter ends.
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
    :param on_outage: what limits that do not say it themselves do while Redis is away: `"raise"`, the default
        (`StoreUnavailable`), `"share"` (this process decides from memory, at limit / `processes`),
        `"wait"` (denied, for 5 to 15 s) or `"open"` (admitted).
    :param processes: how many processes share the limits; needed for `"share"`. A number, or a
        callable.
    :param on_change: called with (away, cause) when Redis goes away and when it is back.
    :param client_time: use this host's clock in place of Redis's, for a managed service that refuses
        `TIME` in scripts. All hosts' clocks must then agree: what they differ is added to what the
        limit's `margin` must hold.
    :param key_prefix: stands before the name of every key, so that two environments in one database
        have limits of their own; None reads `FLEETLIMIT_KEY_PREFIX`, and by default there is none.
    :raises ConfigurationError: when there is no usable source; and for what is said beside a ready store and
        would do nothing: `client_time`, `key_prefix`, and if it is not a `RedisStore` all that concerns outages.
    """

    def __init__(
        self,
        source: Any = None,
        *,
        on_outage: str | None = None,
        processes: int | Callable[[], int | None] | None = None,
        on_change: Callable[[bool, BaseException | None], None] | None = None,
        client_time: bool = False,
        key_prefix: str | None = None,
    ) -> None:
        self._noted = Noted()
        policy = "raise" if on_outage is None else checked_policy(on_outage)
        if not callable(processes):
            checked_processes("processes", processes)
        if source is None and standin.current:
            self._store: Store = standin.current.store
            return
        if source is None:
            source = os.environ.get("FLEETLIMIT_URL")
            if not source:
                raise ConfigurationError("source=None, and FLEETLIMIT_URL is not set")
            checked_url("FLEETLIMIT_URL", source)
        if hasattr(source, "give_back"):
            _refuse(source, client_time=client_time or None, key_prefix=key_prefix)
        if is_custom(source):
            said = None if policy == "raise" else policy
            _refuse(source, on_outage=said, processes=processes, on_change=on_change)
            self._store = source
            return
        known = processes if callable(processes) else lambda: processes
        self._store = Guard(
            source
            if isinstance(source, RedisStore)
            else _redis_store(source, client_time, key_prefix),
            policy,
            known,
            on_change or (lambda away, cause: None),
        )

    @property
    def store(self) -> Store:
        """What decides."""
        return standin.current.store if standin.current else self._store

    @classmethod
    def from_app(cls, app: Any) -> RateLimiter:
        """The limiter that this Celery app's own tasks use."""
        from fleetlimit.celery.config import limiter_of

        return limiter_of(app)

    def acquire(self, limit: RateLimit | Sequence[Ask], key: Key = None, cost: int = 1) -> Decision:
        """Spend `cost` units, or nothing. The caller gets no place in the line: while Celery tasks wait there, it is
        hardly ever admitted, and `retry_after` is the time until all of them have started.

        :param limit: one limit, or several: then all are spent, or none. An element may be a
            limit, `(limit, key)` or `(limit, key, cost)`.
        :param key: what the limit is counted for (a tenant, an account); None: for all together.
        :param cost: units, from 1 to the most that may start at one instant (`RateLimit.most`).
        :raises CostError: for a cost that can never be admitted; Redis is not asked.
        :raises KeyValueError: for a key that is no str, int, UUID or tuple of these.
        :raises StoreUnavailable: when Redis gives no answer in time. Whether the units were spent
            is then unknown; the call is never repeated.
        :raises StateError: when foreign data lies at the limit's key.
        """
        spends = _spends(limit, key, cost)
        outcome = self.store.acquire(spends)
        if not outcome.alone and (new := self._noted.due(spends)):
            self._announce(new)
        return _decision(outcome)

    def peek(self, limit: RateLimit | Sequence[Ask], key: Key = None, cost: int = 1) -> Decision:
        """What `acquire` would answer now; spends and writes nothing. Errors as `acquire`."""
        return _decision(self.store.peek(_spends(limit, key, cost)))

    def reset(self, limit: RateLimit, key: Key = None, *, force: bool = False) -> None:
        """Make the bucket full again, and drop foreign data at its keys. Tasks waiting in line
        keep their places.

        :raises UnknownLimitError: for a limit that is not in use (see `configure`), without `force`.
        """
        if not isinstance(limit, RateLimit):
            raise ConfigurationError(f"limit={limit!r:.80}: must be a RateLimit")
        self._known(limit.name, force)
        self.store.reset(limit, _encoded(key))

    def configure(
        self,
        name: str,
        limit: int | None = None,
        per: float | timedelta | None = None,
        *,
        burst: int | None = None,
        margin: float | str | None = None,
        algorithm: str | None = None,
        offset: float | timedelta | None = None,
        tz: str | None = None,
        force: bool = False,
    ) -> None:
        """Change a limit's numbers for the whole fleet, at once and until changed again, without a
        deploy; tasks that wait already go at the new pace. With nothing but a name the numbers in the
        code are in force again.

        :param per: needed with `limit`.
        :param algorithm: None: the code's own; another one starts the count anew.
        :param burst, margin, offset, tz: as `RateLimit`; what the code says of them is not taken over. `tz`
            holds for the next change of that zone's clocks, up to a year ahead: then say it again.
        :param force: also for a limit that no worker and no program has announced.
        :raises ConfigurationError: as `RateLimit`; also for numbers that the limit's own algorithm cannot
            take, and for any of them without `limit`. Nothing is changed then.
        :raises UnknownLimitError: for a limit that is not in use: no worker and no program announced it in
            the last seven days, and nothing is stored of it. (Known in Redis only: with a store of another
            kind every name is taken.)
        """
        said: dict[str, Any] = {"limit": limit, "per": per, "burst": burst, "margin": margin}
        said |= {"algorithm": algorithm, "offset": offset, "tz": tz}
        given = {part: value for part, value in said.items() if value is not None}
        if limit is None and given:
            listed = ", ".join(f"{part}={value!r}" for part, value in given.items())
            raise ConfigurationError(f"{listed} without limit: say how many units per period, too")
        own = self._known(name, force)
        self._change(name, rules=rules_of(name, own, given) if given else ())

    def pause(self, name: str, seconds: float, *, force: bool = False) -> float:
        """Close a limit, for all keys: nothing starts and nothing is let go until then. A pause that
        lasts longer already goes on.

        :param force: also shorten a longer pause, and pause a limit that nobody has announced.
        :returns: for how many seconds the limit is closed now.
        :raises ConfigurationError: for `seconds` that are not a number above 0, at most 10**9.
        :raises UnknownLimitError: for a limit that is not in use (see `configure`), without `force`.
        """
        number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not number or not 0 < seconds <= 10**9:
            raise ConfigurationError(
                f"seconds={seconds!r}: must be a number above 0, at most {10**9}"
            )
        self._known(name, force)
        return self._change(name, pause_us=max(1, round(seconds * 1e6)), forced=force)

    def resume(self, name: str, *, force: bool = False) -> None:
        """End a pause.

        :raises UnknownLimitError: for a limit that is not in use (see `configure`), without `force`.
        """
        self._known(name, force)
        self._change(name, pause_us=0)

    def _change(self, name: str, **change: Any) -> float:
        """Change what is in force; for how many seconds the limit is paused then."""
        found, now_us = self.store.change_override(name, **change)
        if inner := redis_store(self.store):
            Room(inner).wake(name)
        return max(0, found.pause_until_us - now_us) / 1e6

    def _known(self, name: str, force: bool) -> str | None:
        """The algorithm of a limit as the code has it; None where it is not known.

        :raises UnknownLimitError: for a limit that is not in use, without `force`.
        """
        _check_name(name)
        inner = redis_store(self.store)
        algorithm = algorithm_in_use(inner, name) if inner else None
        if inner and not algorithm and not force:
            check_known(inner, name)
        return algorithm or self._noted.algorithm(name)

    def _announce(self, algorithms: dict[str, str]) -> None:
        """Let the fleet know of limits that this process uses. It comes after a decision, and fails none."""
        if inner := redis_store(self.store):
            try:
                announce(inner, algorithms)
            except FleetlimitError as error:
                logger.debug("rate limits: not announced: %s", error)
                self._noted.failed(algorithms)

    def status(self, name: str, key: Key = None) -> Status:
        """How many wait under a key, how many of them in the waiting room, since when, until when."""
        return self._room(name).status(name, _encoded(key))

    def cancel_all(self, name: str, key: Key = None) -> int:
        """Take all tasks of a key out of the waiting room, for good; how many will not run. (One that is being let go
        at this moment may.)"""
        return self._room(name).cancel_all(name, _encoded(key))[0]

    def quarantined(self, name: str, key: Key = None) -> list[Quarantined]:
        """Parked messages that could not be let go, each with the reason."""
        return self._room(name).quarantined(name, _encoded(key))

    def retry(self, name: str, id: str, key: Key = None) -> bool:
        """Try a message in quarantine again; whether it was there."""
        return self._room(name).recover(name, id, _encoded(key))

    def drop(self, name: str, id: str, key: Key = None) -> bool:
        """Forget a message in quarantine, for good; whether it was there."""
        return self._room(name).recover(name, id, _encoded(key), drop=True)

    def parked(self, name: str, key: Key = None, most: int = 100) -> list[str]:
        """Ids of the tasks in the waiting room, the first in line first."""
        return self._room(name).parked(name, _encoded(key), most)

    def cancel(self, name: str, id: str, key: Key = None) -> bool:
        """Take a task out of the waiting room: if True, it will not run. False if it is not there (any more), or is
        just being let go."""
        if not isinstance(id, str):
            raise ConfigurationError(f"id={id!r:.80}: must be a task's id")
        return self._room(name).cancel(name, id, _encoded(key))

    def _room(self, name: str) -> Room:
        _check_name(name)
        inner = redis_store(self.store)
        if not inner:
            raise ConfigurationError("this limiter has no waiting room: its store is not Redis")
        return Room(inner)

    def health(self) -> Health | None:
        """Whether Redis is away, and what was decided without it in this process; None for a store
        that cannot be away."""
        return self.store.health if isinstance(self.store, Guard) else None

    def close(self) -> None:
        """Close the connections; the limiter may be used again."""
        self.store.close()


def is_custom(source: Any) -> bool:
    """Whether it is a store, and one that is not Redis."""
    return hasattr(source, "give_back") and not isinstance(source, RedisStore)


def _refuse(store: Any, **arguments: Any) -> None:
    """:raises ConfigurationError: for what was said and would do nothing."""
    for name, value in arguments.items():
        if value is not None:
            raise ConfigurationError(
                f"{name}={value!r}: has no effect on a ready {type(store).__name__}, which is asked as it is"
            )


def _redis_store(source: Any, client_time: bool, key_prefix: str | None) -> RedisStore:
    if key_prefix is None:
        key_prefix = os.environ.get("FLEETLIMIT_KEY_PREFIX", "")
    if not client_time:
        return RedisStore(source, key_prefix=key_prefix)
    logger.warning("rate limits use this host's clock: keep all hosts' clocks together (NTP)")
    return RedisStore(source, clock=lambda: time.time_ns() // 1000, key_prefix=key_prefix)


def redis_store(store: Store) -> RedisStore | None:
    """The store in Redis that a limiter uses, if it is one."""
    inner = store.inner if isinstance(store, Guard) else store
    return inner if isinstance(inner, RedisStore) else None


def _check_name(name: str) -> None:
    """:raises ConfigurationError: for what can be no limit's name."""
    RateLimit(name, 1, 1)


def _encoded(key: Key) -> str:
    return "" if key is None else encode(key)


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
    if not isinstance(asks, (list, tuple)):
        raise ConfigurationError(f"limit={limit!r:.80}: must be a RateLimit, or a list of them")
    spends = []
    for ask in asks:
        one, its_key, its_cost = ask, key, cost
        if isinstance(ask, tuple) and len(ask) in (2, 3):
            one, its_key, its_cost = (*ask, cost)[:3]
        if not isinstance(one, RateLimit):
            raise ConfigurationError(
                f"limit={one!r:.80}: must be a RateLimit, (limit, key) or (limit, key, cost)"
            )
        spends.append(Spend(one, _encoded(its_key), its_cost))
    if not spends:
        raise ConfigurationError("limit=[]: needs at least one RateLimit")
    return merged(spends)


def _decision(outcome: Outcome) -> Decision:
    return Decision(
        allowed=outcome.admitted,
        retry_after=outcome.wait_us / 1_000_000,
        # Decided without the store there are no readings.
        remaining=min((one.remaining for one in outcome.readings), default=0),
        reset_after=max(outcome.wait_us, *(one.reset_us for one in outcome.readings), 0)
        / 1_000_000,
        waiting=max((one.waiting for one in outcome.readings), default=0),
    )
