"""The waiting room: parked messages beside their tickets, let go when their turn comes.

No leader and no state of its own: any number of releasers may ask `due_lines`, `release` what is due
under a lease, publish it and `confirm`. A crash at any point voids the claim after `LEASE_US`, and
the message is let go again; which of two copies starts is decided in `acquire`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleetlimit.store.base import Ticket
from fleetlimit.store.redis import ROOMS, RedisStore, line_keys, state_key, text, translated

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
    #: Seconds until the next unit exists; 0 when one exists now.
    next_due: float
    #: Seconds until a pause ends; 0 when there is none.
    paused: float


class Room:
    """The rooms of one Redis store."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def due_lines(self) -> Due:
        now, next_us, *lines = self._store.run("due", [ROOMS], [self._store.now(), LINES])
        return Due(now, next_us, tuple(text(line) for line in lines))

    def release(self, line: str, lead_us: int) -> Released:
        """Claim what is due in a line, `lead_us` before its turn."""
        keys = line_keys(line)
        name = keys[-1].split("{")[1].split("}")[0]
        if not self._store.is_cluster:
            keys.append(ROOMS)
        override = self._store.given_override(name)
        args = [self._store.now(), override, lead_us, LEASE_US, MESSAGES, GRACE_US]
        copy, next_us, *rest = self._store.run("release", keys, args)
        if self._store.is_cluster:
            self._visit(line, next_us or copy + 60_000_000)
        ids, seen, texts = rest[::3], rest[1::3], rest[2::3]
        messages = [
            (text(id), int(at), text(message))
            for id, at, message in zip(ids, seen, texts, strict=True)
        ]
        return Released(copy, next_us, messages)

    def confirm(self, line: str, copy: int, ids: Sequence[str]) -> None:
        """These were published: their messages can go."""
        args = [self._store.now(), GRACE_US, copy, *ids]
        self._store.run("confirm", line_keys(line)[:5], args)

    def wake(self, name: str) -> None:
        """Have all lines of a limit visited at once: its pace has changed."""
        client = self._store.connection.client
        own = (state_key(name), state_key(name)[:-1] + ":")
        with translated([ROOMS]):
            for line, _ in client.zscan_iter(ROOMS):
                if text(line) == own[0] or text(line).startswith(own[1]):
                    client.zadd(ROOMS, {line: 0}, xx=True)

    def status(self, name: str, key: str = "") -> Status:
        args = [self._store.now(), self._store.given_override(name)]
        keys = line_keys(state_key(name, key))
        now, waiting, parked, oldest, tat, pause, *_ = self._store.run("status", keys, args)
        return Status(
            waiting=waiting,
            parked=parked,
            oldest=(now - oldest) / 1e6 if oldest else None,
            next_due=max(0, tat - now, pause) / 1e6,
            paused=pause / 1e6,
        )

    def parked(self, name: str, key: str = "", most: int = 100) -> list[str]:
        """Ids of parked tasks, the first in line first."""
        client, keys = self._store.connection.client, line_keys(state_key(name, key))
        with translated(keys):
            ids = [text(one) for one in client.zrange(keys[1], 0, most - 1)]
            return [id for id in ids if client.hexists(keys[3], id)]

    def cancel(self, name: str, id: str, key: str = "") -> bool:
        """Take a parked task out; it will not run. Whether it was there."""
        keys = line_keys(state_key(name, key))[:5]
        return bool(self._store.run("cancel", keys, [id, 1]))

    def leave(self, name: str, id: str, key: str = "") -> bool:
        """Give up a waiting task's place, parked or not."""
        return bool(self._store.run("cancel", line_keys(state_key(name, key))[:5], [id, 0]))

    def _visit(self, line: str, at_us: int) -> None:
        with translated([ROOMS]):
            self._store.connection.client.zadd(ROOMS, {line: at_us})
