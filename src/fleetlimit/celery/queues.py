"""The queues that a message came from, or to which it goes back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2s
from typing import Any

from kombu import Exchange, Queue
from kombu.transport.virtual.exchange import TopicExchange

from fleetlimit.celery.runtime import runtime_of
from fleetlimit.errors import FleetlimitError

__all__ = [
    "Forbidden",
    "check_target",
    "definition",
    "described",
    "lane_of",
    "queues_on",
    "targets",
]


class Forbidden(FleetlimitError):
    """A parked message would go to an exchange or queue that is not for tasks."""


def queues_on(app: Any, exchange: str) -> list[Any]:
    """The app's queues that are bound to an exchange; none for the default exchange."""
    if not exchange:
        return []  # with the default exchange the routing key is the queue's name
    return [q for q in app.amqp.queues.values() if q.exchange and q.exchange.name == exchange]


def targets(app: Any, exchange: str, routing_key: str) -> list[Any]:
    """The app's queues into which the broker puts a message with this exchange and routing key."""
    if not exchange:
        known = app.amqp.queues.get(routing_key)
        return [known] if known else []
    return [q for q in queues_on(app, exchange) if _takes(q, routing_key)]


def _takes(queue: Any, routing_key: str) -> bool:
    kind, bound = queue.exchange.type, queue.routing_key or ""
    if kind == "direct":
        return bool(bound == routing_key)
    if kind == "topic":
        return re.match(TopicExchange(None).key_to_pattern(bound), routing_key) is not None
    return True  # a fanout exchange; for a headers exchange it is not known


def lane_of(app: Any, broker: str, exchange: str, routing_key: str) -> tuple[str, str]:
    """The lane of a queue (the same in all lines), and the queue's name, or the exchange or routing key if it is not
    known."""
    known, way = runtime_of(app).lanes, (broker, exchange, routing_key)
    if way not in known:
        found = targets(app, exchange, routing_key)
        name = found[0].name if len(found) == 1 else exchange or routing_key
        if len(known) >= _MOST_LANES:
            known.clear()
        known[way] = blake2s(f"{broker}\0{name}".encode(), digest_size=4).hexdigest(), name
    return known[way]


_MOST_LANES = 1_000


#: The types of exchanges. (Those of plugins begin with "x-".) A broker closes the connection for any other type.
_KINDS = ("direct", "topic", "fanout", "headers")


def described(queue: Any) -> list[Any]:
    """A queue's definition as it lies in a parked message."""
    at = queue.exchange
    return [queue.name, at.name, at.type, queue.routing_key, queue.queue_arguments, queue.durable]


def definition(app: Any, stored: Sequence[Any]) -> Any:
    """A queue as the running app defines it, or, if the app does not know it, as the parked message describes it."""
    name, exchange, kind, routing_key, arguments, durable = stored
    if known := app.amqp.queues.get(name):
        return known
    if kind not in _KINDS and not str(kind).startswith("x-"):
        raise Forbidden(f"exchange {exchange!r} is of no known type: {kind!r}")
    at = Exchange(exchange, type=kind, durable=durable)
    return Queue(name, at, routing_key=routing_key, queue_arguments=arguments, durable=durable)


def check_target(app: Any, *names: str) -> None:
    """Refuse the exchanges and queues by which Celery itself controls workers and sends events, because a message that
    was forged in the limits' Redis must not become a command to workers.

    :param names: the exchanges, routing keys and queues by which a message would travel.
    :raises Forbidden: if one of them belongs to Celery.
    """
    conf = app.conf
    for name in names:
        own = name.endswith(".pidbox") or name in (
            conf.event_exchange,
            conf.control_exchange + ".pidbox",
        )
        if own or name.startswith((f"{conf.event_queue_prefix}.", f"{conf.event_exchange}.")):
            raise Forbidden(f"{name!r} belongs to Celery's own control and events")
