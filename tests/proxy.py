"""A TCP proxy on loopback that can hurt: refuse, reset, swallow, delay, lose a reply."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fleetlimit.demo.processes import free_port

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST


class Proxy:
    """Stands at `port`, before the server at `target`. All attributes may be changed at any time."""

    def __init__(self, target: int) -> None:
        self.target, self.port = target, free_port()
        #: Connects, and never answers: what comes is swallowed, both ways.
        self.black_hole = False
        #: Seconds that each piece takes more, each way.
        self.delay = 0.0
        #: How many of the next replies are lost, each with its connection: the command has run.
        self.lose_replies = 0
        #: Which commands those are the replies of.
        self.lost_command = b"EVALSHA"
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.accept()

    def accept(self) -> None:
        """Take connections (again)."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(256)
        self._listener = listener
        threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    def refuse(self) -> None:
        """Refuse connections, and reset those that there are."""
        listener, self._listener = self._listener, None
        if listener:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.reset()

    def reset(self) -> None:
        """Reset all connections; new ones are taken."""
        with self._lock:
            found, self._sockets = self._sockets, set()
        for one in found:
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:
                if self._listener is not listener:
                    return
                continue
            far.settimeout(None)
            with self._lock:
                self._sockets |= {near, far}
            lost = threading.Event()  # this connection's next reply is to be lost
            for one, other, replies in ((near, far, False), (far, near, True)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                args = (one, other, replies, lost)
                threading.Thread(target=self._pump, args=args, daemon=True).start()

    def _pump(
        self, one: socket.socket, other: socket.socket, replies: bool, lost: threading.Event
    ) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                if self.delay:
                    time.sleep(self.delay)
                if self.black_hole:
                    continue
                if not replies and self.lost_command in data and self._lose_one():
                    lost.set()
                if replies and lost.is_set():
                    break
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            with self._lock:
                self._sockets.discard(end)

    def _lose_one(self) -> bool:
        with self._lock:
            lose = self.lose_replies > 0
            self.lose_replies -= lose
            return lose


@contextmanager
def proxy(target: int) -> Iterator[Proxy]:
    one = Proxy(target)
    try:
        yield one
    finally:
        one.refuse()
