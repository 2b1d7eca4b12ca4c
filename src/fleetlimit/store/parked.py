"""Reads the waiting rooms of a store without changing them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fleetlimit.store.failures import translated
from fleetlimit.store.keyspace import is_broker, is_state, raw, text
from fleetlimit.store.redis import RedisStore
from fleetlimit.store.shared import REFUSED

__all__ = [
    "Lane",
    "Orphan",
    "Quarantined",
    "Status",
    "known_brokers",
    "lanes_of",
    "live_workers",
    "parked_lines",
    "parked_tickets",
    "quarantine",
]

#: How many tickets one call reads.
_CHUNK = 1_000
#: How many lines one round trip reads.
_BITE = 100


@dataclass(frozen=True)
class Status:
    """The tasks that wait under one key."""

    #: The number of tasks in the line, parked or not.
    waiting: int
    #: The number of these tasks that are parked.
    parked: int
    #: Seconds since the first task in line was first denied; None if no task waits.
    oldest: float | None
    #: Seconds until the next parked task is let go; None if no task is parked.
    next_due: float | None
    #: Seconds until a pause ends; 0 if there is none.
    paused: float
    #: The number of messages in quarantine. They do not stand in the line.
    quarantined: int = 0
    #: The margin in force for limits with an automatic margin, as a share of the period.
    margin: float = 0.01
    #: The seconds between two units under numbers that were set with `configure`; None if the numbers in the code
    #: apply.
    configured: float | None = None


@dataclass(frozen=True)
class Orphan:
    """A broker with parked tasks and no worker that lets them go."""

    broker: str
    lines: int
    parked: int


@dataclass(frozen=True)
class Quarantined:
    """A message in quarantine: the task's id, the reason, and since when it lies there (seconds since the epoch)."""

    id: str
    error: str
    at: float


def known_brokers(store: RedisStore) -> dict[str, int]:
    """Every broker for which tasks are or were parked, and until when workers serve it (in microseconds of the store's
    clock)."""
    with translated([store.keys.brokers]):
        found = store.connection.client.zrange(store.keys.brokers, 0, -1, withscores=True)
    known = {text(broker): int(min(until, 2**53)) for broker, until in found}
    return {broker: until for broker, until in known.items() if is_broker(broker)}


def parked_lines(store: RedisStore, brokers: Iterable[str]) -> list[str]:
    """The lines (their state keys) in the indexes of these brokers' rooms, the next due first."""
    due: dict[str, float] = {}
    for broker in brokers:
        index = store.keys.rooms(broker)
        with translated([index]):
            for line, at in store.connection.client.zrange(index, 0, -1, withscores=True):
                if is_state(text(line)):
                    due[text(line)] = min(at, due.get(text(line), at))
    return sorted(due, key=lambda line: (due[line], line))


class Lane(NamedTuple):
    """The tasks of one queue in one line: how many are parked, since when no worker takes them (0: a worker does), for
    which broker, and the queue."""

    parked: int
    gone: int
    broker: str
    queue: str


def lanes_of(store: RedisStore, lines: Sequence[str], broker: str) -> list[Lane]:
    """The lanes of a broker in these lines. (Tasks of other brokers may stand in the same lines.)"""
    hashes = [("HGETALL", store.keys.room(line, store.is_cluster)[3]) for line in lines]
    with translated([store.keys.brokers]):
        bites = [hashes[at : at + _BITE] for at in range(0, len(hashes), _BITE)]
        replies = [reply for bite in bites for reply in store.connection.call_many(bite)]
    lanes = (_lane(text(value)) for reply in replies for value in _values(reply))
    return [lane for lane in lanes if lane and lane.broker == broker]


def _values(reply: Any) -> Iterable[Any]:
    """The values of a hash, from a reply in either protocol; none for foreign data."""
    if isinstance(reply, Exception):
        return ()
    return reply.values() if isinstance(reply, Mapping) else reply[1::2]


def _lane(value: str) -> Lane | None:
    """Read a stored lane (see `lua/line.lua`); None if another version wrote it."""
    form, *parts = value.split(":", 8)
    if form != "1" or len(parts) != 8 or not all(map(str.isdecimal, parts[1:3])):
        return None
    gone = int(parts[2])
    return Lane(int(parts[1]), 0 if gone == REFUSED else gone, parts[6], parts[7])


def quarantine(store: RedisStore) -> dict[str, int]:
    """The lines with messages in quarantine, and how many these are. A line whose messages were all tried again or
    dropped is removed from the index."""
    with translated([store.keys.quarantine]):
        client = store.connection.client
        lines = [text(line) for line in client.zrange(store.keys.quarantine, 0, -1)]
        number = {line: client.hlen(store.keys.room(line, store.is_cluster)[7]) for line in lines}
        if empty := [line for line in lines if not number[line]]:
            client.zrem(store.keys.quarantine, *empty)
    return {line: n for line, n in number.items() if n}


def live_workers(store: RedisStore) -> int:
    """How many workers with limited tasks there are, on all brokers."""
    now = store.now_us()
    with translated(store.keys.processes):
        return len(store.connection.client.zrangebyscore(store.keys.processes[0], now, "+inf"))


def parked_tickets(store: RedisStore, name: str, key: str = "") -> Iterator[str]:
    """The tickets of the parked tasks of a line, in order."""
    keys = store.keys.room(store.keys.state(name, key), store.is_cluster)
    with translated(keys):
        client = store.connection.client
        lanes = [_parked_in_lane(client, keys, text(lane)) for lane in client.hkeys(keys[3])]
        for _, ticket in heapq.merge(*lanes):
            yield ticket


def _parked_in_lane(client: Any, keys: Sequence[str], lane: str) -> Iterator[tuple[str, str]]:
    """The place and ticket of each parked task of a lane. (Tasks that wait as countdowns, or that were let go, stand
    between them and are left out.)"""
    after, end = f"[{lane}:", f"({lane};"
    while members := client.zrange(keys[1], raw(after), raw(end), bylex=True, offset=0, num=_CHUNK):
        places = [
            text(member).split(":", 2)[1:] for member in members if text(member).count(":") > 1
        ]
        values = client.hmget(keys[2], ["", *(raw(ticket) for _, ticket in places)])[1:]
        for (place, ticket), value in zip(places, values, strict=True):
            if value and text(value).split(":")[3:4] == ["1"]:
                yield place, ticket
        if len(members) < _CHUNK:
            return
        after = "(" + text(members[-1])
