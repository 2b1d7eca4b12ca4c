"""A limiter on a real Redis Cluster and behind a real Sentinel."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.cluster import ClusterNode, RedisCluster

from fleetlimit import (
    ConfigurationError,
    RateLimit,
    RateLimiter,
    StoreUnavailable,
    UnknownLimitError,
)
from fleetlimit.demo.processes import Server, free_port, redis_server, until
from fleetlimit.store.base import Spend, Ticket, Verdict
from fleetlimit.store.keyspace import Keys
from fleetlimit.store.redis import RedisStore
from fleetlimit.store.room import Fate, Released, Room
from tests.certificates import certificate, tls_options
from tests.clusters import cluster, sentinel
from tests.conftest import need
from tests.store.everything import FIVE, ONE, everything


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def client(nodes: list[Server]) -> Iterator[RedisCluster]:
    found = RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", node.port) for node in nodes])
    found.flushall(target_nodes=RedisCluster.PRIMARIES)
    yield found
    found.close()


def test_lines_spread_over_all_nodes(client: RedisCluster, nodes: list[Server]) -> None:  # R4
    limiter = RateLimiter(client)
    for n in range(300):
        assert limiter.acquire(ONE, key=n)
        assert not limiter.acquire(ONE, key=n)
    sizes = [redis.Redis(port=node.port).dbsize() for node in nodes]
    assert sum(sizes) == 300 + 1  # type: ignore[arg-type]  # and the names of all limits
    assert min(sizes) > 50  # type: ignore[type-var,operator]


def test_names_are_known_whatever_node_has_them(client: RedisCluster) -> None:
    limiter = RateLimiter(client)
    for n in range(20):
        limiter.acquire(RateLimit(f"known-{n}", 1, 60), key="k")
    client.delete("fleetlimit:limits")
    for n in range(20):
        limiter.pause(f"known-{n}", 1)
    with pytest.raises(UnknownLimitError):
        limiter.pause("unheard", 1)


def test_two_limits_all_or_nothing(client: RedisCluster) -> None:  # R4
    limiter = RateLimiter(client)
    for n in range(30):
        ones = (ONE, f"k{n}")
        assert limiter.acquire([FIVE, ones])
        assert not limiter.acquire([FIVE, ones])
        assert limiter.peek(FIVE).remaining == 4  # given back
        limiter.reset(FIVE)


def test_the_room_on_a_cluster(client: RedisCluster) -> None:
    store = RedisStore(client)
    room, limiter = Room(store, "b"), RateLimiter(store)
    quick = RateLimit("quick", 1000, 1)
    for key in ("a", "b", "c"):
        store.acquire([Spend(ONE, key)])
        ticket = Ticket(f"task-{key}", broker="b", message="m")
        assert store.acquire([Spend(ONE, key)], ticket).verdict is Verdict.PARKED
        assert limiter.parked("one", key) == [f"task-{key}"]
    assert limiter.acquire(quick)
    assert room.due_lines().lines == ()
    limiter.configure("one", 1000, 1)
    lines = room.due_lines().lines
    assert len(lines) == 3
    found = room.release(lines, 150_000)
    released = [one for one in found if isinstance(one, Released)]
    assert [len(one.messages) for one in released] == [1, 1, 1]
    room.settle([Fate(one, {one.messages[0][0]: None}) for one in released])
    assert [limiter.status("one", key).parked for key in ("a", "b", "c")] == [0, 0, 0]
    limiter.pause("one", 30)
    assert limiter.status("one", "a").paused > 0


def test_behind_a_sentinel(tmp_path: Path) -> None:
    with sentinel(tmp_path) as (_, _, found):
        limiter = RateLimiter(found.master_for("limits"))
        assert limiter.acquire(ONE)
        assert not limiter.acquire(ONE)
        limiter.store.acquire([Spend(ONE)], Ticket("t", message="m"))
        assert limiter.status("one").parked == 1


@pytest.mark.parametrize("how", ["ordered", "killed"])
def test_a_sentinel_fails_over(tmp_path: Path, how: str) -> None:  # R5
    minute = RateLimit("minute", 5, 3600, burst=5)
    with sentinel(tmp_path) as (master, port, _):
        limiter = RateLimiter(f"sentinel://127.0.0.1:{port}/limits", on_outage="wait")
        assert sum(bool(limiter.acquire(minute)) for _ in range(9)) == 5
        info = redis.Redis(port=master.port).info
        until(
            lambda: (
                info("replication")["slave0"]["offset"] == info("replication")["master_repl_offset"]
            ),
            "all is replicated",
        )
        if how == "killed":
            master.process.kill()
        else:
            redis.Redis(port=port).execute_command("SENTINEL", "FAILOVER", "limits")

        def replaced() -> bool:
            found = redis.Redis(port=port).execute_command(
                "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "limits"
            )
            return int(found[1]) != master.port

        until(replaced, "the failover")

        def works() -> bool:
            limiter.acquire(RateLimit("other", 10**6, 1, burst=10**6))
            health = limiter.health()
            return bool(health and not health.away)

        until(works, "the limiter follows")
        # Nothing was lost, so nothing is admitted again.
        assert not limiter.acquire(minute)
        assert limiter.peek(minute).remaining == 0


def test_a_cluster_by_url(nodes: list[Server], client: RedisCluster) -> None:
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    limiter = RateLimiter(f"redis+cluster://{hosts}")
    assert [bool(limiter.acquire(FIVE)) for _ in range(6)] == [True] * 5 + [False]
    assert RateLimiter(client).peek(FIVE).remaining == 0


@pytest.mark.parametrize("by", ["url", "client"])
def test_a_spend_on_a_cluster_is_sent_once(  # R2
    nodes: list[Server], client: RedisCluster, by: str
) -> None:
    """A node hangs: the call was sent, and nobody knows whether it ran. It must not be sent again."""
    source = client if by == "client" else f"redis+cluster://127.0.0.1:{nodes[0].port}"
    limiter = RateLimiter(source)
    assert limiter.acquire(FIVE)
    port = client.get_node_from_key(Keys().state("five")).port
    node = next(one for one in nodes if one.port == port)
    node.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable):
            limiter.acquire(FIVE)
    finally:
        node.process.send_signal(signal.SIGCONT)
    assert RateLimiter(client).peek(FIVE).remaining >= 3


def test_a_cluster_that_is_away_is_unavailable() -> None:
    limiter = RateLimiter("redis+cluster://127.0.0.1:1")
    with pytest.raises(StoreUnavailable):
        limiter.acquire(ONE)
    assert RateLimiter("redis+cluster://127.0.0.1:1", on_outage="open").acquire(ONE)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sentinel://127.0.0.1:26379", "names no service"),
        ("sentinel:///limits", "names no host"),
        ("sentinel://h:1/limits?x=1", "unknown options: x"),
        ("redis+cluster://h:1/3", "no database"),
        ("redis+cluster://u:secret@h:port", "port must be a number"),
        ("redis+sentinel://u:secret@h/x", "scheme 'redis\\+sentinel'"),
        ("redis://u:secret@h:port/0", "scheme 'redis'"),
        ("sentinel://a:1;sentinel://b:2", "write sentinel://host:26379,host:26379/mymaster"),
        ("sentinel://:secret@a:1/0;sentinel://:secret@b:2/0", "write sentinel://host:26379,host"),
        ("sentinel://a:1/0", "names no service"),
        ("redis://a;redis://b", "a list of URLs"),
        ("redis://h/secret?virtual_host=x", "database must be a number"),
        ("redis://h/secret", "database must be a number"),
        ("rediss://h:6379/0/secret", "database must be a number"),
        ("redis://h/0?foo=bar", "foo"),
        ("redis://h/0?credential_provider=no.such.Class", "credential_provider='no.such.Class'"),
        ("redis://h/0?credential_provider=os.getcwd", "must be a redis.CredentialProvider"),
        ("rediss://h/0?ssl_ca_certs=/no/such/file", "ssl_ca_certs='/no/such/file'"),
    ],
)
def test_a_wrong_url_says_what_is_wrong_and_no_password(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        RateLimiter(url)
    assert "secret" not in str(caught.value)


def test_the_acl_user_of_the_docs_may_use_all_that_the_scripts_do() -> None:
    """Also what they do only where something was lost."""
    root = Path(__file__).parents[2]
    line = re.search(
        r"^ACL SETUSER (.*)$", (root / "docs" / "outages.md").read_text(), re.MULTILINE
    )
    assert line
    used: set[str] = set()
    for script in (root / "lua").glob("*.lua"):
        used |= set(re.findall(r"redis\.p?call\('([A-Z]+)'", script.read_text()))
    assert len(used) > 20
    assert {f"+{command.lower()}" for command in used} <= set(line[1].split())


def test_the_acl_user_of_the_docs_is_enough(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "outages.md").read_text()
    line = re.search(r"^ACL SETUSER (.*)$", page, re.MULTILINE)
    assert line
    binary = need("redis-server", "no ACL is tried")
    with redis_server(tmp_path, binary=binary) as server:
        admin = redis.Redis.from_url(server.url)
        admin.execute_command("ACL", "SETUSER", *line[1].split())
        limiter = RateLimiter(server.url.replace("redis://", "redis://limits:secret@"))
        everything(limiter)
        # redis-py says its own name, and does not mind a refusal.
        assert {one["object"] for one in admin.acl_log()} <= {"client|setinfo", "client"}  # type: ignore[union-attr]
        # And it is no more than that.
        other = redis.Redis.from_url(server.url.replace("redis://", "redis://limits:secret@"))
        for command in (["KEYS", "*"], ["GET", "theirs"], ["FLUSHALL"], ["CONFIG", "GET", "*"]):
            with pytest.raises(redis.exceptions.NoPermissionError):
                other.execute_command(*command)


def test_over_tls_and_a_unix_socket(tmp_path: Path) -> None:
    binary = need("redis-server", "no TLS is tried")
    key, found = certificate(tmp_path)
    port, socket = free_port(), tmp_path / "redis.sock"
    options = (*tls_options(key, found, port), "--unixsocket", str(socket))
    with redis_server(tmp_path, *options, binary=binary) as server:
        user = ("limits", "on", ">secret", "~*", "+@all")
        redis.Redis.from_url(server.url).execute_command("ACL", "SETUSER", *user)
        secure = f"rediss://limits:secret@127.0.0.1:{port}/0"
        assert RateLimiter(f"{secure}?ssl_ca_certs={found}").acquire(FIVE)
        assert RateLimiter(f"unix://{socket}").peek(FIVE).remaining == 4
        with pytest.raises(StoreUnavailable) as caught:  # it does not trust this certificate
            RateLimiter(secure).acquire(FIVE)
        assert "secret" not in f"{caught.value!r} {caught.value.__cause__!r}"
        wrong = RateLimiter(f"rediss://limits:nonsense@127.0.0.1:{port}/0?ssl_ca_certs={found}")
        with pytest.raises(StoreUnavailable) as caught:  # R5
            wrong.acquire(FIVE)
        assert "nonsense" not in f"{caught.value!r} {wrong!r}"


def test_without_time_in_scripts(tmp_path: Path) -> None:
    """A managed service that refuses it."""
    binary = need("redis-server", "no service without TIME is tried")
    with redis_server(tmp_path, binary=binary) as server:
        admin = redis.Redis.from_url(server.url)
        admin.execute_command("ACL", "SETUSER", "poor", "on", ">secret", "~*", "+@all", "-time")
        url = server.url.replace("redis://", "redis://poor:secret@")
        with pytest.raises(StoreUnavailable):
            RateLimiter(url).acquire(FIVE)
        limiter = RateLimiter(url, client_time=True)
        assert [bool(limiter.acquire(FIVE)) for _ in range(6)] == [True] * 5 + [False]
