"""What a store must do with a sliding log."""

from __future__ import annotations

from fleetlimit.conformance.algorithms import limit_of
from fleetlimit.conformance.clock import Clock
from fleetlimit.store.base import Spend, Store

__all__ = ["SlidingLogSuite"]


class SlidingLogSuite:
    """Each test begins with an empty store, and moves its clock."""

    def test_a_late_start_of_several_units_in_a_log(self, store: Store, clock: Clock) -> None:
        limit = limit_of("sliding_log", 10)
        store.acquire([Spend(limit, cost=10)])
        clock.forward(0.5)
        store.delay([Spend(limit, cost=10)], 500_000)
        clock.forward(0.6)
        assert store.acquire([Spend(limit)]).wait_us == 400_000

    def test_a_start_later_than_a_period_counts_in_a_log(self, store: Store, clock: Clock) -> None:
        limit = limit_of("sliding_log", 2)
        store.acquire([Spend(limit)])
        clock.forward(1.5)
        store.delay([Spend(limit)], 1_500_000)
        assert [store.acquire([Spend(limit)]).admitted for _ in range(2)] == [True, False]

    def test_a_log_keeps_its_entries_in_a_ring_of_another_size(
        self, store: Store, clock: Clock
    ) -> None:
        few, many = limit_of("sliding_log", 5), limit_of("sliding_log", 8)
        for _ in range(7):  # the ring's head is now in its middle
            clock.forward(0.2)
            assert store.acquire([Spend(few)]).admitted
        assert [store.acquire([Spend(many)]).admitted for _ in range(4)] == [True] * 3 + [False]
        assert store.peek([Spend(many)]).wait_us == 200_000
        clock.forward(0.2)
        assert store.acquire([Spend(many)]).admitted
        assert store.peek([Spend(few)]).wait_us == 800_000  # the last five are what it remembers
