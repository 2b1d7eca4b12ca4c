"""The waiting room: parked messages beside their tickets, let go when their turn comes.

No leader and no state of its own: any number of releasers may ask `due_lines`, `release` what is due
under a lease, publish it and `confirm`. A crash at any point voids the claim after `LEASE_US`, and
the message is let go again; which of two copies starts is decided in `acquire`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleetlimit.store.base import Ticket
from fleetlimit.store.keyspace import name_and_key, text
from fleetlimit.store.redis import RedisStore, translated

__all__ = ["Due", "Released", "Room", "Status"]

#: An unconfirmed claim is void after this.
LEASE_US = 5_000_000
#: A task let go that does not come within this loses its ticket (not its place: it carries that).
GRACE_US = Ticket.grace_us
#: Lines visited, and messages claimed from one of them, at most in one call.
LINES, MESSAGES = 16, 64


@dataclass(frozen=True)
class Due:
    """The lines to visit now (their state keys); `next_us`: when the next one is due, 0: none is."""

    now_us: int
    next_us: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Released:
    """Claimed messages: task id, first-seen time, text. `copy` marks these copies."""

    copy: int
    next_us: int
    messages: list[tuple[str, int, str]]


@dataclass(frozen=True)
class Status:
    """What waits under one key."""

    #: Tasks in the line, parked or not.
    waiting: int
    #: Of these, those whose message lies in the waiting room.
    parked: int
    #: Seconds since the first in line was first seen; None when nobody waits.
    oldest: float | None
    #: Seconds until the next parked task is let go; None when nobody is parked.
    next_due: float | None
    #: Seconds until a pause ends; 0 when there is none.
    paused: float


class Room:
    """The rooms of one Redis store. A releaser says for which broker it works."""

    def __init__(self, store: RedisStore, broker: str = "") -> None:
        self._store, self._broker = store, broker
        self._index = store.keys.rooms(broker)
        self._announced = False

    def due_lines(self) -> Due:
        if not self._announced:
            with translated([self._store.keys.brokers]):
                self._store.connection.client.sadd(self._store.keys.brokers, self._broker)
            self._announced = True
        now, next_us, *lines = self._store.run("due", [self._index], [self._store.now(), LINES])
        return Due(now, next_us, tuple(text(line) for line in lines))

    def release(self, line: str, lead_us: int) -> Released:
        """Claim what is due in a line, `lead_us` before its turn."""
        keys = [*self._store.keys_of(line)]
        name = name_and_key(line)[0]
        if not self._store.is_cluster:
            keys.append(self._index)
        override = self._store.given_override(name, fresh=True)
        args = [self._store.now(), override, lead_us, LEASE_US, MESSAGES, GRACE_US, self._broker]
        copy, next_us, *rest = self._store.run("release", keys, args)
        if self._store.is_cluster:
            self._note_visit(line, keys[3], next_us)
        ids, seen, texts = rest[::3], rest[1::3], rest[2::3]
        messages = [
            (text(id), int(at), text(message))
            for id, at, message in zip(ids, seen, texts, strict=True)
        ]
        return Released(copy, next_us, messages)

    def confirm(self, line: str, copy: int, ids: Sequence[str]) -> None:
        """These were published: their messages can go."""
        args = [self._store.now(), GRACE_US, copy, *ids]
        self._store.run("confirm", self._store.keys_of(line)[:5], args)

    def wake(self, name: str) -> None:
        """Have all lines of a limit visited at once: its pace has changed."""
        own, keyed = self._store.keys.state(name), self._store.keys.state(name)[:-1] + ":"
        self._store.visit_at_once(lambda line: line == own or line.startswith(keyed))

    def wake_all(self) -> None:
        """Have every line visited at once."""
        self._store.visit_at_once(lambda line: True)

    def status(self, name: str, key: str = "") -> Status:
        args = [self._store.now(), self._store.given_override(name, fresh=True)]
        keys = self._store.keys_of(self._store.keys.state(name, key))
        now, waiting, parked, oldest, pause = self._store.run("status", keys, args)
        with translated([self._store.keys.brokers]):
            client = self._store.connection.client
            indexes = [
                self._store.keys.rooms(text(broker))
                for broker in client.smembers(self._store.keys.brokers)
            ]
            visits = [at for index in indexes if (at := client.zscore(index, keys[0])) is not None]
        return Status(
            waiting=waiting,
            parked=parked,
            oldest=(now - oldest) / 1e6 if oldest else None,
            next_due=max(0, min(visits) - now) / 1e6 if parked and visits else None,
            paused=pause / 1e6,
        )

    def parked(self, name: str, key: str = "", most: int = 100) -> list[str]:
        """Ids of parked tasks, the first in line first."""
        keys = self._store.keys_of(self._store.keys.state(name, key))
        with translated(keys):
            client = self._store.connection.client
            ids = [text(one) for one in client.zrange(keys[1], 0, most - 1)]
            return [id for id in ids if client.hexists(keys[3], id)]

    def keys(self, names: Sequence[str], most: int = 100) -> list[tuple[str, str]]:
        """The lines of these limits that have a key and parked tasks, the next due first: their names and
        (encoded) keys."""
        with translated([self._index]):
            lines = self._store.connection.client.zrange(self._index, 0, 10 * most)
        found = [name_and_key(text(line)) for line in lines]
        return [(name, key) for name, key in found if key and name in names][:most]

    def cancel(self, name: str, id: str, key: str = "") -> bool:
        """Take a parked task out; it will not run. Whether it was there."""
        return self._store.withdraw(name, key, id, only_parked=True)

    def postpone(self, line: str, seconds: float) -> None:
        """Visit a line later: something is wrong with it."""
        with translated([self._index]):
            at = self._store.now_us() + round(seconds * 1e6)
            self._store.connection.client.zadd(self._index, {line: at}, xx=True)

    def _note_visit(self, line: str, room: str, at_us: int) -> None:
        """On a Cluster: the index, apart from the line. One parked between the two is seen again."""
        with translated([self._index]):
            client = self._store.connection.client
            if at_us:
                client.zadd(self._index, {line: at_us})
                return
            client.zrem(self._index, line)
            if client.exists(room):
                client.zadd(self._index, {line: 0})
