"""Makes redis-py clients for limiters: they have short timeouts and never send a command twice.

By default redis-py repeats a command after a lost reply. A request that spends units must not be repeated, so every
client is made here, from an endpoint or from the settings of the client that a user has passed.
"""

from __future__ import annotations

import os
from typing import Any

import redis
import redis.cluster
import redis.sentinel
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from fleetlimit.errors import ConfigurationError
from fleetlimit.store.sockets import connection_class
from fleetlimit.store.urls import Endpoint, endpoint_of

__all__ = ["checked_source", "make_client"]

# redis-py has type hints only in a part of its modules.
_Node: Any = redis.cluster.ClusterNode
_Sentinel: Any = redis.sentinel.Sentinel
_Blocking: Any = redis.BlockingConnectionPool

_VERSION = tuple(map(int, redis.__version__.split(".")[:2]))
#: The number of connections of one process, and how many seconds a caller waits for a free one. Too few connections
#: mean that this process is overloaded, not that Redis is away.
POOL_SIZE, CROWD_S = 64, 2.0
#: Options of a user's cluster client that are used for ours.
_CREDENTIALS = ("username", "password", "credential_provider", "protocol")
#: Options that would send a command again.
_RETRIES = ("retry", "retry_on_timeout", "retry_on_error")
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def checked_source(source: Any) -> Any:
    """An `Endpoint`, or the redis-py client that was passed. It makes no connection.

    :raises ConfigurationError: for a URL or client that cannot be used.
    """
    if isinstance(source, (redis.Redis, RedisCluster)):
        return source
    endpoint = endpoint_of(source) if isinstance(source, str) else source
    if not isinstance(endpoint, Endpoint):
        raise ConfigurationError(
            f"redis={type(source).__name__}: must be a URL or a (sync) redis-py client"
        )
    for name in _FILES:
        path = endpoint.options.get(name)
        if path and not os.access(path, os.R_OK):
            raise ConfigurationError(f"{name}={path!r}: this file cannot be read")
    try:
        pool = _pool(endpoint, 1.0) if not endpoint.cluster else None
        if pool:
            pool.make_connection()  # does not connect yet, but reads the options
            pool.reset()
        return endpoint
    except (TypeError, ValueError, redis.RedisError) as error:
        said = str(error)  # it names an option, but no value that may be secret
    raise ConfigurationError(f"options for Redis: {said}")


def make_client(source: Any, timeout: float) -> Any:
    """A client for this process alone.

    :param source: the result of `checked_source`.
    :raises redis.RedisError, redis.exceptions.RedisClusterException: for a cluster, whose client connects to learn its
        nodes.
    """
    if isinstance(source, Endpoint):
        if source.service:
            return _behind_sentinels(source, timeout)
        if source.cluster:
            return _cluster(source.hosts, source.tls, timeout, **source.options)
        return _client(_pool(source, timeout))
    if isinstance(source, RedisCluster):
        known = source.nodes_manager.connection_kwargs
        kept = {k: v for k, v in known.items() if k in _CREDENTIALS or k.startswith("ssl_")}
        tls = bool(known.get("ssl")) or _is_tls(known.get("connection_class"))
        nodes = source.nodes_manager.nodes_cache.values()
        return _cluster(tuple((node.host, node.port) for node in nodes), tls, timeout, **kept)
    pool = source.connection_pool
    if type(pool) not in (redis.ConnectionPool, redis.BlockingConnectionPool):
        return source  # for instance with Sentinel, whose pool knows how to find the master
    settings = {**pool.connection_kwargs, **_ours(timeout)}
    for name in ("socket_timeout", "socket_connect_timeout"):
        settings[name] = pool.connection_kwargs.get(name) or settings[name]
    settings["connection_class"] = _bounded(pool.connection_class)
    return _client(_Blocking(timeout=CROWD_S, **settings))


def _ours(timeout: float) -> dict[str, Any]:
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "max_connections": POOL_SIZE,
    }


def _settings(options: Any, timeout: float) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if name not in _RETRIES}
    return {**_ours(timeout), **given}


def _pool(endpoint: Endpoint, timeout: float) -> Any:
    settings = {"timeout": CROWD_S, **_settings(endpoint.options, timeout)}
    if endpoint.path:
        settings["path"] = endpoint.path
    else:
        settings["host"], settings["port"] = endpoint.hosts[0]
    kind = connection_class(path=bool(endpoint.path), tls=endpoint.tls)
    return _Blocking(connection_class=kind, **settings)


def _client(pool: Any) -> Any:
    provider = pool.connection_kwargs.get("credential_provider")
    return redis.Redis(
        connection_pool=pool, **({"credential_provider": provider} if provider else {})
    )


def _behind_sentinels(endpoint: Endpoint, timeout: float) -> Any:
    sentinel = _Sentinel([], **_settings(endpoint.options, timeout))
    sentinel.sentinels = [
        _client(
            _pool(
                Endpoint((host,), tls=endpoint.sentinel_tls, options=endpoint.sentinel_options),
                timeout,
            )
        )
        for host in endpoint.hosts
    ]
    kind = connection_class(tls=endpoint.tls, managed=True)
    return sentinel.master_for(endpoint.service, connection_class=kind)


def _cluster(
    hosts: tuple[tuple[str, int], ...], tls: bool, timeout: float, **arguments: Any
) -> Any:
    settings = _settings(arguments, timeout)
    if _VERSION < (6, 0):
        settings["cluster_error_retry_attempts"] = 0
    # A cluster's client accepts another class of connections only if it is made from a URL.
    (host, port), *others = hosts
    shown = f"[{host}]" if ":" in host else host
    return RedisCluster(
        url=f"redis://{shown}:{port}",
        startup_nodes=[_Node(*other) for other in others],
        connection_class=connection_class(tls=tls),
        **settings,
    )


def _is_tls(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, redis.SSLConnection)


def _bounded(kind: Any) -> Any:
    """A class of connections whose look-ups of names take a bounded time, if `kind` is redis-py's own; else `kind`."""
    if kind in (redis.Connection, redis.SSLConnection):
        return connection_class(tls=_is_tls(kind))
    return kind
