"""Changing a limit while it is in use: what may be said, and that no change is lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fleetlimit import ConfigurationError, RateLimit, RateLimiter
from fleetlimit.cli import main
from fleetlimit.demo.processes import Server
from fleetlimit.store.memory import MemoryStore

PARTNER = RateLimit("partner-api", 10, 60)


@pytest.fixture
def limiter(server: Server) -> RateLimiter:
    """The program that uses the limit."""
    one = RateLimiter(server.url)
    one.acquire(PARTNER)
    return one


def run(server: Server, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--url", server.url])


def paused(limiter: RateLimiter) -> float:
    return limiter.status("partner-api").paused


def test_a_shorter_pause_does_not_shorten_a_longer_one(
    limiter: RateLimiter, server: Server
) -> None:
    limiter.pause("partner-api", 60)
    assert 59 < limiter.pause("partner-api", 5) <= 60
    assert paused(limiter) > 59
    result = run(server, "pause", "partner-api", "5")
    assert result.exit_code == 0
    assert "stays paused for 60 s" in result.output
    assert "--force" in result.output
    assert 4 < limiter.pause("partner-api", 5, force=True) <= 5
    assert paused(limiter) <= 5
    assert limiter.pause("partner-api", 90) > 89
    assert "paused for 7 s" in run(server, "pause", "partner-api", "7", "--force").output
    assert paused(limiter) <= 7


@pytest.mark.parametrize("kind", ["redis", "memory"])
def test_changes_at_once_are_all_kept(server: Server, kind: str) -> None:
    """Each round: numbers from one program, a pause from another, at the same instant."""
    shared = MemoryStore()
    programs = [RateLimiter(shared if kind == "memory" else server.url) for _ in range(2)]
    for one in programs:
        one.acquire(PARTNER)
    start = threading.Barrier(2)

    def configure(n: int) -> None:
        start.wait()
        programs[0].configure("partner-api", n, 60, margin=0)

    def pause(n: int) -> None:
        start.wait()
        programs[1].pause("partner-api", 1000 + n)

    with ThreadPoolExecutor(2) as pool:
        for n in range(1, 151):
            programs[0].resume("partner-api")
            list(pool.map(lambda change, n=n: change(n), (configure, pause)))
            found = programs[0].store.override("partner-api")
            assert found.rules[0].pace_us(n) == pytest.approx(60e6, abs=n)
            assert found.pause_until_us > programs[0].store.now_us() + 999_000_000


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"burst": 20}, "burst=20"),
        ({"per": 60}, "per=60"),
        ({"margin": 0.01}, "margin=0.01"),
        ({"algorithm": "gcra"}, "algorithm='gcra'"),
        ({"offset": 0.0}, "offset=0.0"),
        ({"tz": "UTC"}, "tz='UTC'"),
        ({"limit": 10}, "per=None"),
        ({"limit": 10, "per": 0}, "per=0"),
        ({"limit": 10, "per": timedelta(0)}, "per=0.0"),
        ({"limit": "100/m"}, "per=60"),
    ],
)
def test_half_a_configuration_is_refused_and_changes_nothing(
    limiter: RateLimiter, said: dict[str, Any], named: str
) -> None:
    limiter.configure("partner-api", 5, 60)
    before = limiter.store.override("partner-api")
    with pytest.raises(ConfigurationError) as caught:
        limiter.configure("partner-api", **said)
    assert named in str(caught.value)
    assert limiter.store.override("partner-api") == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["100", "--per", "0"], "per=0.0"),
        (["100", "--per", "-1"], "per=-1.0"),
        (["100/m"], "100 --per 60"),
        (["--burst", "20"], "--burst without LIMIT"),
    ],
)
def test_the_command_refuses_it_too(
    limiter: RateLimiter, server: Server, arguments: list[str], said: str
) -> None:
    limiter.configure("partner-api", 5, 60)
    before = limiter.store.override("partner-api")
    result = run(server, "configure", "partner-api", *arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert limiter.store.override("partner-api") == before


@pytest.mark.parametrize(
    ("algorithm", "said", "named"),
    [
        ("sliding_log", {"limit": 2_000_000}, "limit=2000000"),
        ("sliding_log", {"limit": 5, "burst": 3}, "burst=3"),
        ("fixed_window", {"limit": 5, "burst": 3}, "burst=3"),
        ("leaky_bucket", {"limit": 5, "burst": 3}, "burst=3"),
        ("gcra", {"limit": 5, "tz": "UTC"}, "tz='UTC'"),
        ("token_bucket", {"limit": 5, "offset": 5}, "offset=5"),
    ],
)
@pytest.mark.parametrize("kind", ["redis", "memory", "another"])
def test_what_the_limits_own_algorithm_cannot_take(
    server: Server, kind: str, algorithm: str, said: dict[str, Any], named: str
) -> None:
    """The code's algorithm is known from those who use the limit."""
    user = RateLimiter(MemoryStore() if kind == "memory" else server.url)
    user.acquire(RateLimit("own", 10, 60, algorithm=algorithm))
    operator = RateLimiter(server.url) if kind == "another" else user
    with pytest.raises(ConfigurationError) as caught:
        operator.configure("own", per=60, **said)
    assert named in str(caught.value)
    assert operator.store.override("own").rules == ()


def test_foreign_data_in_place_of_an_override_is_replaced(
    limiter: RateLimiter, client: Any
) -> None:
    client.set("fleetlimit:{partner-api}:override", "not ours")
    limiter.configure("partner-api", 5, 60, margin=0)
    assert limiter.store.override("partner-api").rules[0].pace_us(5) == 60_000_000
    client.delete("fleetlimit:{partner-api}:override")
    client.lpush("fleetlimit:{partner-api}:override", "not ours")
    limiter.pause("partner-api", 5)
    assert paused(limiter) > 4


def test_an_override_without_numbers_expires_with_its_pause(
    limiter: RateLimiter, client: Any
) -> None:
    key = "fleetlimit:{partner-api}:override"
    limiter.pause("partner-api", 100)
    assert 99_000 < client.pttl(key) <= 101_000
    limiter.configure("partner-api", 5, 60)
    assert client.pttl(key) == -1
    limiter.configure("partner-api")
    assert 98_000 < client.pttl(key) <= 101_000
    limiter.resume("partner-api")
    assert not client.exists(key)


@pytest.mark.parametrize("seconds", ["0", "nan", "1e10"])
def test_a_pause_that_is_refused_says_what_is_possible(
    limiter: RateLimiter, server: Server, seconds: str
) -> None:
    said = run(server, "pause", "partner-api", seconds).output
    assert f"seconds={float(seconds)!r}: must be a number above 0, at most 1000000000" in said
    assert not paused(limiter)


def test_a_long_pause_is_shown_as_it_was_given(limiter: RateLimiter, server: Server) -> None:
    assert "paused for 1234567 s" in run(server, "pause", "partner-api", "1234567").output
    assert "paused for 0.5 s" in run(server, "pause", "partner-api", "0.5", "--force").output
