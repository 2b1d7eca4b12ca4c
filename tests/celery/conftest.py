"""Fleets of the worker tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import redis
from celery import _state

from fleetlimit.demo.processes import Server
from tests.brokers import Rabbit, rabbitmq

from .harness import Fleet, fleet


@pytest.fixture(autouse=True)
def not_a_worker() -> Iterator[None]:
    """A worker in a thread of the tests sets the level of the root logger, and forbids the process to wait for
    results: for all tests to come."""
    root = logging.getLogger()
    level, blocks = root.level, _state.task_join_will_block()
    yield
    root.setLevel(level)
    _state._set_task_join_will_block(blocks)


@pytest.fixture(scope="module")
def workers(valkey: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One prefork worker with four processes on a Redis broker."""
    redis.Redis.from_url(valkey.url).flushall()
    with fleet(tmp_path_factory.mktemp("fleet"), valkey.url, valkey.url) as one:
        one.start("prefork", 4)
        yield one


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    with rabbitmq(tmp_path_factory.mktemp("rabbit")) as one:
        yield one
