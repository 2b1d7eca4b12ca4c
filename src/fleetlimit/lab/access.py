"""Decides which requests are answered: only those of the lab's own page, and one run at a time for each client.

A browser on this machine also runs the pages of other sites, and those can send requests to any address that the
browser reaches. Three headers, which no page can forge, distinguish them. `Host` is the name in the URL (that of
another site, if the site points its own name at this machine). `Origin` is the address of the page that asks.
`Sec-Fetch-Site` says how that page relates to this one, also for an image or a form, which have no `Origin`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["RUNS", "Busy", "Gate", "OwnPagesOnly"]

#: At most so many runs go on at the same time, for all clients together.
RUNS = 4
_LOCAL = ("localhost", "127.0.0.1", "::1")


class OwnPagesOnly:
    """Answers 403 to requests from the pages of other sites.

    :param name: the host name or address that the server was told to listen on.
    """

    def __init__(self, app: ASGIApp, name: str) -> None:
        self._app, self._names = app, {_plain(each) for each in (name, *_LOCAL)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not (error := self._foreign(scope)):
            await self._app(scope, receive, send)
        else:
            await JSONResponse({"error": error}, status_code=403)(scope, receive, send)

    def _foreign(self, scope: Scope) -> str:
        """Why the request is refused; empty if it is not."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_ours(host, *scope["server"]):
            return f"Host={host[:80]!r}: the lab does not listen on this address"
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            return f"Origin={origin[:80]!r}: only the lab's own page may ask"
        if not _by_us_or_the_user(headers, scope["path"]):
            return "Sec-Fetch-Site: only the lab's own page may ask"
        return ""

    def _is_ours(self, host: str, address: str, port: int) -> bool:
        """Whether `Host` is one of our names with our port, or the address to which the client connected."""
        name, colon, number = host.rpartition(":")
        if not colon or number.endswith("]"):  # an IPv6 address without a port
            name, number = host, "80"
        return number == str(port) and _plain(name) in {*self._names, _plain(address)}


def _by_us_or_the_user(headers: Headers, path: str) -> bool:
    """Whether the request comes from this page or from the user's address bar, or follows a link to the page."""
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return True
    opened = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    return path == "/" and opened == ("navigate", "document")


def _plain(name: str) -> str:
    """A host name or address in its usual form: no brackets, no IPv6 form of an IPv4 address."""
    name = name.strip("[]").lower()
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name
    return str(getattr(address, "ipv4_mapped", None) or address)


class Busy(Exception):
    """No run can begin now. `status`: 429 if the client itself has a run, else 503."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Gate:
    """Lets each client have one run at a time, and all clients together `RUNS`.

    Only the event loop's thread uses it, so it needs no lock.
    """

    def __init__(self) -> None:
        self._running: set[str] = set()

    @contextmanager
    def run(self, client: str) -> Iterator[None]:
        """Hold a place while a run of this client goes on.

        :raises Busy: if there is no place.
        """
        if client in self._running:
            raise Busy(429, "another run of this client is still going on")
        if len(self._running) >= RUNS:
            raise Busy(503, f"{RUNS} runs of other clients are still going on")
        self._running.add(client)
        try:
            yield
        finally:
            self._running.discard(client)
