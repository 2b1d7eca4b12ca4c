"""A seventh algorithm for `test_seventh.py`: one unit in each interval, like the beats of a metronome."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from fleetlimit.algorithms.base import Algorithm, Name, Standing, grown
from fleetlimit.algorithms.gcra import Rule
from fleetlimit.algorithms.whole import stretched_us

if TYPE_CHECKING:
    from fleetlimit.limit import RateLimit


@dataclass(frozen=True)
class Beat:
    """When the next unit may start, and by how much more than an interval an honest state may be ahead."""

    next_us: int
    ahead_us: int = 0


@dataclass(frozen=True)
class Metronome(Algorithm):
    """One unit in each `interval_us`."""

    names: ClassVar[Mapping[str, Name]] = {"metronome": Name("metronome")}
    letter = "m"
    size = 1

    interval_us: int

    @classmethod
    def from_limit(cls, limit: RateLimit) -> Metronome:
        return cls(math.ceil(stretched_us(limit) / limit.limit))

    @classmethod
    def bound(cls, limit: RateLimit) -> int:
        return limit.limit

    @property
    def numbers(self) -> str:
        return f"{self.interval_us}"

    def _widened(self, margin: int) -> Metronome:
        return replace(self, interval_us=grown(self.interval_us, margin, 1010), margin=margin)

    def clamped(self, state: Beat | None, now_us: int) -> Beat | None:
        if state is None or not self.beyond(state, now_us):
            return state
        return Beat(now_us + self.interval_us + state.ahead_us, state.ahead_us)

    def beyond(self, state: Beat | None, now_us: int) -> bool:
        return bool(state) and state.next_us - now_us > self.interval_us + state.ahead_us

    def look(self, state: Beat | None, now_us: int, cost: int) -> Standing:
        if state is None:
            return Standing(0, None)
        return Standing(max(0, state.next_us - now_us), now_us - state.next_us)

    def wait_us(self, state: Beat | None, now_us: int, cost: int, before: int) -> int:
        return self.reset_us(state, now_us) + before * self.interval_us

    def pace_us(self, units: int) -> int:
        return units * self.interval_us

    def spend(self, state: Beat | None, now_us: int, cost: int, sleep_us: int) -> Beat:
        ahead = max(self.reset_us(state, now_us), sleep_us) + cost * self.interval_us
        return Beat(now_us + ahead, max(sleep_us, ahead - self.interval_us))

    def delay(self, state: Beat | None, now_us: int, late_us: int, cost: int) -> Beat | None:
        old = state or Beat(now_us)
        moved = old.next_us + late_us
        if moved <= now_us:
            return state
        return Beat(moved, max(old.ahead_us, moved - now_us - self.interval_us))

    def give_back(
        self, stored: Beat | None, spent: Beat | None, former: Beat | None, now_us: int, cost: int
    ) -> tuple[bool, Beat | None]:
        if stored is None or stored != spent:
            return False, stored
        return True, former if former and former.next_us > now_us else None

    def remaining(self, state: Beat | None, now_us: int) -> int:
        return int(self.reset_us(state, now_us) == 0)

    def reset_us(self, state: Beat | None, now_us: int) -> int:
        return max(0, state.next_us - now_us) if state else 0

    def part(self, number: int, slack: float) -> Rule:
        interval = round(self.interval_us * number * slack)
        return Rule(interval, 1, interval)

    def read_state(self, text: str) -> Beat | None:
        return Beat(*map(int, text.split(":"))) if text else None

    def write_state(self, state: Beat | None) -> str:
        return f"{state.next_us}:{state.ahead_us}" if state else ""
