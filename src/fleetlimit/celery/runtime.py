"""The knowledge that belongs to one app in this process. It stands in one object, which `runtime_of` finds by the app.

A process may have several apps, and an app may have several workers in it, one after the other or at once. Nothing that
an app knows (its limiter, how many processes its fleet has, whether its workers park tasks) stands at module level,
because another app would overwrite it there.
"""

from __future__ import annotations

import mmap
import struct
import threading
import weakref
import zlib
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fleetlimit.celery.host import Host
from fleetlimit.celery.punctual import Punctuality
from fleetlimit.celery.settings import Settings
from fleetlimit.forks import after_fork
from fleetlimit.limiter import RateLimiter
from fleetlimit.store.guard import Guard

__all__ = ["Runtime", "runtime_of"]

#: What the processes of a worker share: how many processes the fleet has, and the broker's name (with a checksum, because
#: a process may read the name while another one writes it).
_SHARED = struct.Struct("=iI65p")
#: So many messages that are logged only once are remembered.
_MOST_SAID = 1_000


class Runtime:
    """Made at first use. It must not refer to its app, because it would keep the app alive.

    A forked child inherits the knowledge of its parent, but not locks, threads and connections (see `renew`).
    """

    def __init__(self) -> None:
        self.settings: Settings | None = None
        #: The name of the app's broker ('' if the broker did not say it), and when to ask again (monotonic seconds).
        self.broker: tuple[str, float] = "", 0.0
        #: The lane and queue of (broker, exchange, routing key).
        self.lanes: dict[tuple[str, str, str], tuple[str, str]] = {}
        #: The pipes that wake the releasers of this app's workers. A pool process writes to them when it has parked a
        #: task whose turn is near. If there are none, no releaser runs here, and no task may be parked.
        self.bells: list[tuple[int, int]] = []
        #: The workers of this app in this process that send task events.
        self.event_senders: list[object] = []
        #: This host's clock minus that of the limits' Redis, in microseconds; None if it was not measured.
        self.ahead_us: int | None = None
        #: How unevenly this host runs its processes.
        self.host = Host()
        #: The id of this process if it runs bodies for a worker of this app, and no other code of the user's; else 0.
        #: (If a worker runs in a thread of another program, as in tests, it is 0: the program's own calls are plain
        #: calls.)
        self.worker_pid = 0
        self._shared: mmap.mmap | None = None
        self._said: set[Hashable] = set()
        self._inherited: list[Any] = []
        self.producers: Any = None
        self.renew()

    def renew(self) -> None:
        """Make locks, threads and connections anew, at first and after each fork. A thread that does not exist in the
        child may have held a lock, and the connections belong to the parent. The parent's producers are kept, because
        closing one of their connections would also close it for the parent."""
        self.lock = threading.Lock()
        self.limiter: RateLimiter | None = None
        if self.producers is not None:
            self._inherited.append(self.producers)
        self.producers = None
        #: The difference between the clock of the limits' Redis and that of this process.
        self.clock = Punctuality()
        #: Why tasks could not be put back, and into which queue, since a task was last put back.
        self.refusals: set[tuple[str, str]] = set()
        self._background: ThreadPoolExecutor | None = None

    # --- what this process learns, and those that it forked must know ------------------------------

    def share(self) -> None:
        """Let processes that are forked from now on see what this process learns later."""
        if self._shared is None:
            self._shared = mmap.mmap(-1, _SHARED.size)
            self.shared_broker = self.broker[0]

    @property
    def processes(self) -> int | None:
        """The last known number of processes in the fleet; None if it is not known."""
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

    # --- other knowledge -----------------------------------------------------------------------------

    def is_new(self, what: Hashable) -> bool:
        """Whether a message has not been logged yet. From now on it counts as logged."""
        if what in self._said or len(self._said) >= _MOST_SAID:
            return False
        self._said.add(what)
        return True

    def note(self, thread: str, error: Exception | None) -> None:
        """Note how the limits' Redis answered a thread of this worker; see `Guard.note`."""
        if self.limiter and isinstance(store := self.limiter.store, Guard):
            store.note(thread, error)

    @property
    def background(self) -> ThreadPoolExecutor:
        """A thread for work that must not delay the worker's consumer."""
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
