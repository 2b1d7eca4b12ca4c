"""Every store, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from fleetlimit.demo.processes import Server
from fleetlimit.store.base import Store
from fleetlimit.store.memory import MemoryStore
from fleetlimit.store.redis import RedisStore

START = 1_767_225_600_000_999  # N10: TIME would say 1767225600 and 999


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += round(seconds * 1_000_000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "valkey", "redis7"])
def make_store(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Callable[..., Store]]:
    """A factory of stores that share one state (each Redis store has a client of its own)."""
    made: list[Store] = []
    if request.param == "memory":
        one = MemoryStore(clock)
        yield lambda: one
        return
    server: Server = request.getfixturevalue(request.param)
    redis.Redis.from_url(server.url).flushall()

    def make() -> Store:
        made.append(RedisStore(server.url, clock=clock))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store: Callable[..., Store]) -> Store:
    return make_store()
