"""What belongs to one app in this process: one object, which `runtime_of` finds by the app.

A process may have several apps, and an app several workers in it, one after the other or at once. Nothing that one app
knows (its limiter, how many processes its fleet has, whether its workers park) stands at module level, where another
app would overwrite it.
"""

from __future__ import annotations

import mmap
import struct
import threading
import weakref
import zlib
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fleetlimit.celery.punctual import Punctuality
from fleetlimit.forks import after_fork
from fleetlimit.store.guard import Guard

if TYPE_CHECKING:
    from fleetlimit.celery.config import Settings
    from fleetlimit.limiter import RateLimiter

__all__ = ["Runtime", "runtime_of"]

#: What a worker's processes share: how many processes the fleet has, and the broker's name (with a checksum, for it may be
#: read while it is written).
_SHARED = struct.Struct("=iI65p")
#: What is said once is remembered, as far as this.
_MOST_SAID = 1_000


class Runtime:
    """Made at first use. It must not refer to its app, which it would keep alive.

    A forked child inherits what its parent knew, without locks, threads and connections: see `renew`.
    """

    def __init__(self) -> None:
        self.settings: Settings | None = None
        #: The name of the app's broker, '' if it could not be told, and when to ask again (monotonic seconds).
        self.broker: tuple[str, float] = "", 0.0
        #: The lane and queue of (broker, exchange, routing key).
        self.lanes: dict[tuple[str, str, str], tuple[str, str]] = {}
        #: Where a pool process says that it parked a task whose turn is near: the pipe of each releaser of a worker of
        #: this app. None: nothing lets parked tasks go here, and none may be parked.
        self.bells: list[tuple[int, int]] = []
        #: The workers of this app in this process that send task events.
        self.event_senders: list[object] = []
        #: This host's clock less that of the limits' Redis, microseconds; None: not measured.
        self.ahead_us: int | None = None
        self._shared: mmap.mmap | None = None
        self._said: set[Hashable] = set()
        self._inherited: list[Any] = []
        self.producers: Any = None
        self.renew()

    def renew(self) -> None:
        """Also after a fork. A lock may be held by a thread that is not in the child, and connections are the
        parent's: those of its producers are kept, for closing one would end the parent's."""
        self.lock = threading.Lock()
        self.limiter: RateLimiter | None = None
        if self.producers is not None:
            self._inherited.append(self.producers)
        self.producers = None
        #: How the clock of the limits' Redis stands to this process's.
        self.clock = Punctuality()
        #: Why tasks could not be put back since one was the last time, and into which queue.
        self.refusals: set[tuple[str, str]] = set()
        self._background: ThreadPoolExecutor | None = None

    # --- what this process learns, and those that it forked must know ------------------------------

    def share(self) -> None:
        """Let processes that are forked from now on see what this one learns later."""
        if self._shared is None:
            self._shared = mmap.mmap(-1, _SHARED.size)
            self.shared_broker = self.broker[0]

    @property
    def processes(self) -> int | None:
        """The last known number of processes in the fleet; None if it was never learned."""
        return struct.unpack("=i", self._shared[:4])[0] or None if self._shared else None

    @processes.setter
    def processes(self, number: int) -> None:
        if self._shared:
            self._shared[:4] = struct.pack("=i", number)

    @property
    def shared_broker(self) -> str:
        """The broker's name as one of the processes learned it last; '' if none did."""
        if not self._shared:
            return ""
        _, checksum, name = _SHARED.unpack(self._shared[:])
        return str(name.decode()) if zlib.crc32(name) == checksum else ""

    @shared_broker.setter
    def shared_broker(self, name: str) -> None:
        if self._shared:
            packed = _SHARED.pack(0, zlib.crc32(name.encode()), name.encode())
            self._shared[4:] = packed[4:]

    # --- beside it -----------------------------------------------------------------------------------

    def is_new(self, what: Hashable) -> bool:
        """Whether it was not said yet; now it is."""
        if what in self._said or len(self._said) >= _MOST_SAID:
            return False
        self._said.add(what)
        return True

    def note(self, thread: str, error: Exception | None) -> None:
        """What a thread of this worker was answered by the limits' Redis; see `Guard.note`."""
        if self.limiter and isinstance(store := self.limiter.store, Guard):
            store.note(thread, error)

    @property
    def background(self) -> ThreadPoolExecutor:
        """A thread for what must not hold up the worker's consumer."""
        if self._background is None:
            self._background = ThreadPoolExecutor(1, "fleetlimit-background")
        return self._background


_runtimes: weakref.WeakKeyDictionary[Any, Runtime] = weakref.WeakKeyDictionary()


def runtime_of(app: Any) -> Runtime:
    found = _runtimes.get(app)
    return found if found is not None else _runtimes.setdefault(app, Runtime())


def _renew() -> None:
    for one in list(_runtimes.values()):
        one.renew()


after_fork(_renew)
