"""Two limiters that are broken on purpose, beside the one that works. They show what breaks when several copies run.

FLEETLIMIT_URL=redis://localhost:6379/0 python -m examples.broken_limiters

- Private: three instances, each with a correct limiter in its own memory. Each keeps the limit, and together they admit
  three times as much. A fallback to private state (for instance in an outage) has the same effect.
- Racy: one counter in Redis that is read, compared and written in three steps. A caller that reads before the other
  callers have written is admitted as well.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

import redis

from fleetlimit import RateLimit
from fleetlimit.limit import ALGORITHMS
from fleetlimit.store.base import Spend, Store, Ticket
from fleetlimit.store.memory import MemoryStore
from fleetlimit.store.redis import RedisStore

INSTANCES, CONFIGURED = 3, 100


def a_limit(algorithm: str) -> RateLimit:
    """A limit of 100 per day, which may all start at once if the algorithm allows it."""
    burst = CONFIGURED if algorithm == "gcra" else None
    name = f"exhibit-{uuid.uuid4().hex[:8]}"
    return RateLimit(name, CONFIGURED, 86_400, algorithm=algorithm, burst=burst, margin=0)


def instance(limit: RateLimit, url: str | None, number: int) -> int:
    """Ask one instance of a service 100 times. Without a URL it has a store of its own."""
    store: Store = RedisStore(url) if url else MemoryStore()
    return sum(_admits(store, limit, f"{number}-{n}") for n in range(CONFIGURED))


def _admits(store: Store, limit: RateLimit, id: str) -> bool:
    # A leaky bucket admits one unit at a time, so it is asked like a queue that is a day long.
    day = 5 * (CONFIGURED - 1) * limit.rule.pace_us(1)
    ticket = Ticket(id, max_sleep_us=day) if limit.algorithm == "leaky_bucket" else None
    return store.acquire([Spend(limit)], ticket).admitted


def fleet(algorithm: str, url: str | None = None) -> int:
    """How many units three instances admit together, each in a process of its own."""
    limit = a_limit(algorithm)
    with ProcessPoolExecutor(INSTANCES, mp_context=get_context("spawn")) as pool:
        admitted = sum(pool.map(partial(instance, limit, url), range(INSTANCES)))
    if url:
        RedisStore(url).reset(limit.name)  # leave nothing behind
    return admitted


class RacyLimiter:
    """A limiter that uses GET, a comparison and SET. The pause stands for the way to a Redis on another host."""

    def __init__(self, url: str, limit: int, way_s: float = 0.05) -> None:
        self._client, self._limit, self._way_s = redis.Redis.from_url(url), limit, way_s
        self._key = f"racy-{uuid.uuid4().hex[:8]}"

    def acquire(self) -> bool:
        used = int(self._client.get(self._key) or 0)  # type: ignore[arg-type]
        time.sleep(self._way_s)
        if used >= self._limit:
            return False
        self._client.set(self._key, used + 1, ex=60)
        return True


def at_once(url: str, limit: int, calls: int) -> tuple[int, int]:
    """How many of so many concurrent calls the racy limiter and the single script admit."""
    racy, store = RacyLimiter(url, limit), RedisStore(url)
    shared = RateLimit(f"exhibit-{uuid.uuid4().hex[:8]}", limit, 86_400, burst=limit)
    with ThreadPoolExecutor(calls) as pool:
        admitted = sum(pool.map(lambda _: racy.acquire(), range(calls)))
        exact = sum(pool.map(lambda _: store.acquire([Spend(shared)]).admitted, range(calls)))
    return admitted, exact


def main() -> None:
    url = os.environ.get("FLEETLIMIT_URL", "redis://localhost:6379/0")
    print(f"{INSTANCES} instances, each asked {CONFIGURED} times, {CONFIGURED} a day allowed:")
    try:
        redis.Redis.from_url(url).ping()
    except redis.ConnectionError as error:
        sys.exit(f"no Redis at FLEETLIMIT_URL: {error}")
    for algorithm in ALGORITHMS:
        print(f"  {algorithm:16} private {fleet(algorithm):4}   shared {fleet(algorithm, url):4}")
    racy, exact = at_once(url, 10, 100)
    print(f"100 concurrent calls, 10 allowed:\n  GET then SET {racy:4}   one script {exact:4}")


if __name__ == "__main__":
    main()
