"""Producers that wait for a broker only for a bounded time, and that wait for its confirmation of each message."""

from __future__ import annotations

from typing import Any

from kombu import pools

from fleetlimit.celery.runtime import runtime_of

__all__ = ["BROKER_S", "bounded", "producers_of"]

#: How long a broker may take to answer, seconds.
BROKER_S = 5.0


def bounded(app: Any) -> dict[str, Any]:
    """Options of a connection that waits at most `BROKER_S` for a broker that does not answer."""
    driver = app.connection_for_write().transport.driver_type
    theirs = app.conf.broker_transport_options or {}
    if driver == "redis":
        return {"socket_timeout": BROKER_S, "socket_connect_timeout": BROKER_S, **theirs}
    ours = {"read_timeout": BROKER_S, "write_timeout": BROKER_S}
    return {**ours, **theirs}


def producers_of(app: Any) -> Any:
    """The pool of producers of an app in this process. With RabbitMQ the producers wait for the broker's confirmation,
    because an unconfirmed message, and the task with it, may be lost without an error."""
    runtime = runtime_of(app)
    with runtime.lock:
        if runtime.producers is None:
            options = {**bounded(app), "confirm_publish": True}
            connection = app.connection_for_write(transport_options=options)
            limit = app.conf.broker_pool_limit or 1
            connections = connection.Pool(limit=limit)
            runtime.producers = pools.ProducerPool(limit=limit, connections=connections)
        return runtime.producers
