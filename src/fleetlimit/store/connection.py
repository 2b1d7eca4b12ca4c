"""Talks to Redis: there is one client for each process, and each command is sent once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from fleetlimit.store.clients import checked_source, make_client
from fleetlimit.store.urls import Endpoint

__all__ = ["Connection"]

#: Before version 5.3, redis-py must be told for which command a connection is used.
_COMMAND = ("EVALSHA",) if tuple(map(int, redis.__version__.split(".")[:2])) < (5, 3) else ()
TIMEOUT_S = 0.25
#: So many commands are packed and sent at a time.
_PACKED = 8


class Connection:
    """A lazily made client for each process.

    :param source: a URL (`redis://`, `rediss://`, `unix://`, `sentinel://host:port,.../service`,
        `redis+cluster://host:port,...`, `rediss+cluster://`), an `Endpoint`, or a redis-py client.
    :param timeout: for connecting and for each command, seconds.
    :raises ConfigurationError: for a URL or client that cannot be used.
    """

    def __init__(self, source: Any, *, timeout: float = TIMEOUT_S) -> None:
        self._source = checked_source(
            source
        )  # so that a wrong URL is an error here, and not at the first call
        self.timeout = timeout
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._client: Any = None

    @property
    def is_cluster(self) -> bool:
        source = self._source
        return (
            source.cluster
            if isinstance(source, Endpoint)
            else isinstance(source, redis.RedisCluster)
        )

    @property
    def client(self) -> Any:
        """This process's client. After a fork the child gets a client of its own, because two processes on one socket
        would read each other's replies."""
        if self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    self._client = make_client(self._source, self.timeout)
                    self._pid = os.getpid()
        return self._client

    def call(self, *command: str | int | bytes) -> Any:
        """Send one command once. It is never repeated, whatever the client's own settings are."""
        client = self.client
        if type(client) is not redis.Redis:
            return client.execute_command(*command)
        pool = client.connection_pool
        connection: Any = pool.get_connection(*_COMMAND)
        try:
            connection.send_command(*command)
            return self._reply(connection)
        except redis.exceptions.ReadOnlyError:
            # Another server is the master now, and the next connection may reach it.
            pool.disconnect()
            raise
        except redis.ResponseError:
            raise
        except BaseException:  # also a soft time limit between sending and reading
            connection.disconnect()  # or the next caller would read this reply
            raise
        finally:
            pool.release(connection)

    def call_many(self, commands: Sequence[Sequence[str | int | bytes]]) -> list[Any]:
        """Send several commands in one round trip, each of them once. An error in the server's answer stands in the
        place of the reply. On a Cluster, and with a client of another kind, the commands are sent one after the
        other."""
        replies = self.sent(commands)
        next(replies)
        return list(replies)

    def sent(self, commands: Sequence[Sequence[str | int | bytes]]) -> Iterator[Any]:
        """Like `call_many`, but the caller may do other work before it reads the replies. All commands are sent before
        the iterator yields its first value, which is None. The replies follow. A caller that does not take all of them
        must close the iterator."""
        client = self.client
        if type(client) is not redis.Redis:
            yield
            yield from map(self._answer, commands)
            return
        pool = client.connection_pool
        connection: Any = pool.get_connection(*_COMMAND)
        try:
            for at in range(
                0, len(commands), _PACKED
            ):  # the server works while the next commands are packed
                packed = connection.pack_commands(commands[at : at + _PACKED])
                connection.send_packed_command(packed)
            yield
            for _ in commands:
                yield self._one_of_many(connection)
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)

    def _answer(self, command: Sequence[str | int | bytes]) -> Any:
        try:
            return self.call(*command)
        except redis.ResponseError as error:
            return error

    def _one_of_many(self, connection: Any) -> Any:
        try:
            return self._reply(connection)
        except redis.ResponseError as error:
            return error

    def _reply(self, connection: Any) -> Any:
        """Read the reply, and after a timeout wait for it once more. A reply is mostly late because Redis or the host
        was busy, and the second wait tells what the command has done. Nothing is sent again."""
        if not 0 < (connection.socket_timeout or 0) <= self.timeout:
            return connection.read_response()  # a client with a timeout of its own
        try:
            return connection.read_response(disconnect_on_error=False)
        except redis.TimeoutError:
            return connection.read_response()

    def close(self) -> None:
        with self._lock:
            if self._pid == os.getpid() and self._client is not self._source:
                self._client.close()
            self._client, self._pid = None, None
