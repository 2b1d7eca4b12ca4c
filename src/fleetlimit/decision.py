"""`Decision`: what a `RateLimiter` answers, and the error that carries a denial."""

from __future__ import annotations

from dataclasses import dataclass

from fleetlimit.errors import FleetlimitError

__all__ = ["Decision", "RateLimited"]


@dataclass(frozen=True)
class Decision:
    """The answer. True in a boolean context if and only if allowed."""

    #: Whether the units were spent.
    allowed: bool
    #: Seconds until it is worth asking again; > 0 if and only if denied.
    retry_after: float
    #: Units that may start right now after this decision, the least over all limits asked.
    remaining: int
    #: Seconds until `remaining` is as large as it can be again, if nothing more is spent; never less than
    #: `retry_after`, and the most over all limits asked. `X-RateLimit-Reset` says the same (docs/algorithms.md
    #: has it for each algorithm): until the bucket is full, the window ends, the newest start of the log
    #: has run out, or the next window of the counter ends.
    reset_after: float
    #: Tasks waiting in line, the most over all limits asked.
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
