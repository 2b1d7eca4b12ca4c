"""Sliding log: the start of every unit of the last period, so exactly `limit` in any window.

The log is a ring of `limit` places: a decision looks at one of them, and forgets what has run out by a
search that doubles its steps, so it costs the same at a limit of 10 and of 100,000. A key holds 8 bytes for each
unit, in Redis and here. Invariants (tests in `tests/core/test_windows.py`):

1. At most `limit` units in any window of `per_us`. `test_sliding_log_bound`
2. The wait is enough and no more. `test_wait_is_enough_and_no_more`
3. A denial changes nothing. `test_denial_changes_nothing`
4. A clock that steps back makes nobody wait longer than one period. `test_wait_is_bounded_whatever_is_stored`
5. With late starts reported, invariant 1 holds for starts as for admissions. `test_late_starts_in_a_log`
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from fleetlimit.algorithms.base import Name, Standing, grown
from fleetlimit.algorithms.whole import Limit, stretched_us
from fleetlimit.algorithms.window import Window
from fleetlimit.errors import ConfigurationError

__all__ = ["Log", "SlidingLog"]

# A log holds 8 bytes for each unit: this is 8 MB a key.
_LONGEST = 1_000_000
#: A late start moves so many younger entries at most.
_MOVED = 1000


@dataclass(frozen=True)
class Log:
    """`live` entries from place `head` of the ring on, the oldest first; the newest is at `newest_us`.

    An entry is kept minus `shift_us`, so that all of them follow a clock that stepped back in one write.
    `ahead_us`: how far ahead of its clock the last admission was booked. States share one ring: a former
    one stays true until its places are written again, a whole ring later.
    """

    head: int
    live: int
    newest_us: int
    shift_us: int = 0
    ahead_us: int = 0
    #: Places in the ring.
    size: int = 0
    #: None: this is what a script said of it; the ring stays where it is.
    ring: array[int] | None = field(default=None, compare=False, repr=False)

    def entry(self, n: int) -> int:
        """When the n-th oldest unit started."""
        assert self.ring is not None
        return self.ring[(self.head + n) % self.size] + self.shift_us

    def put(self, n: int, at_us: int) -> None:
        if self.ring is None:
            return
        place, value = (self.head + n) % self.size, at_us - self.shift_us
        if place == len(self.ring):
            self.ring.append(value)
        else:
            self.ring[place] = value


@dataclass(frozen=True)
class SlidingLog(Window):
    """`limit` units in any window of `per_us` (the margin included)."""

    names: ClassVar[Mapping[str, Name]] = {"sliding_log": Name("sliding log")}
    letter = "l"
    size = 2
    order = 2

    limit: int
    per_us: int

    @classmethod
    def from_limit(cls, limit: Limit) -> SlidingLog:
        if limit.limit > _LONGEST:
            raise ConfigurationError(
                f"limit={limit.limit!r}: a sliding_log of more than {_LONGEST} units takes too much "
                "memory in Redis; sliding_counter or gcra count any number"
            )
        return cls(limit.limit, math.ceil(stretched_us(limit)))

    @classmethod
    def bound(cls, limit: Limit) -> int:
        return limit.limit

    @property
    def numbers(self) -> str:
        return f"{self.limit},{self.per_us}"

    def _widened(self, margin: int) -> SlidingLog:
        return replace(self, per_us=grown(self.per_us, margin, 1010), margin=margin)

    def clamped(self, state: Log | None, now_us: int) -> Log | None:
        if state is None:
            return None
        if self.beyond(state, now_us):
            back = state.newest_us - now_us - state.ahead_us
            state = replace(state, newest_us=state.newest_us - back, shift_us=state.shift_us - back)
        if state.newest_us + self.per_us <= now_us:
            return None
        gone = max(self._gone(state, now_us), state.live - self.limit)
        if not gone or state.ring is None:
            return state
        return replace(state, head=(state.head + gone) % state.size, live=state.live - gone)

    def beyond(self, state: Log | None, now_us: int) -> bool:
        return state is not None and state.newest_us - now_us > state.ahead_us

    def look(self, state: Log | None, now_us: int, cost: int) -> Standing:
        if state is None:
            return Standing(0, None)
        lag = self.wait_us(state, now_us, cost, 0)
        return Standing(lag, -lag if lag > 0 else now_us - state.newest_us - self.pace_us(1))

    def wait_us(self, state: Log | None, now_us: int, cost: int, before: int) -> int:
        live = state.live if state else 0
        over = live + before + cost - self.limit  # the unit it follows, from 1
        if over <= 0:
            return 0
        # Beyond those known, each follows the one that lies a whole ring before it.
        rounds = max(0, -(-(over - live) // self.limit))
        followed = over - rounds * self.limit
        if state is None or followed <= 0:
            return rounds * self.per_us
        return state.entry(followed - 1) + (rounds + 1) * self.per_us - now_us

    @property
    def interval_us(self) -> int:
        return -(-self.per_us // self.limit)

    def spend(self, state: Log | None, now_us: int, cost: int, sleep_us: int) -> Log:
        state = state or Log(0, 0, 0, size=self.limit, ring=array("q"))
        at = now_us + sleep_us
        if state.live:
            at = max(at, state.newest_us)
        if state.size != self.limit:
            state = self._resized(state)
        extra = max(0, state.live + cost - self.limit)  # the oldest, which this start follows
        spent = replace(
            state,
            head=(state.head + extra) % self.limit,
            live=state.live + cost - extra,
            newest_us=at,
            ahead_us=max(0, at - now_us),
        )
        for n in range(spent.live - cost, spent.live):
            spent.put(n, at)
        return spent

    def delay(self, state: Log | None, now_us: int, late_us: int, cost: int) -> Log | None:
        """The start's entries go to the end, and the younger ones move up. If they have run out meanwhile,
        they are written again."""
        state = self.clamped(state, now_us)
        if state is None:
            return self.spend(None, now_us, cost, 0)
        if state.size != self.limit:
            state = self._resized(state)
        at, younger = max(now_us, state.newest_us), state.live
        while younger > max(0, state.live - _MOVED) and state.entry(younger - 1) > now_us - late_us:
            younger -= 1
        first = max(0, younger - cost)
        for n in range(younger, state.live):
            state.put(first + n - younger, state.entry(n))
        kept = first + state.live - younger
        extra = max(0, kept + cost - self.limit)
        for n in range(kept, kept + cost):
            state.put(n, at)
        return replace(
            state,
            head=(state.head + extra) % self.limit,
            live=kept + cost - extra,
            newest_us=at,
            ahead_us=max(state.ahead_us, at - now_us),
        )

    def give_back(
        self, stored: Log | None, spent: Log | None, former: Log | None, now_us: int, cost: int
    ) -> tuple[bool, Log | None]:
        if stored is None or stored != spent or stored.ahead_us:
            return False, stored  # one booked ahead has taken the place of one that has not run out
        live = stored.live - cost
        if live <= 0:
            return True, None
        return True, replace(stored, live=live, newest_us=stored.entry(live - 1))

    def remaining(self, state: Log | None, now_us: int) -> int:
        return self.limit - (state.live if state else 0)

    def reset_us(self, state: Log | None, now_us: int) -> int:
        return state.newest_us + self.per_us - now_us if state else 0

    def read_state(self, text: str) -> Log | None:
        if not text:
            return None
        head, live, newest, shift, ahead, size = map(int, text.split(":"))
        return Log(head, live, newest, shift, ahead, size)

    def write_state(self, state: Log | None) -> str:
        if state is None:
            return ""
        numbers = (state.head, state.live, state.newest_us, state.shift_us, state.ahead_us)
        return ":".join(map(str, (*numbers, state.size)))

    def _gone(self, state: Log, now_us: int) -> int:
        """How many of the oldest have run out: in steps that double, then halve."""

        def gone(n: int) -> bool:
            return state.entry(n - 1) + self.per_us <= now_us

        if state.ring is None or not gone(1):
            return 0
        low, step = 1, 1
        while low + step < state.live and gone(low + step):
            low, step = low + step, 2 * step
        while step := step // 2:
            if low + step < state.live and gone(low + step):
                low += step
        return low

    def _resized(self, state: Log) -> Log:
        """The limit was changed: the same entries, in a ring of its size."""
        ring = state.ring
        if ring is not None:
            ring = array("q", (state.entry(n) - state.shift_us for n in range(state.live)))
        return replace(state, head=0, ring=ring, size=self.limit)
