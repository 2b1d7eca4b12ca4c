"""When a start is due on this host's clock, and how late it came.

The limit counts starts, but Redis admits. Between the two lie the way of the reply, the sleep in place and the
scheduler. On a busy host they take tens of milliseconds, which is more than the default margin of a limit per second.
Every reply contains the server's time, and the fastest of the last replies gives the difference of the two clocks (the
filter of NTP, RFC 5905, section 10). A start that is late all the same is reported to Redis, which moves the cells that
are not handed out yet by as much.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

__all__ = ["Punctuality"]

_SAMPLES = 64
#: A larger difference than this does not come from a late start, but from a clock that stepped.
_STEP_US = 1_000_000


class Punctuality:
    """The difference of the clocks, for one process and store. `clock` is this host's monotonic one, in
    microseconds."""

    def __init__(self, clock: Callable[[], int] = lambda: time.monotonic_ns() // 1000) -> None:
        self.clock = clock
        self._offsets: deque[int] = deque(maxlen=_SAMPLES)
        self._least = 0

    def due_us(self, server_now_us: int, sleep_us: int) -> int:
        """When a run that was just admitted should start, on this host's clock."""
        offset = self.clock() - server_now_us
        if self._offsets and abs(offset - self._least) > _STEP_US:
            self._offsets.clear()
        self._offsets.append(offset)
        self._least = min(self._offsets)
        return server_now_us + sleep_us + self._least

    def late_us(self, due_us: int) -> int:
        """By how much `due_us` has passed; 0 if it has not passed, or if a clock stepped."""
        late = self.clock() - due_us
        return late if 0 < late <= _STEP_US else 0
