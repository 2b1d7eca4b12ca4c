"""What a store must do with tasks that wait."""

from __future__ import annotations

import pytest

from fleetlimit.conformance.clock import START, Clock
from fleetlimit.limit import RateLimit
from fleetlimit.store.base import Spend, Store, Ticket, Verdict

__all__ = ["LineSuite"]

FIVE = RateLimit("five", 10, 1, burst=5, margin=0)
ONE = RateLimit("one", 10, 1, margin=0)


class LineSuite:
    """Each test begins with an empty store, and moves the store's clock."""

    def test_each_waits_for_its_own_turn(self, store: Store, clock: Clock) -> None:
        assert store.acquire([Spend(ONE)]).admitted
        waits = {}
        for n in range(5):
            clock.now += 10
            outcome = store.acquire([Spend(ONE)], Ticket(f"t{n}", max_sleep_us=0))
            waits[n] = outcome.wait_us
            assert (outcome.readings[0].rank, outcome.readings[0].waiting) == (n, n + 1)
            assert outcome.first_seen_us == clock.now
        assert [waits[n] + 10 * (n + 1) for n in range(5)] == [100_000 * (n + 1) for n in range(5)]

    def test_drains_in_order_with_two_deliveries_each(self, store: Store, clock: Clock) -> None:
        seen, due, asks = {}, [], 0
        for n in range(30):
            outcome = store.acquire([Spend(ONE)], Ticket(f"t{n}", max_sleep_us=0))
            asks += 1
            seen[n] = outcome.first_seen_us
            due.append((clock.now + outcome.wait_us, n))
            clock.now += 10
        order: list[int] = []
        while due:
            due.sort()
            at, n = due.pop(0)
            clock.now = max(clock.now, at)
            if n == 0 and not order:
                order.append(n)  # this task was admitted at once
                continue
            outcome = store.acquire([Spend(ONE)], Ticket(f"t{n}", seen[n], max_sleep_us=0))
            asks += 1
            assert outcome.admitted
            order.append(n)
        assert order == sorted(order)
        assert asks <= 60
        assert clock.now <= START + 30 * 100_000

    def test_no_barging(self, store: Store, clock: Clock) -> None:
        store.acquire([Spend(ONE)])
        store.acquire([Spend(ONE)], Ticket("waits", max_sleep_us=0))
        clock.forward(0.1)  # the cell of the waiting task is there now
        assert not store.acquire([Spend(ONE)]).admitted
        assert not store.acquire([Spend(ONE)], Ticket("new", max_sleep_us=0)).admitted
        assert store.acquire([Spend(ONE)], Ticket("waits", START, max_sleep_us=0)).admitted

    def test_idle_cell_goes_to_whoever_asks(self, store: Store, clock: Clock) -> None:
        store.acquire([Spend(ONE)])
        store.acquire([Spend(ONE)], Ticket("waits", max_sleep_us=0))
        clock.forward(0.1049)
        assert not store.acquire([Spend(ONE)], Ticket("new", max_sleep_us=0)).admitted
        clock.forward(0.0001)
        assert store.acquire([Spend(ONE)], Ticket("new", max_sleep_us=0)).admitted

    def test_a_cell_still_free_shortly_before_goes_to_who_can_sleep(
        self, store: Store, clock: Clock
    ) -> None:
        store.acquire([Spend(ONE)])
        store.acquire([Spend(ONE)], Ticket("waits"))
        clock.forward(0.0799)
        assert not store.acquire([Spend(ONE)], Ticket("new")).admitted
        clock.forward(0.0001)
        assert store.acquire([Spend(ONE)], Ticket("newer")).sleep_us == 20_000

    def test_duplicate_delivery_holds_one_place(self, store: Store, clock: Clock) -> None:
        store.acquire([Spend(ONE)])
        first = store.acquire([Spend(ONE)], Ticket("t", max_sleep_us=0))
        clock.now += 10
        again = store.acquire([Spend(ONE)], Ticket("t", max_sleep_us=0))
        assert again.readings[0].waiting == 1
        assert again.first_seen_us == first.first_seen_us

    def test_short_sleep_spends_ahead(self, store: Store, clock: Clock) -> None:
        store.acquire([Spend(ONE)])
        store.acquire([Spend(ONE)], Ticket("a", max_sleep_us=0))
        clock.forward(0.06)
        outcome = store.acquire([Spend(ONE)], Ticket("a", START, max_sleep_us=250_000))
        assert (outcome.admitted, outcome.sleep_us) == (True, 40_000)
        assert store.peek([Spend(ONE)]).wait_us == 140_000

    def test_woken_task_passes_at_most_a_second_of_places(self, store: Store, clock: Clock) -> None:
        store.acquire([Spend(ONE)])
        seen = []
        for n in range(15):
            clock.now += 1
            seen.append(store.acquire([Spend(ONE)], Ticket(f"t{n}", max_sleep_us=0)).first_seen_us)
        clock.now = START + 100_000
        assert not store.acquire([Spend(ONE)], Ticket("t11", seen[11], max_sleep_us=0)).admitted
        assert store.acquire([Spend(ONE)], Ticket("t10", seen[10], max_sleep_us=0)).admitted

    def test_who_gave_itself_back_passes_nobody(self, store: Store, clock: Clock) -> None:
        """Its place is newer than the one in its message, so the task was not woken for its turn."""
        store.acquire([Spend(ONE)])
        message = store.acquire([Spend(ONE)], Ticket("t", max_sleep_us=0)).first_seen_us
        clock.forward(0.1)
        assert store.acquire([Spend(ONE)], Ticket("t", message)).admitted
        clock.forward(0.01)
        store.acquire([Spend(ONE)], Ticket("other", max_sleep_us=0))
        clock.forward(0.01)
        taken = store.acquire([Spend(ONE)], Ticket("t", max_sleep_us=0)).first_seen_us
        back = store.acquire([Spend(ONE)], Ticket("t", message, max_sleep_us=200_000))
        assert (back.verdict, back.first_seen_us) == (Verdict.DENIED, taken)
        woken = store.acquire([Spend(ONE)], Ticket("t", taken, max_sleep_us=200_000))
        assert woken.admitted

    def test_dead_tickets_leave_by_themselves(self, store: Store, clock: Clock) -> None:
        store.acquire([Spend(ONE)])
        for n in range(40):
            store.acquire([Spend(ONE)], Ticket(f"dead{n}", max_sleep_us=0, grace_us=1_000_000))
        clock.forward(20)
        waiting = [
            store.acquire([Spend(ONE)], Ticket("alive", START, max_sleep_us=0)).readings[0].waiting
            for _ in range(3)
        ]
        assert waiting == [24, 9, 1] or waiting[-1] <= 1

    def test_lost_ticket_keeps_its_place(self, store: Store, clock: Clock) -> None:
        """A task carries the time of its first denial, so it comes back to its place if its ticket is lost."""
        store.acquire([Spend(ONE)])
        first = store.acquire([Spend(ONE)], Ticket("early", max_sleep_us=0)).first_seen_us
        clock.now += 2
        store.acquire([Spend(ONE)], Ticket("late", max_sleep_us=0))
        for _ in range(2):
            outcome = store.acquire([Spend(ONE)], Ticket("lost", first + 1, max_sleep_us=0))
            assert (outcome.readings[0].rank, outcome.first_seen_us) == (1, first + 1)

    def test_withdrawn_place_goes_to_the_next(self, store: Store) -> None:  # C8
        assert store.acquire([Spend(ONE)]).admitted
        waits = [
            store.acquire([Spend(ONE)], Ticket(f"t{n}", max_sleep_us=0)).wait_us for n in range(3)
        ]
        assert store.withdraw("one", "", "t1")
        assert not store.withdraw("one", "", "t1")
        assert not store.withdraw("one", "", "nobody")
        assert not store.withdraw("nothing", "", "t0")
        again = store.acquire([Spend(ONE)], Ticket("t2", max_sleep_us=0))
        assert again.wait_us == waits[1]
        assert (again.readings[0].rank, again.readings[0].waiting) == (1, 2)

    def test_no_place_for_what_expires_first(self, store: Store, clock: Clock) -> None:  # C7
        store.acquire([Spend(ONE)])
        for n in range(10):
            store.acquire([Spend(ONE)], Ticket(f"t{n}", max_sleep_us=0))
        outcome = store.acquire([Spend(ONE)], Ticket("x", max_sleep_us=0, expires_in_us=500_000))
        assert (outcome.admitted, outcome.verdict) == (False, Verdict.EXPIRES)
        assert outcome.readings[0].waiting == 10

    def test_several_limits_hold_a_place_only_where_they_bind(
        self, store: Store, clock: Clock
    ) -> None:
        store.acquire([Spend(ONE)])
        both = [Spend(FIVE), Spend(ONE)]
        outcome = store.acquire(both, Ticket("both", max_sleep_us=0))
        assert [one.waiting for one in outcome.readings] == [0, 1]
        assert store.acquire([Spend(FIVE)], Ticket("other", max_sleep_us=0)).admitted
        clock.forward(0.1)
        assert store.acquire(both, Ticket("both", outcome.first_seen_us, max_sleep_us=0)).admitted
        assert store.peek([Spend(ONE)]).readings[0].waiting == 0

    def test_of_two_limits_none_is_booked_for_later_than_it_could_be(
        self, store: Store, clock: Clock
    ) -> None:
        """Otherwise the cells of one limit would be lost while the task sleeps for the other limit."""
        store.acquire([Spend(ONE)])
        other = RateLimit("other", 100, 1, margin=0)
        both = [Spend(ONE), Spend(other)]
        outcome = store.acquire(both, Ticket("t", START - 1))
        assert (outcome.admitted, outcome.wait_us) == (False, 100_000)
        assert store.peek([Spend(other)]).wait_us == 0
        clock.forward(0.09)
        outcome = store.acquire(both, Ticket("t", START - 1))
        assert (outcome.admitted, outcome.sleep_us) == (True, 10_000)
        assert store.peek([Spend(other)]).wait_us == 20_000

    def test_nothing_passes_who_saves_up_for_a_large_cost(self, store: Store, clock: Clock) -> None:
        """Four units exist, and the first task in line needs five. No task behind it takes them, whether woken or
        new."""
        store.acquire([Spend(FIVE, cost=5)])
        seen = {}
        for n, cost in enumerate((5, 1)):
            clock.now += 1
            ticket = Ticket(f"t{n}", max_sleep_us=0)
            seen[n] = store.acquire([Spend(FIVE, cost=cost)], ticket).first_seen_us
        clock.forward(0.4)
        assert not store.acquire([Spend(FIVE)], Ticket("t1", seen[1], max_sleep_us=0)).admitted
        assert not store.acquire([Spend(FIVE)], Ticket("new", max_sleep_us=0)).admitted
        clock.forward(0.1)
        head = Ticket("t0", seen[0], max_sleep_us=0)
        assert store.acquire([Spend(FIVE, cost=5)], head).admitted

    def test_a_large_cost_that_does_not_come_is_waited_for_as_long_as_it_saves_up(
        self, store: Store, clock: Clock
    ) -> None:
        """The task is late after a second, and its five units would take half a second more."""
        store.acquire([Spend(FIVE, cost=5)])
        store.acquire([Spend(FIVE, cost=5)], Ticket("dead", max_sleep_us=0))
        clock.now += 1
        store.acquire([Spend(FIVE)], Ticket("small", max_sleep_us=0))
        clock.now = START + 1_999_999
        small = Ticket("small", START + 1, max_sleep_us=0)
        assert not store.acquire([Spend(FIVE)], small).admitted
        clock.now += 1
        assert store.acquire([Spend(FIVE)], small).admitted

    def test_large_costs_that_do_not_come_are_gone_like_all_others(
        self, store: Store, clock: Clock
    ) -> None:
        store.acquire([Spend(FIVE, cost=5)])
        for n in range(10):
            store.acquire([Spend(FIVE, cost=5)], Ticket(f"dead{n}", max_sleep_us=0))
        store.acquire([Spend(FIVE)], Ticket("small", max_sleep_us=0))
        clock.forward(2.51)  # three tasks are more than a second late
        assert store.acquire([Spend(FIVE)], Ticket("small", START, max_sleep_us=0)).admitted

    def test_who_does_not_come_is_not_waited_for(self, store: Store, clock: Clock) -> None:
        """Three tasks were expected and are a second late, so the tasks behind them move up."""
        store.acquire([Spend(ONE)])
        for n in range(40):
            store.acquire([Spend(ONE)], Ticket(f"dead{n}", max_sleep_us=0))
        clock.forward(1.35)
        outcome = store.acquire([Spend(ONE)], Ticket("new", max_sleep_us=0))
        assert outcome.admitted
        assert store.peek([Spend(ONE)]).wait_us == 100_000

    def test_who_comes_after_all_has_its_place_and_all_others_theirs(
        self, store: Store, clock: Clock
    ) -> None:
        store.acquire([Spend(ONE)])
        for n in range(40):
            store.acquire([Spend(ONE)], Ticket(f"t{n}", max_sleep_us=0))
        clock.forward(1.35)
        for name in ("new", "newer"):  # these are admitted as if no other task waited
            store.acquire([Spend(ONE)], Ticket(name, max_sleep_us=0))
        ticket = Ticket("t0", START, max_sleep_us=0)
        assert not store.acquire([Spend(ONE)], ticket).admitted  # its cell has just been taken
        clock.forward(0.1)
        assert store.acquire([Spend(ONE)], ticket).admitted
        wait = store.acquire([Spend(ONE)], Ticket("last", max_sleep_us=0)).wait_us
        assert wait > 2_500_000  # it stands behind the tasks that are not late yet

    def test_unequal_costs_wait_about_right(self, store: Store, clock: Clock) -> None:
        store.acquire([Spend(FIVE, cost=5)])
        for n, cost in enumerate((5, 1, 5, 1)):
            store.acquire([Spend(FIVE, cost=cost)], Ticket(f"t{n}", max_sleep_us=0))
        wait = store.acquire([Spend(FIVE)], Ticket("last", max_sleep_us=0)).wait_us
        assert wait == pytest.approx(1_300_000, abs=100_000)
