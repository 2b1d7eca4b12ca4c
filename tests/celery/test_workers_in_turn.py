"""Workers in one process one after the other, as in tests: what the first heard is no concern of the second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from celery import Celery, _state, signals
from celery.contrib.testing.worker import start_worker

from fleetlimit import rate_limited
from fleetlimit.celery import heard
from fleetlimit.demo.processes import Server, until

SIGNALS = (
    "worker_shutting_down", "worker_process_init", "task_revoked", "task_prerun", "task_postrun",
)  # fmt: skip


@pytest.fixture(autouse=True)
def default_app() -> Iterator[None]:
    """`start_worker` makes its app the default one."""
    former = _state.default_app, _state._tls.current_app
    yield
    _state.default_app, _state._tls.current_app = former


def one_app(server: Server, name: str) -> Celery:
    app = Celery(name, broker=server.url, set_as_current=False)
    app.conf.fleetlimit_url, app.conf.task_default_queue = server.url, name

    @app.task(name=f"{name}.one", shared=False)
    @rate_limited(f"turn-{name}", 5, per=1)
    def one() -> str:
        return name

    return app


def receivers() -> dict[str, int]:
    return {name: len(getattr(signals, name).receivers or ()) for name in SIGNALS}


def test_each_hears_what_is_its_own(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    before, ready = receivers(), []
    former = heard.Receivers.task_postrun

    def task_postrun(self: heard.Receivers, **facts: object) -> None:
        ready.append(self._app.main)
        former(self, **facts)  # type: ignore[arg-type]

    monkeypatch.setattr(heard.Receivers, "task_postrun", task_postrun)
    for name in ("first", "second"):
        app = one_app(server, name)
        with start_worker(app, perform_ping_check=False, pool="solo"):
            assert receivers() != before
            app.tasks[f"{name}.one"].delay()
            until(lambda name=name: name in ready, "it ran")
        assert receivers() == before
    assert ready == ["first", "second"]


def test_its_broker_is_known_before_anything_can_be_parked(server: Server) -> None:
    """Else who ends a pause just then finds no line, and what was parked waits for the end of the pause."""
    app = one_app(server, "third")
    client = redis.Redis.from_url(server.url, decode_responses=True)
    app.Worker(pool="solo")  # made, and not started
    assert client.zrange("fleetlimit:brokers", 0, -1) == [client.get("fleetlimit:broker")]


def test_a_worker_embedded_in_tests_lets_parked_tasks_go(server: Server) -> None:
    """Celery's `worker_ready` signal is not sent for it."""
    app = Celery("embedded", broker=server.url, set_as_current=False)
    app.conf.fleetlimit_url = server.url
    ran: list[int] = []

    @app.task(name="embedded.one", shared=False)
    @rate_limited("turn-embedded", 2, per=1)
    def one(n: int) -> None:
        ran.append(n)

    with start_worker(app, perform_ping_check=False, pool="solo"):
        for n in range(4):
            one.delay(n)
        until(lambda: sorted(ran) == [0, 1, 2, 3], "all ran")
