"""`Decision`, the answer of a `RateLimiter`, and the error that carries a denial."""

from __future__ import annotations

from dataclasses import dataclass

from fleetlimit.errors import FleetlimitError

__all__ = ["Decision", "RateLimited"]


@dataclass(frozen=True)
class Decision:
    """The answer. True in a boolean context if and only if allowed."""

    #: Whether the units were spent.
    allowed: bool
    #: Seconds until it is worth asking again. It is above 0 if and only if the request was denied.
    retry_after: float
    #: Units that may start right now after this decision. Of several limits, the smallest number.
    remaining: int
    #: Seconds until `remaining` reaches its largest value, if nothing more is spent. It is never less than
    #: `retry_after`. Of several limits, the largest number. The header `X-RateLimit-Reset` means the same: the time
    #: until the bucket is full, the window ends, the newest start of the log is too old, or the next window of the
    #: counter ends (docs/algorithms.md has it for each algorithm).
    reset_after: float
    #: Tasks waiting in line. Of several limits, the largest number.
    waiting: int = 0

    def __bool__(self) -> bool:
        return self.allowed

    def raise_if_denied(self) -> None:
        """:raises RateLimited: carrying this decision."""
        if not self.allowed:
            raise RateLimited(self)


class RateLimited(FleetlimitError):
    """A denial, for callers who prefer an exception (`Decision.raise_if_denied`)."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(f"denied; try again in {decision.retry_after:.3f} s")
        self.decision = decision
