"""`RateLimiter`, as any Python program uses it."""

from __future__ import annotations

import pytest
import redis
from celery import Celery
from click.testing import CliRunner

import fleetlimit
from fleetlimit import (
    ConfigurationError,
    CostError,
    KeyValueError,
    RateLimit,
    RateLimited,
    RateLimiter,
)
from fleetlimit.cli import main
from fleetlimit.demo.processes import Server
from fleetlimit.store.memory import MemoryStore

FIVE = RateLimit("five", 10, 1, burst=5, margin=0)
ONE = RateLimit("one", 10, 1, margin=0)


class Clock:
    now = 1_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limiter(clock: Clock) -> RateLimiter:
    return RateLimiter(MemoryStore(clock))


def test_decision(limiter: RateLimiter, clock: Clock) -> None:
    first = limiter.acquire(FIVE, cost=4)
    assert (first.allowed, first.retry_after, first.remaining, first.reset_after) == (
        True,
        0,
        1,
        0.4,
    )
    denied = limiter.acquire(FIVE, cost=2)
    assert (bool(denied), denied.retry_after, denied.remaining) == (False, 0.1, 1)
    with pytest.raises(RateLimited) as caught:
        denied.raise_if_denied()
    assert caught.value.decision is denied
    clock.now += 100_000
    limiter.acquire(FIVE, cost=2).raise_if_denied()


def test_peek_and_reset(limiter: RateLimiter) -> None:
    limiter.acquire(ONE, "a")
    assert limiter.peek(ONE, "a").retry_after == 0.1
    assert limiter.peek(ONE).allowed
    limiter.reset(ONE, "a")
    assert limiter.acquire(ONE, "a")


def test_several_at_once(limiter: RateLimiter) -> None:
    assert limiter.acquire([FIVE, (ONE, "a")])
    assert not limiter.acquire([FIVE, (ONE, "a")])
    assert limiter.peek(FIVE).remaining == 4
    assert limiter.acquire([(FIVE, None, 2), (ONE, "b", 1)])
    assert limiter.peek(FIVE).remaining == 2


def test_same_limit_twice_costs_twice(limiter: RateLimiter) -> None:  # N12
    limiter.acquire(FIVE, cost=4)
    assert not limiter.acquire([FIVE, FIVE])
    assert limiter.peek(FIVE).remaining == 1
    with pytest.raises(CostError):
        limiter.acquire([(FIVE, None, 3), (FIVE, None, 3)])


def test_impossible_cost_asks_nobody() -> None:  # N3
    limiter = RateLimiter("redis://127.0.0.1:1/0")  # nobody listens there
    with pytest.raises(CostError, match="cost=6"):
        limiter.acquire(FIVE, cost=6)


def test_bad_asks(limiter: RateLimiter) -> None:
    with pytest.raises(ConfigurationError, match="limit="):
        limiter.acquire("five")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="limit="):
        limiter.acquire([])
    with pytest.raises(KeyValueError, match="key="):
        limiter.acquire(FIVE, key=1.5)


def test_sources(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETLIMIT_URL", server.url)
    slow = RateLimit("slow", 10, 3600, burst=5)
    for source in (None, server.url, redis.Redis(port=server.port, decode_responses=True)):
        assert RateLimiter(source).acquire(slow)
    assert RateLimiter().peek(slow).remaining == 2
    monkeypatch.delenv("FLEETLIMIT_URL")
    with pytest.raises(ConfigurationError, match="FLEETLIMIT_URL"):
        RateLimiter()


def test_private_limiters_send_a_multiple() -> None:
    """Three instances with a store of their own, beside three that share one."""
    hundred = RateLimit("api", 100, 60, burst=100)
    private = [RateLimiter(MemoryStore()) for _ in range(3)]
    assert sum(bool(one.acquire(hundred)) for one in private for _ in range(200)) == 300
    store = MemoryStore()
    shared = [RateLimiter(store) for _ in range(3)]
    assert sum(bool(one.acquire(hundred)) for one in shared for _ in range(200)) == 100


def test_a_wrong_url_is_refused_with_the_name_of_its_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Celery(set_as_current=False)
    monkeypatch.setenv("FLEETLIMIT_URL", "secret:6379")
    for make in (RateLimiter, lambda: RateLimiter.from_app(app)):
        with pytest.raises(ConfigurationError, match=r"^FLEETLIMIT_URL: Redis URL with") as caught:
            make()
        assert "secret" not in str(caught.value)
    result = CliRunner().invoke(main, ["status", "partner-api"])
    assert "Error: FLEETLIMIT_URL: Redis URL with" in result.output
    app.conf.fleetlimit_url = "secret:6379"
    with pytest.raises(ConfigurationError, match=r"^app\.conf\.fleetlimit_url: Redis URL with"):
        RateLimiter.from_app(app)


def test_all_public_names_are_listed() -> None:
    """Also those that import Celery when they are first used: a prompt completes them."""
    assert set(fleetlimit.__all__) <= set(dir(fleetlimit))
