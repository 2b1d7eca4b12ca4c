"""The waiting room with real workers: crashes, pauses, changed limits, lost and restarted servers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetlimit import RateLimiter
from fleetlimit.demo.processes import Server, redis_server, spawn, stop, until

from .harness import Fleet, fleet, put_down, window

TEN = "api-10-1-1"


def conf(**settings: Any) -> str:
    return json.dumps(settings)


@pytest.fixture
def one(server: Server, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, server.url, server.url) as made:
        yield made


def parked(fleet: Fleet, run: str) -> int:
    return RateLimiter(fleet.redis_url).status(TEN, run).parked


def kill(worker: Any) -> None:
    """The worker and its pool, at once."""
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()


def numbers(starts: list[dict[str, Any]]) -> list[int]:
    return sorted(item["n"] for item in starts)


def test_a_backlog_waits_in_redis_and_drains(one: Fleet) -> None:
    one.start("prefork", 2)
    run = one.run()
    for n in range(60):
        one.send("ten", run, n)
    until(lambda: parked(one, run) > 45, "parked")
    held = one.sender.control.inspect().scheduled()
    assert sum(map(len, held.values())) == 0  # nothing waits in a worker's memory
    starts = one.wait(run, 60)
    assert numbers(starts) == list(range(60))
    assert window(starts) <= 10
    status = RateLimiter(one.redis_url).status(TEN, run)
    assert (status.waiting, status.parked) == (0, 0)


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_goes_and_the_others_go_on(
    server: Server, tmp_path: Path, sig: int
) -> None:  # C10
    settings = {
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "broker_transport_options": {"visibility_timeout": 8, "unacked_restore_interval": 1},
    }
    with fleet(tmp_path, server.url, server.url, TEST_CONF=conf(**settings)) as one:
        workers = [one.start("prefork", 2) for _ in range(2)]
        run = one.run()
        for n in range(100):
            one.send("ten", run, n)
        one.wait(run, 20)
        os.kill(workers[0].pid, sig)
        workers[0].wait()
        starts = one.wait(run, 100, 90)
        # Celery may run again what the dead worker was running (acks_late); nothing is lost.
        assert set(numbers(starts)) == set(range(100))
        assert len(starts) <= 104
        assert window(starts) <= 10


def test_all_workers_are_down_for_a_while(one: Fleet) -> None:
    worker = one.start("prefork", 2)
    run = one.run()
    for n in range(80):
        one.send("ten", run, n)
    until(lambda: parked(one, run) > 50, "parked")
    one.wait(run, 10)
    put_down(one, worker, run, 80, TEN, run)
    before = len(one.starts(run))
    until(lambda: RateLimiter(one.redis_url).status(TEN, run).next_due == 0, "idle cells")
    one.start("prefork", 2)
    starts = one.wait(run, 80)
    assert before < 70
    assert numbers(starts) == list(range(80))
    assert window(starts) <= 10


def test_a_wait_beyond_the_visibility_timeout_runs_once(  # C9
    server: Server, tmp_path: Path
) -> None:
    options = {"visibility_timeout": 2, "unacked_restore_interval": 1}
    settings = {"broker_transport_options": options, "task_acks_late": True}
    with fleet(tmp_path, server.url, server.url, TEST_CONF=conf(**settings)) as one:
        for _ in range(2):
            one.start("prefork", 2)
        run = one.run()
        for n in range(100):
            one.send("ten", run, n)
        starts = one.wait(run, 100)
        assert numbers(starts) == list(range(100))


def test_pause_resume_and_a_raised_limit(one: Fleet) -> None:
    one.start("prefork", 4)
    limiter = RateLimiter(one.redis_url)
    run = one.run()
    for n in range(150):
        one.send("ten", run, n)
    one.wait(run, 10)
    limiter.pause(TEN, 60)
    until(lambda: limiter.status(TEN, run).paused > 0, "paused")
    settled = len(one.wait(run, 10))
    until(lambda: limiter.status(TEN, run).paused < 58.5, "a second and a half later")
    assert len(one.starts(run)) - settled <= 3  # asleep in place when the pause came
    limiter.resume(TEN)
    limiter.configure(TEN, 100, 1, margin=0.1)
    at = [item["at"] for item in one.wait(run, 150)]
    fast = at[-100:]
    assert fast[-1] - fast[0] < 4  # ten seconds at the old pace
    assert max(sum(t <= u < t + 1 for u in at) for t in at) <= 100


def test_revoked_and_cancelled_while_parked(one: Fleet) -> None:  # C8
    one.start("prefork", 2)
    limiter = RateLimiter(one.redis_url)
    run = one.run()
    results = [one.send("ten", run, n) for n in range(40)]
    until(lambda: results[31].id in limiter.parked(TEN, run), "parked")
    results[30].revoke()
    assert limiter.cancel(TEN, results[31].id, run)
    starts = one.wait(run, 38)
    until(lambda: results[30].state == "REVOKED", "revoked")
    assert numbers(starts) == [n for n in range(40) if n not in (30, 31)]
    until(lambda: limiter.status(TEN, run).waiting == 0, "places given back", 20)


def test_large_messages_wait_as_countdowns(one: Fleet) -> None:
    one.start("prefork", 2)
    run = one.run()
    for n in range(15):
        one.send("ten", run, n, headers={"ballast": "x" * 300_000})
    until(lambda: RateLimiter(one.redis_url).status(TEN, run).waiting > 8, "waiting")
    assert parked(one, run) == 0
    assert numbers(one.wait(run, 15)) == list(range(15))


def test_without_the_room(server: Server, tmp_path: Path) -> None:
    with fleet(
        tmp_path, server.url, server.url, TEST_CONF=conf(fleetlimit_waiting_room=False)
    ) as one:
        one.start("prefork", 4)
        run = one.run()
        for n in range(40):
            one.send("ten", run, n)
        until(lambda: RateLimiter(one.redis_url).status(TEN, run).waiting > 20, "waiting")
        assert parked(one, run) == 0
        starts = one.wait(run, 40)
        assert numbers(starts) == list(range(40))
        assert window(starts) <= 10


def test_with_the_room_on_rabbitmq(rabbit: Any, server: Server, tmp_path: Path) -> None:
    settings = conf(fleetlimit_waiting_room=True)
    with fleet(
        tmp_path, rabbit.url, server.url, TEST_CONF=settings, TEST_QUEUE_TYPE="quorum"
    ) as one:
        one.start("prefork", 4)
        run = one.run()
        for n in range(40):
            one.send("ten", run, n, exchange="work-quorum", routing_key="work")
        until(lambda: parked(one, run) > 20, "parked")
        starts = one.wait(run, 40)
        assert numbers(starts) == list(range(40))
        assert window(starts) <= 10


@pytest.mark.parametrize("kept", [True, False], ids=["append-only file", "restarted empty"])
def test_redis_restarts_in_the_middle(server: Server, tmp_path: Path, kept: bool) -> None:  # R8
    """The limiter's Redis is not the broker here; the room is on."""
    limits = tmp_path / "limits"
    limits.mkdir()
    save = ["--appendonly", "yes", "--appendfsync", "always"] if kept else []
    with redis_server(limits, *save) as first:
        settings = conf(fleetlimit_url=first.url, fleetlimit_waiting_room=True)
        with fleet(tmp_path, server.url, server.url, TEST_CONF=settings) as one:
            one.start("prefork", 2)
            run = one.run()
            for n in range(60):
                one.send("ten", run, n)
            limiter = RateLimiter(first.url)
            until(lambda: limiter.status(TEN, run).parked > 30, "parked")
            one.wait(run, 8)
            first.process.kill()
            first.process.wait()
            lost = 0 if kept else 60 - len(one.starts(run))
            again = spawn(first.process.args, limits / "again.log")  # type: ignore[arg-type]
            try:
                starts = one.wait(run, 60 - lost)
                if kept:
                    assert numbers(starts) == list(range(60))
                after = one.run()
                for n in range(12):
                    one.send("ten", after, n)
                assert numbers(one.wait(after, 12)) == list(range(12))  # the fleet goes on
                # While it was away each of two processes took its share; empty, it begins anew.
                assert window(one.starts(run)) <= 10 + 2 + 1
            finally:
                stop(again)
