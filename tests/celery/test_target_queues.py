"""Where parked tasks go back to on RabbitMQ: into a queue that exists, as the running app defines it, or nowhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue

from fleetlimit.demo.processes import Server, until
from tests.brokers import Rabbit

from .harness import (
    Fleet,
    backlog,
    drained,
    fleet,
    numbers,
    parked,
    patient,
    put_down,
    runs_at_full_pace,
    shop,
    shut_down,
)

LIMIT = 15
CALL: dict[str, Any] = {"call": ("partner", LIMIT)}
ROOM = {"fleetlimit_waiting_room": True}
#: As an administrator's tools declare it.
SHOPQ = Queue("shopq", Exchange("shop", "direct"), routing_key="shop")


@contextmanager
def channel(rabbit: Rabbit) -> Iterator[Any]:
    with Connection(rabbit.url) as connection:
        yield connection.channel()


@pytest.fixture
def one(rabbit: Rabbit, server: Server, tmp_path: Path) -> Iterator[Fleet]:
    with channel(rabbit) as admin:
        for name in ("celery", "shopq", "mailq", "orders"):
            admin.queue_delete(name)
        for name in ("shop", "mail", "orders"):
            admin.exchange_delete(name)
    with fleet(tmp_path, rabbit.url, server.url, **shop(CALL, **ROOM)) as made:
        yield made


def test_a_queue_is_deleted_while_its_tasks_are_parked(one: Fleet, rabbit: Rabbit) -> None:
    shopq = one.start("prefork", 2, "-Q", "shopq")
    one.start("prefork", 2, "-Q", "mailq")
    theirs, run = one.run(), one.run()
    backlog(one, theirs, 90, queue="shopq")
    put_down(one, shopq, theirs, 90)
    for n in range(170):
        one.send("call", run, n, queue="mailq")
    with channel(rabbit) as admin:
        inside = admin.queue_delete("shopq")  # the broker's own, and not ours to save
    left = 90 - len(one.starts(theirs)) - inside
    assert left > 30
    runs_at_full_pace(one, run, LIMIT, time.time() + 2)
    assert numbers(one.wait(run, 170)) == list(range(170))
    one.start("prefork", 2, "-Q", "shopq")
    ran = drained(one, theirs)
    assert len(ran) == len(set(ran)) == 90 - inside


def test_the_running_apps_definition_of_a_queue_wins(
    one: Fleet, rabbit: Rabbit, server: Server
) -> None:
    def app(**arguments: Any) -> dict[str, str]:
        queue = ["orders", "orders", "topic", "order.#", arguments, True]
        return shop(CALL, queue, **ROOM, task_default_queue="orders")

    worker, run = one.start("prefork", 2, **app()), one.run()
    backlog(one, run, 90, queue="orders", exchange="orders", routing_key="order.new")
    put_down(one, worker, run, 90)
    left = parked(one)
    with channel(rabbit) as admin:
        inside = admin.queue_delete("orders")
    newer = one.start("prefork", 2, **app(**{"x-max-priority": 5}))
    assert left > 30
    ran = drained(one, run)
    assert len(ran) == len(set(ran)) == 90 - inside
    assert newer.poll() is None
    with channel(rabbit) as admin:
        Queue("orders", Exchange("orders", "topic"), queue_arguments={"x-max-priority": 5})(
            admin
        ).queue_declare(passive=True)
    assert "PRECONDITION_FAILED" not in one.log()


def test_who_reads_another_queue_declares_it_as_the_new_code_does(
    one: Fleet, rabbit: Rabbit
) -> None:
    """The queue is not there when its tasks are let go: declared in its old form, it would be the end of the worker
    that is to read it."""

    def app(**arguments: Any) -> dict[str, str]:
        orders = ["orders", "orders", "topic", "order.#", arguments, True]
        mail = ["mailq", "mail", "topic", "mail.#", {}, True]
        return shop(CALL, orders, mail, **ROOM, task_default_queue="orders")

    worker, run = one.start("prefork", 2, "-Q", "orders", **app()), one.run()
    backlog(one, run, 60, queue="orders", exchange="orders", routing_key="order.new")
    put_down(one, worker, run, 60)
    left = parked(one)
    with channel(rabbit) as admin:
        inside = admin.queue_delete("orders")
    newer = app(**{"x-max-priority": 5})
    one.start("prefork", 2, "-Q", "mailq", **newer)
    until(lambda: parked(one) < left, "some were let go")
    with channel(rabbit) as admin:
        Queue("orders", Exchange("orders", "topic"), queue_arguments={"x-max-priority": 5})(
            admin
        ).queue_declare(passive=False)  # refused if it is there in its old form
    reader = one.start("prefork", 2, "-Q", "orders", **newer)
    ran = drained(one, run)
    assert len(ran) == len(set(ran)) == 60 - inside
    assert reader.poll() is None


def _restricted(rabbit: Rabbit, *names: str) -> dict[str, str]:
    """A worker of a user that may read and write, and declare nothing: what is there was declared by others."""
    queues = [
        [name, name.removesuffix("q"), "direct", name.removesuffix("q"), {}, False]
        for name in names
    ]
    quiet = {"worker_enable_remote_control": False, "task_default_queue": names[0]}
    url = rabbit.url.replace("guest:guest", "narrow:narrow")
    return {**shop(CALL, *queues, **ROOM, **quiet), "TEST_BROKER": url}


@pytest.fixture
def narrow(rabbit: Rabbit) -> Iterator[None]:
    rabbit.control("add_user", "narrow", "narrow")
    rabbit.control("set_permissions", "-p", "/", "narrow", "", ".*", ".*")
    yield
    rabbit.control("delete_user", "narrow")


@pytest.mark.usefixtures("narrow")
def test_a_user_that_may_not_declare(one: Fleet, rabbit: Rabbit) -> None:
    with channel(rabbit) as admin:
        for name in ("shop", "mail"):
            Queue(f"{name}q", Exchange(name, "direct"), routing_key=name)(admin).declare()
    shopq, run = one.start("prefork", 2, **_restricted(rabbit, "shopq")), one.run()
    to = {"exchange": "shop", "routing_key": "shop"}
    backlog(one, run, 90, queue="shopq", **to)
    shut_down(shopq)
    # The other worker knows nothing of this queue, and would declare it if it might.
    one.start("prefork", 2, **_restricted(rabbit, "mailq"))
    with channel(rabbit) as admin:
        queue = SHOPQ(admin)
        until(lambda: queue.queue_declare(passive=True).message_count > 0, "let go")
        inside = queue.delete()  # now nobody can declare it: what is let go comes back
        until(lambda: "1" in _tries(one), "a message came back")
        # What was deleted before the broker confirmed it is still ours.
        assert parked(one) >= 90 - len(one.starts(run)) - inside > 20
        queue.declare()
    one.start("prefork", 2, **_restricted(rabbit, "shopq"))
    ran = drained(one, run, 90)
    assert len(ran) == len(set(ran)) >= 90 - inside
    assert patient(one).status("partner").quarantined == 0


def _tries(one: Fleet) -> set[str]:
    """How often parked messages were tried in vain."""
    tickets: dict[str, str] = one.redis.hgetall("fleetlimit:{partner}:tickets")  # type: ignore[assignment]
    return {value.split(":")[5] for value in tickets.values()}
