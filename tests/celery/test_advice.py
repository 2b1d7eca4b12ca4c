"""What a worker says about settings that hurt: one line each, and none where nothing does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue

from fleetlimit.celery.advice import advice
from fleetlimit.celery.wiring import settings_of
from fleetlimit.demo.processes import Server

from .harness import fleet

REDIS, RABBIT = "redis://127.0.0.1:1/0", "amqp://guest@127.0.0.1:1//"
QUORUM = {"x-queue-type": "quorum"}


def said(broker: str, **conf: Any) -> list[str]:
    app = Celery("t", broker=broker, set_as_current=False)
    app.conf.update(fleetlimit_url=REDIS, **conf)
    return list(advice(app, settings_of(app)))


def queue(kind: str) -> Queue:
    return Queue("work", Exchange("work", kind), routing_key="work", queue_arguments=QUORUM)


@pytest.mark.parametrize(
    ("broker", "conf", "word"),
    [
        (REDIS, {"worker_prefetch_multiplier": 0}, "worker_prefetch_multiplier=0"),
        (RABBIT, {"worker_prefetch_multiplier": 50}, "worker_prefetch_multiplier=50"),
        (
            REDIS,
            {
                "fleetlimit_waiting_room": False,
                "fleetlimit_horizon": 60,
                "broker_transport_options": {"visibility_timeout": 100},
            },
            "within 100 s",
        ),
        (
            RABBIT,
            {
                "fleetlimit_horizon": 60,
                "task_queues": [Queue("work", queue_arguments={"x-consumer-timeout": 60_000})],
            },
            "lower it to 30",
        ),
        (RABBIT, {"worker_eta_task_limit": 100}, "worker_eta_task_limit=100"),
        (RABBIT, {"task_queues": [queue("direct")]}, "a quorum queue on a direct exchange"),
    ],
)
def test_a_setting_that_hurts(broker: str, conf: dict[str, Any], word: str) -> None:
    lines = said(broker, **conf)
    assert len(lines) == 1
    assert word in lines[0]
    assert "\n" not in lines[0]


@pytest.mark.parametrize(
    ("broker", "conf"),
    [
        (REDIS, {}),
        (RABBIT, {}),
        (RABBIT, {"task_queues": [queue("topic")]}),
        # With the waiting room nothing waits as a countdown.
        (RABBIT, {"task_queues": [queue("direct")], "fleetlimit_waiting_room": True}),
        (REDIS, {"worker_eta_task_limit": 100}),
        (REDIS, {"broker_transport_options": {"visibility_timeout": 100}}),
    ],
)
def test_nothing_to_say(broker: str, conf: dict[str, Any]) -> None:
    assert said(broker, **conf) == []


def test_a_worker_says_it(server: Server, tmp_path: Path) -> None:
    conf = '{"worker_prefetch_multiplier": 30}'
    with fleet(tmp_path, server.url, server.url, TEST_CONF=conf) as one:
        one.start("solo", 1)
        assert one.log().count("fleetlimit: worker_prefetch_multiplier=30") == 1
