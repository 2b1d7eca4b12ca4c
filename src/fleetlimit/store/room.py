"""The waiting room: parked messages lie beside their tickets and are let go when their turn comes.

A room has no leader and no state in this process. Any number of releasers may ask for `due_lines`, claim the due
messages with `release`, publish them, and report the results with `settle`. After a crash at any point, the claim
becomes void after `LEASE_US` and the message is let go again; `acquire` decides which of the two copies starts.
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

#: A task that was let go and does not come within this time loses its ticket. (It keeps its place, which its message
#: carries.)
GRACE_US = Ticket.grace_us
#: At most so many lines are handed out by one call, so many messages are claimed from one line, with about so many
#: bytes.
LINES, MESSAGES, BYTES = 128, 64, 256 * 1024
#: Other releasers see a line again so long after it was handed to one of them.
HANDED_US = 1_000_000
#: A broker counts as served for so many microseconds after a releaser said so (each releaser does so at least once a
#: second). After that, its tasks no longer delay those of other brokers. Its workers are reported missing after a
#: further `MISSING_US`.
SERVED_US, MISSING_US = 1_500_000, 15_000_000
#: A message goes into quarantine after so many failed tries to publish it.
TRIES = 8
#: How many seconds revoked ids are remembered, and how many of them at most.
REVOKED_S, REVOKED = 7 * 86_400, 50_000
#: A value of `lead_us`: let all tasks go, whatever their turn is.
AT_ONCE = -1


@dataclass(frozen=True)
class Due:
    """The lines to visit now (their state keys). `next_us`: when the next line is due; 0: there is none."""

    now_us: int
    next_us: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Released:
    """Claimed messages of a line: ticket, first-seen time, text. `copy` is the mark of these copies. `newer` is the
    number of messages in a form that only a later version reads; they stay. `unreadable` is the number of messages that
    went into quarantine."""

    line: str
    copy: int
    next_us: int
    newer: int
    unreadable: int
    messages: list[tuple[str, int, str]]


@dataclass
class Fate:
    """The results of claimed messages. `became` maps a ticket to None (published), or to the error and whether it
    counts as a failed try."""

    released: Released
    became: dict[str, tuple[str, bool] | None] = field(default_factory=dict)


class Room:
    """The rooms in one Redis store. For a releaser, `broker` is the broker for which it works."""

    def __init__(self, store: RedisStore, broker: str = "") -> None:
        self.store, self.broker = store, broker
        self._keys = store.keys
        self._index = self._keys.rooms(broker)
        self._served = {broker}

    # --- for releasers ----------------------------------------------------------------------------

    def register(self) -> None:
        """Make this broker known before any task is parked for it, so that a change to a limit finds its lines."""
        with translated([self._keys.brokers]):
            self.store.connection.client.zadd(self._keys.brokers, {self.broker: 0}, nx=True)

    def due_lines(self, *, serves: bool = True) -> Due:
        """The lines to visit now. `serves`: whether this broker takes messages at the moment."""
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
        """Claim the messages of these lines whose turn comes within `lead_us`."""
        return list(self.begin_release(lines, lead_us)().values())

    def begin_release(
        self, lines: Sequence[str], lead_us: int
    ) -> Callable[[], dict[str, Released | StateError]]:
        """Like `release`, but in two parts: the store claims while the caller does other work, until the caller calls
        the returned function."""
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
        """Report the results of claimed messages. A message without a result is let go again when its claim is void.

        :return: how many messages of which lines went into quarantine.
        """
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
        """Visit a line later, because something is wrong with it."""
        with translated([self._index]):
            at = self.store.now_us() + round(seconds * 1e6)
            self.store.connection.client.zadd(self._index, {line: at}, xx=True)

    def _wake_beside(self, lost: str) -> None:
        """Visit the lines of a broker that is no longer served. Our tasks that stood behind its tasks have an earlier
        turn now."""
        with translated([self._index]):
            client, at = self.store.connection.client, 0
            while lines := client.zrange(self._keys.rooms(lost), at, at + 999):
                client.zadd(self._index, dict.fromkeys(lines, 0), xx=True)
                at += 1_000

    def wake(self, name: str = "") -> None:
        """Have all lines visited at once, or those of one limit whose pace has changed."""
        own, keyed = self._keys.state(name), self._keys.state(name)[:-1] + ":"
        self.store.visit_at_once(lambda line: not name or line == own or line.startswith(keyed))

    def _keys_of(self, line: str) -> list[str]:
        """The keys of a line, of its quarantine and of its override, and the index unless it lies in another slot."""
        keys = [*self._keys.room(line, self.store.is_cluster)]
        return keys if self.store.is_cluster else [*keys, self._index]

    def _note_visit(self, line: str, at_us: int, *, sooner: bool = False) -> None:
        """Write the index on a Cluster, where this is a call of its own. If a task was parked meanwhile, the line is
        visited again."""
        with translated([self._index]):
            client = self.store.connection.client
            if at_us:
                client.zadd(self._index, {line: at_us}, lt=sooner)
                return
            client.zrem(self._index, line)
            if client.exists(self._keys_of(line)[5]):
                client.zadd(self._index, {line: 0})

    def _note_quarantine(self, line: str) -> None:
        """Note that a line has messages in quarantine, so that people find them whatever the line's key is."""
        with translated([self._keys.quarantine]):
            self.store.connection.client.zadd(self._keys.quarantine, {line: self.store.now_us()})

    # --- what was revoked -------------------------------------------------------------------------

    def remember_revoked(self, ids: Sequence[str]) -> None:
        """Remember the ids of revoked tasks, so that a parked task stays revoked when workers restart."""
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
        """The number of lines in a broker's index, and how many tasks are parked for it (in the first 1,000 lines)."""
        with translated([self._keys.brokers]):
            client = self.store.connection.client
            lines = [text(line) for line in client.zrange(self._keys.rooms(broker), 0, 999)]
            number = client.zcard(self._keys.rooms(broker))
        return Orphan(
            broker, number, sum(one.parked for one in lanes_of(self.store, lines, broker))
        )

    def orphans(self) -> list[Orphan]:
        """The brokers with parked tasks that no live worker serves."""
        found = [self.parked_for(broker) for broker, served in self.brokers().items() if not served]
        return [one for one in found if one.parked]

    def adopt(self, former: str) -> int:
        """Hand the tasks that are parked for the broker `former` to this broker's workers.

        :return: how many tasks these are.
        """
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
        """The ids of parked tasks, in the order of the line."""
        return [task_id(ticket) for ticket in islice(parked_tickets(self.store, name, key), most)]

    def keys(
        self, names: Sequence[str], most: int = 100, skip: int = 0
    ) -> tuple[list[tuple[str, str]], int]:
        """The lines of these limits that have a key and parked tasks, the next due first.

        :return: the names and (encoded) keys of at most `most` lines after the first `skip`, and how many there are.
        """
        lines = parked_lines(self.store, {self.broker, *known_brokers(self.store)})
        found = [name_and_key(line) for line in lines]
        ours = [(name, key) for name, key in found if key and name in names]
        return ours[skip : skip + most], len(ours)

    def cancel(self, name: str, id: str, key: str = "") -> bool:
        """Take a parked task out for good.

        :return: True if it will not run; False if it is being let go at this moment, or is not there.
        """
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
        """Take all parked tasks out of a line.

        :return: how many will not run, and the ids of those that are being let go at this moment and may run.
        """
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
        """The (encoded) keys of a limit under which messages lie in quarantine; '' stands for no key."""
        lines = map(name_and_key, quarantine(self.store))
        return [key for its, key in lines if its == name]

    def quarantined(self, name: str, key: str = "") -> list[Quarantined]:
        """The messages in quarantine."""
        bad = self._keys.room(self._keys.state(name, key), self.store.is_cluster)[7]
        with translated([bad]):
            found = [
                (text(id), text(it)) for id, it in self.store.connection.client.hscan_iter(bad)
            ]
        return [_quarantined(ticket, it.partition("\n")[0]) for ticket, it in found]

    def recover(self, name: str, id: str, key: str = "", *, drop: bool = False) -> bool:
        """Try a message in quarantine again, or drop it.

        :return: whether the message was there.
        """
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
    """Read an entry: '<lane>:<place>:<cost>:<when>:<broker>:<why>' (see `lua/room.lua`)."""
    parts = entry.split(":", 5)
    if len(parts) < 6 or not parts[3].isdecimal():
        return Quarantined(task_id(ticket), "unreadable", 0)
    return Quarantined(task_id(ticket), parts[5], int(parts[3]) / 1e6)
