"""The exported suite, on each store there is."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import redis

from fleetlimit.conformance import Clock, StoreConformance
from fleetlimit.demo.processes import Server
from fleetlimit.limit import ALGORITHMS, RateLimit
from fleetlimit.store.base import Spend, Store
from fleetlimit.store.memory import MemoryStore
from fleetlimit.store.redis import RedisStore


class TestMemory(StoreConformance):
    test_exactly_the_limit_from_processes = None  # it holds one process: see tests/test_exhibits.py
    test_what_says_nothing_goes_away = None  # it sweeps now and then, when asked: see below

    @pytest.fixture
    def make_store(self, clock: Clock) -> Callable[[], Store]:
        one = MemoryStore(clock)
        return lambda: one


class OnAServer(StoreConformance):
    """A server of ours, by the name of its fixture."""

    server_name: str

    @pytest.fixture(autouse=True)
    def _server(self, request: pytest.FixtureRequest) -> None:
        self.server: Server = request.getfixturevalue(self.server_name)
        type(self).factory = functools.partial(RedisStore, self.server.url)

    def empty(self) -> None:
        redis.Redis.from_url(self.server.url).flushall()

    def stored(self) -> int:
        return int(redis.Redis.from_url(self.server.url).dbsize())  # type: ignore[arg-type]


class TestValkey(OnAServer):
    server_name = "valkey"


class TestRedis(OnAServer):
    server_name = "redis7"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_flood_of_keys_is_forgotten_in_memory(algorithm: str) -> None:
    clock = Clock()
    store, limit = MemoryStore(clock), RateLimit("flood", 10, 1, algorithm=algorithm)
    for n in range(20_000):
        clock.now += 1000
        store.acquire([Spend(limit, f"k{n}")])
    # Nothing says anything for more than the two periods of a sliding counter.
    assert len(store._lines) <= 2 * 2_000 + 1024
