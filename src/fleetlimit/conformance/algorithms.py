"""What a store must do with every algorithm."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fleetlimit.conformance.clock import START, Clock
from fleetlimit.errors import CostError
from fleetlimit.limit import ALGORITHMS, RateLimit
from fleetlimit.store.base import Outcome, Spend, Store, Ticket

__all__ = ["AlgorithmSuite"]

LIMIT = 20
#: All windows in this suite are aligned to this time.
ALIGNED = START - 999

#: One algorithm of each kind of rule.
RULES = ("gcra", "fixed_window", "sliding_log", "sliding_counter")

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def limit_of(algorithm: str, limit: int = LIMIT, per: float = 1, **options: Any) -> RateLimit:
    """A limit that lets a whole period's units start at once, if its algorithm can do so."""
    if algorithm == "gcra":
        options["burst"] = limit
    return RateLimit(algorithm, limit, per, algorithm=algorithm, margin=0, **options)


def ask(store: Store, limit: RateLimit, cost: int = 1, *, id: str = "") -> Outcome:
    """Ask so that as many units as the limit are admitted at once. The leaky bucket is asked like a queue: it admits
    `limit` units, each of which sleeps until its own turn."""
    if limit.algorithm != "leaky_bucket" or not id:
        return store.acquire([Spend(limit, cost=cost)])
    longest = (limit.limit - 1) * limit.rule.pace_us(1)
    return store.acquire([Spend(limit, cost=cost)], Ticket(id, max_sleep_us=5 * longest))


def _admitted_by_a_process(
    factory: Callable[..., Store], limit: RateLimit, clock: Clock, mark: str
) -> int:
    store = factory(clock=clock)
    return sum(ask(store, limit, id=f"{mark}-{n}").admitted for n in range(25))


