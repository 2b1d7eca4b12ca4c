"""The line works with every algorithm: real workers drain a backlog."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from fleetlimit import RateLimit
from fleetlimit.demo.processes import Server
from fleetlimit.limit import ALGORITHMS
from tests.celery.harness import fleet, window

LIMIT, TASKS = 20, 120
WINDOWS = ("fixed_window", "sliding_log", "sliding_counter")


@pytest.mark.parametrize(
    ("algorithm", "room"),
    [(one, True) for one in ALGORITHMS] + [(one, False) for one in WINDOWS],
)
def test_a_backlog_drains(server: Server, tmp_path: Path, algorithm: str, room: bool) -> None:
    conf = json.dumps({"fleetlimit_waiting_room": room})
    with fleet(tmp_path, server.url, server.url, TEST_CONF=conf) as one:
        for _ in range(2):
            one.start("prefork", 4)
        run = one.run()
        for n in range(TASKS):
            one.send(f"by_{algorithm}", run, n)
        starts = one.wait(run, TASKS, 40)
        deliveries = one.log().count("] received")
    assert sorted(item["n"] for item in starts) == list(range(TASKS))
    assert window(starts) <= RateLimit("x", LIMIT, 1, algorithm=algorithm).bound
    if algorithm == "fixed_window":
        assert max(Counter(int(item["at"]) for item in starts).values()) <= LIMIT
    times = sorted(item["at"] for item in starts)
    assert times[-1] - times[0] <= 2 * TASKS / LIMIT  # a hole in every second window would be more
    assert deliveries <= 2.5 * TASKS
