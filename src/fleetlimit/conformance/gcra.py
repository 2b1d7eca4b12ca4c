"""What a store must do with the default algorithm, to the microsecond."""

from __future__ import annotations

from fleetlimit.conformance.clock import Clock
from fleetlimit.limit import RateLimit
from fleetlimit.store.base import Override, Spend, Store

__all__ = ["GcraSuite"]

FIVE = RateLimit("five", 10, 1, burst=5, margin=0)
ONE = RateLimit("one", 10, 1, margin=0)
FINE = RateLimit("fine", 1_000_000, 1, burst=10)


class GcraSuite:
    """Each test begins with an empty store, and moves the store's clock."""

    def test_burst_then_wait_then_admitted(self, store: Store, clock: Clock) -> None:  # N1, N2
        outcomes = [store.acquire([Spend(FIVE)]) for _ in range(6)]
        assert [one.admitted for one in outcomes] == [True] * 5 + [False]
        assert [one.readings[0].remaining for one in outcomes] == [4, 3, 2, 1, 0, 0]
        assert outcomes[-1].wait_us == 100_000
        clock.now += outcomes[-1].wait_us - 1
        assert store.acquire([Spend(FIVE)]).wait_us == 1
        clock.now += 1
        assert store.acquire([Spend(FIVE)]).admitted

    def test_whole_burst_at_once_when_full_again(self, store: Store, clock: Clock) -> None:  # N4
        assert store.acquire([Spend(FIVE, cost=5)]).admitted
        clock.now += 499_999
        assert store.acquire([Spend(FIVE, cost=5)]).wait_us == 1
        clock.now += 1
        assert store.acquire([Spend(FIVE, cost=5)]).admitted

    def test_peek_says_what_a_denial_said_and_writes_nothing(self, store: Store) -> None:  # N5
        store.acquire([Spend(ONE)])
        denial = store.acquire([Spend(ONE)])
        assert [store.peek([Spend(ONE)]).wait_us for _ in range(3)] == [denial.wait_us] * 3
        assert store.peek([Spend(FIVE)]).readings[0].remaining == 5

    def test_all_or_nothing(self, store: Store) -> None:  # N12
        assert store.acquire([Spend(ONE)]).admitted
        denied = store.acquire([Spend(FIVE), Spend(ONE)])
        assert not denied.admitted
        assert denied.readings[0].remaining == 5
        assert store.peek([Spend(FIVE)]).readings[0].remaining == 5

    def test_keys_do_not_touch(self, store: Store) -> None:
        assert all(store.acquire([Spend(ONE, key)]).admitted for key in ("", "a", "b", "a:b"))
        assert not any(store.acquire([Spend(ONE, key)]).admitted for key in ("", "a", "b", "a:b"))

    def test_clock_steps(self, store: Store, clock: Clock) -> None:  # N9
        store.acquire([Spend(FIVE)])
        clock.forward(-3600)
        assert store.acquire([Spend(FIVE, cost=5)]).wait_us <= 500_000
        clock.forward(7200)
        assert sum(store.acquire([Spend(FIVE)]).admitted for _ in range(10)) == 5

    def test_changed_limit(self, store: Store, clock: Clock) -> None:  # N8
        slow, fast = RateLimit("same", 10, 20), RateLimit("same", 1000, 20)
        assert store.acquire([Spend(slow)]).admitted
        assert store.acquire([Spend(fast)]).wait_us <= 20_200
        clock.forward(0.0202)
        assert store.acquire([Spend(fast)]).admitted
        clock.forward(0.0202)
        starts = []
        for _ in range(4000):  # after the change no window of 20 s contains more than 10 starts
            if store.acquire([Spend(slow)]).admitted:
                starts.append(clock.now)
            clock.forward(0.025)
        assert max(sum(t <= u < t + 20_000_000 for u in starts) for t in starts) <= 10

    def test_give_back(self, store: Store, clock: Clock) -> None:  # N14
        limit = Spend(RateLimit("slow", 1, 1, margin=0))
        a = store.acquire([limit])
        clock.forward(0.2)
        assert store.give_back(limit, a.readings[0])
        assert store.acquire([limit]).admitted  # at 0.2, at once
        clock.forward(1)
        a = store.acquire([limit])  # at 1.2
        clock.forward(1)
        assert store.acquire([limit]).admitted  # B, at 2.2
        clock.forward(0.2)
        assert not store.give_back(limit, a.readings[0])
        assert store.acquire([limit]).wait_us == 800_000

    def test_late_start_moves_what_follows(self, store: Store, clock: Clock) -> None:
        store.acquire([Spend(ONE)])
        clock.forward(0.03)
        store.delay([Spend(ONE)], 30_000)
        assert store.peek([Spend(ONE)]).wait_us == 100_000

    def test_reset_fills_the_bucket(self, store: Store) -> None:
        store.acquire([Spend(FIVE, cost=5)])
        store.reset(FIVE.name)
        assert store.peek([Spend(FIVE)]).readings[0].remaining == 5

    def test_fine_limits_are_exact(self, store: Store, clock: Clock) -> None:
        """The emission interval is hardly longer than a microsecond here, so ticks are needed to keep the rate."""
        admitted = 0
        for _ in range(3000):
            admitted += sum(store.acquire([Spend(FINE)]).admitted for _ in range(2))
            clock.now += 2
        assert admitted == int(2 * 2999 / 1.01 + 10)

    def test_a_margin_that_a_host_asks_for(self, store: Store, clock: Clock) -> None:
        """It stretches automatic margins, a larger margin in force stays, and it goes back within a minute."""
        auto, fixed = RateLimit("auto", 10, 1, margin="auto"), RateLimit("auto", 10, 1, margin=0.03)

        def spacing_us(limit: RateLimit = auto) -> int:
            store.reset(limit.name)
            assert store.acquire([Spend(limit)]).admitted
            return store.peek([Spend(limit)]).wait_us

        assert spacing_us() == 101_000
        for asked, in_force in ((60, 106_000), (40, 106_000), (90, 109_000), (900, 110_000)):
            store.change_override("auto", margin=asked)
            assert spacing_us() == in_force
            assert spacing_us(fixed) == 103_000
        store.change_override("auto", pause_us=0)
        clock.forward(29)
        assert spacing_us() == 110_000
        clock.forward(16)
        store.change_override("auto", margin=40)
        clock.forward(40)
        assert spacing_us() < 104_000
        clock.forward(20)
        assert spacing_us() == 101_000
        clock.forward(-3600)  # the clock steps back, and the old margin must not count for an hour
        assert spacing_us() == 101_000

    def test_changes_of_what_is_in_force(self, store: Store, clock: Clock) -> None:
        """A part that is not mentioned stays as it is, and a shorter pause does not end a longer one."""
        rules = (RateLimit("x", 3, 60, margin=0).rule,)
        changed, now_us = store.change_override("one", rules=rules)
        assert (changed, now_us) == (Override(rules), clock.now)
        for pause_us, forced, lasts_us in (
            (60_000_000, False, 60_000_000),
            (5_000_000, False, 60_000_000),
            (None, False, 60_000_000),
            (5_000_000, True, 5_000_000),
            (7_000_000, False, 7_000_000),
        ):
            changed, _ = store.change_override("one", pause_us=pause_us, forced=forced)
            assert changed == Override(rules, clock.now + lasts_us)
            assert store.override("one") == changed
        changed, _ = store.change_override("one", rules=())
        assert changed == Override((), clock.now + 7_000_000)
        assert store.change_override("one", pause_us=0)[0] == Override()
        clock.forward(100)
        store.change_override("one", pause_us=1)
        clock.forward(100)
        changed, _ = store.change_override("one", rules=rules)
        assert changed == Override(rules)