class AlgorithmSuite:
    """Each test begins with an empty store, and moves the store's clock."""

    factory: Callable[..., Store]

    def stored(self) -> int:
        """How many keys hold anything."""
        raise NotImplementedError

    @every_algorithm
    def test_exactly_the_limit(self, store: Store, clock: Clock, algorithm: str) -> None:
        limit = limit_of(algorithm)
        outcomes = [ask(store, limit, id=f"t{n}") for n in range(3 * LIMIT)]
        assert [one.admitted for one in outcomes] == [True] * LIMIT + [False] * 2 * LIMIT

    @every_algorithm
    def test_exactly_the_limit_from_threads(
        self, make_store: Callable[[], Store], algorithm: str
    ) -> None:
        limit, store = limit_of(algorithm, per=3600), make_store()
        with ThreadPoolExecutor(20) as pool:
            answers = pool.map(lambda n: ask(store, limit, id=f"t{n}").admitted, range(100))
            assert sum(answers) == LIMIT

    @every_algorithm
    def test_exactly_the_limit_from_processes(
        self, store: Store, clock: Clock, algorithm: str
    ) -> None:
        del store  # making it has emptied the state that the processes' own stores share
        args = [(self.factory, limit_of(algorithm, per=3600), clock, f"p{n}") for n in range(4)]
        with multiprocessing.get_context("spawn").Pool(4) as pool:
            assert sum(pool.starmap(_admitted_by_a_process, args)) == LIMIT

    @every_algorithm
    @pytest.mark.parametrize("sleep_us", [0, 100_000])
    def test_no_window_above_the_bound_and_few_below(
        self, store: Store, clock: Clock, algorithm: str, sleep_us: int
    ) -> None:
        """The limit is used to the full for 20 periods. No window exceeds the bound, and nearly all units are used."""
        limit, starts, n = RateLimit(algorithm, LIMIT, 1, algorithm=algorithm), list[int](), 0
        clock.now = ALIGNED + 300_000
        while clock.now < ALIGNED + 20_000_000:
            n += 1
            ticket = Ticket(f"t{n}", ALIGNED, sleep_us, grace_us=0) if sleep_us else None
            outcome = store.acquire([Spend(limit)], ticket)
            if outcome.admitted:
                starts.append(clock.now + outcome.sleep_us)
                clock.now += outcome.sleep_us
            clock.now += outcome.wait_us
        worst = max(sum(at <= other < at + 10**6 for other in starts) for at in starts)
        assert worst <= limit.bound
        spent = (starts[-1] - starts[0]) / 1e6 * LIMIT
        assert len(starts) >= (0.9 if algorithm == "sliding_counter" else 0.98) * spent

    @every_algorithm
    def test_a_denial_writes_nothing(self, store: Store, clock: Clock, algorithm: str) -> None:
        limit = limit_of(algorithm)
        for n in range(LIMIT):
            ask(store, limit, id=f"t{n}")
        before = store.peek([Spend(limit)])
        for _ in range(5):
            assert store.acquire([Spend(limit)]).wait_us == before.wait_us
        assert store.peek([Spend(limit)]) == before

    @every_algorithm
    def test_the_wait_is_enough_and_no_more(
        self, store: Store, clock: Clock, algorithm: str
    ) -> None:
        limit = limit_of(algorithm)
        for n in range(LIMIT + 1):
            clock.now += 11_000
            ask(store, limit, id=f"t{n}")
        denied = store.acquire([Spend(limit)])
        while denied.admitted:
            denied = store.acquire([Spend(limit)])
        clock.now += denied.wait_us - 1
        assert store.peek([Spend(limit)]).wait_us == 1
        clock.now += 1
        assert store.acquire([Spend(limit)]).admitted

    @every_algorithm
    def test_costs(self, store: Store, clock: Clock, algorithm: str) -> None:
        limit = limit_of(algorithm)
        with pytest.raises(CostError):
            limit.check_cost(limit.most + 1)
        assert store.acquire([Spend(limit, cost=limit.most)]).admitted
        assert not store.acquire([Spend(limit)]).admitted
        clock.forward(3)
        first = store.acquire([Spend(limit, cost=5)]).readings[0]
        if algorithm != "leaky_bucket":
            assert first.remaining == LIMIT - 5
            assert not store.acquire([Spend(limit, cost=LIMIT - 4)]).admitted
            assert store.acquire([Spend(limit, cost=LIMIT - 5)]).admitted

    @every_algorithm
    def test_steps_of_the_clock(self, store: Store, clock: Clock, algorithm: str) -> None:  # N9
        limit = limit_of(algorithm)
        for n in range(LIMIT):
            ask(store, limit, id=f"t{n}")
        clock.forward(-3600)
        wait = store.acquire([Spend(limit)]).wait_us
        assert wait <= 3_000_000
        clock.now += wait
        assert store.acquire([Spend(limit)]).admitted
        clock.forward(7200)
        assert sum(ask(store, limit, id=f"u{n}").admitted for n in range(60)) == LIMIT

    @every_algorithm
    def test_reset(self, store: Store, algorithm: str) -> None:
        limit = limit_of(algorithm)
        assert store.acquire([Spend(limit, cost=limit.most)]).admitted
        store.reset(limit.name)
        assert store.acquire([Spend(limit, cost=limit.most)]).admitted

    @every_algorithm
    def test_what_says_nothing_goes_away(self, store: Store, algorithm: str) -> None:  # N6
        """State that says nothing is freed by the real clock, without being asked for again."""
        real, limit = type(self).factory(), limit_of(algorithm, per=0.2)
        for n in range(50):
            assert real.acquire([Spend(limit, f"k{n}")]).admitted
        assert self.stored() > 0
        deadline = time.monotonic() + 10
        while self.stored() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.stored() == 0
        real.close()

    @every_algorithm
    def test_giving_back(self, store: Store, clock: Clock, algorithm: str) -> None:  # N14
        limit = limit_of(algorithm)
        last = store.acquire([Spend(limit, cost=limit.most)]).readings[0]
        assert not store.acquire([Spend(limit)]).admitted
        assert store.give_back(Spend(limit, cost=limit.most), last)
        assert store.acquire([Spend(limit, cost=limit.most)]).admitted

    @every_algorithm
    def test_turns(self, store: Store, clock: Clock, algorithm: str) -> None:
        """100 tasks come at once and come back after the wait that they were told. They start in order, and ask about
        twice each."""
        limit, waiting, order, asks = limit_of(algorithm), [], [], 0
        clock.now = ALIGNED
        for n in range(100):
            outcome = store.acquire([Spend(limit)], Ticket(f"t{n:03}", max_sleep_us=0))
            asks += 1
            clock.now += 10
            if outcome.admitted:
                order.append(n)
            else:
                waiting.append((clock.now + outcome.wait_us, n, outcome.first_seen_us))
        while waiting:
            at, n, seen = min(waiting)
            waiting.remove((at, n, seen))
            clock.now = max(clock.now, at)
            outcome = store.acquire([Spend(limit)], Ticket(f"t{n:03}", seen, max_sleep_us=0))
            asks += 1
            if outcome.admitted:
                order.append(n)
            else:
                waiting.append((clock.now + outcome.wait_us, n, seen))
        assert order == sorted(order)
        assert asks <= (2.6 if algorithm == "sliding_counter" else 2) * 100
        periods = (clock.now - ALIGNED) / 1e6
        assert periods <= 100 / LIMIT * (1.2 if algorithm == "sliding_counter" else 1.01)

    @every_algorithm
    def test_a_changed_limit_is_counted_anew_or_further(
        self, store: Store, clock: Clock, algorithm: str
    ) -> None:  # N8
        slow, fast = limit_of(algorithm, 5, 60), limit_of(algorithm, 500, 60)
        for _ in range(5):
            store.acquire([Spend(slow)])
        assert store.peek([Spend(fast)]).wait_us <= 600_000
        for _ in range(10):
            store.acquire([Spend(fast)])
        assert not store.acquire([Spend(slow)]).admitted

    @pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_counter"])
    def test_two_versions_with_other_windows_stay_within_the_larger_limit(
        self, store: Store, clock: Clock, algorithm: str
    ) -> None:
        """During a rolling deploy each version asks with its own numbers, and an open window of the other version
        counts."""
        clock.now = ALIGNED + 1_000_000
        day, hour = limit_of(algorithm, 100, 86_400), limit_of(algorithm, 10, 3600)
        shifted = limit_of(algorithm, 100, 86_400, offset=7200)
        admitted = 0
        for seconds in (0.1, 60):  # within an hour, and over many of them
            for _ in range(200):
                for limit in (day, hour, shifted):
                    clock.forward(seconds)
                    admitted += store.acquire([Spend(limit)]).admitted
        assert admitted <= 100 + 100  # meanwhile a sliding counter's former window loses weight

    @pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_log", "sliding_counter"])
    def test_a_lowered_limit_waits_for_its_own_window(
        self, store: Store, clock: Clock, algorithm: str
    ) -> None:
        """It does not wait for as many windows as the units that were spent under the old limit would fill."""
        clock.now = ALIGNED
        many, few = limit_of(algorithm, 1000, 60), limit_of(algorithm, 10, 60)
        assert store.acquire([Spend(many, cost=1000)]).admitted
        wait = store.acquire([Spend(few)]).wait_us
        assert wait <= 120_000_000
        clock.now += wait
        assert store.acquire([Spend(few)]).admitted

    @every_algorithm
    def test_a_cost_above_a_lowered_limit_starts(
        self, store: Store, clock: Clock, algorithm: str
    ) -> None:
        high, low = limit_of(algorithm, 10, 60), limit_of(algorithm, 3, 60)
        store.change_override(high.name, rules=(low.rule,))
        assert store.acquire([Spend(high)]).admitted
        for _ in range(6):
            outcome = store.acquire([Spend(high, cost=5)])
            if outcome.admitted:
                return
            clock.now += outcome.wait_us
        raise AssertionError("it never starts")

    @every_algorithm
    def test_overrides(self, store: Store, clock: Clock, algorithm: str) -> None:
        """Overrides with the same algorithm, with another algorithm, and a pause; then the limit's own rule holds
        again."""
        limit, other = limit_of(algorithm), RateLimit("x", 3, 60, algorithm="sliding_log").rule
        at_once = 1 if algorithm == "leaky_bucket" else 7
        alike = (
            RateLimit("x", 7, 1, burst=at_once, margin=0).rule,
            *(limit_of(one, 7).rule for one in RULES[1:]),
        )
        for rules, most in (((other,), 3), (alike, 7)):
            store.change_override(limit.name, rules=rules)
            clock.forward(1000)
            asks = [ask(store, limit, id=f"{len(rules)}-{n}").admitted for n in range(30)]
            assert sum(asks) == most
        store.change_override(limit.name, rules=(), pause_us=5_000_000)
        clock.forward(1)
        assert store.acquire([Spend(limit)]).wait_us >= 4_000_000
        store.change_override(limit.name, pause_us=0)
        clock.forward(1000)
        assert sum(ask(store, limit, id=f"o{n}").admitted for n in range(30)) == LIMIT

    @pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_counter"])
    def test_windows_begin_at_their_offset(
        self, store: Store, clock: Clock, algorithm: str
    ) -> None:
        clock.now = ALIGNED + 240_000
        limit = limit_of(algorithm, offset=0.25)
        assert store.acquire([Spend(limit, cost=LIMIT)]).admitted
        if algorithm == "fixed_window":
            assert store.peek([Spend(limit)]).wait_us == 10_000
        clock.now += 10_000 + 1_000_000
        assert store.acquire([Spend(limit)]).admitted

    @every_algorithm
    def test_reset_keeps_the_line(self, store: Store, clock: Clock, algorithm: str) -> None:
        limit = limit_of(algorithm)
        store.acquire([Spend(limit, cost=limit.most)])
        seen = store.acquire([Spend(limit)], Ticket("first", max_sleep_us=0)).first_seen_us
        store.reset(limit.name)
        assert store.peek([Spend(limit)]).readings[0].waiting == 1
        assert store.acquire([Spend(limit)], Ticket("first", seen, max_sleep_us=0)).admitted

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

    @every_algorithm
    def test_a_period_shorter_than_the_sleep_in_place(
        self, store: Store, clock: Clock, algorithm: str
    ) -> None:
        """Starts are booked several windows ahead, and no booked start is forgotten."""
        limit, starts = limit_of(algorithm, 1, 0.1), []
        clock.now = ALIGNED
        for n in range(30):
            outcome = store.acquire([Spend(limit)], Ticket(f"t{n}", 1))
            if outcome.admitted:
                starts.append(clock.now + outcome.sleep_us)
            clock.now += 10_000
        starts.sort()
        assert len(starts) >= 3
        bound = limit.bound
        assert all(b - a >= 100_000 for a, b in zip(starts, starts[bound:], strict=False))

    @every_algorithm
    def test_small_ones_do_not_starve_a_large_one(
        self, store: Store, clock: Clock, algorithm: str
    ) -> None:
        limit = limit_of(algorithm, 10, 60)
        clock.now = ALIGNED
        for _ in range(3):
            store.acquire([Spend(limit)])
        # Of each task: when it asks, its id, its cost, and since when it waits.
        tasks = [(clock.now + 1, "large", 10, 0)]
        tasks += [(clock.now + n * 12_000_000, f"small{n}", 1, 0) for n in range(1, 30)]
        while tasks:  # the small tasks use half of the limit for six periods
            tasks.sort()
            clock.now, id, cost, seen = tasks.pop(0)
            outcome = store.acquire([Spend(limit, cost=cost)], Ticket(id, seen, max_sleep_us=0))
            if outcome.admitted and id == "large":
                return
            if not outcome.admitted:
                tasks.append((clock.now + outcome.wait_us, id, cost, outcome.first_seen_us))
        raise AssertionError("it never starts")

    def test_numbers_of_many_digits(self, store: Store, clock: Clock) -> None:
        """The units are bytes, and tasks wait in line."""
        limit = limit_of("sliding_counter", 300_000_000, 60)
        clock.now = ALIGNED
        assert store.acquire([Spend(limit, cost=300_000_000)]).admitted
        for n in range(8):
            store.acquire([Spend(limit, cost=30_000_000)], Ticket(f"t{n}", max_sleep_us=0))
        clock.forward(90)
        assert store.acquire([Spend(limit, cost=149_999_990)], Ticket("t0", ALIGNED)).admitted
        assert not store.acquire([Spend(limit, cost=75_000_000)]).admitted

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
        assert store.peek([Spend(few)]).wait_us == 800_000  # it remembers the last five starts
