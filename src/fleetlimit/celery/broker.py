"""Identifies an app's broker by a name that does not depend on how its URL is written.

A parked message belongs to a broker. URLs that differ in a host alias, a missing `/0`, the user, TLS or the order of
hosts name the same broker, but another database or key prefix makes it another broker. So a Redis broker is asked for
an id that lies in its own database under its own prefix. RabbitMQ is asked for the name of its cluster, to which the
virtual host is added. Any other broker is known by its URL.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

import redis
from celery.utils.log import get_logger

from fleetlimit.celery.runtime import runtime_of
from fleetlimit.celery.wiring import settings_of
from fleetlimit.store.keyspace import is_broker

__all__ = ["broker_of", "identify"]

logger = get_logger(__name__)

#: The key of a Redis broker's id, in the broker's own database.
ID_KEY = "fleetlimit:broker"
#: A broker that did not say its name is asked again after so many seconds.
_AGAIN_S = 5.0
#: How long a broker may take to answer, seconds.
_PATIENCE_S = 2.0


def broker_of(app: Any) -> str:
    """The name of the broker to which an app publishes. While it is not known ('') no task is parked."""
    runtime = runtime_of(app)
    name, ask_again_at = runtime.broker
    name = runtime.shared_broker or name
    if not name and time.monotonic() >= ask_again_at:
        name = identify(app)
    return name


def identify(app: Any) -> str:
    """Ask the broker (again) for its name, and remember the answer. '' if the broker does not answer."""
    name = settings_of(app).broker
    if not name:
        try:
            name = _asked(app)
        except Exception as error:  # whatever the transport raises
            logger.debug("the broker could not be identified: %r", error)
    runtime = runtime_of(app)
    runtime.broker = name, time.monotonic() + _AGAIN_S
    if name:  # the processes of the pool must not go on with a former one
        runtime.shared_broker = name
    return name


def _asked(app: Any) -> str:
    timeouts = {"socket_timeout": _PATIENCE_S, "socket_connect_timeout": _PATIENCE_S}
    with app.connection_for_write() as connection:
        kind = connection.transport.driver_type
        if kind == "redis":
            connection.transport_options = {**connection.transport_options, **timeouts}
            return _id_in_redis(connection)
        if kind == "amqp":
            connection.connect_timeout = _PATIENCE_S
            server = connection.connection.server_properties
            return _digest(
                "amqp", _text(server.get("cluster_name")), connection.virtual_host or "/"
            )
        return _digest(*_normalised(connection.as_uri()))


def _id_in_redis(connection: Any) -> str:
    """The id in the broker's database. The first process that asks writes it. kombu's client adds the prefix to some
    commands only, so it is added here."""
    prefix = connection.transport_options.get("global_keyprefix", "")
    pool = connection.default_channel.client.connection_pool
    client: Any = redis.Redis(connection_pool=pool)
    try:
        client.set(prefix + ID_KEY, uuid.uuid4().hex[:12], nx=True)
        found = _text(client.get(prefix + ID_KEY))
        if not found or not is_broker(found):
            raise ValueError(f"foreign data at {prefix + ID_KEY}")
        return found
    except (redis.ResponseError, ValueError) as error:  # a broker's user may not write there
        logger.warning(
            "fleetlimit: the broker keeps no id (%s), so its URL is used as its name", error
        )
        return _digest(*_normalised(connection.as_uri()))


def _normalised(url: str) -> tuple[str, ...]:
    """The places in one or several URLs, without users and passwords, in a fixed order."""
    places: set[str] = set()
    for one in url.split(";"):
        parts = urlsplit(one)
        hosts = parts.netloc.rpartition("@")[2].lower().split(",")
        places.update(
            f"{parts.scheme.rstrip('s')}://{host}{parts.path.rstrip('/')}" for host in hosts
        )
    return tuple(sorted(places))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
