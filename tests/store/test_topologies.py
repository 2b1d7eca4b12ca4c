"""A limiter on a real Redis Cluster and behind a real Sentinel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.cluster import ClusterNode, RedisCluster

from fleetlimit import RateLimit, RateLimiter
from fleetlimit.demo.processes import Server
from fleetlimit.store.base import Spend, Ticket, Verdict
from fleetlimit.store.redis import RedisStore
from fleetlimit.store.room import Room
from tests.clusters import cluster, sentinel

ONE = RateLimit("one", 1, 60)
FIVE = RateLimit("five", 5, 60, burst=5)


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
    assert sum(sizes) == 300  # type: ignore[arg-type]
    assert min(sizes) > 50  # type: ignore[type-var,operator]


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
    for line in lines:
        released = room.release(line, 150_000)
        assert len(released.messages) == 1
        room.confirm(line, released.copy, [released.messages[0][0]])
    assert [limiter.status("one", key).parked for key in ("a", "b", "c")] == [0, 0, 0]
    limiter.pause("one", 30)
    assert limiter.status("one", "a").paused > 0


def test_behind_a_sentinel(tmp_path: Path) -> None:
    with sentinel(tmp_path) as (_, found):
        limiter = RateLimiter(found.master_for("limits"))
        assert limiter.acquire(ONE)
        assert not limiter.acquire(ONE)
        limiter.store.acquire([Spend(ONE)], Ticket("t", message="m"))
        assert limiter.status("one").parked == 1
