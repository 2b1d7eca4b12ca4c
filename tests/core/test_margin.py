"""An automatic margin: from one decision to the next it may be another one, and the bounds hold all the same."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlimit.algorithms.base import LEAST_MARGIN, MOST_MARGIN
from fleetlimit.algorithms.gcra import Rule
from fleetlimit.algorithms.registry import ALGORITHMS, from_wire
from fleetlimit.errors import ConfigurationError
from fleetlimit.limit import RateLimit
from fleetlimit.store.base import Override

START = 1_767_225_600_000_000
margins = st.integers(0, 120)


def most_in_a_window(times: list[int], per_us: int) -> int:
    return max(n + 1 - bisect_left(times, at - per_us + 1) for n, at in enumerate(times))


def admitted(limit: RateLimit, asked: list[tuple[int, int]]) -> list[int]:
    """When units start, if each of these asks under a margin of its own: (microseconds later, margin)."""
    state: Any = None
    now, found = START, []
    for later, margin in asked:
        now += later
        verdict = limit.rule.widened(margin).decide(state, now, max_sleep_us=50_000)
        state = verdict.state
        if verdict.admitted:
            found.append(now + verdict.sleep_us)
    return found


@pytest.mark.parametrize("algorithm", ["gcra", "token_bucket", "leaky_bucket", "sliding_log"])
@given(
    limit=st.integers(1, 12),
    burst=st.integers(1, 12),
    asked=st.lists(st.tuples(st.integers(0, 90_000), margins), min_size=1, max_size=120),
)
def test_no_window_above_the_bound(
    algorithm: str, limit: int, burst: int, asked: list[tuple[int, int]]
) -> None:
    given_burst = {"burst": min(burst, limit)} if algorithm in ("gcra", "token_bucket") else {}
    made = RateLimit("x", limit, 1, algorithm=algorithm, margin="auto", **given_burst)
    times = admitted(made, asked)
    assert most_in_a_window(times, made.per_us) <= (
        limit if algorithm == "sliding_log" else made.bound
    )


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_counter"])
@given(
    limit=st.integers(1, 6),
    asked=st.lists(st.tuples(st.integers(0, 90_000), margins), min_size=1, max_size=120),
)
def test_no_window_of_the_grid_above_the_limit(
    algorithm: str, limit: int, asked: list[tuple[int, int]]
) -> None:
    times = admitted(RateLimit("x", limit, 1, algorithm=algorithm, margin="auto"), asked)
    windows = [at // 1_000_000 for at in times]
    assert max(windows.count(one) for one in windows) <= limit


@given(
    algorithm=st.sampled_from(ALGORITHMS),
    limit=st.integers(1, 1_000),
    per=st.sampled_from([0.000_02, 0.3, 1, 60, 86_400]),
    smaller=margins,
    larger=margins,
)
def test_a_larger_margin_never_starts_sooner(
    algorithm: str, limit: int, per: float, smaller: int, larger: int
) -> None:
    rule = RateLimit("x", limit, per, algorithm=algorithm, margin="auto").rule
    smaller, larger = sorted((smaller, larger))
    one, other = rule.widened(smaller), rule.widened(larger)
    state = rule.decide(None, START).state
    waits = [each.decide(state, START, 1).wait_us for each in (one, other)]
    assert waits == sorted(waits)
    assert from_wire(other.wire) == other


@given(limit=st.integers(1, 50), burst=st.integers(1, 50), margin=margins)
def test_what_remains_may_start(limit: int, burst: int, margin: int) -> None:
    rule = RateLimit("x", limit, 1, burst=min(limit, burst), margin="auto").rule.widened(margin)
    state, started = None, 0
    remaining = rule.remaining(None, START)
    while (verdict := rule.decide(state, START)).admitted:
        state, started = verdict.state, started + 1
        assert verdict.remaining == remaining - started
    assert started == remaining >= 1


def test_what_is_in_force() -> None:
    rule = RateLimit("x", 20, 1, margin="auto").rule
    assert isinstance(rule, Rule)
    assert rule.widened(LEAST_MARGIN) is rule
    assert rule.widened(60).pace_us(20) == 1_060_000
    assert rule.widened(500).pace_us(20) == 1_000 * (1000 + MOST_MARGIN)
    assert rule.widened(60).widened(90) == rule.widened(60)  # what is in force is a number
    said = RateLimit("x", 20, 1, margin=0.01).rule
    assert said.widened(60) is said


def test_it_goes_back_within_a_minute() -> None:
    override = Override().changed(START, None, None, False, 60)
    seen = [override.margin_at(START + n * 1_000_000) for n in range(62)]
    assert seen[:31] == [60] * 31
    assert seen[30:] == sorted(seen[30:], reverse=True)
    assert seen[60:] == [0, 0]
    assert override.margin_at(START - 1) == 0  # the clock stepped back


def test_a_smaller_one_does_not_replace_a_larger_one() -> None:
    override = Override().changed(START, None, None, False, 60)
    later = START + 15_000_000
    assert override.changed(later, None, None, False, 60) == override
    assert override.changed(later, None, None, False, 61).margin_at(later) == 61
    faded = START + 50_000_000
    assert override.changed(faded, None, None, False, 30).margin_at(faded) == 30


def test_it_is_the_default() -> None:
    assert RateLimit("x", 20, 1) == RateLimit("x", 20, 1, margin="auto")


@pytest.mark.parametrize("margin", ["Auto", "0.01", "", None, True, 1, -0.1, float("nan")])
def test_what_is_no_margin(margin: Any) -> None:
    with pytest.raises(ConfigurationError, match="margin="):
        RateLimit("x", 20, 1, margin=margin)
