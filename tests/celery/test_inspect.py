"""`celery inspect throttled`, as an operator types it: the command's own process has imported no task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetlimit import RateLimit, RateLimiter
from fleetlimit.demo.processes import Server, spawn, stop, until

TASKS = """
from celery import shared_task
from fleetlimit import rate_limited

@shared_task
@rate_limited("inspected", 1, per=60)
def call(): ...
"""
PLAIN = """
import os
from celery import Celery

app = Celery("shop", broker=os.environ["TEST_REDIS"])
app.conf.broker_connection_retry_on_startup = True
app.autodiscover_tasks(["things"])
"""
NAMESPACE = """
import os
from celery import Celery

class settings:
    CELERY_BROKER_URL = os.environ["TEST_REDIS"]
    CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True

app = Celery("shop")
app.config_from_object(settings, namespace="CELERY")
app.autodiscover_tasks(lambda: ["things"])
"""


class Shop:
    """A project in a folder, in which only the worker imports the module with the tasks."""

    def __init__(self, folder: Path, url: str, source: str) -> None:
        self.folder, self.env = folder, {**os.environ, "TEST_REDIS": url}
        (folder / "shop.py").write_text(source)
        (folder / "things").mkdir()
        (folder / "things" / "__init__.py").touch()
        (folder / "things" / "tasks.py").write_text(TASKS)

    def celery(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("celery", *words)

    def run(self, module: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.env, text=True, capture_output=True, timeout=60
        )

    def work(self) -> Any:
        command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-P", "solo", "-n", "w@h", "-l", "INFO"]  # fmt: skip
        log = self.folder / "worker.log"
        worker = spawn(command, log, env=self.env, cwd=self.folder)
        until(lambda: " ready." in log.read_text(), "a worker", 60)
        return worker


@pytest.fixture(params=[PLAIN, NAMESPACE], ids=["plain", "namespace"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, server: Server) -> Iterator[Shop]:
    one = Shop(tmp_path, server.url, request.param)
    worker = one.work()
    yield one
    stop(worker)


def test_it_is_known_without_a_task(shop: Shop) -> None:
    for _ in range(3):
        shop.celery("-A", "shop", "call", "things.tasks.call")

    def answer() -> Any:
        said = shop.celery("-A", "shop", "inspect", "throttled", "inspected", "--json", "-t", "5")
        assert said.returncode == 0, said.stderr
        return json.loads(said.stdout)["w@h"]["inspected"]

    until(lambda: answer()["waiting"] == 2, "two wait", 60)
    assert "throttled [LIMIT" in shop.celery("-A", "shop", "inspect", "--list").stdout


def test_our_own_command_below_celery(tmp_path: Path, server: Server) -> None:
    one = Shop(tmp_path, server.url, PLAIN)
    said = one.celery("-A", "shop", "fleetlimit", "status", "inspected", "--url", server.url)
    assert (said.returncode, "waiting" in said.stdout) == (0, True), said.stderr + said.stdout
    assert "Usage: celery fleetlimit" in one.celery("fleetlimit", "--help").stdout


def test_our_own_command_finds_redis_in_the_settings_of_the_app(
    tmp_path: Path, server: Server
) -> None:
    """What `celery -A` has loaded knows the place and the key prefix; nobody types them again."""
    own = PLAIN + 'app.conf.fleetlimit_key_prefix = "dev:"\n'
    one = Shop(tmp_path, server.url, own)
    limiter = RateLimiter(server.url, key_prefix="dev:")
    limiter.acquire(RateLimit("inspected", 1, 60))
    for start in (["celery", "-A", "shop", "fleetlimit"], ["fleetlimit.cli"]):
        more = ["-A", "shop"] if start == ["fleetlimit.cli"] else []
        paused = one.run(*start, "pause", "inspected", "60", *more)
        assert paused.returncode == 0, paused.stderr
        assert limiter.status("inspected").paused > 50
        limiter.resume("inspected")
    assert one.celery("-A", "shop", "fleetlimit", "drain", "--timeout", "9").returncode == 0
    listed = one.celery("-A", "shop", "fleetlimit", "adopt")
    assert listed.returncode == 0, listed.stderr
    elsewhere = ["-A", "shop", "fleetlimit", "status", "inspected", "--url", "redis://127.0.0.1:1"]
    assert "no answer from Redis" in one.celery(*elsewhere).stderr
    without = one.celery("fleetlimit", "status", "inspected")
    assert "where is Redis? Give -A app, or --url redis://..." in without.stderr
