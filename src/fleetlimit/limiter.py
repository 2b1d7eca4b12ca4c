"""`RateLimiter`: one limit for any Python program that can reach the same Redis."""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from fleetlimit import standin
from fleetlimit.decision import Decision
from fleetlimit.errors import ConfigurationError, FleetlimitError
from fleetlimit.keys import encode
from fleetlimit.limit import RateLimit, checked_policy, checked_processes, rules_of
from fleetlimit.store.base import Outcome, Spend, Store
from fleetlimit.store.guard import Guard, Health
from fleetlimit.store.names import Noted, algorithm_in_use, announce, check_known
from fleetlimit.store.parked import Quarantined, Status
from fleetlimit.store.redis import RedisStore
from fleetlimit.store.room import Room
from fleetlimit.store.urls import checked_url

__all__ = ["Key", "RateLimiter", "merged", "redis_store"]

logger = logging.getLogger("fleetlimit")

Key: TypeAlias = Any  # str | int | UUID | tuple of these; checked by `encode`
#: A limit, or a limit with a key (and a cost).
Ask: TypeAlias = "RateLimit | tuple[RateLimit, Key] | tuple[RateLimit, Key, int]"


class RateLimiter:
    """Ask a limiter before you call the API. It is thread- and fork-safe. Make one limiter and keep it.

    :param source: a Redis URL, a redis-py client, or a store. None reads `FLEETLIMIT_URL`. For a Celery app, use
        `from_app`.
    :param on_outage: the policy while Redis is away, for limits that have none of their own: `"raise"`, the default
        (`StoreUnavailable`), `"share"` (this process decides from memory, at limit / `processes`), `"wait"` (denied,
        for 5 to 15 s) or `"open"` (admitted).
    :param processes: how many processes share the limits: a number, or a callable. `"share"` needs it.
    :param on_change: is called with (away, cause) when Redis stops answering and when it answers again.
    :param client_time: use this host's clock instead of Redis's, for a managed service that refuses `TIME` in scripts.
        The clocks of all hosts must then agree, because every difference uses up a part of the limit's `margin`.
    :param key_prefix: a text before the name of every key, so that two environments in one database have limits of
        their own. None reads `FLEETLIMIT_KEY_PREFIX`; by default there is no prefix.
    :raises ConfigurationError: if there is no usable source. Also if `source` is a store, for arguments that would do
        nothing: `client_time`, `key_prefix`, and (unless it is a `RedisStore`) the arguments about outages.
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
        """The store that decides."""
        return standin.current.store if standin.current else self._store

    @classmethod
    def from_app(cls, app: Any) -> RateLimiter:
        """The limiter that this Celery app's own tasks use."""
        # By name: a limiter does not depend on Celery, but Celery's part of fleetlimit on limiters.
        found: RateLimiter = importlib.import_module("fleetlimit.celery").limiter_of(app)
        return found

    def acquire(self, limit: RateLimit | Sequence[Ask], key: Key = None, cost: int = 1) -> Decision:
        """Spend `cost` units, or nothing. The caller gets no place in the line: while Celery tasks wait there, it is
        hardly ever admitted, and `retry_after` is the time until all of them have started.

        :param limit: one limit, or several of which all are spent or none. An element may be a limit, `(limit, key)`
            or `(limit, key, cost)`.
        :param key: what the limit is counted for (for instance a tenant or an account); None: one count for all.
        :param cost: the number of units, from 1 to the most that may start at one instant (`RateLimit.most`).
        :raises CostError: for a cost that can never be admitted. Redis is not asked then.
        :raises KeyValueError: for a key that is no str, int, UUID or tuple of these.
        :raises StoreUnavailable: if Redis does not answer in time. It is then not known whether the units were spent.
            The call is never repeated.
        :raises StateError: if foreign data lies at the limit's key.
        """
        spends = _spends(limit, key, cost)
        outcome = self.store.acquire(spends)
        if not outcome.alone and (new := self._noted.due(spends)):
            self._announce(new)
        return _decision(outcome)

    def peek(self, limit: RateLimit | Sequence[Ask], key: Key = None, cost: int = 1) -> Decision:
        """What `acquire` would answer now. It spends and writes nothing, and raises the same errors as `acquire`."""
        return _decision(self.store.peek(_spends(limit, key, cost)))

    def reset(self, name: RateLimit | str, key: Key = None, *, force: bool = False) -> None:
        """Make the whole limit available again, and drop foreign data at its keys. Tasks in line keep their places.

        :raises UnknownLimitError: for a limit that is not in use (see `configure`), without `force`.
        """
        name = _name_of(name)
        self._known(name, force)
        self.store.reset(name, _encoded(key))

    def configure(
        self,
        name: RateLimit | str,
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
        """Change a limit's numbers for the whole fleet, at once and until the next change, without a deploy. Tasks that
        already wait go at the new pace. With only a name, the numbers in the code apply again.

        :param name: a limit, or its name.
        :param per: the period; it is needed with `limit`.
        :param algorithm: None keeps the algorithm in the code. Another algorithm starts the count anew.
        :param burst, margin, offset, tz: as in `RateLimit`. The values in the code are not taken over. With `tz` the
            numbers know the next change of that zone's clocks, at most a year ahead; set them again after that change.
        :param force: change the limit even if no worker and no program has announced it.
        :raises ConfigurationError: as `RateLimit`; also for numbers that the limit's own algorithm cannot take, and
            for numbers without `limit`. Nothing is changed then.
        :raises UnknownLimitError: for a limit that is not in use: no worker and no program has announced it in the
            last seven days, and nothing is stored for it. (Only Redis knows names. With a store of another kind every
            name is accepted.)
        """
        said: dict[str, Any] = {"limit": limit, "per": per, "burst": burst, "margin": margin}
        said |= {"algorithm": algorithm, "offset": offset, "tz": tz}
        given = {part: value for part, value in said.items() if value is not None}
        if limit is None and given:
            listed = ", ".join(f"{part}={value!r}" for part, value in given.items())
            raise ConfigurationError(f"{listed} without limit: also give the units per period")
        name = _name_of(name)
        own = self._known(name, force)
        self._change(name, rules=rules_of(name, own, given) if given else ())

    def pause(self, name: RateLimit | str, seconds: float, *, force: bool = False) -> float:
        """Close a limit for all its keys: no task starts and no parked task is let go for so many seconds. A pause that
        already lasts longer is not shortened.

        :param force: do it even if this shortens a longer pause, or if nobody has announced this limit.
        :returns: for how many seconds the limit is closed now.
        :raises ConfigurationError: for `seconds` that are not a number above 0, at most 10**9.
        :raises UnknownLimitError: for a limit that is not in use (see `configure`), without `force`.
        """
        number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not number or not 0 < seconds <= 10**9:
            raise ConfigurationError(
                f"seconds={seconds!r}: must be a number above 0, at most {10**9}"
            )
        name = _name_of(name)
        self._known(name, force)
        return self._change(name, pause_us=max(1, round(seconds * 1e6)), forced=force)

    def resume(self, name: RateLimit | str, *, force: bool = False) -> None:
        """End a pause.

        :raises UnknownLimitError: for a limit that is not in use (see `configure`), without `force`.
        """
        name = _name_of(name)
        self._known(name, force)
        self._change(name, pause_us=0)

    def _change(self, name: str, **change: Any) -> float:
        """Change the limit's override.

        :return: for how many seconds the limit is paused then.
        """
        found, now_us = self.store.change_override(name, **change)
        if inner := redis_store(self.store):
            Room(inner).wake(name)
        return max(0, found.pause_until_us - now_us) / 1e6

    def _known(self, name: str, force: bool) -> str | None:
        """The algorithm of a limit in the code; None if it is not known.

        :raises UnknownLimitError: for a limit that is not in use, without `force`.
        """
        inner = redis_store(self.store)
        algorithm = algorithm_in_use(inner, name) if inner else None
        if inner and not algorithm and not force:
            check_known(inner, name)
        return algorithm or self._noted.algorithm(name)

    def _announce(self, algorithms: dict[str, str]) -> None:
        """Announce limits that this process uses. This comes after a decision, and an error does not make it fail."""
        if inner := redis_store(self.store):
            try:
                announce(inner, algorithms)
            except FleetlimitError as error:
                logger.debug("rate limits: could not be announced: %s", error)
                self._noted.failed(algorithms)

    def status(self, name: RateLimit | str, key: Key = None) -> Status:
        """How many tasks wait under a key, how many of them are parked, since when, and when the next is due."""
        return self._room().status(_name_of(name), _encoded(key))

    def cancel_all(self, name: RateLimit | str, key: Key = None) -> int:
        """Take all tasks of a key out of the waiting room for good.

        :return: how many will not run. (Tasks that are being let go at this moment may run.)
        """
        return self._room().cancel_all(_name_of(name), _encoded(key))[0]

    def quarantined(self, name: RateLimit | str, key: Key = None) -> list[Quarantined]:
        """The messages in quarantine, each with the reason."""
        return self._room().quarantined(_name_of(name), _encoded(key))

    def retry(self, name: RateLimit | str, id: str, key: Key = None) -> bool:
        """Try a message in quarantine again.

        :return: whether the message was there.
        """
        return self._room().recover(_name_of(name), id, _encoded(key))

    def drop(self, name: RateLimit | str, id: str, key: Key = None) -> bool:
        """Forget a message in quarantine for good.

        :return: whether the message was there.
        """
        return self._room().recover(_name_of(name), id, _encoded(key), drop=True)

    def parked(self, name: RateLimit | str, key: Key = None, most: int = 100) -> list[str]:
        """The ids of the tasks in the waiting room, in the order of the line."""
        return self._room().parked(_name_of(name), _encoded(key), most)

    def cancel(self, name: RateLimit | str, id: str, key: Key = None) -> bool:
        """Take a task out of the waiting room for good.

        :return: True if the task will not run; False if it is not there (any more), or is being let go at this moment.
        """
        if not isinstance(id, str):
            raise ConfigurationError(f"id={id!r:.80}: must be a task's id")
        return self._room().cancel(_name_of(name), id, _encoded(key))

    def _room(self) -> Room:
        inner = redis_store(self.store)
        if not inner:
            raise ConfigurationError("this limiter has no waiting room: its store is not Redis")
        return Room(inner)

    def health(self) -> Health | None:
        """Whether Redis is away, and the numbers of decisions without it in this process. None for a store that is not
        in Redis."""
        return self.store.health if isinstance(self.store, Guard) else None

    def close(self) -> None:
        """Close the connections. The limiter may be used again."""
        self.store.close()


def is_custom(source: Any) -> bool:
    """Whether `source` is a store that is not in Redis."""
    return hasattr(source, "give_back") and not isinstance(source, RedisStore)


def _refuse(store: Any, **arguments: Any) -> None:
    """:raises ConfigurationError: for arguments that were given and would do nothing."""
    for name, value in arguments.items():
        if value is not None:
            raise ConfigurationError(
                f"{name}={value!r}: has no effect on a ready {type(store).__name__}, which is used as it is"
            )


def _redis_store(source: Any, client_time: bool, key_prefix: str | None) -> RedisStore:
    if key_prefix is None:
        key_prefix = os.environ.get("FLEETLIMIT_KEY_PREFIX", "")
    if not client_time:
        return RedisStore(source, key_prefix=key_prefix)
    logger.warning("rate limits use this host's clock: keep all hosts' clocks together (NTP)")
    return RedisStore(source, clock=lambda: time.time_ns() // 1000, key_prefix=key_prefix)


def redis_store(store: Store) -> RedisStore | None:
    """The store in Redis behind a limiter's store; None if it is not in Redis."""
    inner = store.inner if isinstance(store, Guard) else store
    return inner if isinstance(inner, RedisStore) else None


def _name_of(limit: RateLimit | str) -> str:
    """The name of a limit, or that name itself.

    :raises ConfigurationError: for a name that no limit can have.
    """
    return limit.name if isinstance(limit, RateLimit) else RateLimit(limit, 1, 1).name


def _encoded(key: Key) -> str:
    return "" if key is None else encode(key)


def merged(spends: Sequence[Spend]) -> list[Spend]:
    """One spend for each limit and key. Costs under the same limit and key add up, and the sum must be possible.

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
        # A decision that was made without the store has no readings.
        remaining=min((one.remaining for one in outcome.readings), default=0),
        reset_after=max(outcome.wait_us, *(one.reset_us for one in outcome.readings), 0)
        / 1_000_000,
        waiting=max((one.waiting for one in outcome.readings), default=0),
    )
