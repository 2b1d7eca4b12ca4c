"""How unevenly this host lets its processes run, and the margin that limits need for it.

The way from a task's body to the API cannot be measured from here. Two things tell when it gets uneven, and both must
last, because workers that start, or read a backlog, are busy for a moment on any host:

- The processors that this process may use have no idle time for `_LASTING_S`. Then a process that is ready to run may
  have to wait for the time slices of the others: up to `SATURATED_US`, measured (`benchmarks/busy.py`). Known where
  there is a `/proc/stat`.
- Starts come late, in several different seconds: so it is on a host whose container is held back by a quota.

A single late start says that the host is uneven at this moment, as while workers read a backlog. Then the margin is
wider for a moment, too.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import time
from collections import deque
from collections.abc import Callable, Sequence

from fleetlimit import standin
from fleetlimit.algorithms.base import MOST_MARGIN
from fleetlimit.errors import FleetlimitError
from fleetlimit.store.base import Outcome, Spend, Store

__all__ = ["MOMENT_US", "SATURATED_US", "Host", "Lateness", "Saturation", "processor_times"]

#: By how much the way to the API varies on a saturated host, microseconds.
SATURATED_US = 60_000
#: How late a start tells of an uneven moment, and by how much the way to the API varies then (measured: up to 27 ms).
_MOMENT_LATE_US, MOMENT_US = 4_000, 40_000
#: Without idle time for so long a host is saturated, seconds; where a worker has seen none at all since it was started,
#: sooner, because its first tasks may come at once. And what share of the time still counts as none.
_LASTING_S, _AT_START_S, _IDLE = 4.0, 1.0, 0.03
#: Late starts count if they came in so many different seconds of the last ones (and over `_LASTING_S`).
_SECONDS, _RECENT_S = 3, 10.0


def processor_times() -> tuple[int, int] | None:
    """Idle and all time of the processors that this process may use, in ticks; None where that is not known."""
    try:
        own = {f"cpu{n}" for n in os.sched_getaffinity(0)}
        with open("/proc/stat") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
        times = [[int(one) for one in line[1:9]] for line in lines if line[0] in own]
    except (AttributeError, OSError, ValueError):
        return None
    return sum(one[3] + one[4] for one in times), sum(map(sum, times))


class Saturation:
    """Looks whether the host has idle time. Made before the pool forks, whose processes know what it saw last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._shared = mmap.mmap(-1, 1)
        self._clock = clock
        self._last, self._since = processor_times(), clock()
        self._needed_s = _AT_START_S

    def look(self) -> None:
        """To be called about once a second."""
        now, former = processor_times(), self._last
        self._last = now
        if now is None or former is None or now[1] <= former[1]:
            return
        if now[0] - former[0] > _IDLE * (now[1] - former[1]):
            self._since, self._needed_s = self._clock(), _LASTING_S
        self._shared[0] = self._clock() - self._since >= self._needed_s

    @property
    def now(self) -> bool:
        """Whether the host is saturated."""
        return bool(self._shared[0])


class Lateness:
    """The late starts of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque(maxlen=100)

    def note(self, late_us: int) -> None:
        """A start came so late."""
        self._seen.append((self._clock(), late_us))

    def lasting_us(self) -> int:
        """The worst of the last seconds, if there were late ones in several of them; else 0."""
        if len(self._seen) < _SECONDS:
            return 0
        since = self._clock() - _RECENT_S
        recent = [(at, late) for at, late in tuple(self._seen) if at >= since]
        if (
            len({int(at) for at, _ in recent}) < _SECONDS
            or recent[-1][0] - recent[0][0] < _LASTING_S
        ):
            return 0
        return max(late for _, late in recent)


class Host:
    """What a worker of one app sees of its host. A limit that makes nobody wait is not near its bound: its margin stays."""

    def __init__(self) -> None:
        #: Made by a worker, in its main process.
        self.saturation: Saturation | None = None
        self.lateness = Lateness()

    def ask_for_margin(self, store: Store, spends: Sequence[Spend], outcome: Outcome) -> None:
        """Of limits that have made a task wait: let the fleet keep the margin that this host needs, if it is larger
        than what is in force."""
        saturated_us = SATURATED_US if self.saturation and self.saturation.now else 0
        uneven_us = max(saturated_us, self.lateness.lasting_us())
        if uneven_us and not outcome.alone and not standin.current:
            _widen(store, spends, outcome, uneven_us, briefly=False)

    def note_late(
        self, store: Store, spends: Sequence[Spend], outcome: Outcome, late_us: int
    ) -> None:
        """An admitted run starts so much later than it should: remember it, and widen the margin for a moment."""
        self.lateness.note(late_us)
        if late_us >= _MOMENT_LATE_US:
            _widen(store, spends, outcome, MOMENT_US, briefly=True)


def _widen(
    store: Store, spends: Sequence[Spend], outcome: Outcome, uneven_us: int, *, briefly: bool
) -> None:
    for one, reading in zip(spends, outcome.readings, strict=False):
        needed = min(math.ceil(uneven_us * 1000 / one.limit.per_us), MOST_MARGIN)
        if 0 < reading.rule.margin < needed:
            with contextlib.suppress(FleetlimitError):
                store.change_override(one.limit.name, margin=needed, briefly=briefly)
