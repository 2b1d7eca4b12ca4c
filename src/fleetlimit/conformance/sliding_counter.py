"""What a store must do with a sliding counter."""

from __future__ import annotations

from fleetlimit.conformance.algorithms import ALIGNED, limit_of
from fleetlimit.conformance.clock import Clock
from fleetlimit.store.base import Spend, Store, Ticket

__all__ = ["SlidingCounterSuite"]


class SlidingCounterSuite:
    """Each test begins with an empty store, and moves its clock."""

    def test_numbers_of_many_digits(self, store: Store, clock: Clock) -> None:
        """A quota of bytes, with a line behind it."""
        limit = limit_of("sliding_counter", 300_000_000, 60)
        clock.now = ALIGNED
        assert store.acquire([Spend(limit, cost=300_000_000)]).admitted
        for n in range(8):
            store.acquire([Spend(limit, cost=30_000_000)], Ticket(f"t{n}", max_sleep_us=0))
        clock.forward(90)
        assert store.acquire([Spend(limit, cost=149_999_990)], Ticket("t0", ALIGNED)).admitted
        assert not store.acquire([Spend(limit, cost=75_000_000)]).admitted
