"""The lab as its users start it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleetlimit.demo.processes import environment, spawn, stop, until

COMMAND = [sys.executable, "-m", "fleetlimit.cli", "lab"]


@contextmanager
def started(log: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A `fleetlimit lab`, and the URL that it printed."""
    process = spawn([*COMMAND, *options], log, env=environment())

    def printed() -> re.Match[str] | None:
        assert process.poll() is None, log.read_text()
        return re.search(r"http://\S+/", log.read_text())

    try:
        yield process, until(printed, "the lab's URL")[0]
    finally:
        stop(process)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with started(tmp_path_factory.mktemp("lab") / "log", "--port", "0") as (_, url):
        yield url
