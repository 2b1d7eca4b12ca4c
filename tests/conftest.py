"""Servers of our own for the tests: started once, on loopback, on free ports."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from fleetlimit.demo.processes import Server, redis_server

REQUIRE_ALL = os.environ.get("FLEETLIMIT_REQUIRE_ALL") == "1"


def need(program: str, why: str) -> str:
    """The path of an installed program; else the test is skipped."""
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/lib/rabbitmq/bin")
    if found:
        return found
    pytest.skip(f"{program} is not installed: {why}")


def faketime(why: str) -> str:
    """The library that gives a process another clock; else the test is skipped."""
    for folder in ("/usr/lib", "/usr/local/lib"):
        for found in Path(folder).glob("**/libfaketime.so.1"):
            return str(found)
    pytest.skip(f"libfaketime is not installed: {why}")


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The embedded Valkey (or an installed server where there is none)."""
    with redis_server(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="session")
def redis7(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An installed redis-server."""
    binary = need("redis-server", "the scripts are not tried on Redis itself")
    with redis_server(tmp_path_factory.mktemp("redis"), binary=binary) as server:
        yield server


@pytest.fixture
def server(valkey: Server) -> Server:
    """A server with nothing in it."""
    redis.Redis.from_url(valkey.url).flushall()
    return valkey


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, decode_responses=True) as found:
        yield found


def _required(report: Any) -> Any:
    """Where all is required, a test (or a module of them) that was skipped has failed."""
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and FLEETLIMIT_REQUIRE_ALL=1: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    return _required((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    return _required((yield))
