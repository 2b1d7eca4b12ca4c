"""What does not pass by itself is no outage: it is said as an error, with its text."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from fleetlimit import RateLimit, RateLimiter, StoreRefused, StoreUnavailable
from fleetlimit.demo.processes import Server, free_port, redis_server, until
from fleetlimit.store.failures import failure_of
from tests.certificates import certificate, tls_options
from tests.conftest import need
from tests.proxy import proxy

ONE = RateLimit("one", 1, 60)


@pytest.fixture(scope="module", params=["redis", "valkey"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with users who may do too little."""
    binary = (
        need("redis-server", "refusals of Redis are not tried")
        if request.param == "redis"
        else None
    )
    with redis_server(tmp_path_factory.mktemp("guarded"), binary=binary) as server:
        admin = redis.Redis.from_url(server.url)
        for user, *rights in (
            ("keys", "on", ">s3cret", "~dev:*", "+@all"),
            ("scripts", "on", ">s3cret", "~*", "+@all", "-evalsha", "-eval"),
            ("within", "on", ">s3cret", "~*", "+@all", "-get"),
            ("clock", "on", ">s3cret", "~*", "+@all", "-time"),
            ("off", "off", ">s3cret", "~*", "+@all"),
        ):
            admin.execute_command("ACL", "SETUSER", user, *rights)
        yield server


@pytest.mark.parametrize(
    ("login", "said"),
    [
        ("keys:s3cret@", "permission|access"),
        ("scripts:s3cret@", "evalsha"),
        ("within:s3cret@", "permission|can.t run"),
        ("clock:s3cret@", "permission|can.t run"),
        ("off:s3cret@", "username-password"),
        ("nobody:s3cret@", "username-password"),
    ],
)
@pytest.mark.parametrize("policy", ["raise", "wait"])
def test_a_refusal_is_an_error_and_follows_the_policy(
    guarded: Server, caplog: pytest.LogCaptureFixture, login: str, said: str, policy: str
) -> None:
    limiter = RateLimiter(guarded.url.replace("redis://", f"redis://{login}"), on_outage=policy)
    if policy == "raise":
        for _ in range(3):
            with pytest.raises(StoreRefused, match=said) as caught:
                limiter.acquire(ONE)
            assert (
                "s3cret"
                not in f"{caught.value!r}{caught.value.__cause__}{caught.value.__context__}"
            )
    else:
        assert limiter.acquire(ONE).retry_after >= 5
    health = limiter.health()
    assert health
    assert health.away
    assert health.refusal
    errors = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert len(errors) == 1
    assert health.refusal in errors[0].getMessage()
    assert "s3cret" not in caplog.text
    limiter.close()


def test_a_database_that_is_not_there(guarded: Server) -> None:
    with pytest.raises(StoreRefused, match="DB index"):
        RateLimiter(guarded.url.replace("/0", "/99")).acquire(ONE)


def test_a_refusal_ends(guarded: Server, caplog: pytest.LogCaptureFixture) -> None:
    admin = redis.Redis.from_url(guarded.url)
    admin.execute_command("ACL", "SETUSER", "late", "on", ">s3cret", "~*", "+@all", "-evalsha")
    limiter = RateLimiter(guarded.url.replace("redis://", "redis://late:s3cret@"), on_outage="open")
    assert limiter.acquire(ONE)
    admin.execute_command("ACL", "SETUSER", "late", "+evalsha")

    def back() -> bool:
        health = limiter.health()
        return bool(health and not health.away and health.refusal is None)

    until(back, "it may again")
    assert limiter.acquire(ONE).reset_after  # decided by Redis
    levels = [one.levelno for one in caplog.records if one.levelno > logging.INFO]
    assert levels == [logging.ERROR, logging.WARNING]


