"""Sliding counter: two windows of a grid, the former one weighted by how much of it still overlaps.

What a CDN or a gateway counts where a log would be too big: `previous * (1 - share of this window gone) +
current`. It takes the former window for evenly filled; if all of it came at its end, a window across the boundary
holds up to `2 * limit - 1`. Invariants (tests in `tests/core/test_windows.py`):

1. At most `limit` units in each window of the grid, and `2 * limit - 1` in any. `test_sliding_counter_bound`
2. The wait is enough and no more. `test_wait_is_enough_and_no_more`
3. A denial changes nothing. `test_denial_changes_nothing`
4. A clock that steps makes nobody wait beyond two windows, or a second longer.
   `test_wait_is_bounded_whatever_is_stored`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from fleetlimit.algorithms.base import LEAST_MARGIN, Name, Standing, grown
from fleetlimit.algorithms.whole import EXACT, Limit, guard_us, inexact
from fleetlimit.algorithms.window import LONGEST_SLEEP_US, Window

__all__ = ["Pair", "SlidingCounter"]


@dataclass(frozen=True)
class Pair:
    """Units spent in the window that began at an instant, and in the one before; nothing of it says anything
    from another instant on. (So it means something to another grid too: see `Counted`.)"""

    start_us: int
    current: int
    previous: int = 0
    full_at_us: int = field(default=0, compare=False)


@dataclass(frozen=True)
class SlidingCounter(Window):
    """`limit` units per `per` ticks of `tick_us` microseconds, so coarse that `limit * per` is exact in the
    scripts; windows begin at multiples of `per`, plus `offset_us`. None start in the last `guard` ticks."""

    names: ClassVar[Mapping[str, Name]] = {
        "sliding_counter": Name("sliding counter", frozenset({"offset"}))
    }
    letter = "c"
    size = 5
    order = 3
    aligned = True
    exact = False

    limit: int
    per: int
    guard: int
    tick_us: int
    offset_us: int

    @classmethod
    def from_limit(cls, limit: Limit) -> SlidingCounter:
        """Choose the tick: as fine as keeps `limit * per` exact."""
        for tick_us in (1, 1000, 10**6):
            per = limit.per_us // tick_us
            if per * tick_us == limit.per_us and limit.limit * per < EXACT // 2:
                guard = -(-guard_us(limit) // tick_us)
                if guard >= per:
                    break
                return cls(limit.limit, per, guard, tick_us, round(limit.offset * 1e6))
        raise inexact(limit)

    @classmethod
    def bound(cls, limit: Limit) -> int:
        return 2 * limit.limit - 1

    @property
    def numbers(self) -> str:
        return f"{self.limit},{self.per},{self.guard},{self.tick_us},{self.offset_us}"

    def _widened(self, margin: int) -> SlidingCounter:
        guard = min(grown(self.guard, margin, LEAST_MARGIN), self.per - 1)
        return replace(self, guard=guard, margin=margin)

    def clamped(self, state: Pair | None, now_us: int) -> Pair | None:
        if state is None:
            return None
        number, counted = self._number(now_us), self._number(state.start_us)
        if self.beyond(state, now_us):
            return self._pair(number, state.current, state.previous)
        return self._rolled(state, max(number, counted)) if counted >= number - 1 else None

    def beyond(self, state: Pair | None, now_us: int) -> bool:
        # As of a fixed window.
        if state is None:
            return False
        number, counted = self._number(now_us), self._number(state.start_us)
        other = counted < number - 1 or state.start_us != self._start(counted)
        ahead = counted > number + 1 and state.start_us - now_us > LONGEST_SLEEP_US
        return ahead or (other and state.full_at_us > now_us)

    def look(self, state: Pair | None, now_us: int, cost: int) -> Standing:
        at, ready = self._place(state, now_us, cost, 0)
        return Standing(at - now_us, now_us - (at if at > now_us else ready))

    def wait_us(self, state: Pair | None, now_us: int, cost: int, before: int) -> int:
        return self._place(state, now_us, cost, before)[0] - now_us

    @property
    def interval_us(self) -> int:
        return -(-self.per * self.tick_us // self.limit)

    def spend(self, state: Pair | None, now_us: int, cost: int, sleep_us: int) -> Pair:
        pair = self._from(state, self._open(now_us + sleep_us))
        return replace(pair, current=pair.current + cost)

    def delay(self, state: Pair | None, now_us: int, late_us: int, cost: int) -> Pair | None:
        number = self._number(now_us)
        if self._number(now_us - late_us) == number:
            return state
        pair = self._from(self.clamped(state, now_us), number)
        return replace(pair, current=pair.current + cost)

    def give_back(
        self, stored: Pair | None, spent: Pair | None, former: Pair | None, now_us: int, cost: int
    ) -> tuple[bool, Pair | None]:
        if not stored or not spent:
            return False, stored
        later = self._number(stored.start_us) - self._number(spent.start_us)
        if later == 0:
            return True, replace(stored, current=max(0, stored.current - cost))
        if later == 1:
            return True, replace(stored, previous=max(0, stored.previous - cost))
        return False, stored

    def remaining(self, state: Pair | None, now_us: int) -> int:
        number = self._number(now_us)
        if self._open(now_us) > number or (state and self._number(state.start_us) > number):
            return 0
        if state is None:
            return self.limit
        gone = (now_us - self._start(number)) // self.tick_us
        weighted = -(-state.previous * (self.per - gone) // self.per)
        return max(0, self.limit - state.current - weighted)

    def reset_us(self, state: Pair | None, now_us: int) -> int:
        number = self._number(now_us)
        if state and state.current:  # it weighs until the end of the next window
            number = max(number, self._number(state.start_us)) + 1
        return self._start(number + 1) - now_us

    def read_state(self, text: str) -> Pair | None:
        if not text:
            return None
        start, current, previous = map(int, text.split(":"))
        return self._pair(self._number(start), current, previous)

    def write_state(self, state: Pair | None) -> str:
        return f"{state.start_us}:{state.current}:{state.previous}" if state else ""

    def _number(self, at_us: int) -> int:
        return (at_us - self.offset_us) // (self.per * self.tick_us)

    def _start(self, number: int) -> int:
        return number * self.per * self.tick_us + self.offset_us

    def _open(self, at_us: int) -> int:
        """The window that takes a start at an instant: the next one during the guard."""
        number = self._number(at_us)
        return number + (at_us >= self._start(number + 1) - self.guard * self.tick_us)

    def _rolled(self, pair: Pair, number: int) -> Pair:
        """The same from a window on, its own or a later one."""
        later = number - self._number(pair.start_us)
        if later == 0:
            return self._pair(number, pair.current, pair.previous)
        return self._pair(number, 0, pair.current if later == 1 else 0)

    def _pair(self, number: int, current: int, previous: int) -> Pair:
        return Pair(self._start(number), current, previous, self._start(number + 2))

    def _from(self, state: Pair | None, number: int) -> Pair:
        """What is counted from a window on, or from the later one that is counted already."""
        if state is None:
            return self._pair(number, 0, 0)
        return self._rolled(state, max(number, self._number(state.start_us)))

    def _place(self, state: Pair | None, now_us: int, cost: int, before: int) -> tuple[int, int]:
        """When `cost` units after `before` others may start, at `now_us` or later, and since when."""
        pair, cost = self._from(state, self._open(now_us)), min(cost, self.limit)
        if before and pair.current + before + cost > self.limit:
            pair, before = self._after(pair, before)
        for _ in range(3):  # here, or where this window has become the former one, or forgotten
            ready = pair.start_us + self._gone(pair, before + cost) * self.tick_us
            at, number = max(now_us, ready), self._number(pair.start_us)
            if pair.current + before + cost <= self.limit and self._open(at) == number:
                break
            pair, before = self._rolled(pair, number + 1), 0
        return at, ready

    def _after(self, pair: Pair, before: int) -> tuple[Pair, int]:
        """The window in which `before` others come to an end, and how many of them start in it: they fill
        this one, and whole ones after it. An estimate: a window that follows a full one takes what its
        weight leaves at the end, and one less than the limit in any case (a limit of 1 takes every second)."""
        each = max(1, min(self.limit - 1, self.limit * self.per // (self.per + self.guard)))
        here = min(before, max(0, self.limit - (pair.previous > 0) - pair.current))
        skipped, before = divmod(before - here, each)
        later = 1 + skipped * (2 if self.limit == 1 else 1)
        former = each if skipped else pair.current + here
        return self._pair(self._number(pair.start_us) + later, 0, former), before

    def _gone(self, pair: Pair, units: int) -> int:
        """How much of a window must be gone for `units` more, ticks."""
        room = self.limit - pair.current - units
        if room < 0 or pair.previous <= room:
            return 0
        return self.per - room * self.per // pair.previous
