"""`fleetlimit status`, `configure`, `pause` and `resume`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from fleetlimit import RateLimit, RateLimiter
from fleetlimit.cli import main
from fleetlimit.demo.processes import Server
from fleetlimit.limit import ALGORITHMS
from fleetlimit.store.base import Spend
from fleetlimit.store.names import announce
from fleetlimit.store.redis import RedisStore, Ticket

SLOW = RateLimit("slow", 1, 60)


def test_status(server: Server) -> None:
    limiter = RateLimiter(server.url)
    for n in range(3):
        limiter.store.acquire([Spend(SLOW, "acme")], Ticket(f"t{n}", message="x"))
    limiter.pause("slow", 90)
    arguments = ["status", "slow", "--key", "acme", "--url", server.url]
    said = CliRunner().invoke(main, arguments).output
    assert "waiting    2" in said
    assert "parked     2" in said
    found = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)
    assert (found["waiting"], found["parked"]) == (2, 2)
    assert 80 < found["paused"] <= 90
    assert 0 <= found["oldest"] < 30
    assert "margin     1.0 %" in said
    assert found["margin"] == 0.01


def test_status_shows_the_margin_in_force(server: Server) -> None:
    limiter = RateLimiter(server.url)
    limiter.store.change_override("slow", margin=60)
    assert limiter.status("slow").margin == 0.06
    assert (
        "margin     6.0 %"
        in CliRunner().invoke(main, ["status", "slow", "--url", server.url]).output
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_status_shows_that_the_numbers_are_not_those_in_the_code(
    server: Server, algorithm: str
) -> None:
    """Numbers that somebody once configured outlast every deploy."""
    limiter = RateLimiter(server.url)
    limiter.acquire(RateLimit("slow", 1, 60, algorithm=algorithm))

    def said(*options: str) -> str:
        return CliRunner().invoke(main, ["status", "slow", *options, "--url", server.url]).stdout

    assert "numbers    as in the code" in said()
    assert json.loads(said("--json"))["configured"] is None
    limiter.configure("slow", 100, per=50, margin=0)
    assert "numbers    set with `configure`: a unit every 0.5 s" in said()
    assert "numbers    set with `configure`" in said("--key", "acme")
    assert json.loads(said("--json"))["configured"] == 0.5
    limiter.pause("slow", 60)
    limiter.configure("slow")
    assert "numbers    as in the code" in said()


def test_configure_a_margin(server: Server) -> None:
    limit = RateLimit("partner", 1, 60)
    announce(RedisStore(server.url), {"partner": "gcra"})
    limiter = RateLimiter(server.url)
    for said, spacing_us in (("0.05", 1_050_000), ("auto", 1_010_000)):
        arguments = [
            "configure",
            "partner",
            "60",
            "--per",
            "60",
            "--margin",
            said,
            "--url",
            server.url,
        ]
        assert CliRunner().invoke(main, arguments).exit_code == 0
        assert limiter.store.peek([Spend(limit)]).readings[0].rule.pace_us(1) == spacing_us
    result = CliRunner().invoke(
        main, ["configure", "partner", "60", "--per", "60", "--margin", "wide"]
    )
    assert result.exit_code == 2
    assert "'wide' is neither a number nor `auto`" in result.output


def test_errors_are_plain(server: Server) -> None:
    for arguments, said in (
        (["status", "a:b", "--url", server.url], "name='a:b'"),
        (["status", "a", "--url", "redis://127.0.0.1:1"], "no answer from Redis"),
        (["status", "a", "--url", "what"], "scheme"),
    ):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 2
        assert said in result.output


def test_configure_pause_and_resume(server: Server) -> None:
    limiter, limit = RateLimiter(server.url), RateLimit("partner", 1, 60)
    announce(RedisStore(server.url), {"partner": "gcra"})
    url = ["--url", server.url]

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(main, [*arguments, *url])
        assert result.exit_code == 0, result.output
        return result.output

    assert "5 per 60 s" in run(
        "configure", "partner", "5", "--per", "60", "--algorithm", "sliding_log"
    )
    assert sum(bool(limiter.acquire(limit)) for _ in range(9)) == 5
    run("pause", "partner", "90")
    assert 80 < limiter.status("partner").paused <= 90
    run("resume", "partner")
    assert limiter.status("partner").paused == 0
    assert "as in the code" in run("configure", "partner")
    assert sum(bool(limiter.acquire(limit)) for _ in range(3)) == 1


def test_what_cannot_be_configured(server: Server) -> None:
    announce(RedisStore(server.url), {"partner": "gcra"})
    for arguments, said in (
        (["configure", "partner", "0", "--per", "1"], "limit=0"),
        (["configure", "partner", "5"], "LIMIT without --per"),
        (["configure", "partner", "5", "--algorithm", "leaky"], "'leaky' is not one of"),
        (
            [
                "configure",
                "partner",
                "5",
                "--per",
                "1",
                "--algorithm",
                "sliding_log",
                "--burst",
                "3",
            ],
            "burst=3",
        ),
        (["pause", "partner", "0"], "seconds=0.0"),
        (["configure", "partner", "--per", "60"], "--per without LIMIT"),
        (
            [
                "configure",
                "partner",
                "5",
                "--per",
                "60",
                "--algorithm",
                "fixed_window",
                "--tz",
                "Mars",
            ],
            "tz='Mars'",
        ),
    ):
        result = CliRunner().invoke(main, [*arguments, "--url", server.url])
        assert result.exit_code == 2
        assert said in result.output


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_configure_keeps_the_codes_algorithm(server: Server, algorithm: str) -> None:
    limiter = RateLimiter(server.url)
    limit = RateLimit("kept", 2, 3600, algorithm=algorithm, margin=0)
    limiter.configure("kept", 4, 3600, margin=0, force=True)
    for _ in range(4):
        limiter.acquire(limit)
    seen = limiter.store.peek([Spend(limit)]).readings[0]
    assert type(seen.rule) is type(limit.rule)
    assert seen.rule.pace_us(4) == pytest.approx(3600e6)
