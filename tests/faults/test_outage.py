"""The limits' Redis goes away under real workers, and comes back. The broker is another server."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from fleetlimit.demo.processes import Server, redis_server, until
from fleetlimit.store.keyspace import Keys
from tests.celery.harness import Fleet, fleet, heard, window
from tests.faults.drain import all_of, away, send
from tests.faults.report import Note
from tests.proxy import Proxy, proxy

OUTAGE_S, BACK_S = 6.0, 6.0


@contextmanager
def apart(server: Server, folder: Path, **conf: Any) -> Iterator[tuple[Fleet, Proxy]]:
    """A fleet whose limits lie behind a proxy; broker and records do not."""
    own = folder / "limits"
    own.mkdir()
    with redis_server(own) as limits, proxy(limits.port) as between:
        settings = {"fleetlimit_url": f"redis://127.0.0.1:{between.port}/0", **conf}
        with fleet(folder, server.url, server.url, TEST_CONF=json.dumps(settings)) as one:
            one.limits = redis.Redis.from_url(limits.url)  # type: ignore[attr-defined]
            yield one, between


def hurt(between: Proxy, how: str) -> None:
    between.black_hole = how == "black_hole"
    if how == "refuse":
        between.refuse()


def heal(between: Proxy, how: str) -> None:
    between.black_hole = False
    if how == "refuse":
        between.accept()


@pytest.mark.parametrize("how", ["black_hole", "refuse"])
@pytest.mark.parametrize("room", [True, False], ids=["room", "countdown"])
def test_the_fleet_shares_the_limit(
    server: Server, tmp_path: Path, note: Note, how: str, room: bool
) -> None:
    limit, processes = 50, 6
    with apart(server, tmp_path, fleetlimit_waiting_room=room) as (one, between):
        for _ in range(3):
            one.start("prefork", 2)
        # The last one to come was counted by all.
        until(
            lambda: len(one.limits.zrange(Keys().processes[0], 0, -1)) == 3,  # type: ignore[attr-defined]
            "all are there",
        )
        heard()
        run = one.run()
        send(one, run, 900, "fifty")
        one.wait(run, 60)
        hurt(between, how)
        down = time.time()
        until(lambda: time.time() > down + OUTAGE_S, "the outage")
        heal(between, how)
        up = time.time()
        # All notice within a probe's pace, and go back 1.3 s later; the rest is for a busy machine.
        until(lambda: away(one.log()) == 0, "all are back", BACK_S)
        starts = all_of(one, run, 900, 90)
    # One for each process (see SWITCH). On a machine so busy that Redis seems to be away once more to some of
    # them, these take their shares beside the whole limit.
    alarms = one.log().count(" until Redis answers again") - processes
    bound = limit + processes + round(limit * max(0, alarms) / processes)
    # Who was just parking a task cannot know whether it is, and puts it back into its queue as well.
    twice = processes if room else 0
    fault = note(starts, bound, twice=twice, tasks=900, healed=up, limit=limit)
    alone = [item["at"] for item in starts if down + 1 < item["at"] < up]
    if not room:  # with the room, those who wait lie in the Redis that is away
        assert len(alone) >= 0.6 * limit / 1.1 * (OUTAGE_S - 1)
        assert fault.recovery is not None
        assert fault.recovery <= BACK_S
    again = [item["at"] for item in starts if up + 3 < item["at"] < up + 6]
    assert len(again) >= 0.5 * limit / 1.1 * 3


def test_a_worker_starts_without_redis_and_says_so(
    server: Server, tmp_path: Path, note: Note
) -> None:
    with apart(server, tmp_path) as (one, between):
        between.refuse()
        one.start("prefork", 2)
        assert "starts without Redis" in one.log()
        run = one.run()
        for n in range(3):
            one.send("ten", run, n)
        one.send("free", run, 99)
        assert one.wait(run, 1)[0]["n"] == 99  # the others wait: nobody knows how many share
        between.accept()
        starts = all_of(one, run, 4, 40)
        assert "Traceback" not in one.log()
    note(starts, 10, tasks=4)


def test_open_and_wait(server: Server, tmp_path: Path, note: Note) -> None:
    with apart(server, tmp_path, fleetlimit_on_outage="open") as (one, between):
        one.start("threads", 2)
        between.refuse()
        run = one.run()
        send(one, run, 30)
        assert window(one.wait(run, 30, 20)) == 30  # at once: it was asked for
        assert one.log().count("LIMITS ARE OPEN") == 1
        between.accept()
        until(lambda: "Redis is back" in one.log(), "it is back")
        again = one.run()
        send(one, again, 20)
        starts = all_of(one, again, 20, 20)
    note(starts, 10, tasks=20)  # after the outage


@pytest.mark.parametrize("kept", [True, False], ids=["append-only file", "restarted empty"])
def test_the_limits_redis_is_killed_and_restarted(  # R8
    server: Server, tmp_path: Path, note: Note, kept: bool
) -> None:
    own = tmp_path / "limits"
    own.mkdir()
    options = ("--appendonly", "yes", "--appendfsync", "always") if kept else ()
    with redis_server(own, *options) as limits, proxy(limits.port) as between:
        conf = json.dumps(
            {
                "fleetlimit_url": f"redis://127.0.0.1:{between.port}/0",
                "fleetlimit_waiting_room": kept,
            }
        )
        with fleet(tmp_path, server.url, server.url, TEST_CONF=conf) as one:
            one.start("prefork", 2)
            run = one.run()
            send(one, run, 60)
            one.wait(run, 10)
            limits.process.send_signal(signal.SIGKILL)
            limits.process.wait()
            time.sleep(1)
            with redis_server(own, *options) as second:
                between.target = second.port
                healed = time.time()
                starts = all_of(one, run, 60)
    note(starts, 10 + 2 * 2 + 1, tasks=60, healed=healed)  # two processes; it may begin anew
