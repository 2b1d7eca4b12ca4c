"""`celery purge` empties queues and no waiting room; a command of ours empties a line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetlimit.demo.processes import Server, until

from .harness import ROOT, Fleet, drained, fleet, parked, patient, put_down, queued, shop


@pytest.fixture
def one(server: Server, tmp_path: Path) -> Iterator[Fleet]:
    env = shop({"call": ("partner", 5)})
    with fleet(tmp_path, server.url, server.url, **env) as made:
        yield made


def typed(one: Fleet, *words: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env=one.env,
        check=True,
        text=True,
        capture_output=True,
        timeout=60,
    ).stdout


def test_purge_leaves_what_is_parked_and_cancel_takes_it(one: Fleet) -> None:
    worker, run = one.start("prefork", 2), one.run()
    for n in range(20):
        one.send("call", run, n, queue="celery")
    put_down(one, worker, run, 20)
    patient(one).pause("partner", 3600)
    for n in range(20, 25):
        one.send("call", run, n, queue="celery")
    began, waits = len(one.starts(run)), parked(one)
    assert queued(one) == 5
    assert waits == 20 - began > 0

    assert "5 messages" in typed(one, "celery", "-A", one.app, "purge", "-f")
    assert (queued(one), parked(one)) == (0, waits)

    said = typed(one, "fleetlimit.cli", "cancel", "partner", "--all", "--url", one.redis_url)
    assert str(waits) in said
    assert parked(one) == 0
    patient(one).resume("partner")
    one.start("prefork", 2)
    after = one.run()
    one.send("call", after, queue="celery")
    one.wait(after, 1)
    assert len(drained(one, run)) == began


def test_a_line_that_was_cancelled_takes_new_tasks(one: Fleet) -> None:
    """With workers that run on."""
    one.start("prefork", 2)
    run, limiter = one.run(), patient(one)
    limiter.pause("partner", 3600, force=True)
    for n in range(10):
        one.send("call", run, n, queue="celery")
    until(lambda: limiter.status("partner").parked == 10, "all are parked")
    typed(one, "fleetlimit.cli", "cancel", "partner", "--all", "--url", one.redis_url)
    limiter.resume("partner")
    for n in range(10, 20):
        one.send("call", run, n, queue="celery")
    one.wait(run, 10)
    assert drained(one, run) == list(range(10, 20))
