"""How many processes share the limits: each worker says so every few seconds, and remembers the sum for
the time when Redis is away."""

from __future__ import annotations

import contextlib
import mmap
import struct
import threading
import uuid
from typing import Any

from fleetlimit.errors import FleetlimitError, StoreUnavailable
from fleetlimit.store.redis import RedisStore

__all__ = ["Presence", "known_processes"]

#: Seconds between two beats, and how long one counts.
EVERY_S, LASTS_S = 5.0, 16.0

#: Shared with the pool's processes, which are forked after it was made; 0: never known.
_known: mmap.mmap | None = None


def known_processes() -> int | None:
    """The last known number of processes in the fleet; None if this worker never learned it."""
    return struct.unpack("i", _known[:4])[0] or None if _known else None


class Presence:
    """A worker's heartbeat. Made before the pool forks; `first()` may be called then.

    :param processes: how many of this worker's processes run tasks.
    """

    def __init__(self, store: RedisStore, processes: int) -> None:
        global _known
        self._store, self._processes = store, processes
        self._member = f"{uuid.uuid4().hex}:{processes}"
        self._stop = threading.Event()
        _known = _known or mmap.mmap(-1, 4)
        self._thread = threading.Thread(target=self._run, name="fleetlimit-presence", daemon=True)

    def beat(self) -> None:
        """:raises StoreUnavailable: when it was not heard."""
        number = self._store.beat(self._member, LASTS_S)
        if _known:
            _known[:4] = struct.pack("i", max(number, self._processes))

    def start(self, *_: Any) -> None:
        self._thread.start()

    def stop(self, *_: Any) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2)
        with contextlib.suppress(FleetlimitError):
            self._store.beat(self._member, 0)

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            with contextlib.suppress(StoreUnavailable):
                self.beat()
