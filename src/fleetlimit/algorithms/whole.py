"""From a limit in seconds to whole numbers: what several algorithms need for it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from fleetlimit.errors import ConfigurationError

if TYPE_CHECKING:
    from fleetlimit.limit import RateLimit

__all__ = ["EXACT", "guard_us", "inexact", "stretched_us"]

#: Lua numbers are doubles: every time, in ticks, must stay an exact integer. A year's worth of
#: microseconds is 2**45, the epoch is 2**51, so a capacity below 2**52 leaves room to add.
EXACT = 2**52


def stretched_us(limit: RateLimit) -> Fraction:
    """The period and its margin, microseconds."""
    return limit.per_us * (1 + Fraction(str(limit.least_margin)))


def guard_us(limit: RateLimit) -> int:
    """The last part of a window, in which nothing starts: the margin, microseconds.

    :raises ConfigurationError: for a margin that leaves nothing of the window.
    """
    guard = math.ceil(limit.per_us * Fraction(str(limit.least_margin)))
    if guard >= limit.per_us:
        raise ConfigurationError(
            f"margin={limit.margin!r}: leaves nothing of a window of {limit.per!r} s"
        )
    return guard


def inexact(limit: RateLimit) -> ConfigurationError:
    """The error for numbers that cannot be counted exactly."""
    burst = f", burst={limit.burst!r}" if limit.burst > 1 else ""
    return ConfigurationError(
        f"limit={limit.limit!r}, per={limit.per!r}{burst}: too fine or too long to be counted exactly"
    )
