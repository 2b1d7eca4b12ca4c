"""`fleetlimit status`."""

from __future__ import annotations

import json

from click.testing import CliRunner

from fleetlimit import RateLimit, RateLimiter
from fleetlimit.cli import main
from fleetlimit.demo.processes import Server
from fleetlimit.store.base import Spend, Ticket

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


def test_errors_are_plain(server: Server) -> None:
    for arguments, said in (
        (["status", "a:b", "--url", server.url], "name='a:b'"),
        (["status", "a", "--url", "redis://127.0.0.1:1"], "no answer from Redis"),
        (["status", "a", "--url", "what"], "scheme"),
    ):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 2
        assert said in result.output
