"""Which limits are known: a change to a name that nobody uses is refused."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from click.testing import CliRunner

from fleetlimit import ConfigurationError, RateLimit, RateLimiter, UnknownLimitError
from fleetlimit.cli import main
from fleetlimit.demo.processes import Server
from fleetlimit.store.memory import MemoryStore
from fleetlimit.store.names import announce, known_names
from fleetlimit.store.redis import RedisStore

PARTNER = RateLimit("partner-api", 10, 60)
CHANGES: dict[str, Any] = {
    "pause": lambda limiter, name, **force: limiter.pause(name, 30, **force),
    "resume": lambda limiter, name, **force: limiter.resume(name, **force),
    "configure": lambda limiter, name, **force: limiter.configure(name, 5, 60, **force),
    "configure, nothing": lambda limiter, name, **force: limiter.configure(name, **force),
    "reset": lambda limiter, name, **force: limiter.reset(name, **force),
}


def test_a_limit_stands_for_its_name(server: Server) -> None:
    limiter, tenant = RateLimiter(server.url), RateLimit("tenant", 1, 60)
    limiter.acquire(tenant, "a")
    assert limiter.pause(tenant, 30) == pytest.approx(limiter.pause("tenant", 1), abs=5)
    limiter.resume(tenant)
    limiter.configure(tenant, 2, per=60)
    limiter.reset(tenant, "a")
    assert limiter.acquire(tenant, "a")
    assert limiter.status(tenant) == limiter.status("tenant")
    assert (limiter.parked(tenant), limiter.quarantined(tenant)) == ([], [])
    assert not limiter.cancel(tenant, "id")
    assert not limiter.cancel_all(tenant)
    assert not limiter.retry(tenant, "id")
    assert not limiter.drop(tenant, "id")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_an_unknown_name_is_refused(server: Server, client: redis.Redis, change: Any) -> None:
    RateLimiter(server.url).acquire(PARTNER)
    before = sorted(client.keys())
    operator = RateLimiter(server.url)
    with pytest.raises(UnknownLimitError, match=r"'partner-apl'.*partner-api\?") as caught:
        change(operator, "partner-apl")
    assert (caught.value.name, caught.value.nearest) == ("partner-apl", "partner-api")
    with pytest.raises(UnknownLimitError) as caught:
        change(operator, "quite-another")
    assert caught.value.nearest is None
    with pytest.raises(ConfigurationError, match="name='a:b'"):
        change(operator, "a:b", force=True)
    assert sorted(client.keys()) == before
    change(operator, "partner-apl", force=True)
    change(operator, "partner-api")


@pytest.mark.parametrize(
    "arguments",
    [["pause", "partner-apl", "30"], ["resume", "partner-apl"],
     ["configure", "partner-apl", "5", "--per", "60"]],
)  # fmt: skip
def test_the_commands_refuse_it(server: Server, client: redis.Redis, arguments: list[str]) -> None:
    RateLimiter(server.url).acquire(PARTNER)
    arguments = [*arguments, "--url", server.url]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "Did you mean partner-api?" in result.output
    assert not client.exists("fleetlimit:{partner-apl}:override")
    assert CliRunner().invoke(main, [*arguments, "--force"]).exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["status", "--json"], ["status", "--key", "acme"], ["parked"], ["parked", "--bad"],
     ["cancel", "--all"], ["cancel", "some-id"], ["retry", "some-id"], ["retry", "--all"], ["drop", "--all"]],
)  # fmt: skip
def test_the_commands_that_look_say_that_they_do_not_know_it(
    server: Server, client: redis.Redis, arguments: list[str]
) -> None:
    """A misspelt name must not read like a limit under which nobody waits."""
    RateLimiter(server.url).acquire(PARTNER)
    said = "No worker and no program has announced a limit 'partner-apl'. Did you mean partner-api?"
    known, unknown = (
        CliRunner().invoke(main, [arguments[0], name, *arguments[1:], "--url", server.url])
        for name in ("partner-api", "partner-apl")
    )
    assert said in unknown.stderr
    assert "announced" not in known.output
    assert known.exit_code == unknown.exit_code
    assert known.stdout == unknown.stdout


@pytest.mark.parametrize("key", ["", "tenant"])
def test_a_limit_of_which_anything_is_stored_is_known(
    server: Server, client: redis.Redis, key: str
) -> None:
    limiter = RateLimiter(server.url)
    limiter.acquire(PARTNER, key or None)
    client.delete("fleetlimit:limits")
    assert known_names(RedisStore(server.url)) == {"partner-api"}
    limiter.pause("partner-api", 30)
    client.flushall()
    limiter.pause("partner-api", 30, force=True)
    limiter.resume("partner-api")  # its override is there
    with pytest.raises(UnknownLimitError):
        limiter.resume("partner-api")


def test_a_program_announces_once(server: Server, client: redis.Redis) -> None:
    limiter = RateLimiter(server.url)
    limiter.peek(PARTNER)
    assert not client.exists("fleetlimit:limits")
    limiter.acquire([PARTNER, RateLimit("other", 5, 1)])
    assert client.zrange("fleetlimit:limits", 0, -1) == ["other:gcra", "partner-api:gcra"]
    assert 6 * 86_400 < client.ttl("fleetlimit:limits") <= 7 * 86_400
    client.delete("fleetlimit:limits")
    for _ in range(3):
        limiter.acquire(PARTNER)
    assert not client.exists("fleetlimit:limits")


def test_a_name_that_nobody_announces_any_more_is_forgotten(server: Server) -> None:
    now = 10**15
    store = RedisStore(server.url, clock=lambda: now)
    announce(store, {"old": "gcra", "both": "gcra"})
    now += 6 * 86_400 * 10**6
    announce(store, {"both": "sliding_log"})
    assert known_names(store) == {"old", "both"}
    now += 2 * 86_400 * 10**6
    announce(store, {"new": "gcra"})
    assert known_names(store) == {"both", "new"}


def test_announcing_never_fails_a_decision(server: Server, client: redis.Redis) -> None:
    client.set("fleetlimit:limits", "foreign")
    assert RateLimiter(server.url).acquire(PARTNER)


def test_in_a_store_of_another_kind_every_name_is_taken() -> None:
    limiter = RateLimiter(MemoryStore())
    limiter.pause("never-heard-of", 30)
