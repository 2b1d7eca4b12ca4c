"""The store the fleet shares: Redis or Valkey, one atomic script call per decision.

Keys: `fleetlimit:{name}` or `fleetlimit:{name:key}` (the state), then `:line` and `:due`. The braces
keep one line in one slot of a Redis Cluster and spread the lines over its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis import RedisCluster
from redis.exceptions import RedisError, ResponseError

from fleetlimit.errors import StateError, StoreUnavailable
from fleetlimit.gcra import State, decide
from fleetlimit.limit import RateLimit
from fleetlimit.store.base import Outcome, Reading, Spend, Ticket, read
from fleetlimit.store.connection import Connection
from fleetlimit.store.scripts import script

__all__ = ["RedisStore"]

_FAST, _PER_LIMIT = 3, 6  # integers in a short reply, and for each limit in a long one


class RedisStore:
    """Thread- and fork-safe.

    :param source: a URL, a redis-py client, or a ready `Connection`.
    :param clock: for tests only: microseconds to use in place of the server's `TIME`.
    """

    def __init__(self, source: Any, *, clock: Callable[[], int] | None = None) -> None:
        self.connection = source if isinstance(source, Connection) else Connection(source)
        self._clock = clock

    def acquire(self, spends: Sequence[Spend], ticket: Ticket | None = None) -> Outcome:
        if self._cluster and len(spends) > 1:
            return self._one_by_one(spends, ticket)
        return self._ask(spends, ticket)

    def peek(self, spends: Sequence[Spend]) -> Outcome:
        if self._cluster:
            return _merged([self._ask([one], None, look_only=True) for one in spends])
        return self._ask(spends, None, look_only=True)

    def give_back(self, spend: Spend, reading: Reading) -> bool:
        if reading.spent is None:
            return False
        former = reading.former or State(0)
        args = [reading.spent.tat_us, reading.spent.tat_ticks]
        args += [former.tat_us, former.tat_ticks, former.ahead_us]
        keys = _keys(spend.limit, spend.key)
        return bool(self._run("give_back", keys[:1], [self._now(), *args]))

    def delay(self, spends: Sequence[Spend], late_us: int) -> None:
        together = [[one] for one in spends] if self._cluster else [spends]
        for group in together:
            args: list[str | int] = [self._now()]
            for one in group:
                args += [late_us, one.limit.rule.ticks_per_us, one.limit.rule.capacity]
            self._run("delay", [_keys(one.limit, one.key)[0] for one in group], args)

    def reset(self, limit: RateLimit, key: str = "") -> None:
        self._run("reset", _keys(limit, key), [])

    def close(self) -> None:
        self.connection.close()

    @property
    def _cluster(self) -> bool:
        return isinstance(self.connection.client, RedisCluster)

    def _now(self) -> str | int:
        return "" if self._clock is None else self._clock()

    def _run(self, name: str, keys: list[str], args: Sequence[str | int]) -> Any:
        with _translated(keys):
            return script(name)(self.connection.client, keys, args)

    def _ask(
        self, spends: Sequence[Spend], ticket: Ticket | None, *, look_only: bool = False
    ) -> Outcome:
        keys = [key for one in spends for key in _keys(one.limit, one.key)]
        args: list[str | int] = [self._now(), int(look_only), *_ticket_args(ticket)]
        for one in spends:
            rule = one.limit.rule
            args += [rule.emission, rule.ticks_per_us, rule.capacity, one.cost]
        return _outcome(self._run("acquire", keys, args), spends, spent=not look_only)

    def _one_by_one(self, spends: Sequence[Spend], ticket: Ticket | None) -> Outcome:
        """Where keys live in different slots: one after the other, and what was taken is given
        back on a later denial. Nobody sleeps ahead here: the first limit's unit would start later
        than it was booked for."""
        if ticket:
            ticket = Ticket(
                ticket.id, ticket.first_seen_us, 0, ticket.horizon_us, ticket.grace_us,
                ticket.expires_in_us,
            )  # fmt: skip
        taken: list[Outcome] = []
        for one in spends:
            outcome = self._ask([one], ticket)
            if not outcome.admitted:
                for done, spend in zip(taken, spends, strict=False):
                    self.give_back(spend, done.readings[0])
                return _merged([*taken, outcome])
            taken.append(outcome)
        return _merged(taken)


def _keys(limit: RateLimit, key: str) -> list[str]:
    tag = f"{limit.name}:{key}" if key else limit.name
    return [f"fleetlimit:{{{tag}}}{suffix}" for suffix in ("", ":line", ":due")]


def _ticket_args(ticket: Ticket | None) -> list[str | int]:
    if ticket is None:
        return ["", 0, 0, 0, 0, -1]
    expires = -1 if ticket.expires_in_us is None else max(0, ticket.expires_in_us)
    return [
        ticket.id, ticket.first_seen_us, ticket.max_sleep_us, ticket.horizon_us, ticket.grace_us,
        expires,
    ]  # fmt: skip


def _outcome(reply: list[int], spends: Sequence[Spend], *, spent: bool) -> Outcome:
    if len(reply) == _FAST:
        admitted, now, tat = reply
        former = State(tat) if tat else None
        verdict = decide(former, now, spends[0].limit.rule, spends[0].cost)
        reading = read(
            spends[0], now, former, sleep_us=0 if admitted else None, wait_us=verdict.wait_us
        )
        return Outcome(bool(admitted), verdict.wait_us, 0, 0, False, now, (reading,))
    answer, pause, now, first_seen = reply[:4]
    sleep = pause if answer == 1 and spent else None
    rows = (reply[at : at + _PER_LIMIT] for at in range(4, len(reply), _PER_LIMIT))
    readings = []
    for one, (wait, rank, waiting, *found) in zip(spends, rows, strict=True):
        former = State(*found) if found[0] else None
        readings.append(
            read(one, now, former, sleep_us=sleep, wait_us=wait, rank=rank, waiting=waiting)
        )
    return Outcome(
        admitted=answer == 1,
        wait_us=0 if answer == 1 else pause,
        sleep_us=sleep or 0,
        first_seen_us=first_seen,
        expires=answer == -1,
        now_us=now,
        readings=tuple(readings),
    )


def _merged(outcomes: list[Outcome]) -> Outcome:
    last = outcomes[-1]
    return Outcome(
        admitted=all(one.admitted for one in outcomes),
        wait_us=max(one.wait_us for one in outcomes),
        sleep_us=0,
        first_seen_us=last.first_seen_us,
        expires=any(one.expires for one in outcomes),
        now_us=last.now_us,
        readings=tuple(reading for one in outcomes for reading in one.readings),
    )


@contextmanager
def _translated(keys: Sequence[str]) -> Iterator[None]:
    """The one place where the client's errors become ours."""
    try:
        yield
    except ResponseError as error:
        text = str(error)
        if "FLEETLIMIT" in text or "WRONGTYPE" in text:
            raise StateError(f"foreign data at {', '.join(keys)}: {text}") from error
        raise StoreUnavailable(f"Redis refused: {text}") from error
    except RedisError as error:
        raise StoreUnavailable(f"no answer from Redis: {error}") from error
