"""Producers of our own, which wait for no broker for long, and for its word that it has what was published."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from kombu import pools

from fleetlimit.forks import after_fork

__all__ = ["BROKER_S", "bounded", "producers_of"]

#: How long a broker may take to answer, seconds.
BROKER_S = 5.0


def bounded(app: Any) -> dict[str, Any]:
    """Options of a connection that never waits long for a broker that does not answer."""
    driver = app.connection_for_write().transport.driver_type
    theirs = app.conf.broker_transport_options or {}
    if driver == "redis":
        return {"socket_timeout": BROKER_S, "socket_connect_timeout": BROKER_S, **theirs}
    ours = {"read_timeout": BROKER_S, "write_timeout": BROKER_S}
    return {**ours, **theirs}


class _Pools:
    """Producers of our own, one pool per app and process. With RabbitMQ they wait for the broker's
    confirmation: an unconfirmed publish may be lost without an error, and the task with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_app: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._inherited: list[Any] = []
        after_fork(self._forget)

    def _forget(self) -> None:
        """After a fork: a lock may be held by a thread that is not here, and the connections are
        the parent's. They are kept, for closing one would end the parent's."""
        self._lock = threading.Lock()
        self._inherited.append(self._by_app)
        self._by_app = weakref.WeakKeyDictionary()

    def __call__(self, app: Any) -> Any:
        with self._lock:
            if app not in self._by_app:
                connection = app.connection_for_write(
                    transport_options={**bounded(app), "confirm_publish": True}
                )
                limit = app.conf.broker_pool_limit or 1
                self._by_app[app] = pools.ProducerPool(
                    limit=limit, connections=connection.Pool(limit=limit)
                )
            return self._by_app[app]


#: Found by the app; see `_Pools`.
producers_of = _Pools()
