"""The exported suite, on each store there is."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import redis

from fleetlimit.conformance import Clock, StoreConformance
from fleetlimit.demo.processes import Server
from fleetlimit.store.base import Store
from fleetlimit.store.memory import MemoryStore
from fleetlimit.store.redis import RedisStore


class TestMemory(StoreConformance):
    test_exactly_the_limit_from_processes = None  # it holds one process: see tests/test_exhibits.py

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


class TestValkey(OnAServer):
    server_name = "valkey"


class TestRedis(OnAServer):
    server_name = "redis7"
