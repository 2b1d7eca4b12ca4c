"""Token bucket and leaky bucket are this GCRA under another burst: shown against the texts' own forms."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from fleetlimit.limit import RateLimit

START = 1_767_225_600_000_000
histories = st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 8)), max_size=80)


class TokenBucket:
    """Tokens drip in at `rate` per microsecond up to `size`; who finds enough takes them."""

    def __init__(self, rate: Fraction, size: int) -> None:
        self.rate, self.size, self.tokens, self.at = rate, size, Fraction(size), START

    def acquire(self, now: int, cost: int) -> bool:
        self.tokens = min(self.size, self.tokens + (now - self.at) * self.rate)
        self.at = now
        if self.tokens < cost:
            return False
        self.tokens -= cost
        return True


class LeakyBucket:
    """A queue that lets a unit out every `interval` microseconds; who comes while it drips is not let in."""

    def __init__(self, interval: int) -> None:
        self.interval, self.drips_until = interval, 0

    def acquire(self, now: int, cost: int) -> bool:
        if now < self.drips_until:
            return False
        self.drips_until = now + cost * self.interval
        return True


@given(st.sampled_from([(8, 1), (10, 2), (20, 1)]), st.integers(8, 20), histories)
def test_token_bucket(numbers: tuple[int, int], size: int, history: list[tuple[int, int]]) -> None:
    limit, per = numbers
    size = min(size, limit)
    ours = RateLimit("x", limit, per, burst=size, algorithm="token_bucket", margin=0)
    text = TokenBucket(Fraction(limit, ours.per_us), size)
    state, now = None, START
    for gap, cost in history:
        now += gap
        verdict = ours.rule.decide(state, now, min(cost, size))
        state = verdict.state
        assert verdict.admitted == text.acquire(now, min(cost, size))
        assert verdict.remaining == text.tokens // 1


@given(st.sampled_from([(8, 1), (10, 2), (20, 1)]), histories)
def test_leaky_bucket(numbers: tuple[int, int], history: list[tuple[int, int]]) -> None:
    limit, per = numbers
    ours = RateLimit("x", limit, per, algorithm="leaky_bucket", margin=0)
    text = LeakyBucket(ours.per_us // limit)
    state, now = None, START
    for gap, cost in history:
        now += gap
        verdict = ours.rule.decide(state, now, min(cost, limit))
        state = verdict.state
        assert verdict.admitted == text.acquire(now, min(cost, limit))


def test_their_bursts() -> None:
    assert RateLimit("x", 10, 1, algorithm="token_bucket").burst == 10
    assert RateLimit("x", 10, 1, algorithm="token_bucket", burst=3).burst == 3
    assert RateLimit("x", 10, 1, algorithm="leaky_bucket").burst == 1
    assert RateLimit("x", 10, 1, algorithm="leaky_bucket").most == 10
    assert RateLimit("x", 10, 1).burst == 1
