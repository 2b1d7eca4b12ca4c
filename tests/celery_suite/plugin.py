"""A plugin of pytest for Celery's suite: limits every task, and records tests, denials and requests.

It is loaded before any app is made. Its settings are in the environment, so that it needs no option.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from celery import Celery, signals
from celery.app.task import Task

from fleetlimit import RateLimit, task_throttled
from fleetlimit.celery.header import HEADER
from fleetlimit.celery.message import CAME

from .aside import ASIDE

#: Whether tasks are limited, and how: a key of `LIMITS`, or "plain".
MODE = os.environ["CELERY_SUITE_MODE"]
RECORDS = os.environ["CELERY_SUITE_RECORDS"]
REDIS = os.environ["CELERY_SUITE_REDIS"]

#: The modes in which most deliveries are denied.
TIGHT = ("room", "countdown")
#: One limit, shared by all tasks, and whether the waiting room is on.
LIMITS = {
    "never": (RateLimit("suite", 1_000_000, per=1, burst=1_000_000), True),
    "room": (RateLimit("suite", 20, per=1, margin=0.01), True),
    "countdown": (RateLimit("suite", 20, per=1, margin=0.01), False),
}


def record(kind: str, **facts: Any) -> None:
    """Append one line, whole, whichever process writes it."""
    line = json.dumps({"kind": kind, **facts}, default=repr) + "\n"
    found = os.open(RECORDS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(found, line.encode())
    os.close(found)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        why = ASIDE.get(getattr(item, "originalname", item.name))
        if why and MODE in TIGHT:
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
    if report.when == "call" or outcome != "passed":
        why = str(report.longrepr).splitlines()[-1:] if report.longrepr else []
        record("test", test=report.nodeid, outcome=outcome, seconds=report.duration, why=why)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file whose services or libraries are not here, such as Azure's."""
    if report.failed:
        record("test", test=report.nodeid, outcome="not loaded", seconds=0, why=[])


def limit_every_task(app: Celery) -> None:
    limit, room = LIMITS[MODE]
    app.add_defaults(
        {
            "task_annotations": {"*": {"limits": [limit]}},
            "fleetlimit_url": REDIS,
            "fleetlimit_max_sleep": 0.02,
            "fleetlimit_waiting_room": room,
            "fleetlimit_direct_calls": "wait",  # `starmap` calls limited tasks
        }
    )


def key_of(request: Any) -> str:
    return f"{request.id} {request.task} {request.retries}"


def fields_of(request: Any) -> dict[str, Any]:
    """All that a body can read of its request, without what fleetlimit keeps there between Celery's steps."""
    names = [name for name in vars(request) if not name.startswith("_fleetlimit")]
    found = {name: getattr(request, name) for name in names}
    properties = found.get("properties") or {}
    found["properties"] = {name: value for name, value in properties.items() if name != CAME}
    return found


def came(task: Any, **_: Any) -> None:
    """A delivery, before its limit is asked for."""
    request = task.request
    if not request.is_eager:
        first = HEADER not in vars(request)
        record("came", key=key_of(request), first=first, fields=fields_of(request))


def began(self: Any, *_: Any, **__: Any) -> None:
    """The `before_start` of Celery's own class, which is called last: the body comes next."""
    if not self.request.is_eager:
        record("began", key=key_of(self.request), fields=fields_of(self.request))


def denied(**_: Any) -> None:
    record("denied")


if MODE != "plain":
    Celery.on_init = limit_every_task
    Task.before_start = began
    signals.task_prerun.connect(came, weak=False)
    task_throttled.connect(denied, weak=False)
