"""Two environments in one database, and a user that may touch its own keys only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.cluster import RedisCluster
from redis.crc import key_slot

from fleetlimit import ConfigurationError, RateLimit, RateLimiter, StoreUnavailable
from fleetlimit.demo.processes import Server, redis_server
from fleetlimit.store.base import Spend, Ticket
from fleetlimit.store.keyspace import Keys, name_and_key
from fleetlimit.store.redis import RedisStore
from fleetlimit.store.room import Room
from tests.clusters import cluster
from tests.store.everything import ONE, everything

PAGE = Path(__file__).parents[2] / "docs" / "outages.md"
PREFIXES = ("", "dev:", "shop_", "a{b", "{shop}:", "fleetlimit:", "fleetlimit:{")


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("key", ["", "s:42", "s:a%3Ab"])
def test_a_line_has_one_slot_and_its_names_are_read_back(prefix: str, key: str) -> None:
    keys = Keys(prefix)
    state = keys.state("api", key)
    assert name_and_key(state) == ("api", key)
    line = keys.line(state, cluster=True)
    assert len({key_slot(one.encode()) for one in line}) == 1
    assert all(one.startswith(prefix) for one in (*line, *keys.line(state, cluster=False)))


def test_lines_spread_over_a_cluster_under_a_prefix() -> None:
    keys = Keys("dev:")
    assert len({key_slot(keys.state("api", f"s:{n}").encode()) for n in range(100)}) > 90


@pytest.mark.parametrize("prefix", ["{}", "{}x:", "a b", "a\n", "a\0", "x" * 201, 7, b"dev:"])
def test_a_wrong_prefix_is_refused(prefix: object) -> None:
    with pytest.raises(ConfigurationError, match="key_prefix="):
        RateLimiter("redis://127.0.0.1:1", key_prefix=prefix)  # type: ignore[arg-type]


def test_a_store_has_its_own_prefix() -> None:
    store = RedisStore("redis://127.0.0.1:1", key_prefix="dev:")
    with pytest.raises(ConfigurationError, match="key_prefix='other:'"):
        RateLimiter(store, key_prefix="other:")


def test_two_environments_do_not_meet(tmp_path: Path) -> None:
    # A server of its own: limiters of other tests may still probe the common one.
    with redis_server(tmp_path) as server:
        client = redis.Redis.from_url(server.url, decode_responses=True)
        dev, live = RateLimiter(server.url, key_prefix="dev:"), RateLimiter(server.url)
        everything(dev)
        names = client.keys("*")
        assert names
        assert [name for name in names if not name.startswith("dev:fleetlimit:")] == []  # type: ignore[union-attr]
        dev.pause("one", 30)
        assert live.acquire(ONE)
        assert live.status("one").waiting == 0
        everything(RateLimiter(server.url, key_prefix="test:"))


def test_the_prefix_of_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETLIMIT_URL", server.url)
    monkeypatch.setenv("FLEETLIMIT_KEY_PREFIX", "env:")
    assert RateLimiter().acquire(ONE)
    assert RateLimiter(key_prefix="").acquire(ONE)
    assert not RateLimiter(key_prefix="env:").acquire(ONE)


def test_a_room_lists_its_keys_without_the_prefix(server: Server) -> None:
    store = RedisStore(server.url, key_prefix="dev:")
    store.acquire([Spend(ONE, "k")])
    store.acquire([Spend(ONE, "k")], Ticket("t", broker="b", message="m"))
    assert Room(store, "b").keys(["one"]) == ([("one", "k")], 1)


def test_a_user_that_may_touch_its_own_prefix_only(server: Server, client: redis.Redis) -> None:
    rights = re.search(r"^ACL SETUSER limits (.*)$", PAGE.read_text(), re.MULTILINE)
    assert rights
    words = rights[1].replace("~fleetlimit:*", "~dev:*").split()
    client.execute_command("ACL", "SETUSER", "dev", *words)
    url = server.url.replace("redis://", "redis://dev:secret@")
    try:
        everything(RateLimiter(url, key_prefix="dev:"))
        with pytest.raises(StoreUnavailable):
            RateLimiter(url).acquire(ONE)
    finally:
        client.execute_command("ACL", "DELUSER", "dev")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.mark.parametrize("prefix", ["dev:", "{shop}:"])
def test_a_prefix_on_a_cluster(nodes: list[Server], prefix: str) -> None:
    found = RedisCluster(host="127.0.0.1", port=nodes[0].port)
    try:
        found.flushall(target_nodes=RedisCluster.PRIMARIES)
        everything(RateLimiter(found, key_prefix=prefix))
        names = [key.decode() for key in found.keys("*", target_nodes=RedisCluster.PRIMARIES)]
        assert names
        assert all(name.startswith(f"{prefix}fleetlimit:") for name in names)
        assert RateLimiter(found).acquire(RateLimit("one", 1, 60))
    finally:
        found.close()
