"""Serves the page, and `GET /api/run?algorithm=...`, which plays a scenario and answers with JSON."""

from __future__ import annotations

import mimetypes
import socket
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleetlimit.lab.access import Busy, Gate, OwnPagesOnly
from fleetlimit.lab.report import report
from fleetlimit.lab.scenario import BadParameter, Scenario, parse
from fleetlimit.lab.simulate import simulate

__all__ = ["app", "listen", "serve"]

_STATIC = Path(__file__).parent / "static"
#: The page needs nothing from other servers, and with these headers the browser does not let it load anything from
#: them.
_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-cache"),  # so that a new version is seen at once
]
# Some hosts have another type for this suffix, with which a browser does not run a module.
mimetypes.add_type("text/javascript", ".js")


class _Headers:
    """Adds `_HEADERS` to each response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        await self._app(scope, receive, sending)


def _page(request: Request) -> Response:
    return FileResponse(_STATIC / "index.html")


async def _run(request: Request) -> Response:
    gate: Gate = request.app.state.gate
    try:
        scenario = parse(request.query_params)
        with gate.run(request.client.host if request.client else ""):
            return await run_in_threadpool(_played, scenario)
    except BadParameter as error:
        return JSONResponse({"error": str(error)}, status_code=400)
    except Busy as error:
        later = {"retry-after": "1"}
        return JSONResponse({"error": str(error)}, status_code=error.status, headers=later)


def _played(scenario: Scenario) -> Response:
    return JSONResponse(report(simulate(scenario)))


def app(name: str) -> Starlette:
    """The lab as an application.

    :param name: the host name or address on which it is served.
    """
    lab = Starlette(
        routes=[
            Route("/", _page),
            Route("/api/run", _run),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        middleware=[Middleware(_Headers), Middleware(OwnPagesOnly, name=name)],
    )
    lab.state.gate = Gate()
    return lab


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections from now on.

    :raises OSError: if the address or port cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen()
    except OSError:
        bound.close()
        raise
    return bound


def serve(bound: socket.socket, host: str) -> None:
    """Answer requests until Ctrl-C or SIGTERM.

    :param host: the host name or address on which `bound` listens.
    """
    # There is no proxy in front, so headers in which a client names another address for itself are ignored.
    config = uvicorn.Config(
        app(host), log_level="warning", timeout_graceful_shutdown=1, proxy_headers=False
    )
    uvicorn.Server(config).run(sockets=[bound])
