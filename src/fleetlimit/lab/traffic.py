"""When requests come: four kinds of traffic, the same ones for every algorithm."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from fleetlimit.lab.scenario import Scenario

__all__ = ["BURST", "arrivals"]

#: Requests of a burst, a millisecond apart.
BURST = 15
#: Steady traffic is this share of the limit, overload this multiple of it from *each* instance.
STEADY, OVERLOAD = 0.8, 1.5


def arrivals(scenario: Scenario) -> list[int]:
    """Microseconds since the start of the run, in order. Request n comes to instance
    `n % instances`. At most `3 * limit * instances` of them, that is 3,600."""
    return sorted(_KINDS[scenario.traffic](scenario, Random(scenario.seed)))


def _steady(one: Scenario, random: Random) -> list[int]:
    """Three periods of four fifths of the limit."""
    return _spread(3, max(1, round(3 * STEADY * one.limit)), 0.3, one, random)


def _burst(one: Scenario, random: Random) -> list[int]:
    """Fifteen requests at a quarter of the first period."""
    return [round(one.per * 250_000) + 1_000 * n for n in range(BURST)]


def _boundary(one: Scenario, random: Random) -> list[int]:
    """A full limit from each instance just before a window ends, and again when the next begins.

    The first half ends ahead of the margin in which a window admits no more.
    """
    per, count = one.rate_limit().per_us, one.limit * one.instances
    ends = per - round(per * one.rate_limit().margin)
    step = per // 25 / count
    before = [ends - round(step * n) for n in range(1, count + 1)]
    return before + [per + round(step * n) for n in range(count)]


def _overload(one: Scenario, random: Random) -> list[int]:
    """Two periods of one and a half times the limit from each instance."""
    return _spread(2, round(2 * OVERLOAD * one.limit * one.instances), 0.5, one, random)


def _spread(periods: int, count: int, jitter: float, one: Scenario, random: Random) -> list[int]:
    """`count` requests over so many periods, each off its even place by a share of the spacing."""
    step = periods * one.per * 1_000_000 / count
    return [round(step * (n + 0.5 + random.uniform(-jitter, jitter))) for n in range(count)]


_KINDS: dict[str, Callable[[Scenario, Random], list[int]]] = {
    "steady": _steady,
    "burst": _burst,
    "boundary": _boundary,
    "overload": _overload,
}
