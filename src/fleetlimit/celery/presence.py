"""The heartbeat of a worker. Every few seconds the worker tells Redis that it is there. From the answer it learns two
things: how many processes share the limits, which it remembers for the time when Redis is away, and by how much this
host's clock differs from Redis's.
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

#: Seconds between two heartbeats, how long a heartbeat counts, and (below) seconds between two looks at the host.
EVERY_S, LASTS_S = 5.0, 16.0
_LOOK_S = 1.0
#: Seconds after which limits are announced again.
_ANNOUNCE_S = 3600.0


def local_time(app: Any, store_us: int) -> datetime | None:
    """What this host's clock shows when the clock of the limits' Redis shows `store_us`; None if that is not known."""
    ahead_us = runtime_of(app).ahead_us
    if ahead_us is None:
        return None
    return datetime.fromtimestamp((store_us + ahead_us) / 1e6, timezone.utc)


class Presence:
    """A worker's heartbeat. It is made before the pool forks, and `beat()` may already be called then.

    :param runtime: keeps what the heartbeat learns, for this process and for those that are forked from it.
    :param processes: returns how many of this worker's processes run tasks.
    :param limits: returns the names of the limits of the worker's tasks, with their algorithms.
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
        self._saturation = runtime.host.saturation = Saturation()
        self._stop = threading.Event()
        runtime.share()
        self._thread = threading.Thread(target=self._run, name="fleetlimit-presence", daemon=True)

    def beat(self) -> None:
        """Send one heartbeat.

        :raises FleetlimitError: when Redis did not take it.
        """
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
        """Announce the limits of this worker's tasks: at first, when they change, and every hour, because Redis forgets
        them after a week. `again` is True if Redis did not know this worker, because Redis was emptied."""
        limits = dict(self._limits())
        if again or limits != self._announced or time.monotonic() >= self._announce_at:
            announce(self._store, limits)
            self._announced, self._announce_at = limits, time.monotonic() + _ANNOUNCE_S

    def _learn(self, number: int) -> None:
        """Use a higher number of processes at once. Use a lower number only after a while, because a Redis that
        restarted empty has not heard from every worker yet."""
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
