"""What users test with: no Redis is asked, and nothing is left behind."""

from __future__ import annotations

import pytest
from celery import Celery

from fleetlimit import (
    ConfigurationError,
    CostError,
    RateLimit,
    RateLimiter,
    StoreUnavailable,
    rate_limited,
    testing,
)

LIMIT = RateLimit("api", 1, per=10, margin=0)
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def app() -> Celery:
    """No Redis anywhere."""
    return Celery("t", broker="memory://", set_as_current=False)


def test_in_memory_waits_in_virtual_time(app: Celery, limits_in_memory: testing.Limits) -> None:
    starts = []

    @app.task
    @rate_limited(LIMIT, key="{who}")
    def call(who: str) -> None:
        starts.append((who, limits_in_memory.clock.seconds))

    for who in ("a", "a", "b", "a"):
        assert call.apply(args=(who,)).state == "SUCCESS"
    assert starts == [("a", 0), ("a", 10), ("b", 10), ("a", 20)]
    assert [one.key for one in limits_in_memory.admitted] == ["a", "a", "b", "a"]
    limits_in_memory.clock.advance(100)
    call.apply(args=("a",))
    assert starts[-1] == ("a", 120)


def test_in_memory_serves_a_plain_limiter(limits_in_memory: testing.Limits) -> None:
    limiter = RateLimiter(NOWHERE)
    assert limiter.acquire(LIMIT)
    denied = limiter.acquire(LIMIT)
    assert (denied.allowed, denied.retry_after) == (False, 10)
    limits_in_memory.clock.advance(10)
    assert RateLimiter().acquire(LIMIT)  # no URL is needed
    assert [one.allowed for one in limits_in_memory.asked] == [True, False, True]


@pytest.mark.usefixtures("limits_off")
def test_off_admits_all() -> None:
    limiter = RateLimiter(NOWHERE)
    assert all(limiter.acquire(LIMIT) and limiter.peek(LIMIT) for _ in range(50))
    with pytest.raises(CostError):  # what can never work is still an error
        limiter.acquire(LIMIT, cost=2)


def test_recorded_tells_what_was_asked(limits_recorded: testing.Limits) -> None:
    RateLimiter(NOWHERE).acquire([(LIMIT, "x"), RateLimit("other", 5, 1)])
    assert limits_recorded.asked == [
        testing.Asked("api", "x", 1, True),
        testing.Asked("other", "", 1, True),
    ]


def test_nothing_is_left_behind() -> None:
    limiter = RateLimiter(NOWHERE)
    with testing.in_memory() as outer:
        with testing.recorded() as inner:
            assert limiter.acquire(LIMIT)
        assert limiter.acquire(LIMIT)
        assert len(outer.asked) == len(inner.asked) == 1
    with pytest.raises(StoreUnavailable):
        limiter.acquire(LIMIT)
    with pytest.raises(ConfigurationError):
        RateLimiter()


def test_what_a_program_says_of_its_redis_is_checked_and_not_needed(
    limits_in_memory: testing.Limits,
) -> None:
    limiter = RateLimiter(on_outage="share", processes=4, client_time=True)
    assert [bool(limiter.acquire(LIMIT)) for _ in range(2)] == [True, False]
    limiter.pause("never-heard-of", 5)  # names are known in Redis only
    with pytest.raises(ConfigurationError, match="on_outage='nonsense'"):
        RateLimiter(on_outage="nonsense")
