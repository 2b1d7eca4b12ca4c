"""Fixed windows: at most `limit` units in each window of a calendar grid; then the count starts anew.

How most partners count ("1,000 a day, reset at midnight"). Its bound is for the grid's own windows; one that lies
across a boundary may hold `2 * limit`. The last `guard_us` of each window admit nothing, so that no call
is counted in one window here and arrives in the next. Invariants (tests in `tests/core/test_windows.py`):

1. At most `limit` units in each window of the grid. `test_fixed_window_bound`
   Where another grid's window is still open its units count here as well.
2. The wait is enough and no more. `test_wait_is_enough_and_no_more`
3. A denial changes nothing. `test_denial_changes_nothing`
4. A clock that steps makes nobody wait beyond the next window, or a second longer.
   `test_wait_is_bounded_whatever_is_stored`
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import lru_cache
from typing import ClassVar
from zoneinfo import ZoneInfo

from fleetlimit.algorithms.base import LEAST_MARGIN, Name, Standing, grown
from fleetlimit.algorithms.whole import EXACT, Limit, guard_us, inexact
from fleetlimit.algorithms.window import LONGEST_SLEEP_US, Window
from fleetlimit.errors import ConfigurationError

__all__ = ["Counted", "FixedWindow", "Grid", "grid_of"]

_DAY = 86_400
# Clocks that are set back show an hour twice: shorter windows would come twice with it.
_SHORTEST_ZONED = 3600
# A grid knows of one change of the clocks; somewhere two of them are a month apart.
_LONGEST_ZONED = 14 * _DAY


@dataclass(frozen=True)
class Grid:
    """Windows of `per_us`, number `n` beginning at local time `n * per_us + offset_us`; the local time is
    `utc_us` ahead of UTC until `change_us` (0: it does not change), and `later_us` from then on."""

    per_us: int
    offset_us: int = 0
    utc_us: int = 0
    change_us: int = 0
    later_us: int = 0

    def number(self, now_us: int) -> int:
        """The window at an instant. An hour that the clocks show twice belongs to one window."""
        later = self.change_us and now_us >= self.change_us
        ahead = self.later_us if later else self.utc_us
        return (now_us + ahead - self.offset_us) // self.per_us

    def start(self, number: int) -> int:
        """When a window begins."""
        local = number * self.per_us + self.offset_us
        if not self.change_us or local - self.utc_us < self.change_us:
            return local - self.utc_us
        return max(self.change_us, local - self.later_us)


@dataclass(frozen=True)
class Counted:
    """Units spent in the window that began at an instant, and ends at another: so it means something to
    another grid too (two versions of a program may run at once)."""

    start_us: int
    used: int
    full_at_us: int = field(default=0, compare=False)


@dataclass(frozen=True)
class FixedWindow(Window):
    """`limit` units per window of `grid`; none in its last `guard_us`."""

    names: ClassVar[Mapping[str, Name]] = {
        "fixed_window": Name("fixed window", frozenset({"offset", "tz"}))
    }
    letter = "f"
    size = 7
    order = 1
    aligned = True

    limit: int
    guard_us: int
    grid: Grid

    @classmethod
    def from_limit(cls, limit: Limit) -> FixedWindow:
        if limit.limit >= EXACT:
            raise inexact(limit)
        if limit.tz and not _SHORTEST_ZONED <= limit.per <= _LONGEST_ZONED:
            raise ConfigurationError(
                f"per={limit.per!r}: windows of a time zone last from an hour to two weeks"
            )
        today = int(time.time()) // _DAY if limit.tz else 0
        grid = grid_of(limit.per_us, round(limit.offset * 1e6), limit.tz, today)
        return cls(limit.limit, guard_us(limit), grid)

    @classmethod
    def from_numbers(cls, numbers: Sequence[int], margin: int = 0) -> FixedWindow:
        return cls(numbers[0], numbers[1], Grid(*numbers[2:]), margin=margin)

    @classmethod
    def bound(cls, limit: Limit) -> int:
        return 2 * limit.limit

    @property
    def numbers(self) -> str:
        grid = self.grid
        numbers = (grid.per_us, grid.offset_us, grid.utc_us, grid.change_us, grid.later_us)
        return ",".join(map(str, (self.limit, self.guard_us, *numbers)))

    def _widened(self, margin: int) -> FixedWindow:
        guard = min(grown(self.guard_us, margin, LEAST_MARGIN), self.grid.per_us - 1)
        return replace(self, guard_us=guard, margin=margin)

    def clamped(self, state: Counted | None, now_us: int) -> Counted | None:
        if state is None:
            return None
        number, counted = self.grid.number(now_us), self.grid.number(state.start_us)
        if self.beyond(state, now_us):
            return self._counted(number, state.used)
        return self._counted(counted, state.used) if counted >= number else None

    def beyond(self, state: Counted | None, now_us: int) -> bool:
        # One ahead (or several short ones) is a start that was booked ahead, more a clock that stepped back. Of
        # another grid's window that has not ended the units count here too.
        if state is None:
            return False
        number, counted = self.grid.number(now_us), self.grid.number(state.start_us)
        other = counted < number or state.start_us != self.grid.start(counted)
        ahead = counted > number + 1 and state.start_us - now_us > LONGEST_SLEEP_US
        return ahead or (other and state.full_at_us > now_us)

    def look(self, state: Counted | None, now_us: int, cost: int) -> Standing:
        number, start = self._place(state, now_us, cost, 0)
        counted = state and self.grid.number(state.start_us) == number
        # A unit is due, for the sake of those in line, when an even pace would come to it.
        due = self.grid.start(number) + self.pace_us(state.used if state and counted else 0)
        return Standing(start - now_us if start > now_us else 0, now_us - due)

    def wait_us(self, state: Counted | None, now_us: int, cost: int, before: int) -> int:
        return self._place(state, now_us, cost, before)[1] - now_us

    @property
    def interval_us(self) -> int:
        return -(-self.grid.per_us // self.limit)

    def spend(self, state: Counted | None, now_us: int, cost: int, sleep_us: int) -> Counted:
        return self._added(state, self._open(now_us + sleep_us), cost)

    def delay(self, state: Counted | None, now_us: int, late_us: int, cost: int) -> Counted | None:
        number = self.grid.number(now_us)
        if self.grid.number(now_us - late_us) == number:
            return state  # it started in the window it was counted in
        return self._added(self.clamped(state, now_us), number, cost)

    def give_back(
        self,
        stored: Counted | None,
        spent: Counted | None,
        former: Counted | None,
        now_us: int,
        cost: int,
    ) -> tuple[bool, Counted | None]:
        if not stored or not spent or stored.start_us != spent.start_us:
            return False, stored
        return True, replace(stored, used=max(0, stored.used - cost))

    def remaining(self, state: Counted | None, now_us: int) -> int:
        number = self.grid.number(now_us)
        if self._open(now_us) > number:
            return 0
        if state is None:
            return self.limit
        return max(0, self.limit - state.used) if self.grid.number(state.start_us) == number else 0

    def reset_us(self, state: Counted | None, now_us: int) -> int:
        number = self.grid.number(now_us)
        if state and state.used:  # it may be counted in a later one already
            number = max(number, self.grid.number(state.start_us))
        return self.grid.start(number + 1) - now_us

    def read_state(self, text: str) -> Counted | None:
        if not text:
            return None
        start, used = map(int, text.split(":"))
        return self._counted(self.grid.number(start), used)

    def write_state(self, state: Counted | None) -> str:
        return f"{state.start_us}:{state.used}" if state else ""

    def _counted(self, number: int, used: int) -> Counted:
        return Counted(self.grid.start(number), used, self.grid.start(number + 1))

    def _added(self, state: Counted | None, number: int, cost: int) -> Counted:
        """So many more in a window, or in the later one that is counted already."""
        if state and (later := self.grid.number(state.start_us)) >= number:
            return self._counted(later, state.used + cost)
        return self._counted(number, cost)

    def _open(self, at_us: int) -> int:
        """The window that takes a start at an instant: the next one during the guard."""
        number = self.grid.number(at_us)
        return number + (at_us >= self.grid.start(number + 1) - self.guard_us)

    def _place(self, state: Counted | None, now_us: int, cost: int, before: int) -> tuple[int, int]:
        """The window in which `cost` units after `before` others find room, and when it begins (or now). A cost
        above the limit (which was lowered under way) finds it in an empty one, and is paid in whole."""
        number, room, cost = self._open(now_us), self.limit, min(cost, self.limit)
        if state and (later := self.grid.number(state.start_us)) >= number:
            number, room = later, max(0, self.limit - state.used)
        if before + cost > room:
            full = max(0, before - room)  # units that go into later windows
            number += 1 + full // self.limit + (full % self.limit + cost > self.limit)
        return number, max(now_us, self.grid.start(number))


@lru_cache(maxsize=256)
def grid_of(per_us: int, offset_us: int, tz: str | None, today: int) -> Grid:
    """The grid, with the zone's first change from two days and a window ago on, up to a year ahead: this
    host's clock need only know the date (`today`, in days since the epoch)."""
    if tz is None:
        return Grid(per_us, offset_us)
    zone = ZoneInfo(tz)
    first = (today - 2) * _DAY - per_us // 10**6
    utc = _ahead(zone, first)
    for day in range(first, first + 400 * _DAY, _DAY):
        if _ahead(zone, day + _DAY) != utc:
            low, high = day, day + _DAY
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _ahead(zone, middle) == utc else (low, middle)
            later = _ahead(zone, high)
            return Grid(per_us, offset_us, utc * 10**6, high * 10**6, later * 10**6)
    return Grid(per_us, offset_us, utc * 10**6)


def _ahead(zone: ZoneInfo, at: int) -> int:
    """By how many seconds a zone's clocks are ahead of UTC."""
    found = datetime.fromtimestamp(at, timezone.utc).astimezone(zone).utcoffset()
    assert found is not None  # a ZoneInfo always knows
    return round(found.total_seconds())
