"""What can happen to the limits' Redis, under real workers that drain a backlog: nothing is lost, the window
stays within the bound of that fault, and the fleet recovers by itself."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from fleetlimit.demo.processes import Server, redis_server, until
from tests.celery.harness import fleet, heard, window
from tests.clusters import cluster
from tests.faults.drain import LIMIT, PROCESSES, SWITCH, TASKS, all_of, draining, send
from tests.faults.report import Note
from tests.proxy import Proxy, proxy


def flushing(limits: redis.Redis, between: Proxy) -> None:
    limits.script_flush()


def losing(limits: redis.Redis, between: Proxy) -> None:
    between.lose_replies = 1
    time.sleep(0.3)


def resetting(limits: redis.Redis, between: Proxy) -> None:
    between.reset()
    time.sleep(0.3)


def slow(limits: redis.Redis, between: Proxy) -> None:
    between.delay = 0.03


def slower_than_the_timeout(limits: redis.Redis, between: Proxy) -> None:
    between.delay = 0.4


def full(limits: redis.Redis, between: Proxy) -> None:
    limits.config_set("maxmemory", "1")


def read_only(limits: redis.Redis, between: Proxy) -> None:
    limits.execute_command("REPLICAOF", "127.0.0.1", "1")


def mended(limits: redis.Redis, between: Proxy) -> None:
    between.delay = 0
    between.lose_replies = 0
    limits.config_set("maxmemory", "0")
    limits.execute_command("REPLICAOF", "NO", "ONE")


#: What happens again and again for four seconds; whether far waits are parked; and by how many units the
#: window may then be exceeded: while Redis decides by none.
FAULTS: list[tuple[Callable[[redis.Redis, Proxy], None], bool, int]] = [
    (flushing, True, 0),
    (slow, False, 0),
    (losing, True, SWITCH),
    (resetting, False, SWITCH),
    (slower_than_the_timeout, False, SWITCH),
    (full, True, SWITCH),
    (read_only, False, SWITCH),
]


@pytest.mark.parametrize(
    ("fault", "room", "over"), FAULTS, ids=[fault.__name__ for fault, _, _ in FAULTS]
)
def test_in_the_middle_of_a_drain(  # R1, R2, R5
    server: Server,
    tmp_path: Path,
    note: Note,
    fault: Callable[[redis.Redis, Proxy], None],
    room: bool,
    over: int,
) -> None:
    own = tmp_path / "limits"
    own.mkdir()
    with redis_server(own) as limits, proxy(limits.port) as between:
        client = redis.Redis.from_url(limits.url)
        url = f"redis://127.0.0.1:{between.port}/0"
        with draining(server, tmp_path, url, fleetlimit_waiting_room=room) as drain:
            began = time.monotonic()
            while time.monotonic() < began + 4:
                fault(client, between)
                time.sleep(0.02)
            mended(client, between)
            drain.heals()
        note(drain.starts, LIMIT + over, tasks=TASKS, healed=drain.healed)


def test_foreign_data_at_one_key_hurts_nobody_else(  # N11
    server: Server, tmp_path: Path, note: Note
) -> None:
    own = tmp_path / "limits"
    own.mkdir()
    with redis_server(own) as limits:
        client = redis.Redis.from_url(limits.url)
        with draining(server, tmp_path, limits.url, traceback=True) as drain:
            other = drain.fleet.run()
            client.rpush("fleetlimit:{api-10-1-1:" + other + "}", "theirs")
            waits = drain.fleet.send("ten", other, 7)
            said = "limited tasks wait: foreign data at fleetlimit:"
            until(lambda: said in drain.fleet.log(), "it is said")
            client.delete("fleetlimit:{api-10-1-1:" + other + "}")
            assert waits.get(timeout=40) == 7  # it has not failed
        note(drain.starts, LIMIT, tasks=TASKS)  # this fault stays


def test_one_host_is_cut_off_and_healed(server: Server, tmp_path: Path, note: Note) -> None:
    """It takes its share, while the other has the whole limit: so much more, and no more."""
    own = tmp_path / "limits"
    own.mkdir()
    with redis_server(own) as limits, proxy(limits.port) as between:
        conf = json.dumps({"fleetlimit_url": limits.url, "fleetlimit_waiting_room": False})
        cut = json.dumps(
            {
                "fleetlimit_url": f"redis://127.0.0.1:{between.port}/0",
                "fleetlimit_waiting_room": False,
            }
        )
        with fleet(tmp_path, server.url, server.url, TEST_CONF=conf) as one:
            one.start("prefork", 2)
            one.start("prefork", 2, TEST_CONF=cut)
            heard()
            run = one.run()
            send(one, run, TASKS)
            one.wait(run, 15)
            between.black_hole = True
            time.sleep(4)
            between.black_hole = False
            healed = time.time()
            starts = all_of(one, run, TASKS)
            again = one.run()
            time.sleep(2)
            send(one, again, 20)
            assert window(one.wait(again, 20)) <= LIMIT
    note(starts, LIMIT * (1 + 1 / 2) + SWITCH / 2, tasks=TASKS, healed=healed)


def test_a_node_of_a_cluster_hangs_in_the_middle(  # R4
    server: Server, tmp_path: Path, note: Note
) -> None:
    own = tmp_path / "cluster"
    own.mkdir()
    with cluster(own) as nodes:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        url = f"redis+cluster://{hosts}"
        with draining(server, tmp_path, url, fleetlimit_waiting_room=True) as drain:
            for node in nodes:
                node.process.send_signal(signal.SIGSTOP)
            time.sleep(3)
            for node in nodes:
                node.process.send_signal(signal.SIGCONT)
            drain.heals()
        # Who was just parking a task cannot know whether it is, and puts it back into its queue as well.
        bound, twice = LIMIT + SWITCH + 1, PROCESSES
        note(drain.starts, bound, twice=twice, tasks=TASKS, healed=drain.healed)
