"""Four kinds of traffic: when requests come. They are the same for every algorithm."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from fleetlimit.lab.scenario import Scenario

__all__ = ["REQUESTS", "arrivals", "planned"]

#: A run simulates at most so many requests, which is three times the largest limit. An overload with more requests
#: comes at the same rate for a shorter time, and the boundary exploit comes with fewer requests.
REQUESTS = 3_000
#: Steady traffic is this share of the limit; a burst and overload are a multiple of it.
STEADY, BURST, OVERLOAD = 0.8, 1.5, 1.5


def arrivals(scenario: Scenario) -> list[int]:
    """The times of the requests in order, in microseconds since the start of the run. There are at most `REQUESTS`.

    Request n comes to instance `n % instances`.
    """
    return sorted(_KINDS[scenario.traffic](scenario, Random(scenario.seed)))


def planned(scenario: Scenario) -> int:
    """The number of requests of this traffic without the bound `REQUESTS`."""
    fleet = scenario.limit * scenario.instances
    return {
        "steady": max(1, round(3 * STEADY * scenario.limit)),
        "burst": round(BURST * scenario.limit),
        "boundary": 2 * fleet,
        "overload": round(2 * OVERLOAD * fleet),
    }[scenario.traffic]


def _steady(scenario: Scenario, random: Random) -> list[int]:
    """Three periods of four fifths of the limit."""
    return _spread(3, 0.3, scenario, random)


def _burst(scenario: Scenario, random: Random) -> list[int]:
    """One and a half times the limit at a quarter of the first period.

    The requests are a millisecond apart, or closer if they would take more than 1 % of the period.
    """
    count, per = planned(scenario), scenario.rate_limit().per_us
    step = min(1_000, per / 100 / count)
    return [round(per / 4 + step * n) for n in range(count)]


def _boundary(scenario: Scenario, random: Random) -> list[int]:
    """A full limit from each instance just before a window ends, and another one when the next window begins.

    The first half ends before the margin, during which a window admits nothing.
    """
    limit = scenario.rate_limit()
    per, count = limit.per_us, min(planned(scenario), REQUESTS) // 2
    ends = per - round(per * limit.least_margin)
    step = per // 25 / count
    before = [ends - round(step * n) for n in range(1, count + 1)]
    return before + [per + round(step * n) for n in range(count)]


def _overload(scenario: Scenario, random: Random) -> list[int]:
    """Two periods of one and a half times the limit from each instance."""
    return _spread(2, 0.5, scenario, random)


def _spread(periods: int, jitter: float, scenario: Scenario, random: Random) -> list[int]:
    """Requests over so many periods. Each differs from its even place by at most a share (`jitter`) of the spacing."""
    count = planned(scenario)
    step = periods * scenario.per * 1_000_000 / count
    return [
        round(step * (n + 0.5 + random.uniform(-jitter, jitter)))
        for n in range(min(count, REQUESTS))
    ]


_KINDS: dict[str, Callable[[Scenario, Random], list[int]]] = {
    "steady": _steady,
    "burst": _burst,
    "boundary": _boundary,
    "overload": _overload,
}
