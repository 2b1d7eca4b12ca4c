"""Limits that would do nothing, or not what was meant: a worker refuses to start, or says so."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from celery import Celery

from fleetlimit import ConfigurationError, RateLimitedTask, rate_limited
from fleetlimit.demo.processes import Server, spawn, stop, until

HEAD = """
import asyncio
from celery import Celery, Task
from fleetlimit import RateLimit, RateLimitedTask, rate_limited
app = Celery(broker="memory://")
app.conf.fleetlimit_url = "redis://127.0.0.1:1/0"
class Runs(Task):
    def __call__(self, *args, **kwargs):
        return asyncio.run(self.run(*args, **kwargs))
class Batch(Task):
    # It collects requests, and runs the body with several, in no delivery's name.
    def Strategy(self, task, app, consumer):
        return lambda message, body, ack, reject, callbacks: task([message])
"""


def worker(folder: Path, source: str, *options: str) -> tuple[int | None, str]:
    """What a worker with these tasks says until it is ready, or gives up; with its exit status."""
    (folder / "checked.py").write_text(HEAD + source)
    log = folder / "log"
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "checked",
        "worker",
        "-c",
        "1",
        "-l",
        "INFO",
        *options,
    ]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    process = spawn(command, log, cwd=folder, env=env)
    try:
        until(lambda: process.poll() is not None or " ready." in log.read_text(), "a start", 60)
        return process.poll(), log.read_text()
    finally:
        stop(process)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "@app.task(base=RateLimitedTask)\ndef free(): ...",
            "task 'checked.free' ({place}): base=RateLimitedTask without limits",
        ),
        (
            "@app.task(base=RateLimitedTask, limits=[])\ndef free(): ...",
            "task 'checked.free' ({place}): base=RateLimitedTask without limits",
        ),
        (
            "@app.task(base=RateLimitedTask, limits='partner')\ndef free(): ...",
            "task 'checked.free' ({place}): limits='partner': must be a list",
        ),
        (
            "@app.task\n@rate_limited('twice', 5, per=1, key='{a}')\n"
            "@rate_limited('twice', 5, per=1, key='{a}')\ndef never(a): ...",
            "task 'checked.never' ({place}): limit 'twice' is on it more than once, and its costs add up: cost=2",
        ),
        (
            "@rate_limited('api', 5, per=1)\n@app.task\nasync def never(): ...",
            "task 'checked.never' ({place}): an `async def`",
        ),
        (
            "@app.task(base=RateLimitedTask, limits=[RateLimit('api', 5, per=1)])\n"
            "async def never(): ...",
            "task 'checked.never' ({place}): an `async def`",
        ),
        (
            "@app.task\n@rate_limited('api', 5, per=1)\nasync def never(): ...",
            "checked.never ({place}): @rate_limited on an `async def`",
        ),
        (
            "@app.task(base=Batch)\n@rate_limited('api', 5, per=1)\ndef flush(requests): ...",
            "task 'checked.flush' ({place}): its class has a Strategy of its own",
        ),
    ],
)
def test_a_worker_that_does_not_start(tmp_path: Path, source: str, said: str) -> None:
    status, log = worker(tmp_path, source, "-P", "solo")
    assert status
    line = HEAD.count("\n") + 1
    assert said.format(place=f"{tmp_path / 'checked.py'}:{line}") in log


STARTS = """
@app.task(rate_limit="10/m")
@rate_limited("twice", 5, per=1)
def twice(): ...

@app.task
@rate_limited("big", 5, per=1, cost="{n}")
def big(n): ...

@app.task
@rate_limited("roomy", 5, per=1, burst=5, cost="{n}")
def roomy(n): ...

@rate_limited("runs", 5, per=1)
@app.task(base=Runs)
async def runs(): ...

@rate_limited("above", 5, per=1)
@app.task(base=RateLimitedTask)
def above(): ...

@app.task(base=RateLimitedTask)
@rate_limited("below", 5, per=1)
def below(): ...

@app.task(rate_limit="10/m")
def free(): ...
"""


def test_what_a_worker_says_of_its_tasks(tmp_path: Path, server: Server) -> None:
    source = f"app.conf.fleetlimit_url = {server.url!r}\n" + STARTS
    status, log = worker(tmp_path, source, "-P", "solo")
    assert status is None, log
    lines = [line for line in log.splitlines() if "fleetlimit: task" in line]
    assert len(lines) == 3, log
    for task, word in (
        ("twice", "rate_limit='10/m'"),
        ("big", "cost='{n}'"),
        ("runs", "async def"),
    ):
        (line,) = [one for one in lines if f"task 'checked.{task}' ({tmp_path}" in one]
        assert word in line
        assert "WARNING" in line


def test_no_word_of_celerys_limits_where_they_are_off(tmp_path: Path, server: Server) -> None:
    source = (
        f"app.conf.fleetlimit_url = {server.url!r}\napp.conf.worker_disable_rate_limits = True\n"
    )
    status, log = worker(tmp_path, source + STARTS, "-P", "solo")
    assert status is None, log
    assert "rate_limit=" not in log


def ran() -> str:
    return "ran"


def test_an_apps_own_task_class_may_have_tasks_without_limits() -> None:
    app = Celery("wide", task_cls=RateLimitedTask, set_as_current=False)
    free = app.task(ran, name="wide.free", shared=False)
    assert free.apply().get() == "ran"


def test_a_base_without_limits_does_not_run_either() -> None:
    """A task that is registered after its worker started."""
    app = Celery("late", set_as_current=False)
    free = app.task(ran, name="late.free", base=RateLimitedTask, shared=False)
    with pytest.raises(ConfigurationError, match=r"task 'late.free' .*without limits"):
        free.apply().get()
    rate_limited("late-free", 1, 1)(free)
    assert free.apply().get() == "ran"
