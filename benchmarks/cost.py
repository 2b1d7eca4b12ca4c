"""What a decision costs: every algorithm, in this process and in Redis by TCP and by unix socket.

    python benchmarks/cost.py [ROUNDS]

Ratios against a bare PING of the same round and way; "server" is the server's own time for the script
against its time for PING's kin, from its command statistics. Prints a Markdown table (the one in docs/algorithms.md).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from fleetlimit import RateLimit
from fleetlimit.demo.processes import redis_server, scratch
from fleetlimit.limit import ALGORITHMS
from fleetlimit.store.base import Spend, Store
from fleetlimit.store.memory import MemoryStore
from fleetlimit.store.redis import RedisStore

CALLS, LIMIT = 500, 100


def timed(call: Callable[[], object]) -> float:
    """Microseconds for each of many calls."""
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began) / CALLS * 1e6


def limits() -> list[RateLimit]:
    found = [RateLimit(one, LIMIT, 1, algorithm=one) for one in ALGORITHMS]
    return [*found, *(RateLimit(f"log-{n}", n, 1, algorithm="sliding_log") for n in (10, 100_000))]


def filled(store: Store, limit: RateLimit) -> None:
    """So that decisions are as in use: some admitted, most denied."""
    for _ in range(min(limit.limit, 1000)):
        store.acquire([Spend(limit, cost=max(1, min(limit.most, limit.limit // 1000)))])


class Server:
    """What the server says of itself."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def evals(self) -> tuple[int, int]:
        """Scripts that were run, and microseconds in them."""
        stats: Any = self.client.info("commandstats")
        found = stats.get("cmdstat_evalsha", {"calls": 0, "usec": 0})
        return int(found["calls"]), int(found["usec"])

    def bytes(self) -> int:
        stats: Any = self.client.info("stats")
        return int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"])


def main(rounds: int) -> None:
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    facts: dict[str, tuple[float, float, float, int]] = {}
    with scratch() as folder:
        path = Path(folder) / "redis.sock"
        with redis_server(folder, "--unixsocket", str(path)) as server:
            ways = {"TCP": server.url, "unix": f"unix://{path}"}
            stores: dict[str, Store] = {"memory": MemoryStore()}
            stores |= {way: RedisStore(url) for way, url in ways.items()}
            pings = {way: redis.Redis.from_url(url) for way, url in ways.items()}
            said = Server(pings["TCP"])
            for store in stores.values():
                for limit in limits():
                    filled(store, limit)
            for _ in range(rounds):
                for way, client in pings.items():
                    took["PING", way].append(timed(client.ping))
                for limit in limits():
                    spend = [Spend(limit)]
                    for way, store in stores.items():
                        took[limit.name, way].append(timed(lambda s=store, a=spend: s.acquire(a)))  # type: ignore[misc]
            for limit in limits():
                facts[limit.name] = of_one(said, stores["TCP"], limit)
    print(f"{rounds} rounds of {CALLS} calls; us = microseconds, median of the rounds")
    print(
        "| | memory | TCP | / PING | unix | / PING | server | bytes | round trips | memory per key |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    ping = {way: took["PING", way] for way in ways}
    print(f"| PING | | {med(ping['TCP'])} | 1 | {med(ping['unix'])} | 1 | | | 1 | |")
    for name in (one.name for one in limits()):
        tcp, unix = took[name, "TCP"], took[name, "unix"]
        trips, usec, size, memory = facts[name]
        print(
            f"| {name} | {med(took[name, 'memory'])} | {med(tcp)} | {over(tcp, ping['TCP'])} | {med(unix)} "
            f"| {over(unix, ping['unix'])} | {usec:.0f} us | {size:.0f} | {trips:.2f} | {memory} B |"
        )


def of_one(said: Server, store: Store, limit: RateLimit) -> tuple[float, float, float, int]:
    """Round trips, server time, bytes on the wire (both ways) of a decision; and memory of a full key."""
    runs, usec = said.evals()
    size = said.bytes()
    size = said.bytes() - size  # of asking for it
    before = said.bytes()
    for _ in range(CALLS):
        store.acquire([Spend(limit)])
    sent = said.bytes() - before - size
    after_runs, after_usec = said.evals()
    filled(store, limit)
    memory = said.client.memory_usage(f"fleetlimit:{{{limit.name}}}")
    trips = (after_runs - runs) / CALLS
    return trips, (after_usec - usec) / (after_runs - runs), sent / CALLS, int(memory or 0)  # type: ignore[arg-type]


def med(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} us"


def over(values: list[float], base: list[float]) -> str:
    return f"{statistics.median(a / b for a, b in zip(values, base, strict=True)):.2f}"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
