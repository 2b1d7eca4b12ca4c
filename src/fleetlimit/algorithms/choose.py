"""From a limit in seconds to an algorithm in whole numbers."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from datetime import datetime, timezone
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from fleetlimit.algorithms.base import LEAST_MARGIN, Algorithm
from fleetlimit.algorithms.fixed_window import FixedWindow, Grid
from fleetlimit.algorithms.sliding_counter import SlidingCounter
from fleetlimit.algorithms.sliding_log import SlidingLog
from fleetlimit.errors import ConfigurationError
from fleetlimit.gcra import Rule

if TYPE_CHECKING:
    from fleetlimit.limit import RateLimit

__all__ = ["ALGORITHMS", "BURSTY", "from_wire", "rule_of"]

ALGORITHMS = (
    "gcra",
    "token_bucket",
    "leaky_bucket",
    "fixed_window",
    "sliding_log",
    "sliding_counter",
)
#: Those for which `burst` means something.
BURSTY = ("gcra", "token_bucket")

# Lua numbers are doubles: every time, in ticks, must stay an exact integer. A year's worth of
# microseconds is 2**45, the epoch is 2**51, so a capacity below 2**52 leaves room to add.
_EXACT = 2**52
# One emission rounded up to whole ticks may cost at most this share of the rate.
_ROUNDING = Fraction(1, 1000)
# A log holds 8 bytes for each unit: this is 8 MB a key.
_LONGEST_LOG = 1_000_000
_DAY = 86_400
# Clocks that are set back show an hour twice: shorter windows would come twice with it.
_SHORTEST_ZONED = 3600
# A grid knows of one change of the clocks; somewhere two of them are a month apart.
_LONGEST_ZONED = 14 * _DAY


def rule_of(limit: RateLimit) -> Algorithm:
    """:raises ConfigurationError: for numbers that cannot be counted exactly."""
    if _stretched(limit) >= _EXACT // 2:
        raise _inexact(limit)
    if limit.algorithm == "fixed_window":
        rule: Algorithm = _fixed_window(limit)
    elif limit.algorithm == "sliding_log":
        rule = _log(limit)
    elif limit.algorithm == "sliding_counter":
        rule = _counter(limit)
    else:
        rule = _bucket(limit)
    return replace(rule, margin=LEAST_MARGIN) if limit.margin == "auto" else rule


@lru_cache(maxsize=1024)
def from_wire(text: str) -> Algorithm:
    """The rule that a script or a store names.

    :raises ValueError: for what is none.
    """
    own, _, margin = text.partition("~")
    letter, *rest = own.split(",")
    numbers = [int(one) for one in rest]
    if letter == "f" and len(numbers) == 7:
        return FixedWindow(numbers[0], numbers[1], Grid(*numbers[2:]), margin=int(margin or 0))
    kinds = {"g": (Rule, 3), "l": (SlidingLog, 2), "c": (SlidingCounter, 5)}
    kind, size = kinds.get(letter, (None, 0))
    if kind is None or len(numbers) != size:
        raise ValueError(f"{text:.80} is no rule")
    found: Algorithm = kind(*numbers, margin=int(margin or 0))
    return found


def _bucket(limit: RateLimit) -> Rule:
    """Choose the tick: a microsecond, or as fine as keeps rounding below 0.1 % of the rate."""
    exact = _stretched(limit) / limit.limit
    for ticks_per_us in (1, 10**3, 10**6, 10**9):
        emission = math.ceil(exact * ticks_per_us)
        if emission <= exact * ticks_per_us * (1 + _ROUNDING):
            break
    if emission * limit.burst + 10**6 * ticks_per_us >= _EXACT:
        raise _inexact(limit)
    return Rule(emission, ticks_per_us, emission * limit.burst)


def _fixed_window(limit: RateLimit) -> FixedWindow:
    if limit.limit >= _EXACT:
        raise _inexact(limit)
    if limit.tz and not _SHORTEST_ZONED <= limit.per <= _LONGEST_ZONED:
        raise ConfigurationError(
            f"per={limit.per!r}: windows of a time zone last from an hour to two weeks"
        )
    today = int(time.time()) // _DAY if limit.tz else 0
    grid = _grid(limit.per_us, round(limit.offset * 1e6), limit.tz, today)
    return FixedWindow(limit.limit, _guard(limit), grid)


def _log(limit: RateLimit) -> SlidingLog:
    if limit.limit > _LONGEST_LOG:
        raise ConfigurationError(
            f"limit={limit.limit!r}: a sliding_log of more than {_LONGEST_LOG} units takes too much "
            "memory in Redis; sliding_counter or gcra count any number"
        )
    return SlidingLog(limit.limit, math.ceil(_stretched(limit)))


def _counter(limit: RateLimit) -> SlidingCounter:
    """Choose the tick: as fine as keeps `limit * per` exact."""
    for tick_us in (1, 1000, 10**6):
        per = limit.per_us // tick_us
        if per * tick_us == limit.per_us and limit.limit * per < _EXACT // 2:
            guard = -(-_guard(limit) // tick_us)
            if guard >= per:
                break
            return SlidingCounter(limit.limit, per, guard, tick_us, round(limit.offset * 1e6))
    raise _inexact(limit)


def _stretched(limit: RateLimit) -> Fraction:
    return limit.per_us * (1 + Fraction(str(limit.least_margin)))


def _guard(limit: RateLimit) -> int:
    """:raises ConfigurationError: for a margin that leaves nothing of the window."""
    guard = math.ceil(limit.per_us * Fraction(str(limit.least_margin)))
    if guard >= limit.per_us:
        raise ConfigurationError(
            f"margin={limit.margin!r}: leaves nothing of a window of {limit.per!r} s"
        )
    return guard


def _inexact(limit: RateLimit) -> ConfigurationError:
    burst = f", burst={limit.burst!r}" if limit.burst > 1 else ""
    return ConfigurationError(
        f"limit={limit.limit!r}, per={limit.per!r}{burst}: too fine or too long to be counted exactly"
    )


@lru_cache(maxsize=256)
def _grid(per_us: int, offset_us: int, tz: str | None, today: int) -> Grid:
    """The grid, with the zone's first change from two days and a window ago on, up to a year ahead: this
    host's clock need only know the date."""
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
