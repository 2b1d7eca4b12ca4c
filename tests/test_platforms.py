"""Where processes do not fork, as on Windows: a program imports the library and sends tasks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fleetlimit.demo.processes import Server

PROGRAM = """
import os
del os.fork, os.register_at_fork
import fleetlimit
from celery import Celery
from fleetlimit import RateLimit, RateLimiter, RateLimitedTask, rate_limited

app = Celery("producer", broker="memory://")

@app.task
@rate_limited("api", 5, per=1)
def charge(order): ...

assert charge.delay(1).id
limiter = RateLimiter({url!r}, on_outage="share", processes=1)
print(bool(limiter.acquire(RateLimit("one", 1, 60))))
import fleetlimit.celery.setup, fleetlimit.cli, fleetlimit.testing
"""


def test_without_fork(server: Server, tmp_path: Path) -> None:
    program = tmp_path / "producer.py"
    program.write_text(PROGRAM.replace("{url!r}", repr(server.url)))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
