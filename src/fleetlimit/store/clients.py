"""redis-py clients as a limiter needs them: short timeouts, and nothing is ever sent twice.

redis-py repeats a command after a lost reply by default. A spend must not be repeated, so every client
used here is made here: from a URL, or from the settings of the client we were given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
import redis.cluster
import redis.sentinel
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from fleetlimit.errors import ConfigurationError

__all__ = ["check_source", "make_client"]

# redis-py has hints for a part of itself only.
_Node: Any = redis.cluster.ClusterNode
_Sentinel: Any = redis.sentinel.Sentinel

_VERSION = tuple(map(int, redis.__version__.split(".")[:2]))
#: Callers beyond this many at once wait so long for a connection to come free, seconds: that is this
#: process's own crowd, and says nothing of Redis.
POOL_SIZE, CROWD_S = 64, 2.0
#: What a cluster's client was told and its copy needs to know.
_CREDENTIALS = ("username", "password", "credential_provider", "protocol", "connection_class")


def check_source(source: Any, timeout: float) -> None:
    """:raises ConfigurationError: for a URL or client that cannot be used; connects to nothing."""
    if not isinstance(source, str):
        if not isinstance(source, (redis.Redis, RedisCluster)):
            raise ConfigurationError(
                f"redis={type(source).__name__}: must be a URL or a (sync) redis-py client"
            )
        return
    scheme = source.split("://", 1)[0] if "://" in source else "(none)"
    try:
        if scheme == "sentinel":
            _sentinel(source, timeout)
        elif scheme in ("redis+cluster", "rediss+cluster"):
            _cluster_arguments(source)
        else:
            pool = _pool(source, timeout)
            pool.make_connection()  # connects to nothing yet, but reads the URL's options
            pool.reset()
    except (ValueError, TypeError, redis.RedisError) as error:
        # The URL may hold a password: name its scheme only.
        raise ConfigurationError(f"Redis URL with scheme {scheme!r}: {error}") from error


def make_client(source: Any, timeout: float) -> Any:
    """A client of this process's own.

    :raises redis.RedisError, redis.exceptions.RedisClusterException: from a cluster, which connects to
        learn its nodes.
    """
    if isinstance(source, str):
        if source.startswith("sentinel://"):
            return _sentinel(source, timeout)
        if "+cluster://" in source:
            return _cluster(timeout, **_cluster_arguments(source))
        return redis.Redis(connection_pool=_pool(source, timeout))
    if isinstance(source, RedisCluster):
        known = source.nodes_manager.connection_kwargs
        kept = {k: v for k, v in known.items() if k in _CREDENTIALS or k.startswith("ssl")}
        nodes = [_Node(node.host, node.port) for node in source.nodes_manager.nodes_cache.values()]
        return _cluster(timeout, startup_nodes=nodes, **kept)
    pool = source.connection_pool
    if type(pool) not in (redis.ConnectionPool, redis.BlockingConnectionPool):
        return source  # Sentinel and the like: its pool knows how to find the master
    settings = {**pool.connection_kwargs, **_ours(timeout)}
    for name in ("socket_timeout", "socket_connect_timeout"):
        settings[name] = pool.connection_kwargs.get(name) or settings[name]
    settings["connection_class"] = pool.connection_class
    blocking: Any = redis.BlockingConnectionPool
    return redis.Redis(connection_pool=blocking(timeout=CROWD_S, **settings))


def _ours(timeout: float) -> dict[str, Any]:
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "max_connections": POOL_SIZE,
    }


def _pool(url: str, timeout: float) -> Any:
    return redis.BlockingConnectionPool.from_url(url, timeout=CROWD_S, **_ours(timeout))


def _sentinel(url: str, timeout: float) -> redis.Redis:
    """`sentinel://[user:password@]host:port[,host:port...]/service[/db][?option=value]`; options:
    `ssl=true`, `sentinel_username`, `sentinel_password`."""
    parts = urlsplit(url)
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("names no service: sentinel://host:26379/mymaster")
    options = dict(parse_qsl(parts.query))
    secure = {"ssl": True} if options.pop("ssl", "").lower() in ("1", "true", "yes") else {}
    theirs = {k[9:]: options.pop(k) for k in list(options) if k.startswith("sentinel_")}
    if options:
        raise ValueError(f"unknown options: {', '.join(options)}")
    ours = {**_ours(timeout), **secure}
    sentinel = _Sentinel(_hosts(parts.netloc, 26379), sentinel_kwargs={**ours, **theirs}, **ours)
    found: redis.Redis = sentinel.master_for(
        service, db=int(db or 0), **_credentials(parts.username, parts.password)
    )
    return found


def _cluster_arguments(url: str) -> dict[str, Any]:
    """`redis+cluster://[user:password@]host:port[,host:port...]`; `rediss+cluster` with TLS."""
    parts = urlsplit(url)
    if parts.path.strip("/") or parts.query:
        raise ValueError("a cluster has no database, and the URL takes no options")
    secure = {"ssl": True} if parts.scheme.startswith("rediss") else {}
    nodes = [_Node(host, port) for host, port in _hosts(parts.netloc, 6379)]
    return {
        "startup_nodes": nodes,
        **secure,
        **_credentials(parts.username, parts.password),
    }


def _cluster(timeout: float, **arguments: Any) -> Any:
    ours = _ours(timeout)
    if _VERSION < (6, 0):
        ours["cluster_error_retry_attempts"] = 0
    return RedisCluster(**{**ours, **arguments})


def _hosts(netloc: str, port: int) -> Sequence[tuple[str, int]]:
    found = []
    for one in netloc.rpartition("@")[2].split(","):
        parts = urlsplit(f"//{one}")
        if not parts.hostname:
            raise ValueError("names no host")
        found.append((parts.hostname, parts.port or port))
    return found


def _credentials(username: str | None, password: str | None) -> dict[str, str]:
    given = {"username": username, "password": password}
    return {name: unquote(value) for name, value in given.items() if value}
