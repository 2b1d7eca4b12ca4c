"""The fragile API: it answers 429 over its own exact sliding window, and counts everything.

    python -m fleetlimit.demo.api PORT LIMIT PER

`GET /charge/<n>` is a call; `GET /calls` tells all calls so far; `POST /forget` starts anew.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Window:
    """At most `limit` accepted calls in any window of `per` seconds."""

    def __init__(self, limit: int, per: float) -> None:
        self.limit, self.per = limit, per
        self._lock = threading.Lock()
        self._recent: deque[float] = deque()
        #: (seconds, number, accepted) of every call, in order of arrival.
        self.calls: list[tuple[float, int, bool]] = []

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
        if self.path == "/calls":
            self._answer(200, self.window.calls)
            return
        number = int(self.path.rsplit("/", 1)[-1])
        accepted = self.window.call(number)
        self._answer(200 if accepted else 429, {"accepted": accepted})
        if self.verbose:
            print(f"call {number}: {'200' if accepted else '429 too many requests'}", flush=True)

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
        """Silent: it would be a line per call."""


class Server(ThreadingHTTPServer):
    request_queue_size = 512  # a herd of callers is what the demo is about
    daemon_threads = True


def serve(port: int, limit: int, per: float, host: str = "127.0.0.1") -> Server:
    """A server, bound but not yet running; its `window` holds the calls."""
    sys.setswitchinterval(0.0005)  # a call is stamped when it arrives, not when Python's turn comes
    handler = type("BoundHandler", (Handler,), {"window": Window(limit, per)})
    return Server((host, port), handler)


def main(argv: list[str]) -> None:
    port, limit, per = int(argv[0]), int(argv[1]), float(argv[2])
    host = argv[3] if len(argv) > 3 else "127.0.0.1"
    Handler.verbose = len(argv) > 3
    serve(port, limit, per, host).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
