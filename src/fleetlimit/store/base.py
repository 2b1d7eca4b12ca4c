"""What a store must do: ten verbs, all atomic, all in whole microseconds of the store's clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from hashlib import blake2s
from typing import Any, Protocol

from fleetlimit.algorithms.base import Algorithm
from fleetlimit.limit import RateLimit
from fleetlimit.store.shared import BRIEF_US, FADES_US, MARGIN_US

__all__ = [
    "Outcome",
    "Override",
    "Reading",
    "Spend",
    "Store",
    "Ticket",
    "Verdict",
    "hop_us",
    "read",
    "task_id",
    "ticket_id",
]

#: A wait as a countdown is promised in parts: half of what is left, and no less than this.
HOP_US = 30_000_000


@dataclass(frozen=True)
class Spend:
    """`cost` units of one limit under one (encoded) key; '' is the limit without a key."""

    limit: RateLimit
    key: str = ""
    cost: int = 1


def hop_us(wait_us: int, horizon_us: int, least_us: int = HOP_US) -> int:
    """After how long a task that waits as a countdown asks again: at its turn, or before, so that the places of
    those who never come do not lengthen its wait."""
    return min(wait_us, horizon_us, max(least_us, wait_us // 2))


def ticket_id(task: str, body: bytes) -> str:
    """Of a message: two of them with one task id are two, unless they are the same one delivered again."""
    return f"{task}#{blake2s(body, digest_size=4).hexdigest()}"


def task_id(ticket: str) -> str:
    """The task's id in a ticket's."""
    return ticket[:-9] if ticket[-9:-8] == "#" else ticket


@dataclass
class Late:
    """A text that is made when it is first needed."""

    make: Callable[[], str]
    made: str | None = None

    @property
    def text(self) -> str:
        if self.made is None:
            self.made = self.make()
        return self.made


@dataclass(frozen=True)
class Ticket:
    """Who waits: with a ticket, a denial takes a place in the line.

    :param id: of the message (`ticket_id`), or what computes it when it is needed; the same one holds one
        place, however often it comes.
    :param first_seen_us: what the first denial answered; 0 for a fresh task.
    :param max_sleep_us: admit this much ahead of time; the caller sleeps it in place.
    :param horizon_us: the caller comes back after this at the latest.
    :param hop_us: and in parts of half of its wait, but for what is shorter than this.
    :param grace_us: how late it may come before its place is free.
    :param expires_in_us: after this it will not want to run; None: never.
    :param copy: the mark of the copy that a room let go; '' if it comes from elsewhere.
    :param broker: which broker the task belongs to: only its own releasers let it go.
    :param lane: of which queue it comes, in few characters and without a colon: tasks of a queue that nobody
        reads hold up nobody.
    :param queue: the same in words, for people.
    :param message: what to park if the turn is further away than `park_after_us`; '' for nothing. One that is
        made late goes along if somebody waits already, as far as is known: else it would be made in vain.
    :param lead_us: how long before its turn a parked task is let go.
    """

    id: str | Callable[[], str]
    first_seen_us: int = 0
    max_sleep_us: int = 250_000
    horizon_us: int = 900_000_000
    grace_us: int = 10_000_000
    expires_in_us: int | None = None
    copy: str = ""
    broker: str = ""
    lane: str = "0"
    queue: str = ""
    message: str | Late = ""
    park_after_us: int = 250_000
    lead_us: int = 150_000
    hop_us: int = HOP_US

    @property
    def name(self) -> str:
        """The id, as a text."""
        return self.id if isinstance(self.id, str) else self.id()

    def parcel(self, *, waits: bool) -> str:
        """The message that goes along with a call; `waits`: somebody is known to wait."""
        if isinstance(self.message, str):
            return self.message
        return self.message.text if waits else ""

    @property
    def went_along(self) -> bool:
        """Whether the message was part of a call."""
        return bool(self.message if isinstance(self.message, str) else self.message.made)


@dataclass(frozen=True)
class Reading:
    """One limit's part of an outcome. `spent` and `former` are what `give_back` needs: the state
    that the admission left, and the one it found."""

    wait_us: int
    remaining: int
    reset_us: int
    rank: int
    waiting: int
    spent: Any
    former: Any
    #: The rule that was in force.
    rule: Algorithm


def read(
    rule: Algorithm,
    now_us: int,
    former: Any,
    spent: Any,
    *,
    wait_us: int = 0,
    rank: int = 0,
    waiting: int = 0,
) -> Reading:
    """A reading from the (clamped) state that was found, and the one that was left."""
    return Reading(
        wait_us=wait_us,
        remaining=rule.remaining(spent, now_us),
        reset_us=rule.reset_us(spent, now_us),
        rank=rank,
        waiting=waiting,
        spent=spent,
        former=former,
        rule=rule,
    )


class Verdict(IntEnum):
    """What became of a request."""

    ADMITTED = 1
    DENIED = 0
    #: Denied, and its message lies in the waiting room.
    PARKED = 2
    #: Denied, and took no place, for it would expire before its turn.
    EXPIRES = -1
    #: Another copy of this message has started: this one is one too many.
    DUPLICATE = -2


@dataclass(eq=False)
class Outcome:
    """The verdict over all limits asked.

    `wait_us` > 0 if denied. `sleep_us`: an admitted caller starts after this. `now_us`: the store's
    clock. `readings`: one for each limit, computed when somebody looks (a worker that is admitted
    does not).
    """

    verdict: Verdict
    wait_us: int
    sleep_us: int
    first_seen_us: int
    now_us: int
    read: Callable[[], tuple[Reading, ...]] = field(default=tuple, repr=False)
    #: Decided without the store, by the limits' `on_outage`: `now_us` is this host's monotonic clock.
    alone: bool = False

    @cached_property
    def readings(self) -> tuple[Reading, ...]:
        return self.read()

    @property
    def admitted(self) -> bool:
        return self.verdict is Verdict.ADMITTED

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and self._facts() == other._facts()

    def _facts(self) -> tuple[object, ...]:
        times = (self.wait_us, self.sleep_us, self.first_seen_us, self.now_us)
        return (self.verdict, *times, *self.readings)


@dataclass(frozen=True)
class Override:
    """What is in force in place of a limit's own numbers. One rule applies to everybody. Of several rules the one with the
    limit's own algorithm applies. If there is none, or none matches, the limit's own numbers do."""

    rules: tuple[Algorithm, ...] = ()
    pause_until_us: int = 0
    #: What automatic margins are at least for now, because hosts make tasks late: thousandths of the period.
    margin: int = 0
    margin_until_us: int = 0

    def changed(
        self,
        now_us: int,
        rules: Sequence[Algorithm] | None,
        pause_us: int | None,
        forced: bool,
        margin: int,
        briefly: bool = False,
    ) -> Override:
        """The same after a change (see `Store.change_override`) at `now_us`."""
        until = self.pause_until_us if self.pause_until_us > now_us else 0
        if pause_us:
            until = now_us + pause_us if forced else max(until, now_us + pause_us)
        elif pause_us is not None:
            until = 0
        left = self.margin_at(now_us)
        noted = (self.margin, self.margin_until_us) if left else (0, 0)
        if margin > left:
            lasts = BRIEF_US if briefly else MARGIN_US
            noted = margin * max(FADES_US // lasts, 1), now_us + lasts
        return Override(self.rules if rules is None else tuple(rules), until, *noted)

    def margin_at(self, now_us: int) -> int:
        """What is left of the margin: it stays for half a minute, and goes back in another. One that was asked for
        briefly goes back at once, within two seconds (so it is kept as the larger margin whose last seconds these are)."""
        left = self.margin_until_us - now_us
        if not 0 < left <= MARGIN_US:  # or it was left by a clock that stepped back
            return 0
        return self.margin * min(left, FADES_US) // FADES_US

    def rule(self, own: Algorithm, now_us: int) -> Algorithm:
        """What is in force for a limit with this rule of its own."""
        found = next((one for one in self.rules if type(one) is type(own)), own)
        if len(self.rules) == 1:
            found = self.rules[0]
        widened: Algorithm = found.widened(self.margin_at(now_us))
        return widened


class Store(Protocol):
    """All verbs raise `StoreUnavailable` when the store gives no answer, `StateError` when what
    is stored is not fleetlimit's."""

    def acquire(self, spends: Sequence[Spend], ticket: Ticket | None = None) -> Outcome:
        """Spend all, or none. Each (limit, key) at most once in `spends`."""

    def peek(self, spends: Sequence[Spend]) -> Outcome:
        """What `acquire` would say to a newcomer now; writes nothing."""

    def give_back(self, spend: Spend, reading: Reading) -> bool:
        """Undo one admission, where that lets nobody in too early (`Algorithm.give_back`); whether it was
        undone."""

    def delay(self, spends: Sequence[Spend], late_us: int) -> None:
        """An admitted run started so much late: move the cells not yet handed out by as much."""

    def withdraw(self, name: str, key: str, id: str, *, how: str = "") -> bool:
        """A task will not come back: take it out of the line. Whether it was there. `how`: `"came"`, it is here and
        starts without this line; `"parked"`, only if its message lies in a waiting room."""

    def override(self, name: str) -> Override:
        """What is in force for a limit, beside its own numbers."""

    def change_override(
        self,
        name: str,
        *,
        rules: Sequence[Algorithm] | None = None,
        pause_us: int | None = None,
        forced: bool = False,
        margin: int = 0,
        briefly: bool = False,
    ) -> tuple[Override, int]:
        """Change it, for all keys, in one step: of two changes at once none is lost.

        :param rules: what is in force from now on; empty: the limit's own numbers; None: as it is.
        :param pause_us: closed for so long from now on, or for longer if that was said already; 0: open;
            None: as it is.
        :param forced: the pause may also end earlier than the one that stands.
        :param margin: what automatic margins must be at least for a while, thousandths of the period; of two the
            larger one stays.
        :param briefly: the margin goes back from now on, in two seconds.
        :returns: what is in force now, and the store's clock.
        """

    def now_us(self) -> int:
        """The store's clock."""

    def reset(self, name: str, key: str = "") -> None:
        """Make the bucket of a limit full again. Those who wait keep their places."""

    def close(self) -> None:
        """Give connections back. The store may be used again."""
