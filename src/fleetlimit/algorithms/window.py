"""What the algorithms that count in windows have in common."""

from __future__ import annotations

from abc import abstractmethod

from fleetlimit.algorithms.base import Algorithm
from fleetlimit.algorithms.gcra import Rule

__all__ = ["LONGEST_SLEEP_US", "Window"]

#: Ahead of time nothing is booked by more: what lies further ahead is left by a clock that stepped back.
LONGEST_SLEEP_US = 1_000_000


class Window(Algorithm):
    """Their units have no pace of their own: where one is needed, it is the limit's even one."""

    @property
    @abstractmethod
    def interval_us(self) -> int:
        """The even distance of two units."""

    def pace_us(self, units: int) -> int:
        return units * self.interval_us

    def part(self, number: int, slack: float) -> Rule:
        emission = round(self.interval_us * number * slack)
        return Rule(emission, 1, emission)
