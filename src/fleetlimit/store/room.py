"""The waiting room: parked messages beside their tickets, let go when their turn comes.

No leader and no state of its own: any number of releasers may ask `due_lines`, `release` what is due
under a lease, publish it and `settle` what became of it. A crash at any point voids the claim after
`LEASE_US`, and the message is let go again; which of two copies starts is decided in `acquire`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fleetlimit.errors import StateError
from fleetlimit.store.base import Ticket, task_id
from fleetlimit.store.failures import translated
from fleetlimit.store.keyspace import is_broker, name_and_key, raw, text
from fleetlimit.store.mend import sound_lines
from fleetlimit.store.parked import (
    Orphan,
    Quarantined,
    Status,
    known_brokers,
    lanes_of,
    parked_lines,
    parked_tickets,
    quarantine,
)
from fleetlimit.store.redis import LEASE_US, RedisStore

__all__ = ["Due", "Fate", "Released", "Room"]

#: A task let go that does not come within this loses its ticket (not its place: it carries that).
GRACE_US = Ticket.grace_us
#: Lines handed out by one look, messages claimed from one of them, and their bytes (about), at most.
LINES, MESSAGES, BYTES = 128, 64, 256 * 1024
#: A line handed to a releaser is seen by others again after this.
HANDED_US = 1_000_000
#: A broker is served for so long after a releaser said so (each does at least once a second), microseconds: then its
#: tasks hold up those of other brokers no more. Its workers are reported missing only after some more time.
SERVED_US, MISSING_US = 1_500_000, 15_000_000
#: A message that could not be published so often lies in quarantine.
TRIES = 8
#: How long revoked ids are remembered, seconds, and how many at most.
REVOKED_S, REVOKED = 7 * 86_400, 50_000
#: As `lead_us`: let all go, whatever their turn.
AT_ONCE = -1


@dataclass(frozen=True)
class Due:
    """The lines to visit now (their state keys); `next_us`: when the next one is due, 0: none is."""

    now_us: int
    next_us: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Released:
    """Claimed messages of a line: ticket, first-seen time, text. `copy` marks these copies; `newer` messages are of
    a form that only a later version reads, and stay; `unreadable` ones went into quarantine."""

    line: str
    copy: int
    next_us: int
    newer: int
    unreadable: int
    messages: list[tuple[str, int, str]]


@dataclass
class Fate:
    """What became of claimed messages: by ticket None (published), or why not, and whether that counts as a try."""

    released: Released
    became: dict[str, tuple[str, bool] | None] = field(default_factory=dict)


class Room:
    """The rooms of one Redis store. A releaser says for which broker it works."""

    def __init__(self, store: RedisStore, broker: str = "") -> None:
        self.store, self.broker = store, broker
        self._keys = store.keys
        self._index = self._keys.rooms(broker)
        self._served = {broker}

    # --- for releasers ----------------------------------------------------------------------------

    def register(self) -> None:
        """Make this broker known before anything is parked for it: who changes a limit must find its lines."""
        with translated([self._keys.brokers]):
            self.store.connection.client.zadd(self._keys.brokers, {self.broker: 0}, nx=True)

    def due_lines(self, *, serves: bool = True) -> Due:
        """`serves`: this broker takes what is let go."""
        served_us = SERVED_US if serves else 0
        args = [self.store.now(), LINES, HANDED_US, self.broker, served_us]
        keys = [self._index, self._keys.brokers]
        if self.store.is_cluster:  # the two keys lie in different slots
            now, next_us, _, *lines = self.store.run("due", keys[:1], [*args[:4], 0])
            with translated([self._keys.brokers]):
                client = self.store.connection.client
                if serves:
                    client.zadd(self._keys.brokers, {self.broker: now + SERVED_US})
                names = map(text, client.zrangebyscore(self._keys.brokers, now, "+inf"))
                served = set(filter(is_broker, names))
        else:
            now, next_us, names, *lines = self.store.run("due", keys, args)
            served = set(filter(is_broker, text(names).split()))
        for lost in self._served - served:
            self._wake_beside(lost)
        self._served = served
        return Due(now, next_us, sound_lines(self.store, self._index, lines))

    def release(self, lines: Sequence[str], lead_us: int) -> list[Released | StateError]:
        """Claim what is due in these lines, `lead_us` before its turn."""
        return list(self.begin_release(lines, lead_us)().values())

    def begin_release(
        self, lines: Sequence[str], lead_us: int
    ) -> Callable[[], dict[str, Released | StateError]]:
        """The same in two parts: the store claims, while the caller goes on until it takes what was claimed."""
        calls = [(self._keys_of(line), self._release_args(line, lead_us)) for line in lines]
        replies = self.store.begin("release", calls)
        return lambda: dict(zip(lines, map(self._released, lines, replies()), strict=True))

    def _released(self, line: str, reply: Any) -> Released | StateError:
        if isinstance(reply, StateError):
            return reply
        copy, next_us, newer, unreadable, *rest = reply
        if unreadable:
            self._note_quarantine(line)
        if self.store.is_cluster:
            self._note_visit(line, next_us)
        messages = [
            (text(id), int(at), text(message))
            for id, at, message in zip(rest[::3], rest[1::3], rest[2::3], strict=True)
        ]
        return Released(line, copy, next_us, newer, unreadable, messages)

    def _release_args(self, line: str, lead_us: int) -> list[str | int | bytes]:
        override = self.store.given_override(name_and_key(line)[0], fresh=True)
        limits = LEASE_US, MESSAGES, BYTES, GRACE_US
        return [self.store.now(), override, lead_us, *limits, self.broker, " ".join(self._served)]

    def settle(self, fates: Sequence[Fate]) -> dict[str, int]:
        """Say what became of claimed messages; one without a fate is let go again when its claim is void. Of which
        lines how many went into quarantine."""
        calls = []
        for one in fates:
            args: list[str | int | bytes] = [self.store.now(), GRACE_US, one.released.copy, TRIES]
            args.append(self.broker)
            for id, why in one.became.items():
                said = (why[0] or "refused").encode(errors="backslashreplace") if why else b""
                args += (raw(id), said, int(bool(why and why[1])))
            keys = self._keys_of(one.released.line)
            calls.append(([*keys[:8], *keys[9:]], args))
        quarantined: dict[str, int] = {}
        for one, reply in zip(fates, self.store.run_many("confirm", calls), strict=True):
            if isinstance(reply, StateError):
                continue
            _, bad, visit = reply
            if bad:
                self._note_quarantine(one.released.line)
                quarantined[one.released.line] = bad
            if visit and self.store.is_cluster:
                self._note_visit(one.released.line, max(visit, 0), sooner=True)
        return quarantined

    def postpone(self, line: str, seconds: float) -> None:
        """Visit a line later: something is wrong with it."""
        with translated([self._index]):
            at = self.store.now_us() + round(seconds * 1e6)
            self.store.connection.client.zadd(self._index, {line: at}, xx=True)

    def _wake_beside(self, lost: str) -> None:
        """Nobody serves that broker any more: the turns of our tasks that stood behind its tasks are nearer now."""
        with translated([self._index]):
            client, at = self.store.connection.client, 0
            while lines := client.zrange(self._keys.rooms(lost), at, at + 999):
                client.zadd(self._index, dict.fromkeys(lines, 0), xx=True)
                at += 1_000

    def wake(self, name: str = "") -> None:
        """Have all lines visited at once, or those of one limit: its pace has changed."""
        own, keyed = self._keys.state(name), self._keys.state(name)[:-1] + ":"
        self.store.visit_at_once(lambda line: not name or line == own or line.startswith(keyed))

    def _keys_of(self, line: str) -> list[str]:
        """Of a line, its quarantine and its override, and the index where that may go along."""
        keys = [*self._keys.room(line, self.store.is_cluster)]
        return keys if self.store.is_cluster else [*keys, self._index]

    def _note_visit(self, line: str, at_us: int, *, sooner: bool = False) -> None:
        """On a Cluster: the index, apart from the line. One parked between the two is seen again."""
        with translated([self._index]):
            client = self.store.connection.client
            if at_us:
                client.zadd(self._index, {line: at_us}, lt=sooner)
                return
            client.zrem(self._index, line)
            if client.exists(self._keys_of(line)[5]):
                client.zadd(self._index, {line: 0})

    def _note_quarantine(self, line: str) -> None:
        """People must find it, whatever its key."""
        with translated([self._keys.quarantine]):
            self.store.connection.client.zadd(self._keys.quarantine, {line: self.store.now_us()})

    # --- what was revoked -------------------------------------------------------------------------

    def remember_revoked(self, ids: Sequence[str]) -> None:
        """A parked task that was revoked stays so, whoever restarts in the meantime."""
        key = self._keys.revoked(self.broker)
        with translated([key]):
            client = self.store.connection.client
            now = self.store.now_us() / 1e6
            client.zadd(key, dict.fromkeys(ids, now))
            client.zremrangebyscore(key, "-inf", now - REVOKED_S)
            client.zremrangebyrank(key, 0, -REVOKED - 1)
            client.expire(key, REVOKED_S)

    def revoked(self, ids: Sequence[str]) -> set[str]:
        """Those of these tasks that were revoked."""
        key = self._keys.revoked(self.broker)
        with translated([key]):
            client = self.store.connection.client
            scores = client.zmscore(key, [raw(id) for id in ids]) if ids else []
        return {id for id, at in zip(ids, scores, strict=True) if at is not None}

    # --- for people -------------------------------------------------------------------------------

    def brokers(self) -> dict[str, bool]:
        """Every broker for which tasks are or were parked, and whether workers serve it."""
        now = self.store.now_us()
        known = known_brokers(self.store).items()
        return {broker: until >= now - MISSING_US for broker, until in known}

    def parked_for(self, broker: str) -> Orphan:
        """In how many lines tasks may be, and how many are, parked for a broker (of the first 1,000 lines)."""
        with translated([self._keys.brokers]):
            client = self.store.connection.client
            lines = [text(line) for line in client.zrange(self._keys.rooms(broker), 0, 999)]
            number = client.zcard(self._keys.rooms(broker))
        return Orphan(
            broker, number, sum(one.parked for one in lanes_of(self.store, lines, broker))
        )

    def orphans(self) -> list[Orphan]:
        """What is parked for brokers that no live worker serves."""
        found = [self.parked_for(broker) for broker, served in self.brokers().items() if not served]
        return [one for one in found if one.parked]

    def adopt(self, former: str) -> int:
        """Hand what is parked for another broker to this one's workers; how many tasks."""
        index, adopted = self._keys.rooms(former), 0
        client = self.store.connection.client
        with translated([index]):
            while lines := [text(line) for line in client.zrange(index, 0, 99)]:
                args = [self.store.now(), former, self.broker]
                calls = [(self._keys_of(line)[:7], args) for line in lines]
                replies = self.store.run_many("adopt", calls)
                adopted += sum(one for one in replies if isinstance(one, int))
                client.zadd(self._index, dict.fromkeys(lines, 0))
                client.zrem(index, *lines)
            client.zrem(self._keys.brokers, former)
        return adopted

    def status(self, name: str, key: str = "") -> Status:
        args = [self.store.now(), self.store.given_override(name, fresh=True)]
        keys = self._keys.room(self._keys.state(name, key), self.store.is_cluster)
        now, waiting, parked, oldest, pause, bad, margin = self.store.run("status", keys, args)
        with translated([self._keys.brokers]):
            client = self.store.connection.client
            indexes = [
                self._keys.rooms(text(broker))
                for broker in client.zrange(self._keys.brokers, 0, -1)
                if is_broker(text(broker))
            ]
            visits = [at for index in indexes if (at := client.zscore(index, keys[0])) is not None]
        rules = self.store.override(name).rules
        return Status(
            waiting=waiting, parked=parked, oldest=(now - oldest) / 1e6 if oldest else None,
            next_due=max(0, min(visits) - now) / 1e6 if parked and visits else None,
            paused=pause / 1e6, quarantined=bad, margin=margin / 1000,
            configured=rules[0].pace_us(1000) / 1e9 if rules else None,
        )  # fmt: skip

    def parked(self, name: str, key: str = "", most: int = 100) -> list[str]:
        """Ids of parked tasks, the first in line first."""
        return [task_id(ticket) for ticket in islice(parked_tickets(self.store, name, key), most)]

    def keys(
        self, names: Sequence[str], most: int = 100, skip: int = 0
    ) -> tuple[list[tuple[str, str]], int]:
        """The lines of these limits that have a key and parked tasks, the next due first: their names and (encoded)
        keys, `most` of them after the first `skip`; and how many there are."""
        lines = parked_lines(self.store, {self.broker, *known_brokers(self.store)})
        found = [name_and_key(line) for line in lines]
        ours = [(name, key) for name, key in found if key and name in names]
        return ours[skip : skip + most], len(ours)

    def cancel(self, name: str, id: str, key: str = "") -> bool:
        """Take a parked task out; it will not run. Whether that is so: not if it is being let go at this moment."""
        tickets = self._tickets_of(name, key, id)
        gone = [self.store.withdraw(name, key, one, how="parked") for one in tickets]
        return bool(gone) and all(gone)

    def is_waiting(self, name: str, id: str, key: str = "") -> bool:
        """Whether a task has a place in this line, parked or not."""
        return bool(self._tickets_of(name, key, id))

    def _tickets_of(self, name: str, key: str, id: str) -> list[str]:
        keys = self._keys.room(self._keys.state(name, key), self.store.is_cluster)
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", id) + "*"
        with translated(keys):
            found = self.store.connection.client.hscan_iter(keys[2], match=pattern, count=1000)
            return [text(ticket) for ticket, _ in found if task_id(text(ticket)) == id]

    def cancel_all(self, name: str, key: str = "") -> tuple[int, list[str]]:
        """Take all parked tasks out of a line: how many will not run, and the ids of those that are being let go at
        this moment, and may."""
        keys = self._keys.room(self._keys.state(name, key), self.store.is_cluster)[:7]
        tickets, cancelled, let_go = parked_tickets(self.store, name, key), 0, []
        while some := list(islice(tickets, 500)):
            calls = [(keys, [self.store.now(), raw(one), "parked", LEASE_US]) for one in some]
            for ticket, gone in zip(some, self.store.run_many("withdraw", calls), strict=True):
                if isinstance(gone, StateError):
                    raise gone
                cancelled += gone
                let_go += [] if gone else [task_id(ticket)]
        return cancelled, let_go

    def quarantine_keys(self, name: str) -> list[str]:
        """The (encoded) keys of a limit under which messages lie in quarantine; '' is the limit without a key."""
        lines = map(name_and_key, quarantine(self.store))
        return [key for its, key in lines if its == name]

    def quarantined(self, name: str, key: str = "") -> list[Quarantined]:
        """Messages that could not be let go."""
        bad = self._keys.room(self._keys.state(name, key), self.store.is_cluster)[7]
        with translated([bad]):
            found = [
                (text(id), text(it)) for id, it in self.store.connection.client.hscan_iter(bad)
            ]
        return [_quarantined(ticket, it.partition("\n")[0]) for ticket, it in found]

    def recover(self, name: str, id: str, key: str = "", *, drop: bool = False) -> bool:
        """Try a message in quarantine again, or drop it; whether it was there."""
        keys = self._keys.room(self._keys.state(name, key), self.store.is_cluster)
        with translated(keys):
            tickets = [text(ticket) for ticket in self.store.connection.client.hkeys(keys[7])]
        args = "drop" if drop else "retry", self.broker
        found = [
            self.store.run("recover", keys[:8], [self.store.now(), raw(ticket), *args])
            for ticket in tickets
            if task_id(ticket) == id
        ]
        for broker in {text(broker) for there, broker in found if there and not drop}:
            Room(self.store, broker)._note_visit(keys[0], 1)
        return any(there for there, _ in found)


def _quarantined(ticket: str, entry: str) -> Quarantined:
    """From '<lane>:<place>:<cost>:<when>:<broker>:<why>' (see `lua/room.lua`)."""
    parts = entry.split(":", 5)
    if len(parts) < 6 or not parts[3].isdecimal():
        return Quarantined(task_id(ticket), "unreadable", 0)
    return Quarantined(task_id(ticket), parts[5], int(parts[3]) / 1e6)
