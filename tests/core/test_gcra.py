"""The pure core: a readable table, and a test for every invariant of `gcra.py`."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlimit.algorithms.gcra import Rule, State, clamped, delay, give_back
from fleetlimit.limit import RateLimit

MS = 1000
START = 1_767_225_600_000_000

rules = st.builds(
    lambda emission, burst, per_us: Rule(emission, per_us, emission * burst),
    st.integers(1, 10**6),
    st.integers(1, 20),
    st.sampled_from([1, 1000]),
)
states = st.none() | st.builds(
    State, st.integers(0, 2 * START), st.just(0), st.integers(0, 250_000)
)

# 10 per 1 s, burst 5, no margin: a unit every 100 ms. (ms, cost) -> (admitted, remaining, wait ms)
TABLE = [
    (0, 1, True, 4, 0),
    (0, 1, True, 3, 0),
    (0, 3, True, 0, 0),  # the burst is gone
    (0, 1, False, 0, 100),
    (40, 1, False, 0, 60),
    (100, 1, True, 0, 0),  # exactly at the advertised wait
    (350, 3, False, 2, 50),  # 2.5 units are there
    (350, 2, True, 0, 0),
    (350, 5, False, 0, 450),
    (799, 5, False, 4, 1),
    (800, 5, True, 0, 0),  # `<=`: admitted at the instant the bucket is full again
    (9000, 1, True, 4, 0),  # idle time beyond a full bucket is worth nothing
]


def test_table() -> None:
    rule = RateLimit("api", 10, 1, burst=5, margin=0).rule
    state: State | None = None
    for at, cost, admitted, remaining, wait in TABLE:
        verdict = rule.decide(state, START + at * MS, cost)
        row = (at, cost, verdict.admitted, verdict.remaining, verdict.wait_us / MS)
        assert row == (at, cost, admitted, remaining, wait)
        state = verdict.state


def test_wait_after_an_admission() -> None:  # N1
    rule = RateLimit("api", 10, 1, margin=0).rule
    state = rule.decide(None, START).state
    assert rule.decide(state, START + 40 * MS).wait_us == 60 * MS


@pytest.mark.parametrize(("limit", "per"), [(5, 1), (7, 60), (3, 7), (1000, 1), (100, 86_400)])
def test_burst_from_idle(limit: int, per: float) -> None:  # N2
    rule = RateLimit("api", limit, per, burst=limit).rule
    state, admitted = None, 0
    for _ in range(limit + 1):
        verdict = rule.decide(state, START)
        state, admitted = verdict.state, admitted + verdict.admitted
    assert admitted == limit


@given(
    rules,
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 20)), max_size=60),
    st.booleans(),
)
def test_no_window_above_the_bound(rule: Rule, asks: list[tuple[int, int]], sleeps: bool) -> None:
    burst, state, now = rule.capacity // rule.emission, None, START
    starts: list[tuple[int, int]] = []
    for gap, cost in asks:
        now += gap
        verdict = rule.decide(state, now, min(cost, burst), max_sleep_us=250_000 if sleeps else 0)
        state = verdict.state
        if verdict.admitted:
            starts.append((now + verdict.sleep_us, min(cost, burst)))
    _check_windows(sorted(starts), rule, burst)


def _check_windows(starts: list[tuple[int, int]], rule: Rule, burst: int) -> None:
    """Invariant 1 over every start and every length that ends at a later start."""
    times = [at for at, _ in starts]
    for i, first in enumerate(times):
        units = 0
        for j in range(bisect_left(times, first), len(times)):
            units += starts[j][1]
            width = (times[j] - first) * rule.ticks_per_us
            # A start is exact to the microsecond: a tick-wise limit may differ by that much.
            assert (units - burst) * rule.emission <= width + rule.ticks_per_us - 1, (i, j)


@given(rules, states, st.integers(0, 2 * START), st.integers(1, 20))
def test_wait_is_enough_and_no_more(rule: Rule, state: State | None, now: int, cost: int) -> None:
    cost = min(cost, rule.capacity // rule.emission)
    verdict = rule.decide(state, now, cost)
    assert (verdict.wait_us > 0) == (not verdict.admitted)
    if not verdict.admitted:
        assert rule.decide(verdict.state, now + verdict.wait_us, cost).admitted
        assert not rule.decide(verdict.state, now + verdict.wait_us - 1, cost).admitted


def _worth(rule: Rule, state: State | None) -> int:
    return rule.capacity // rule.ticks_per_us + (state.ahead_us if state else 0)


@given(rules, states, st.integers(0, 2 * START))
def test_denial_changes_nothing(rule: Rule, state: State | None, now: int) -> None:
    state = clamped(state, now, rule)
    verdict = rule.decide(state, now)
    if not verdict.admitted:
        assert verdict.state is state


@given(rules, states, st.integers(0, 2 * START), st.integers(1, 20))
def test_wait_is_bounded_whatever_is_stored(
    rule: Rule, state: State | None, now: int, cost: int
) -> None:  # N9
    cost = min(cost, rule.capacity // rule.emission)
    verdict = rule.decide(state, now, cost)
    assert verdict.wait_us <= _worth(rule, state) + 1
    assert rule.decide(verdict.state, now + verdict.wait_us, cost).admitted or verdict.admitted


def test_clock_step_forward_gives_one_burst() -> None:  # N9
    rule = RateLimit("api", 10, 1, burst=5).rule
    state = rule.decide(None, START).state
    admitted = 0
    for _ in range(20):
        verdict = rule.decide(state, START + 3600 * 10**6)
        state, admitted = verdict.state, admitted + verdict.admitted
    assert admitted == 5


def test_raised_limit_profits_at_once() -> None:  # N8
    slow, fast = RateLimit("api", 10, 20).rule, RateLimit("api", 1000, 20).rule
    state = slow.decide(None, START).state
    assert fast.decide(state, START + 1).wait_us <= 20_200
    assert slow.decide(state, START + 1).wait_us > 2_000_000


def test_give_back() -> None:  # N14
    rule = RateLimit("api", 1, 1, margin=0).rule
    a = rule.decide(None, START)
    done, state = give_back(a.state, a.state, None, START + 200 * MS)
    assert done
    assert rule.decide(state, START + 200 * MS).admitted
    b = rule.decide(a.state, START + 1000 * MS)
    done, state = give_back(b.state, a.state, None, START + 1200 * MS)
    assert not done
    assert rule.decide(state, START + 1200 * MS).wait_us == 800 * MS


@given(rules, st.lists(st.tuples(st.integers(0, 10**5), st.integers(0, 50_000)), max_size=60))
def test_late_starts(rule: Rule, asks: list[tuple[int, int]]) -> None:
    """Starts are late by up to 50 ms, and reported before the next one is asked for."""
    burst, state, now = rule.capacity // rule.emission, None, START
    starts: list[tuple[int, int]] = []
    for gap, late in asks:
        now += gap
        verdict = rule.decide(state, now)
        state = verdict.state
        if verdict.admitted:
            now += late
            starts.append((now, 1))
            state = delay(state, now, rule, late)
    _check_windows(starts, rule, burst)
