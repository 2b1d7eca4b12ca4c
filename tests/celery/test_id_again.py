"""A task id that is used again once its first run has ended, for the very same message: it is a task like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetlimit.demo.processes import Server, until

from .harness import Fleet, fleet, patient, shop


@pytest.fixture(params=[True, False], ids=["room", "countdown"])
def one(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Iterator[Fleet]:
    env = shop({"call": ("partner", 5)}, fleetlimit_waiting_room=request.param)
    with fleet(tmp_path, server.url, server.url, **env) as made:
        made.start("prefork", 2)
        yield made


def ours(one: Fleet, run: str) -> list[dict[str, Any]]:
    return [it for it in one.starts(run) if it["n"] == -1]


def test_each_use_runs(one: Fleet) -> None:
    """Three times, each among others, so that it waits; and twice at once, with a free limit."""
    run, limiter = one.run(), patient(one)
    for turn in range(3):
        for n in range(10):
            one.send("call", run, 10 * turn + n)
        sent = one.send("call", run, -1, task_id="order-7")
        until(lambda turn=turn: len(ours(one, run)) == turn + 1, "it ran", 30)
        assert sent.get(timeout=20) == -1
        until(lambda: limiter.status("partner").waiting == 0, "an empty line")
    for turn in range(3, 5):
        one.send("call", run, -1, task_id="order-7")
        until(lambda turn=turn: len(ours(one, run)) == turn + 1, "it ran without waiting", 30)
    assert sorted(it["n"] for it in one.wait(run, 35)) == [-1] * 5 + list(range(30))
    assert len(one.starts(run)) == 35


@pytest.mark.parametrize("env", [{}, {"fleetlimit_waiting_room": False}], ids=["room", "countdown"])
def test_all_that_wait_under_one_id_run(
    server: Server, tmp_path: Path, env: dict[str, Any]
) -> None:
    """Two sends of one task, and one of another: their bodies or their tasks differ."""
    tasks: dict[str, Any] = {"call": ("partner", 5), "refund": ("partner", 5)}
    with fleet(tmp_path, server.url, server.url, **shop(tasks, **env)) as one:
        one.start("prefork", 2)
        run, limiter = one.run(), patient(one)
        limiter.pause("partner", 8, force=True)
        for n in range(5):
            one.send("call", run, n)
        for task, n in (("call", -1), ("call", -2), ("refund", -1)):
            one.send(task, run, n, task_id="order-7")
        until(lambda: limiter.status("partner").waiting == 8, "all wait")
        if not env:
            limiter.resume("partner")
        starts = one.wait(run, 8)
        until(lambda: limiter.status("partner").waiting == 0, "an empty line", 20)
        ours = sorted((it["task"], it["n"]) for it in starts if it["n"] < 0)
        assert ours == [("call", -2), ("call", -1), ("refund", -1)]
        assert len(one.starts(run)) == 8


@pytest.mark.parametrize("one", [True], indirect=True)
def test_what_was_cancelled_is_sent_again(one: Fleet) -> None:
    """(A revoked id stays revoked: that is Celery's.)"""
    run, limiter = one.run(), patient(one)
    limiter.pause("partner", 3600, force=True)
    one.send("call", run, -1, task_id="order-8")
    until(lambda: limiter.status("partner").parked == 1, "it waits")
    assert limiter.cancel("partner", "order-8")
    one.send("call", run, -1, task_id="order-8")
    until(lambda: limiter.status("partner").parked == 1, "it waits again")
    limiter.resume("partner")
    until(lambda: len(ours(one, run)) == 1, "it ran once", 30)
