"""`reset_after`, per algorithm: what an `X-RateLimit-Reset` header says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlimit import RateLimit, RateLimiter
from fleetlimit.demo.processes import Server
from fleetlimit.limit import ALGORITHMS
from fleetlimit.store.memory import MemoryStore
from fleetlimit.store.redis import RedisStore

GRIDS = ("fixed_window", "sliding_counter")
MINUTE, START = 60_000_000, 1_700_000_000 * 1_000_000 // 60_000_000 * 60_000_000


class Clock:
    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def limit_of(algorithm: str, margin: float = 0.1) -> RateLimit:
    return RateLimit("reset", 10, 60, algorithm=algorithm, margin=margin)


def reset_us(seconds: float) -> int:
    return round(seconds * 1e6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(
    into=st.integers(0, MINUTE - 1),
    steps=st.lists(st.tuples(st.integers(0, MINUTE), st.integers(1, 4)), max_size=8),
    margin=st.sampled_from([0, 0.1]),
)
def test_the_whole_limit_is_back_then_and_not_sooner(
    algorithm: str, into: int, steps: list[tuple[int, int]], margin: float
) -> None:
    """If nothing more is spent. (A window that ends changes nothing for a limit nobody used.)"""
    limit, clock = limit_of(algorithm, margin), Clock(START + into)
    limiter, most = RateLimiter(MemoryStore(clock)), limit.most
    full = limit.burst if algorithm in ("gcra", "leaky_bucket", "token_bucket") else limit.limit
    for pause, cost in steps:
        clock.now += pause
        limiter.acquire(limit, cost=min(cost, most))
    found = limiter.peek(limit)
    wait = reset_us(found.reset_after)
    clock.now += wait
    assert limiter.peek(limit).remaining == full
    if found.remaining < full:
        clock.now -= 1
        assert limiter.peek(limit).remaining < full


@pytest.mark.parametrize(
    ("algorithm", "unused", "after_one", "a_window_later"),
    [
        # burst 1: one interval of 6.6 s; then it is full.
        ("gcra", 0, 6.6, 0),
        ("leaky_bucket", 0, 6.6, 0),
        ("token_bucket", 0, 6.6, 0),
        # 45 s of the minute are left.
        ("fixed_window", 45, 45, 45),
        # The window that a unit is counted in, and the next, in which it still weighs.
        ("sliding_counter", 45, 45 + 60, 45),
        # A period of 66 s from the newest start on.
        ("sliding_log", 0, 66, 6),
    ],
)
@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_each_algorithm(
    server: Server,
    kind: str,
    algorithm: str,
    unused: float,
    after_one: float,
    a_window_later: float,
) -> None:
    clock, limit = Clock(START + 15_000_000), limit_of(algorithm)
    store = MemoryStore(clock) if kind == "memory" else RedisStore(server.url, clock=clock)
    limiter = RateLimiter(store)
    assert limiter.peek(limit).reset_after == pytest.approx(unused)
    assert limiter.acquire(limit).reset_after == pytest.approx(after_one)
    clock.now += MINUTE
    assert limiter.peek(limit).reset_after == pytest.approx(a_window_later)


@pytest.mark.parametrize("algorithm", GRIDS)
def test_in_the_part_of_a_window_that_admits_nothing(algorithm: str) -> None:
    clock, limit = Clock(START + 58_000_000), limit_of(algorithm)
    found = RateLimiter(MemoryStore(clock)).peek(limit)
    assert (found.remaining, found.reset_after) == (0, 2)


def test_no_reset_before_the_next_try() -> None:
    """A pause, or those who wait in line, may make the next try later than the bucket is full."""
    clock = Clock(START)
    limiter = RateLimiter(MemoryStore(clock))
    limiter.acquire(limit_of("gcra"))
    limiter.pause("reset", 500)
    found = limiter.peek(limit_of("gcra"))
    assert found.reset_after == found.retry_after == 500
