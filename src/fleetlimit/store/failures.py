"""Translates the client's errors into ours: no answer, a refusal that does not pass by itself, or foreign data."""

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

#: The errors that the clients raise. (The error of a cluster without a reachable node is no `RedisError`.)
CLIENT_ERRORS = (RedisError, RedisClusterException)

#: Errors whose cause only an operator can remove.
_REFUSED = (AuthenticationError, AuthorizationError, NoPermissionError, MovedError)
#: The texts of such errors if the client has no class for them. Redis also uses these texts for a command within a
#: script.
_REFUSALS = re.compile(
    "unknown (redis )?command|no permissions|can't run this command|can't access at least one|ACL failure"
    "|not allowed from script|DB index|Cluster mode is not enabled|AuthenticationError",
    re.IGNORECASE,
)
#: TLS errors that come from a broken connection, and not from certificates or versions.
_BROKEN_TLS = (
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
    ssl.SSLSyscallError,
)
#: The part of an error in which Redis repeats the command, which may contain a password or a task's arguments.
_REPEATED = re.compile(r",? with args beginning with:.*", re.DOTALL)
_CROWDED = ("No connection available", "Too many connections")


def failure_of(
    error: Exception, keys: Sequence[str | bytes]
) -> StateError | StoreRefused | StoreUnavailable:
    """Our error for an error of the client, for a caller that asked for `keys`."""
    said = _REPEATED.sub("", str(error))
    if said.startswith(_CROWDED):
        return StoreUnavailable("too many callers at once: no connection became free", crowded=True)
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
    """One reply of many. If foreign data caused an error, the result is a `StateError`, which does not concern the
    other replies.

    :raises StoreUnavailable: for any other error.
    """
    if not isinstance(reply, Exception):
        return reply
    failure = failure_of(reply, keys)
    if isinstance(failure, StateError):
        return failure
    raise failure from cause_of(reply)


def cause_of(error: Exception) -> Exception:
    """The client's error for use as a `__cause__`, without the part in which Redis repeats the command."""
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
    """Raise our errors instead of the client's."""
    try:
        yield
    except CLIENT_ERRORS as error:
        failure, cause = failure_of(error, keys), cause_of(error)
    else:
        return
    raise failure from cause  # outside of the handler, so that the cleaned cause is the only one
