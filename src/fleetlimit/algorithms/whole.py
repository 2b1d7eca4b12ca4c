"""From a limit in seconds to whole numbers: what several algorithms need for it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Protocol

from fleetlimit.errors import ConfigurationError

__all__ = ["EXACT", "Limit", "guard_us", "inexact", "stretched_us"]

#: Lua numbers are doubles: every time, in ticks, must stay an exact integer. A year's worth of
#: microseconds is 2**45, the epoch is 2**51, so a capacity below 2**52 leaves room to add.
EXACT = 2**52


class Limit(Protocol):
    """What an algorithm reads of a `RateLimit`, which has the meaning of each part. (Algorithms know no `RateLimit`,
    because a `RateLimit` knows them.)"""

    @property
    def limit(self) -> int: ...
    @property
    def per(self) -> float: ...
    @property
    def per_us(self) -> int: ...
    @property
    def burst(self) -> int: ...
    @property
    def margin(self) -> float | str: ...
    @property
    def least_margin(self) -> float: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def offset(self) -> float: ...
    @property
    def tz(self) -> str | None: ...


def stretched_us(limit: Limit) -> Fraction:
    """The period and its margin, microseconds."""
    return limit.per_us * (1 + Fraction(str(limit.least_margin)))


def guard_us(limit: Limit) -> int:
    """The last part of a window, in which nothing starts: the margin, microseconds.

    :raises ConfigurationError: for a margin that leaves nothing of the window.
    """
    guard = math.ceil(limit.per_us * Fraction(str(limit.least_margin)))
    if guard >= limit.per_us:
        raise ConfigurationError(
            f"margin={limit.margin!r}: leaves nothing of a window of {limit.per!r} s"
        )
    return guard


def inexact(limit: Limit) -> ConfigurationError:
    """The error for numbers that cannot be counted exactly."""
    burst = f", burst={limit.burst!r}" if limit.burst > 1 else ""
    return ConfigurationError(
        f"limit={limit.limit!r}, per={limit.per!r}{burst}: too fine or too long to be counted exactly"
    )
