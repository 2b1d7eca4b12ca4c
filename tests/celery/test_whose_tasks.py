"""Parked tasks belong to a broker and a limit: who lets them go when workers come back, or do not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from fleetlimit.demo.processes import Server, redis_server, spawn, stop, until

from .harness import (
    Fleet,
    backlog,
    drained,
    fleet,
    kill,
    numbers,
    parked,
    patient,
    put_down,
    runs_at_full_pace,
    shop,
    shut_down,
)

LIMIT = 15
CALL: dict[str, Any] = {"call": ("partner", LIMIT)}


@contextmanager
def other_broker(server: Server, folder: Path, **settings: Any) -> Iterator[Fleet]:
    """A fleet on another broker (a database of its own), with the same limits."""
    folder.mkdir()
    broker = server.url.replace("/0", "/1")
    with fleet(folder, broker, server.url, **shop(CALL, **settings)) as made:
        yield made


def test_a_broker_under_another_url_is_the_same(server: Server, tmp_path: Path) -> None:
    short, long = (
        f"redis://127.0.0.1:{server.port}",
        f"redis://shop:secret@localhost:{server.port}/0",
    )
    with fleet(tmp_path, short, server.url, **shop(CALL)) as one:
        one.redis.execute_command("ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all")
        try:
            worker, run = one.start("prefork", 2), one.run()
            backlog(one, run, 60)
            put_down(one, worker, run, 60)
            one.start("prefork", 2, TEST_BROKER=long)
            since = time.time() + 2
            for n in range(60, 180):
                one.send("call", run, n)
            runs_at_full_pace(one, run, LIMIT, since)
            assert numbers(one.wait(run, 180)) == list(range(180))
        finally:
            one.redis.execute_command("ACL", "DELUSER", "shop")


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_tasks_of_a_broker_without_workers_hold_up_nobody(
    server: Server, tmp_path: Path, sig: int
) -> None:
    late = {
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "broker_transport_options": {"visibility_timeout": 8, "unacked_restore_interval": 1},
    }
    with (
        fleet(tmp_path, server.url, server.url, **shop(CALL)) as one,
        other_broker(server, tmp_path / "other", **late) as other,
    ):
        one.start("prefork", 2)
        worker = other.start("prefork", 2)
        theirs, run = other.run(), one.run()
        for n in range(150):
            one.send("call", run, n)
            if n < 60:
                other.send("call", theirs, n)
        until(lambda: parked(one) > 120, "parked")
        assert len(other.starts(theirs)) < 40
        os.kill(worker.pid, sig)
        since = time.time() + 2
        worker.wait()
        runs_at_full_pace(one, run, LIMIT, since)
        assert numbers(one.wait(run, 150)) == list(range(150))
        other.start("prefork", 2)
        # Celery may run again what the dead worker was running (acks_late), and kombu loses what Redis had just
        # handed to its socket.
        few = 0 if sig == signal.SIGTERM else 2
        until(lambda: len(set(numbers(other.starts(theirs)))) >= 60 - few, "theirs", 60)
        assert len(other.starts(theirs)) <= 60 + few


@pytest.mark.parametrize(
    ("tasks", "settings"),
    [
        (CALL, {"fleetlimit_waiting_room": False}),
        ({"call": None}, {}),
    ],
    ids=["the room is turned off", "the last limit is removed"],
)
def test_what_is_parked_is_let_go_whatever_the_deploy(
    server: Server, tmp_path: Path, tasks: dict[str, Any], settings: dict[str, Any]
) -> None:
    with fleet(tmp_path, server.url, server.url, **shop(CALL)) as one:
        worker, run = one.start("prefork", 2), one.run()
        backlog(one, run, 130)
        put_down(one, worker, run, 130)
        left = parked(one)
        since = time.time()
        one.start("prefork", 2, **shop(tasks, **settings))
        starts = one.wait(run, 130)
        assert numbers(starts) == list(range(130))
        assert f"{left} tasks are parked in the waiting room" in one.log()
        after = [it["at"] for it in starts if it["at"] > since]
        if tasks["call"]:  # it still has a limit
            runs_at_full_pace(one, run, LIMIT, after[0] + 2, 3)


@pytest.mark.parametrize("at_once", [False, True], ids=["shut down", "killed"])
def test_what_was_revoked_stays_so_when_all_workers_restart(
    server: Server, tmp_path: Path, at_once: bool
) -> None:
    with fleet(tmp_path, server.url, server.url, **shop({"call": ("partner", 5)})) as one:
        worker, run = one.start("prefork", 2), one.run()
        sent = {one.send("call", run, n).id: n for n in range(60)}
        limiter = patient(one)
        until(lambda: limiter.status("partner").parked >= 45, "parked")
        revoked = limiter.parked("partner")[-20:]
        one.sender.control.revoke(revoked)
        told = time.time()
        if at_once:
            until(lambda: time.time() > told + 1.5, "a second and a half")
            kill(worker)
        else:
            until(lambda: one.sender.control.inspect().revoked(), "the worker knows")
            put_down(one, worker, run, 60)
        one.start("prefork", 2)
        ran = drained(one, run)
        assert len(ran) == len(set(ran))
        assert set(ran).isdisjoint(sent[id] for id in revoked)
        # Who is killed loses what its pool had taken (acknowledged early, as by default), and no more.
        assert len(ran) >= (38 if at_once else 40)


def test_workers_of_one_broker_that_name_it_differently(server: Server, tmp_path: Path) -> None:
    """Each serves what was parked under its own name; the others are told, and held up by nothing."""
    with fleet(tmp_path, server.url, server.url, **shop(CALL)) as one:

        def named(name: str) -> Any:
            return one.start("prefork", 2, **shop(CALL, fleetlimit_broker=name))

        first, run = named("first"), one.run()
        backlog(one, run, 90)
        put_down(one, first, run, 90)
        left = parked(one)
        second = named("second")
        since = time.time() + 2
        later = one.run()
        for n in range(150):
            one.send("call", later, n)
        runs_at_full_pace(one, later, LIMIT, since)
        assert numbers(one.wait(later, 150)) == list(range(150))
        assert parked(one) == left
        named("first")
        assert numbers(one.wait(run, 90)) == list(range(90))
        shut_down(second)
        assert numbers(one.wait(run, 90)) == list(range(90))


def test_the_brokers_database_is_emptied_under_its_workers(server: Server, tmp_path: Path) -> None:
    """It has another name then. One worker learns it from the broker, the other a little later; what their pools park after
    that is let go like all else."""
    with other_broker(server, tmp_path / "other", fleetlimit_waiting_room=True) as one:
        workers = [one.start("prefork", 2, TEST_CHECK_S=seconds) for seconds in ("1", "4")]
        broker = redis.Redis.from_url(one.broker, decode_responses=True)
        before, after = one.run(), one.run()
        backlog(one, before, 60)
        one.wait(before, 60)
        former = broker.get("fleetlimit:broker")
        broker.flushdb()
        until(lambda: broker.get("fleetlimit:broker") not in (None, former), "another name", 20)
        until(lambda: one.log().count("the broker's name is") == len(workers), "both know it")
        for n in range(90):
            one.send("call", after, n)
        until(lambda: parked(one) > 20, "parked")
        under_the_former: list[Any] = []

        def all_ran() -> bool:
            under_the_former.append(one.redis.zcard(f"fleetlimit:rooms:{former}"))
            return len(one.starts(after)) >= 90

        until(all_ran, "all of them")
        assert numbers(one.starts(after)) == list(range(90))
        assert sum(under_the_former) == 0
        assert all(worker.poll() is None for worker in workers)


@pytest.mark.parametrize("room", [True, False], ids=["room", "no room"])
def test_a_worker_started_while_its_broker_is_down(
    server: Server, tmp_path: Path, room: bool
) -> None:
    """It lets go what is parked as soon as the broker is back, also where it parks none itself."""
    own = tmp_path / "broker"
    own.mkdir()
    with redis_server(own, "--appendonly", "yes", "--appendfsync", "always") as broker:
        settings = shop(CALL, fleetlimit_waiting_room=True)
        with fleet(tmp_path, broker.url, server.url, **settings) as one:
            worker, run = one.start("prefork", 2), one.run()
            backlog(one, run, 90)
            put_down(one, worker, run, 90)
            stop(broker.process)
            left = parked(one)
            waits = one.start(ready=False, **shop(CALL, fleetlimit_waiting_room=room))
            until(lambda: "Cannot connect to redis" in waits.log.read_text(), "no broker", 60)
            again = spawn(broker.process.args, own / "again.log")  # type: ignore[arg-type]
            try:
                assert left > 30
                assert numbers(one.wait(run, 90)) == list(range(90))
            finally:
                stop(again)
