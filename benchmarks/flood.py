"""A flood of one million keys: the memory of Redis before, at its peak and after.

python benchmarks/flood.py [KEYS]
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import redis

from fleetlimit import RateLimit, RateLimiter
from fleetlimit.demo.processes import redis_server, scratch, until
from fleetlimit.store.connection import Connection
from fleetlimit.store.redis import RedisStore


def main(keys: int) -> None:
    limit = RateLimit("flood", 1, 60)  # a key says something for a minute
    with scratch() as folder, redis_server(folder) as server:
        client = redis.Redis.from_url(server.url)
        # With patience: here a busy machine is no outage.
        limiter = RateLimiter(RedisStore(Connection(server.url, timeout=30)))

        def used() -> int:
            return int(client.info("memory")["used_memory"])  # type: ignore[index]

        def send(part: int) -> None:
            for n in range(part * 1000, part * 1000 + 1000):
                limiter.acquire(limit, key=f"tenant-{n}")

        before, most, most_keys = used(), 0, 0
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(send, range(keys // 1000)):
                most, most_keys = max(most, used()), max(most_keys, int(client.dbsize()))  # type: ignore[arg-type]
        until(lambda: client.dbsize() == 0, "all keys are gone", 180)
        after = used()
    print(
        f"{keys} keys: {before / 2**20:.1f} MB before, {most / 2**20:.1f} MB at the peak "
        f"({most_keys} keys, {(most - before) / most_keys:.0f} bytes each), {after / 2**20:.1f} MB after"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
