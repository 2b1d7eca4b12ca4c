"""What a worker knows of the others: how many processes share the limits, which it remembers for the time
when Redis is away, and by how much this host's clock differs from Redis's. It says that it is there every
few seconds, and learns both from the answer.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from fleetlimit.celery.host import Saturation
from fleetlimit.celery.runtime import Runtime, runtime_of
from fleetlimit.errors import FleetlimitError
from fleetlimit.store.names import announce
from fleetlimit.store.redis import RedisStore

__all__ = ["Presence", "local_time"]

#: Seconds between two beats, and how long one counts; and between two looks at the host.
EVERY_S, LASTS_S = 5.0, 16.0
_LOOK_S = 1.0
#: Limits are announced again after so long, seconds.
_ANNOUNCE_S = 3600.0


def local_time(app: Any, store_us: int) -> datetime | None:
    """What this host's clock shows when that of the app's limits shows `store_us`; None if that is not known."""
    ahead_us = runtime_of(app).ahead_us
    if ahead_us is None:
        return None
    return datetime.fromtimestamp((store_us + ahead_us) / 1e6, timezone.utc)


class Presence:
    """A worker's heartbeat. Made before the pool forks; `beat()` may be called then.

    :param runtime: where it notes what it learns, for this process and those that it forks.
    :param processes: tells how many of this worker's processes run tasks.
    :param limits: tells the limits of its tasks, names with their algorithms.
    """

    def __init__(
        self,
        store: RedisStore,
        runtime: Runtime,
        processes: Callable[[], int],
        limits: Callable[[], Mapping[str, str]],
    ) -> None:
        self._store, self._processes, self._limits = store, processes, limits
        self._runtime = runtime
        self._id, self._member = uuid.uuid4().hex, ""
        self._lower_since: float | None = None
        self._announced: dict[str, str] = {}
        self._announce_at = 0.0
        self._saturation = Saturation()
        self._stop = threading.Event()
        runtime.share()
        self._thread = threading.Thread(target=self._run, name="fleetlimit-presence", daemon=True)

    def beat(self) -> None:
        """:raises FleetlimitError: when it was not heard."""
        member = f"{self._id}:{self._processes()}"
        if self._member not in ("", member):
            self._store.beat(self._member, 0)
        self._member = member
        before = time.time()
        number, now_us, new = self._store.beat(member, LASTS_S)
        self._runtime.ahead_us = round((before + time.time()) / 2 * 1e6) - now_us
        self._learn(number)
        self._announce(again=new)

    def _announce(self, *, again: bool) -> None:
        """Say which limits its tasks have: at first, when they change, `again` when Redis knew nothing of this worker
        (it was emptied), and from time to time, for Redis forgets them after a week."""
        limits = dict(self._limits())
        if again or limits != self._announced or time.monotonic() >= self._announce_at:
            announce(self._store, limits)
            self._announced, self._announce_at = limits, time.monotonic() + _ANNOUNCE_S

    def _learn(self, number: int) -> None:
        """More processes count at once; fewer only after a while: a Redis that restarted empty has not
        heard of all yet."""
        known = self._runtime.processes or 0
        if number >= known:
            self._lower_since = None
        else:
            self._lower_since = self._lower_since or time.monotonic()
            if time.monotonic() - self._lower_since < LASTS_S:
                return
        self._runtime.processes = number

    def start(self, *_: Any) -> None:
        self._thread.start()

    def stop(self, *_: Any) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2)
        with contextlib.suppress(FleetlimitError):
            self._store.beat(self._member, 0)

    def _run(self) -> None:
        due = time.monotonic() + EVERY_S
        while not self._stop.wait(_LOOK_S):
            self._saturation.look()
            if time.monotonic() < due:
                continue
            due = time.monotonic() + EVERY_S
            try:
                self.beat()
            except FleetlimitError as error:
                self._runtime.note("heartbeat", error)
            else:
                self._runtime.note("heartbeat", None)