def test_a_refusal_that_comes_during_an_outage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis comes back with another password."""
    with redis_server(tmp_path, "--requirepass", "other") as server, proxy(server.port) as between:
        between.refuse()
        limiter = RateLimiter(f"redis://:s3cret@127.0.0.1:{between.port}/0", on_outage="wait")
        assert not limiter.acquire(ONE)
        health = limiter.health()
        assert health
        assert health.refusal is None
        between.accept()

        def refused() -> bool:
            health = limiter.health()
            return bool(health and health.refusal and "password" in health.refusal)

        until(refused, "it is said")
        redis.Redis(port=server.port, password="other").config_set("requirepass", "s3cret")
        until(lambda: not limiter.health().away, "it is back")  # type: ignore[union-attr]
    levels = [one.levelno for one in caplog.records if one.levelno > logging.INFO]
    assert levels == [logging.WARNING, logging.ERROR, logging.WARNING]


def test_a_refusal_of_one_command_is_said_once(
    guarded: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Who may admit and not deny: between two refusals Redis seems to be back."""
    admin = redis.Redis.from_url(guarded.url)
    rights = ("on", ">s3cret", "~*", "+@all", "-setrange")
    admin.execute_command("ACL", "SETUSER", "some", *rights)
    log = RateLimit("log", 5, 60, algorithm="sliding_log")
    limiter = RateLimiter(guarded.url.replace("redis://", "redis://some:s3cret@"), on_outage="wait")
    seen = 0
    for _ in range(2):
        until(lambda: not limiter.acquire(log), "it is refused")
        health = limiter.health()
        assert health
        seen += bool(health.refusal)
        until(lambda: not limiter.health().away, "it seems to be back")  # type: ignore[union-attr]
    assert seen == 2
    assert [one.levelno for one in caplog.records].count(logging.ERROR) == 1


def test_an_unknown_command_does_not_repeat_what_was_sent(tmp_path: Path) -> None:
    """Redis repeats the arguments of a command that it does not know: a task's, or a password."""
    binary = need("redis-server", "no renamed command is tried")
    hidden = ("--rename-command", "EVALSHA", "", "--rename-command", "EVAL", "")
    with redis_server(tmp_path, *hidden, binary=binary) as server:
        with pytest.raises(StoreRefused, match="unknown command") as caught:
            RateLimiter(server.url).acquire(RateLimit("hidden-name", 1, 1))
        shown = f"{caught.value}{caught.value.__cause__}{caught.value.__context__}"
        assert "hidden-name" not in shown
    (tmp_path / "auth").mkdir()
    hidden = ("--rename-command", "AUTH", "", "--rename-command", "HELLO", "")
    with redis_server(tmp_path / "auth", *hidden, binary=binary) as server:
        with pytest.raises(StoreRefused) as caught:
            RateLimiter(server.url.replace("redis://", "redis://:s3cret@")).acquire(ONE)
        assert "s3cret" not in f"{caught.value}{caught.value.__cause__}{caught.value.__context__}"


def test_a_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    binary = need("redis-server", "no TLS is tried")
    key, found = certificate(tmp_path)
    port = free_port()
    with redis_server(tmp_path, *tls_options(key, found, port), binary=binary):
        with pytest.raises(StoreRefused, match="certificate verify failed"):
            RateLimiter(f"rediss://127.0.0.1:{port}/0").acquire(ONE)
        other = f"rediss://localhost.localdomain:{port}/0?ssl_ca_certs={found}"
        with pytest.raises(StoreUnavailable):
            RateLimiter(other).acquire(ONE)
        assert RateLimiter(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={found}").acquire(ONE)


def test_what_passes_by_itself_is_no_refusal(server: Server) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        RateLimiter("redis://127.0.0.1:1/0").acquire(ONE)
    assert not isinstance(caught.value, StoreRefused)
    client = redis.Redis.from_url(server.url)
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(StoreUnavailable, match="read only") as caught:
            RateLimiter(server.url).acquire(ONE)
        assert not isinstance(caught.value, StoreRefused)
    finally:
        client.execute_command("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize(
    "error",
    [
        redis.BusyLoadingError("Redis is loading the dataset in memory"),
        redis.exceptions.ClusterDownError("CLUSTERDOWN The cluster is down"),
        redis.exceptions.MasterDownError("Link with MASTER is down"),
        redis.exceptions.TryAgainError("Multiple keys request during rehashing of slot"),
        redis.ResponseError("BUSY Redis is busy running a script."),
        redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        redis.ResponseError(
            "OOM command not allowed when used memory > 'maxmemory'. script: 8f2c, on @user_script:9."
        ),
        redis.ResponseError(
            "READONLY You can't write against a read only replica. script: 8f2c, on @user_script:9."
        ),
        redis.ResponseError("MISCONF Redis is configured to save RDB snapshots, but it fails."),
        redis.ResponseError("NOREPLICAS Not enough good replicas to write."),
        redis.ConnectionError("Connection closed by server."),
    ],
    ids=lambda error: f"{type(error).__name__} {error!s:.12}",
)
def test_each_word_of_a_server_that_will_answer_again(error: Exception) -> None:  # R5
    """They can hardly be had from a server on demand."""
    assert type(failure_of(error, ["key"])) is StoreUnavailable


def test_a_refusal_travels_between_processes() -> None:
    assert isinstance(pickle.loads(pickle.dumps(StoreRefused("no"))), StoreRefused)
