"""Tasks of a queue that nobody reads, or that do not come, keep their places and hold up nobody."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from fleetlimit.demo.processes import Server, stop, until

from .harness import backlog, fleet, kill, numbers, patient, put_down, runs_at_full_pace, shop

LIMIT = 15
CALL: dict[str, Any] = {"call": ("partner", LIMIT)}


@pytest.mark.parametrize("how", [stop, kill], ids=["shut down", "killed"])
def test_a_queue_whose_worker_stops(server: Server, tmp_path: Path, how: Any) -> None:
    late = {
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "broker_transport_options": {"visibility_timeout": 8, "unacked_restore_interval": 1},
    }
    with fleet(tmp_path, server.url, server.url, **shop(CALL, **late)) as one:
        shopq = one.start("prefork", 2, "-Q", "shopq")
        one.start("prefork", 2, "-Q", "mailq")
        theirs, run = one.run(), one.run()
        for n in range(170):
            one.send("call", run, n, queue="mailq")
            if n < 80:
                one.send("call", theirs, n, queue="shopq")
        until(lambda: patient(one).status("partner").parked > 150, "parked")
        how(shopq)
        assert len(one.starts(theirs)) < 50
        runs_at_full_pace(one, run, LIMIT, time.time() + 2)
        one.start("prefork", 2, "-Q", "shopq")
        assert numbers(one.wait(run, 170)) == list(range(170))
        # Celery may run again what the dead worker was running (acks_late), and kombu loses what Redis had just
        # handed to its socket.
        few = 0 if how is stop else 2
        until(lambda: len(set(numbers(one.starts(theirs)))) >= 80 - few, "theirs", 60)
        assert len(one.starts(theirs)) <= 80 + few


def test_a_limit_is_renamed(server: Server, tmp_path: Path) -> None:
    with fleet(tmp_path, server.url, server.url, **shop({"call": ("old", LIMIT)})) as one:
        worker, run = one.start("prefork", 2), one.run()
        backlog(one, run, 180, limit="old")
        put_down(one, worker, run, 180, limit="old")
        one.start("prefork", 2, **shop({"call": ("new", LIMIT)}))
        runs_at_full_pace(one, run, LIMIT, time.time() + 2)
        assert numbers(one.wait(run, 180)) == list(range(180))
        limiter = patient(one)
        until(lambda: limiter.status("old").waiting + limiter.status("new").waiting == 0, "empty")


def test_a_slow_pool(server: Server, tmp_path: Path) -> None:
    """Limited tasks queue behind free ones for eight seconds; then they run as if they had not."""
    tasks = {**CALL, "free": None}
    with fleet(tmp_path, server.url, server.url, **shop(tasks)) as one:
        one.start("prefork", 2, "--prefetch-multiplier", "1")
        run, slow = one.run(), one.run()
        backlog(one, run, 150)
        for n in range(16):
            one.send("free", slow, n, 1.0)
        ended = one.wait(slow, 16)[-1]["at"] + 1
        before = len(one.starts(run))
        runs_at_full_pace(one, run, LIMIT, ended + 0.2, 5)
        assert before < 75
        assert numbers(one.wait(run, 150)) == list(range(150))


def test_countdowns_of_the_dead(server: Server, tmp_path: Path) -> None:
    """Without the room tasks wait in workers' memory: the places of those that died hold up nobody who comes after."""
    limit = 2
    settings = shop({"call": ("partner", limit)}, fleetlimit_waiting_room=False)
    with fleet(tmp_path, server.url, server.url, **settings) as one:
        worker, run = one.start("prefork", 2), one.run()
        for n in range(100):
            one.send("call", run, n)
        limiter = patient(one)
        until(lambda: limiter.status("partner").waiting + len(one.starts(run)) >= 99, "all came")
        kill(worker)
        died = time.time()
        one.redis.delete("celery", "unacked", "unacked_index", "_kombu.binding.celery")
        one.start("prefork", 2)
        # Three of them are more than a second late, by then at the latest.
        until(lambda: time.time() > died + 2 + 5 * 1.1 / limit, "known to be dead")
        for _ in range(3):  # who came and waited does not bring back those who do not
            began, later = time.time(), one.run()
            for n in range(4):
                one.send("call", later, n)
            at = [it["at"] for it in one.wait(later, 4)]
            assert max(at) - began < 4 * 1.1 / limit + 1
