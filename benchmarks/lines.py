"""Many lines, many releasers, many workers, and one large task among small ones.

python benchmarks/lines.py [tenants releasers beat large]
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from celery import Celery
from one_worker import workers_of

from fleetlimit import RateLimit
from fleetlimit.celery.publisher import Parcel
from fleetlimit.celery.releaser import Releaser
from fleetlimit.conformance import Clock
from fleetlimit.demo.measure import worst_window
from fleetlimit.demo.processes import redis_server, scratch, until
from fleetlimit.store.base import Spend, Ticket, Verdict
from fleetlimit.store.connection import Connection
from fleetlimit.store.redis import RedisStore
from fleetlimit.store.room import Fate, Released, Room


@contextmanager
def a_server() -> Iterator[str]:
    with scratch() as folder, redis_server(folder) as server:
        yield server.url


# --- a hundred tenants --------------------------------------------------------------------------------


def tenant_lines() -> None:
    """Tasks of many tenants, 1 per 1 s each, sent at once: two workers."""
    for number, each in ((50, 20), (100, 10)):
        with workers_of("tenants", 2) as url, Celery(broker=url) as sender:
            client = redis.Redis.from_url(url)
            for n in range(each):
                for tenant in range(number):
                    sender.send_task("tenants.call", (tenant, n))
            total = number * each
            until(lambda: client.llen("starts") >= total, "all starts", 120)  # noqa: B023  # awaited here
            starts = [json.loads(one) for one in client.lrange("starts", 0, -1)]
        times = [at for at, _, _ in starts]
        by_tenant = {t: sorted(at for at, of, _ in starts if of == t) for t in range(number)}
        worst = max(worst_window(one, 1.0) for one in by_tenant.values())
        drain = (max(times) - min(times)) / ((each - 1) * 1.01)
        print(
            f"{number} tenants x {each} tasks, 1 per 1 s each, two workers: drain / ideal "
            f"{drain:.3f} (the margin included), worst window of a tenant {worst}",
            flush=True,
        )


# --- a thousand lines due at once ---------------------------------------------------------------------


class SlowBroker:
    """Takes 0.1 ms for each message."""

    def __init__(self) -> None:
        self.published = 0

    def publish(self, parcels: Sequence[Parcel]) -> None:
        time.sleep(0.0001 * len(parcels))
        self.published += len(parcels)
        for one in parcels:
            one.error = None

    def close(self) -> None:
        """Nothing to close."""


MESSAGE = json.dumps(
    {
        "id": "x", "headers": {"task": "t"}, "properties": {}, "serializer": "json", "exchange": "",
        "routing_key": "celery", "eta": None, "copy": "", "queues": [], "more": {}, "ticket": "x", "redelivered": False,
        "body": ["application/json", "utf-8", "[[], {}, {}]"],
    }
)  # fmt: skip


def park(store: RedisStore, lines: int, *, due: bool = True) -> None:
    limit = RateLimit("line", 1, 1)
    for n in range(lines):
        store.acquire([Spend(limit, str(n))])
        ticket = Ticket("t", broker="b", lane="b", message=MESSAGE, max_sleep_us=0)
        assert store.acquire([Spend(limit, str(n))], ticket).verdict is Verdict.PARKED
    if due:
        time.sleep(1.1)


def lines_per_second(url: str, releasers: int, lines: int = 1000) -> float:
    redis.Redis.from_url(url).flushall()
    park(RedisStore(url), lines)
    app = Celery("bench", broker=url)
    ready = threading.Event()
    made = []
    for _ in range(releasers):
        room = Room(RedisStore(Connection(url, timeout=5)), "b")
        one = Releaser(app, lambda room=room: room, ready)
        made.append(one)
    brokers = [SlowBroker() for _ in made]
    for one, broker in zip(made, brokers, strict=True):
        one._publisher = broker  # type: ignore[assignment]
        one.start()
    time.sleep(0.3)
    start = time.perf_counter()
    ready.set()
    until(lambda: sum(broker.published for broker in brokers) >= lines, "all let go", 60)
    took = time.perf_counter() - start
    for one in made:
        one.halt()
    for one in made:
        one.stop()
    return lines / took


def releasers(rounds: int = 5) -> None:
    """Lines due at once, publishes of 0.1 ms: one releaser, and sixteen."""
    with a_server() as url:
        found: dict[int, list[float]] = {1: [], 4: [], 16: []}
        for _ in range(rounds):
            for number, rates in found.items():
                rates.append(lines_per_second(url, number))
    one = statistics.median(found[1])
    for number, rates in found.items():
        rate = statistics.median(rates)
        print(
            f"1,000 lines due at once, {number} releasers: {rate:.0f} lines/s "
            f"({min(rates):.0f} to {max(rates):.0f}), {rate / one:.2f} of one releaser's, {rounds} rounds",
            flush=True,
        )


# --- heartbeats ---------------------------------------------------------------------------------------


def beat() -> None:
    """Server time of a heartbeat with many workers known, over that with few."""
    with a_server() as url:
        client, cost = redis.Redis.from_url(url), {}
        for workers in (10, 2000):
            client.flushall()
            store = RedisStore(url)
            for n in range(workers):
                store.beat(f"worker{n}:4", 600)
            client.config_resetstat()
            for n in range(1000):
                store.beat(f"worker{n % workers}:4", 600)
            stats: Any = client.info("commandstats")["cmdstat_evalsha"]  # type: ignore[index]
            cost[workers] = stats["usec"] / stats["calls"]
    print(
        f"a beat with 2,000 workers known: {cost[2000] / cost[10]:.2f} times one with 10",
        flush=True,
    )


# --- a large task among small ones --------------------------------------------------------------------


def large(seconds: float = 90) -> None:
    """600,000 units per 60 s, burst 14,000: tasks of 600 units at 115 % of that, and one of 14,000; a simulated
    fleet on a clock of its own, the room and the decisions real."""
    limit = RateLimit("tokens", 600_000, 60, burst=14_000)
    with a_server() as url:
        clock = Clock()
        store = RedisStore(url, clock=clock)
        room, fleet = Room(store), _Fleet(store, clock, limit)
        began, gap = clock.now, round(600 / (10_000 * 1.15) * 1e6)
        arrivals = [(began + n * gap, f"small{n}", 600) for n in range(round(seconds * 1e6 / gap))]
        arrivals.append((began + 20_000_000, "large", 14_000))
        arrivals.sort()
        while arrivals or fleet.queue or room.status("tokens").parked:
            clock.now += 10_000
            while arrivals and arrivals[0][0] <= clock.now:
                _, id, cost = arrivals.pop(0)
                fleet.queue.append((clock.now, id, cost, 0, ""))
            fleet.deliver()
            fleet.let_go(room)
            if clock.now - began > 3 * seconds * 1e6:
                break
    waits = fleet.waits
    behind = 20_000_000 // gap + 1
    near = [waits[f"small{n}"] for n in range(behind, behind + 50) if f"small{n}" in waits]
    print(
        f"one task of 14,000 units among tasks of 600: waits {waits.get('large', -1):.2f} s, the fifty behind it "
        f"{statistics.median(near):.2f} s (ratio {waits.get('large', -1) / statistics.median(near):.2f}), "
        f"{fleet.deliveries['large']} deliveries; {len(waits)} of {len(fleet.deliveries)} started",
        flush=True,
    )


class _Fleet:
    """Workers that take 5 ms from a queue to the decision."""

    def __init__(self, store: RedisStore, clock: Clock, limit: RateLimit) -> None:
        self.store, self.clock, self.limit = store, clock, limit
        self.queue: list[tuple[int, str, int, int, str]] = []
        self.first: dict[str, int] = {}
        self.waits: dict[str, float] = {}
        self.deliveries: dict[str, int] = {}
        self.costs: dict[str, int] = {}

    def deliver(self) -> None:
        later = []
        for at, id, cost, seen, copy in self.queue:
            if at > self.clock.now:
                later.append((at, id, cost, seen, copy))
                continue
            self.first.setdefault(id, at)
            self.costs[id] = cost
            self.deliveries[id] = self.deliveries.get(id, 0) + 1
            ticket = Ticket(id, seen, copy=copy, message=f"m{id}")
            outcome = self.store.acquire([Spend(self.limit, cost=cost)], ticket)
            if outcome.admitted:
                self.waits[id] = (self.clock.now + outcome.sleep_us - self.first[id]) / 1e6
            elif outcome.verdict is Verdict.DENIED:
                later.append(
                    (self.clock.now + outcome.wait_us, id, cost, outcome.first_seen_us, "")
                )
        self.queue = later

    def let_go(self, room: Room) -> None:
        lines = room.due_lines().lines
        for one in room.release(lines, 150_000) if lines else []:
            assert isinstance(one, Released)
            for id, seen, _ in one.messages:
                self.queue.append((self.clock.now + 5_000, id, self.costs[id], seen, str(one.copy)))
            room.settle([Fate(one, {id: None for id, _, _ in one.messages})])


SCENARIOS = {"tenants": tenant_lines, "releasers": releasers, "beat": beat, "large": large}

if __name__ == "__main__":
    for name in sys.argv[1:] or list(SCENARIOS):
        SCENARIOS[name]()
