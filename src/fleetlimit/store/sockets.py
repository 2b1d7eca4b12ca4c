"""Connections whose making takes a bounded time, including the look-up of the host's name.

A socket's timeout does not bound the resolver, which may hang for many seconds. So a thread looks names up (one thread
for each name at a time, however many connections wait for it), and a connection waits for the answer no longer than it
may take to connect. Addresses are not remembered: while the resolver hangs, open connections go on working, and no new
connection is made.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

import redis
import redis.connection
import redis.sentinel

__all__ = ["connection_class"]

# redis-py has type hints only in a part of its modules.
_Tcp: Any = redis.Connection
_Tls: Any = redis.SSLConnection
_Managed: Any = redis.sentinel.SentinelManagedConnection
_Address = tuple[Any, ...]


class _Lookup:
    """One question to the resolver."""

    def __init__(self, key: tuple[int, str, int, int]) -> None:
        self._key = key
        self.done = threading.Event()
        self.found: list[_Address] = []
        self.error: OSError | None = None

    def run(self) -> None:
        _, host, port, kind = self._key
        try:
            self.found = socket.getaddrinfo(host, port, kind, socket.SOCK_STREAM)
        except OSError as error:
            self.error = error
        except UnicodeError:
            self.error = OSError("not the name of a host")
        finally:
            _lookups.pop(self._key, None)
            self.done.set()


#: The look-ups under way. The process id is a part of the key, because a forked child has no thread that would answer
#: the look-ups of its parent.
_lookups: dict[tuple[int, str, int, int], _Lookup] = {}


def _addresses(host: str, port: int, kind: int, timeout: float | None) -> list[_Address]:
    """The addresses of a host.

    :raises OSError: if there are none, or if the look-up takes too long.
    """
    try:
        return socket.getaddrinfo(host, port, kind, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        pass  # not a numeric address, so it must be looked up
    key = os.getpid(), host, port, kind
    mine = _Lookup(key)
    lookup = _lookups.setdefault(key, mine)
    if lookup is mine:
        threading.Thread(target=mine.run, name="fleetlimit-resolver", daemon=True).start()
    if not lookup.done.wait(timeout):
        raise TimeoutError(f"the name {host} was not resolved within {timeout:g} s")
    if lookup.error:
        raise OSError(*lookup.error.args)
    return lookup.found


class _Bounded(_Tcp):  # type: ignore[misc]
    """A TCP connection. The look-up of the name and the attempts at all its addresses share
    `socket_connect_timeout`."""

    def _connect(self) -> Any:
        limit = self.socket_connect_timeout
        until = None if limit is None else time.monotonic() + limit
        failed: OSError | None = None
        found = _addresses(self.host, self.port, self.socket_type, limit)
        for n, (family, kind, protocol, _, address) in enumerate(found):
            connection = socket.socket(family, kind, protocol)
            try:
                self._prepare(connection)
                if until is not None:
                    # Each address gets a part of the time, because one may never answer.
                    left = (until - time.monotonic()) / (len(found) - n)
                    connection.settimeout(max(left, 0.001))
                connection.connect(address)
                connection.settimeout(self.socket_timeout)
                return connection
            except OSError as error:
                failed = error
                connection.close()
            except BaseException:  # a soft time limit
                connection.close()
                raise
        raise failed or OSError("the name of the host has no address")

    def _prepare(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.socket_keepalive:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (self.socket_keepalive_options or {}).items():
                connection.setsockopt(socket.IPPROTO_TCP, option, value)


class _BoundedTls(_Tls, _Bounded):  # type: ignore[misc]
    """The same connection with TLS."""


class _BoundedManaged(_Managed, _Bounded):  # type: ignore[misc]
    """A connection to the master that a Sentinel names."""


class _BoundedManagedTls(_Managed, _BoundedTls):  # type: ignore[misc]
    """A connection to the master that a Sentinel names, with TLS."""


def connection_class(*, path: bool = False, tls: bool = False, managed: bool = False) -> Any:
    """The class of connections for redis-py's pools: by Unix socket, TCP or TLS. `managed`: a Sentinel names the
    server."""
    if path:
        return redis.UnixDomainSocketConnection
    if managed:
        return _BoundedManagedTls if tls else _BoundedManaged
    return _BoundedTls if tls else _Bounded
