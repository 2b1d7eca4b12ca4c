"""One run of the suite, on servers of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleetlimit.demo.processes import redis_server
from tests.brokers import rabbitmq

from .source import fetched

__all__ = ["BROKERS", "MODES", "WHOLE", "Run", "run"]

BROKERS = ("redis", "rabbitmq")
#: The first is what the others are compared with.
MODES = ("plain", "never", "room", "countdown")
WHOLE = ("t/integration",)
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Run:
    """What a run was, and where it left its records (see `plugin.py`)."""

    broker: str
    mode: str
    records: Path
    seconds: float


def run(broker: str, mode: str, tests: Sequence[str], folder: Path) -> Run:
    """Run tests of the suite; a run that ends early leaves what it has.

    :param broker: one of `BROKERS`. :param mode: one of `MODES`.
    :param tests: what pytest is given: files, ids, options.
    :param folder: for records and logs; made.
    :raises pytest.skip.Exception: where no such broker is installed.
    """
    folder.mkdir(parents=True)
    records, began = folder / "records.jsonl", time.monotonic()
    records.touch()
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "celery.contrib.pytest",
        "-p", "tests.celery_suite.plugin", "-p", "no:cacheprovider", "--timeout", "300",
        "--continue-on-collection-errors", "--tb", "native", *tests,
    ]  # fmt: skip
    with _servers(broker, folder) as env, (folder / "pytest.log").open("w") as log:
        env |= {"CELERY_SUITE_MODE": mode, "CELERY_SUITE_RECORDS": str(records)}
        subprocess.run(
            command, cwd=fetched(), env=env, stdout=log, stderr=subprocess.STDOUT, check=False
        )
    return Run(broker, mode, records, time.monotonic() - began)


@contextmanager
def _servers(broker: str, folder: Path) -> Iterator[dict[str, str]]:
    """A Redis for results and limits and, where the broker is another, that; the environment that says so."""
    with redis_server(folder) as server:
        env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # the suite starts `celery`
            "PYTHONPATH": str(ROOT),
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": str(server.port),
            "TEST_BACKEND": server.url,
            "TEST_BROKER": server.url,
            "WORKER_LOGLEVEL": "INFO",  # what is logged is tested
            "CELERY_SUITE_REDIS": server.url.replace("/0", "/5"),
        }
        if broker == "redis":
            yield env
        else:
            with rabbitmq(folder) as rabbit:
                yield {**env, "TEST_BROKER": rabbit.url.replace("amqp:", "pyamqp:")}
