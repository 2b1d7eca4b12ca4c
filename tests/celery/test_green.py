"""Many greenlets that wait at once."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from fleetlimit.demo.processes import Server

from .harness import fleet


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_no_waiting_task_is_reported_as_failed(server: Server, tmp_path: Path, pool: str) -> None:
    if not find_spec(pool):
        pytest.skip(f"{pool} is not installed")
    with fleet(tmp_path, server.url, server.url) as one:
        one.start(pool, 50)
        run = one.run()
        results = [one.send("ten", run, n) for n in range(120)]
        starts = one.wait(run, 120)
        assert sorted(start["n"] for start in starts) == list(range(120))
        assert [result.get(timeout=20) for result in results] == list(range(120))
        assert "task_failure" not in one.counts(run)


def test_what_fails_after_a_task_was_parked_is_no_failure_of_the_task(
    server: Server, tmp_path: Path
) -> None:
    """Here a soft time limit that ends when the task is safe in its line already."""
    with fleet(tmp_path, server.url, server.url) as one:
        one.start("prefork", 2, "-I", "tests.celery.broken")
        run = one.run()
        results = [one.send("ten", run, n) for n in range(20)]
        assert [result.get(timeout=20) for result in results] == list(range(20))
        assert len(one.starts(run)) == 20
        assert "task_failure" not in one.counts(run)
