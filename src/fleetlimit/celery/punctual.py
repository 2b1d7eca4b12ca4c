"""When a start is due on this host's clock, and how late it came.

The limit counts starts, but Redis admits. Between the two lie the way of the reply, the sleep in
place and the scheduler: on a busy host tens of milliseconds, more than the default margin of a limit
per second. Every reply says the server's time, so the difference of the two clocks is known as well
as the fastest of the last replies tells it (the filter of NTP, RFC 5905, 10). A start that comes
late all the same is reported, and what is not yet handed out moves by as much.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

__all__ = ["Punctuality"]

_SAMPLES = 64
#: More than this is no late start but a clock that stepped.
_STEP_US = 1_000_000


class Punctuality:
    """One per process and store. Its clock is this host's monotonic one, in microseconds."""

    def __init__(self, clock: Callable[[], int] = lambda: time.monotonic_ns() // 1000) -> None:
        self.clock = clock
        self._offsets: deque[int] = deque(maxlen=_SAMPLES)
        self._least = 0

    def due_us(self, server_now_us: int, sleep_us: int) -> int:
        """When an admission just answered should start, on this host's clock."""
        offset = self.clock() - server_now_us
        if self._offsets and abs(offset - self._least) > _STEP_US:
            self._offsets.clear()
        self._offsets.append(offset)
        self._least = min(self._offsets)
        return server_now_us + sleep_us + self._least

    def late_us(self, due_us: int) -> int:
        """How far past `due_us` it is; 0 if it is not, or if it is no delay but a clock's step."""
        late = self.clock() - due_us
        return late if 0 < late <= _STEP_US else 0
