"""What a decision costs on the server (INFO commandstats), beside a bare GCRA in the same rounds.

python benchmarks/decision.py [ROUNDS]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import redis

from fleetlimit import RateLimit
from fleetlimit.demo.processes import redis_server, scratch
from fleetlimit.store.base import Spend, Ticket
from fleetlimit.store.redis import RedisStore

CALLS = 3000
# TIME, GET, SET PX and the arithmetic: the least a GCRA in Redis can be.
BARE = """
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local tat = tonumber(redis.call('GET', KEYS[1]) or now)
local new = math.max(tat, now) + ARGV[1]
if new - ARGV[2] > now then return { 0, new - ARGV[2] - now } end
redis.call('SET', KEYS[1], string.format('%.0f', new), 'PX', math.ceil((new - now) / 1000) + 1)
return { 1, 0 }
"""


def per_call(client: Any, call: Callable[[int], Any]) -> float:
    client.config_resetstat()
    for n in range(CALLS):
        call(n)
    stats = client.info("commandstats")["cmdstat_evalsha"]
    return float(stats["usec"]) / float(stats["calls"])


def main(rounds: int) -> None:
    admits = RateLimit("admits", 10_000, 1, burst=10_000)
    denies = RateLimit("denies", 1, 3600)
    waits = RateLimit("waits", 20, 1)
    with scratch() as folder, redis_server(folder) as server:
        client = redis.Redis.from_url(server.url)
        store = RedisStore(server.url)
        sha = client.script_load(BARE)

        def bare(limit: RateLimit) -> Callable[[int], Any]:
            rule = limit.rule
            return lambda n: client.evalsha(
                sha, 1, f"bare-{limit.name}", rule.emission, rule.capacity
            )

        ratios: dict[str, list[float]] = {"admitted": [], "denied": [], "10,000 waiting": []}
        for _ in range(rounds):
            ours = per_call(client, lambda n: store.acquire([Spend(admits)], Ticket(f"t{n}")))
            ratios["admitted"].append(ours / per_call(client, bare(admits)))
            ours = per_call(client, lambda n: store.acquire([Spend(denies)]))
            ratios["denied"].append(ours / per_call(client, bare(denies)))
            few, many = (waiting(client, store, waits, count) for count in (10, 10_000))
            ratios["10,000 waiting"].append(many / few)
    print(f"server time per decision, ratio, median of {rounds} rounds of {CALLS} calls:")
    print(f"  admitted, nobody waits / bare GCRA   {statistics.median(ratios['admitted']):.2f}")
    print(f"  denied, nobody waits / bare GCRA     {statistics.median(ratios['denied']):.2f}")
    print(
        f"  10,000 waiting / 10 waiting          {statistics.median(ratios['10,000 waiting']):.2f}"
    )


def waiting(client: Any, store: RedisStore, limit: RateLimit, count: int) -> float:
    """The cost for one in the middle of a line, which comes back before its turn."""
    client.flushdb()
    for n in range(count):
        last = store.acquire([Spend(limit)], Ticket(f"t{n}", max_sleep_us=0))
    middle = Ticket(f"t{count // 2}", last.first_seen_us, max_sleep_us=0)
    return per_call(client, lambda n: store.acquire([Spend(limit)], middle))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
