"""The client's errors, translated into ours: no answer, a refusal that stays, or foreign data."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    MovedError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from fleetlimit.errors import StateError, StoreRefused, StoreUnavailable
from fleetlimit.store.keyspace import text

__all__ = ["CLIENT_ERRORS", "cause_of", "checked", "failure_of", "translated"]

#: What the clients raise: that of a cluster without a node to ask is no `RedisError`.
CLIENT_ERRORS = (RedisError, RedisClusterException)

#: What only an operator can change.
_REFUSED = (AuthenticationError, AuthorizationError, NoPermissionError, MovedError)
#: The same, where the clients have no class for it: Redis says it of a command within a script, too.
_REFUSALS = re.compile(
    "unknown (redis )?command|no permissions|can't run this command|can't access at least one|ACL failure"
    "|not allowed from script|DB index|Cluster mode is not enabled|AuthenticationError",
    re.IGNORECASE,
)
#: Parts of a broken TLS connection, and no statement about certificates or versions.
_BROKEN_TLS = (
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
    ssl.SSLSyscallError,
)
#: Redis repeats what it was sent, which may be a password or a task's arguments.
_REPEATED = re.compile(r",? with args beginning with:.*", re.DOTALL)
_CROWDED = ("No connection available", "Too many connections")


def failure_of(
    error: Exception, keys: Sequence[str | bytes]
) -> StateError | StoreRefused | StoreUnavailable:
    """What an error of the client means for a caller that asked for `keys`."""
    said = _REPEATED.sub("", str(error))
    if said.startswith(_CROWDED):
        return StoreUnavailable("too many callers at once: no connection came free", crowded=True)
    if isinstance(error, ResponseError) and any(
        word in said for word in ("FLEETLIMIT", "WRONGTYPE", "attempt to")
    ):
        return StateError(f"foreign data at {', '.join(map(text, keys))}: {said}")
    if isinstance(error, MovedError):
        return StoreRefused(
            "Redis refused: it is a node of a Redis Cluster; write redis+cluster://host:port"
        )
    if isinstance(error, _REFUSED) or _REFUSALS.search(said):
        return StoreRefused(f"Redis refused: {said}")
    if tls := _tls_error(error):
        return StoreRefused(f"TLS refused: {tls}")
    if isinstance(error, ResponseError):
        return StoreUnavailable(f"Redis refused: {said}")
    return StoreUnavailable(f"no answer from Redis: {said}")


def checked(reply: Any, keys: Sequence[str | bytes]) -> Any:
    """One reply of many, or what foreign data made of it: a `StateError`, which is no matter of the others.

    :raises StoreUnavailable: for any other error.
    """
    if not isinstance(reply, Exception):
        return reply
    failure = failure_of(reply, keys)
    if isinstance(failure, StateError):
        return failure
    raise failure from cause_of(reply)


def cause_of(error: Exception) -> Exception:
    """The client's error as a `__cause__`: as it is, or without what Redis repeated of the command."""
    said = str(error)
    return ResponseError(_REPEATED.sub("", said)) if _REPEATED.search(said) else error


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    for behind in _behind(error):
        if isinstance(behind, ssl.SSLError) and not isinstance(behind, _BROKEN_TLS):
            return behind
    return None


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def translated(keys: Sequence[str | bytes]) -> Iterator[None]:
    """The client's errors become ours."""
    try:
        yield
    except CLIENT_ERRORS as error:
        failure, cause = failure_of(error, keys), cause_of(error)
    else:
        return
    raise failure from cause  # outside of the handler: a cause that was cleaned must be the only one
