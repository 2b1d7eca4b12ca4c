"""The fragile API. It counts all calls, and answers 429 if a call exceeds the limit of its own exact sliding window.

    python -m fleetlimit.demo.api PORT LIMIT PER

`GET /charge/<n>` is a call. `GET /calls/<n>` lists the calls so far, without the first n. `POST /forget` forgets all
calls. The API is a process of its own, because the program that stamps the calls must not share an interpreter with the
program that sends them.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias
from urllib.parse import urlsplit

#: A call: its time (seconds of this host's monotonic clock), its number, and whether it was accepted.
Call: TypeAlias = tuple[float, int, bool]


class Window:
    """At most `limit` accepted calls in any window of `per` seconds."""

    def __init__(self, limit: int, per: float) -> None:
        self.limit, self.per = limit, per
        self._lock = threading.Lock()
        self._recent: deque[float] = deque()
        #: Every call, in order of arrival.
        self.calls: list[Call] = []

    def call(self, number: int) -> bool:
        with self._lock:
            now = time.monotonic()
            while self._recent and self._recent[0] <= now - self.per:
                self._recent.popleft()
            accepted = len(self._recent) < self.limit
            if accepted:
                self._recent.append(now)
            self.calls.append((now, number, accepted))
            return accepted

    def forget(self) -> None:
        with self._lock:
            self._recent.clear()
            self.calls = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    window: Window
    verbose = False

    def do_GET(self) -> None:
        number = int(self.path.rsplit("/", 1)[-1])
        if self.path.startswith("/calls/"):
            self._answer(200, self.window.calls[number:])
            return
        accepted = self.window.call(number)
        self._answer(200 if accepted else 429, {"accepted": accepted})
        if self.verbose:
            said = "200" if accepted else "429 too many requests"
            # In one write, because many threads print.
            print(f"call {number}: {said}\n", end="", flush=True)

    def do_POST(self) -> None:
        self.window.forget()
        self._answer(200, {})

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing, because it would be a line per call."""


class Server(ThreadingHTTPServer):
    request_queue_size = 512  # the demo sends many calls at once
    daemon_threads = True


def serve(port: int, limit: int, per: float, host: str = "127.0.0.1") -> Server:
    """A server that is bound but does not run yet. Its `window` holds the calls."""
    sys.setswitchinterval(0.0005)  # so that a call is stamped soon after it arrives
    handler = type("BoundHandler", (Handler,), {"window": Window(limit, per)})
    return Server((host, port), handler)


class Observer:
    """Asks a running API for its calls, and keeps them."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._calls: list[Call] = []

    def calls(self) -> list[Call]:
        """All calls so far."""
        told = self._ask("GET", f"/calls/{len(self._calls)}")
        self._calls += [(at, number, accepted) for at, number, accepted in told]
        return list(self._calls)

    def forget(self) -> None:
        """Let the API forget all calls."""
        self._ask("POST", "/forget")
        self._calls.clear()

    def _ask(self, method: str, path: str) -> Any:
        # Not urllib, which may use a proxy that does not know the hosts in a container network.
        connection = http.client.HTTPConnection(str(self._url.hostname), self._url.port, timeout=10)
        try:
            connection.request(method, path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


def main(argv: list[str]) -> None:
    port, limit, per = int(argv[0]), int(argv[1]), float(argv[2])
    host = argv[3] if len(argv) > 3 else "127.0.0.1"
    Handler.verbose = len(argv) > 3
    serve(port, limit, per, host).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
