"""What fleetlimit takes from Celery that is not public: each test fails where a new version has moved it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import celery
import pytest
from celery import Celery, shared_task
from celery.worker.request import Request
from celery.worker.worker import WorkController

from fleetlimit.celery import compat

MOVED = f"Celery {celery.__version__} keeps this elsewhere: see fleetlimit/celery/compat.py"


@pytest.fixture
def app() -> Iterator[Celery]:
    found = Celery("compat", broker="memory://", set_as_current=False)
    found.conf.fleetlimit_enabled = False  # other tests may have left limited shared tasks
    yield found
    found.close()


def add(a: int, b: int) -> int:
    return a + b


def test_apps(app: Celery) -> None:
    assert app in compat.active_apps(), MOVED


def test_when_an_app_makes_its_tasks(app: Celery) -> None:
    seen: list[Any] = []
    compat.on_finalize(seen.append)
    app.finalize()
    assert app in seen, MOVED


def test_tasks_of_an_app(app: Celery) -> None:
    lazy = app.task(name="compat.add")(add)
    assert "compat.add" not in [task.name for task in compat.tasks_of(app)]
    assert not app.finalized, "asking for the tasks of an app must not make them"
    app.finalize()
    assert compat.made(lazy) in compat.tasks_of(app), MOVED
    assert compat.task_named(app, "compat.add") is compat.made(lazy), MOVED
    assert compat.task_named(app, "compat.other") is None


def test_the_task_that_runs(app: Celery) -> None:
    seen: list[Any] = []

    @app.task(name="compat.inner")
    def inner() -> None:
        seen.append((compat.current_task().name, [one.name for one in compat.running_tasks()]))

    @app.task(name="compat.outer")
    def outer() -> None:
        inner()

    assert compat.current_task() is None
    outer()
    assert seen == [("compat.inner", ["compat.outer", "compat.inner"])], MOVED


def test_a_task_that_is_still_to_be_made(app: Celery) -> None:
    proxy, made = app.task(name="compat.add")(add), []
    assert compat.is_proxy(proxy), MOVED
    assert compat.promised(proxy) == (add, None), MOVED
    assert compat.when_made(proxy, made.append), MOVED
    assert not made
    app.finalize()
    assert made == [compat.made(proxy)], MOVED
    assert compat.promised(proxy) is None


def test_a_shared_task() -> None:
    proxy = shared_task(name="compat.shared")(add)
    assert compat.is_proxy(proxy), MOVED
    assert compat.promised(proxy) == (add, "compat.shared"), MOVED
    assert not compat.when_made(proxy, lambda task: None)


def test_what_is_no_proxy() -> None:
    assert not compat.is_proxy(add)
    assert not compat.is_proxy("compat.add")


def test_the_pool_of_a_worker(app: Celery) -> None:
    worker = WorkController(app=app, pool_cls="prefork", concurrency=1)
    assert compat.started_pool(worker) is None, MOVED
    worker.pool.start()
    try:
        assert compat.started_pool(worker).num_processes == 1, MOVED
    finally:
        worker.pool.stop()
        worker.pool.terminate()


def test_hidden_settings(app: Celery) -> None:
    compat.hide_settings("COMPAT_HIDDEN")
    app.conf.update(compat_hidden_url="not to be seen", compat_open="to be seen")
    said = app.conf.humanize(with_defaults=False)
    assert "not to be seen" not in said, MOVED
    assert "to be seen" in said


def test_a_request_waits_for_its_eta() -> None:
    """The worker's request keeps its app and its ETA where `setup._request_class` writes them."""
    assert {"_app", "_eta"} <= set(Request.__slots__), MOVED
