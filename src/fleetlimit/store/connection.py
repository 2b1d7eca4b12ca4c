"""How we talk to Redis: short timeouts, no replay of a spend, one client per process.

redis-py retries a command after a lost reply by default. A spend must not be repeated, so every
client used here is our own, made from the URL or from the settings of the client we were given.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fleetlimit.errors import ConfigurationError

__all__ = ["Connection"]

#: Before 5.3, redis-py wants to know what a connection is for.
_COMMAND = ("EVALSHA",) if tuple(map(int, redis.__version__.split(".")[:2])) < (5, 3) else ()
TIMEOUT_S = 0.25
#: Callers beyond this many at once wait (up to the timeout) for a connection to come free.
POOL_SIZE = 64


class Connection:
    """A lazily made client for each process.

    :param source: `redis://`, `rediss://`, `unix://` URL, or a redis-py client.
    :param timeout: for connecting and for each command, seconds.
    :raises ConfigurationError: for a URL or client that cannot be used.
    """

    def __init__(self, source: Any, *, timeout: float = TIMEOUT_S) -> None:
        self._source = source
        self._timeout = timeout
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._client: Any = None
        if isinstance(source, str):
            _pool_from_url(source, timeout)  # a wrong URL shows itself here, not at the first call
        elif not isinstance(source, (redis.Redis, redis.RedisCluster)):
            raise ConfigurationError(
                f"redis={type(source).__name__}: must be a URL or a (sync) redis-py client"
            )

    @property
    def client(self) -> Any:
        """This process's client. After a fork the child gets its own: two processes on one socket
        read each other's replies."""
        if self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    self._client = self._make()
                    self._pid = os.getpid()
        return self._client

    def call(self, *command: str | int | bytes) -> Any:
        """One command, sent once: whatever the client's own settings, nothing is replayed."""
        client = self.client
        if type(client) is not redis.Redis:
            return client.execute_command(*command)
        pool = client.connection_pool
        connection: Any = pool.get_connection(*_COMMAND)
        try:
            connection.send_command(*command)
            return connection.read_response()
        except redis.ResponseError:
            raise
        except BaseException:  # a soft time limit, too, may strike between the two
            connection.disconnect()  # or the reply would be the next caller's
            raise
        finally:
            pool.release(connection)

    def close(self) -> None:
        with self._lock:
            if self._pid == os.getpid() and self._client is not self._source:
                self._client.connection_pool.disconnect()
            self._client, self._pid = None, None

    def _make(self) -> Any:
        source = self._source
        if isinstance(source, str):
            return redis.Redis(connection_pool=_pool_from_url(source, self._timeout))
        if isinstance(source, redis.RedisCluster):
            return source
        pool = source.connection_pool
        if type(pool) not in (redis.ConnectionPool, redis.BlockingConnectionPool):
            return source  # Sentinel and the like: its pool knows how to find the master
        settings = {**pool.connection_kwargs, **_ours(self._timeout)}
        for name in ("socket_timeout", "socket_connect_timeout"):
            settings[name] = pool.connection_kwargs.get(name) or settings[name]
        settings["connection_class"] = pool.connection_class
        pool_class: Any = redis.BlockingConnectionPool
        return redis.Redis(connection_pool=pool_class(**settings))


def _ours(timeout: float) -> dict[str, Any]:
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "max_connections": POOL_SIZE,
        "timeout": timeout,
    }


def _pool_from_url(url: str, timeout: float) -> redis.BlockingConnectionPool:
    try:
        pool: Any = redis.BlockingConnectionPool.from_url(url, **_ours(timeout))
        pool.make_connection()  # connects to nothing yet, but reads the URL's options
        pool.reset()
        return pool  # type: ignore[no-any-return]  # Any, for its methods have no hints
    except (ValueError, TypeError, redis.RedisError) as error:
        # The URL may hold a password: name its scheme only.
        scheme = url.split("://", 1)[0] if "://" in url else "(none)"
        raise ConfigurationError(f"Redis URL with scheme {scheme!r}: {error}") from error
