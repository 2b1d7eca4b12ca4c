"""Puts a task back: publishes the same message again with a new ETA, then ends the delivery quietly.

The headers, properties and body are those that came. `Task.retry` is not used, because it spends the retries budget,
makes a root task its own parent, recomputes redacted reprs and turns a failed publish into a rejection. `send_task` is
not used either, because it applies the router, signals and task-level defaults again.
"""

from __future__ import annotations

import base64
import contextlib
from typing import Any, NoReturn

from celery.exceptions import Ignore, Retry
from celery.states import PENDING
from celery.utils.quorum_queues import detect_quorum_queues
from kombu import Exchange
from kombu.transport.native_delayed_delivery import calculate_routing_key

from fleetlimit.celery.message import Message, Serialized, expires_in_us
from fleetlimit.celery.producers import BROKER_S, producers_of
from fleetlimit.celery.queues import definition, queues_on
from fleetlimit.decision import Decision, RateLimited

__all__ = [
    "as_published",
    "cannot_wait_in_queue",
    "delays_natively",
    "put_back",
    "quit_delivery",
    "show_pending",
    "undelayed",
]

#: Properties that publishing makes anew.
_NOT_PROPERTIES = frozenset(
    [
        "delivery_info",
        "delivery_tag",
        "consumer_tag",
        "body_encoding",
        "content_type",
        "content_encoding",
        "headers",
        "application_headers",
        "expiration",
    ]
)
_DELAYED_IN, _DELAYED_OUT = "celery_delayed_27", "celery_delayed_delivery"
_DELAY_BITS = 28
_RETRY_POLICY = {
    "max_retries": 2,
    "interval_start": 0.05,
    "interval_step": 0.2,
    "interval_max": 0.4,
}


def cannot_wait_in_queue(app: Any, message: Message) -> bool:
    """Whether the message came from a broadcast (fanout) exchange. Such a message is meant for this worker alone, and
    if it were published again, every worker would get it."""
    return any(q.exchange.type == "fanout" for q in queues_on(app, message.exchange))


def put_back(
    app: Any,
    message: Message,
    countdown: float,
    seen_us: int,
    line: tuple[str, str],
    due_us: int = 0,
) -> None:
    """Publish `message` again, so that it is due in `countdown` seconds (or at `due_us` by the store's clock, if that
    is known). The task keeps its place in `line`.

    :raises Exception: any error of the broker's client, after two more tries.
    """
    _publish(
        app, message, message.waiting(seen_us, line, countdown, due_us, message.copy), countdown
    )


def _publish(app: Any, message: Message, headers: dict[str, Any], countdown: float) -> None:
    exchange: Any = message.exchange
    routing_key = message.routing_key
    declare = [definition(app, one) for one in message.queues]
    if delays_natively(app, exchange):
        exchange, routing_key, declare = _delayed(message, countdown)
    with producers_of(app).acquire(block=True, timeout=BROKER_S) as producer:
        producer.publish(
            exchange=exchange,
            routing_key=routing_key,
            declare=declare,
            retry=True,
            retry_policy=_RETRY_POLICY,
            **as_published(message, headers),
        )


def as_published(message: Message, headers: dict[str, Any]) -> dict[str, Any]:
    """The arguments with which kombu's producer publishes a message, without its exchange and routing key."""
    body: Any = message.body
    how: dict[str, Any] = {"serializer": message.serializer}
    if isinstance(body, Serialized):
        how = {"content_type": body.content_type, "content_encoding": body.content_encoding}
        body = base64.b64decode(body.data) if body.content_encoding == "binary" else body.data
    compression = headers.pop("compression", None)
    return {
        "body": body,
        "compression": compression,
        "headers": headers,
        **how,
        **_properties(message),
    }


def quit_delivery(task: Any, waiting_state: str, wait: float) -> NoReturn:
    """End the delivery. The task is safe in its queue or in the waiting room.

    `Ignore` stores nothing, and fires no handler and no event. `Retry` would show RETRY in Flower and in the result
    backend, and each denial would call the user's `on_retry` and send `task_retry`.
    """
    if waiting_state == "RETRY" and not task.request.ignore_result:
        denial = RateLimited(Decision(False, wait, 0, wait))
        raise Retry(str(denial), exc=denial, when=wait)
    raise Ignore


def show_pending(task: Any) -> None:
    """Store PENDING, the state of a task that has not run yet, because with `track_started` Celery has stored STARTED
    already. A result that another copy has stored stays."""
    if task.track_started and not task.request.ignore_result and not task.request.is_eager:
        with contextlib.suppress(Exception):  # only what a user sees depends on this
            task.backend.store_result(task.request.id, None, PENDING, request=task.request)


def _properties(message: Message) -> dict[str, Any]:
    kept = {
        name: value
        for name, value in message.properties.items()
        if name not in _NOT_PROPERTIES and value is not None
    }
    if message.properties.get("expiration") is not None:
        left = expires_in_us(message.headers.get("expires"))
        ms = float(message.properties["expiration"])
        kept["expiration"] = ms / 1000 if left is None else max(0.0, left / 1e6)
    return kept


def delays_natively(app: Any, exchange: str) -> bool:
    """Whether a countdown waits in Celery's own delay queues: on RabbitMQ, with quorum queues on an exchange that is
    not direct."""
    driver = app.producer_pool.connections.connection.transport.driver_type
    if not exchange or not detect_quorum_queues(app, driver)[0]:
        return False
    return exchange == _DELAYED_OUT or any(
        q.exchange.type != "direct" for q in queues_on(app, exchange)
    )


def _delayed(message: Message, countdown: float) -> tuple[Any, str, list[Any]]:
    """The exchange, routing key and declarations for a wait in the delay queues. The broker holds the message for whole
    seconds. For the rest, and for a wait under a second, the worker holds it until its ETA."""
    routing_key = undelayed(message)
    if countdown < 1:
        return Exchange(_DELAYED_OUT, type="topic"), routing_key, []
    key = calculate_routing_key(int(countdown), routing_key)
    return Exchange(_DELAYED_IN, type="topic"), key, []


def undelayed(message: Message) -> str:
    """The routing key of a message without the parts that the broker's delay queues add."""
    if message.exchange == _DELAYED_OUT:
        return message.routing_key.split(".", _DELAY_BITS)[-1]
    return message.routing_key
