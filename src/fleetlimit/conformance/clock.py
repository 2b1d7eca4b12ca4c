"""The clock that the suite moves."""

from __future__ import annotations

__all__ = ["START", "Clock"]

#: The time at which it begins. `TIME` in Redis would answer 1767225600 s and 999 microseconds.
START = 1_767_225_600_000_999


class Clock:
    """A callable that returns microseconds since the epoch, as a store expects of its `clock`."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += round(seconds * 1_000_000)
