"""Many lines at once: a limit for each of many tenants."""

from __future__ import annotations

from pathlib import Path

from fleetlimit.demo.processes import Server, until

from .harness import fleet, numbers, window
from .parked import rig


def test_one_look_lets_go_of_all_lines_that_are_due(server: Server) -> None:
    with rig(server.url, lead_us=150_000) as one:
        for n in range(50):
            one.good(1, f"tenant{n}")
        one.releaser.look(0)  # it is known, and woken from now on
        for n in range(50):
            one.open(f"tenant{n}")
        assert one.releaser.look(0) == 0  # there may be more
        assert len(one.ids()) == 50


def test_more_lines_than_one_look_takes_follow_at_once(server: Server) -> None:
    with rig(server.url, lead_us=150_000) as one:
        for n in range(300):
            one.good(1, f"tenant{n}")
        one.releaser.look(0)
        for n in range(300):
            one.open(f"tenant{n}")
        looks = 0
        while len(one.ids()) < 300:
            assert one.releaser.look(0) == 0
            looks += 1
        assert looks <= 3


def test_fifty_tenants_drain_at_their_limits_pace(server: Server, tmp_path: Path) -> None:
    """Two workers: in each second some fifty lines are due, with one task each."""
    tenants, tasks, interval = 50, 12, 1.1
    with fleet(tmp_path, server.url, server.url) as one:
        for _ in range(2):
            one.start("prefork", 2)
        runs = [one.run() for _ in range(tenants)]
        for n in range(tasks):
            for run in runs:
                one.send("single", run, n)
        until(lambda: all(len(one.starts(run)) == tasks for run in runs), "all ran", 60)
        ideal, took = (tasks - 1) * interval, []
        for run in runs:
            starts = one.starts(run)
            assert numbers(starts) == list(range(tasks))
            assert window(starts) == 1
            at = [it["at"] for it in starts]
            took.append(max(at) - min(at))
        assert sum(took) / tenants <= 1.1 * ideal
