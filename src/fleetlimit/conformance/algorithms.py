"""What a store must do with every algorithm."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fleetlimit.algorithms.registry import ALGORITHMS, ONE_OF_EACH, kind_of, name_of
from fleetlimit.conformance.clock import START, Clock
from fleetlimit.errors import CostError
from fleetlimit.limit import RateLimit
from fleetlimit.store.base import Outcome, Spend, Store, Ticket

__all__ = ["ALIGNED", "AlgorithmSuite", "limit_of"]

LIMIT = 20
#: All windows in this suite are aligned to this time.
ALIGNED = START - 999

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
with_an_offset = pytest.mark.parametrize(
    "algorithm", [one for one in ALGORITHMS if "offset" in name_of(one).options]
)


def limit_of(algorithm: str, limit: int = LIMIT, per: float = 1, **options: Any) -> RateLimit:
    """A limit that lets a whole period's units start at once, if its algorithm can do so."""
    if "burst" in name_of(algorithm).options:
        options["burst"] = limit
    return RateLimit(algorithm, limit, per, algorithm=algorithm, margin=0, **options)


def is_queue(limit: RateLimit) -> bool:
    """Whether it starts its units one after the other, however many have not been used."""
    return limit.rule.remaining(None, START) < limit.limit


def ask(store: Store, limit: RateLimit, cost: int = 1, *, id: str = "") -> Outcome:
    """Ask so that as many units as the limit are admitted at once. A queue, such as the leaky bucket, is asked like a
    queue: it admits `limit` units, each of which sleeps until its own turn."""
    if not is_queue(limit) or not id:
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
        assert len(starts) >= (0.98 if limit.rule.exact else 0.9) * spent

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
        if not is_queue(limit):
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
        assert asks <= (2 if limit.rule.exact else 2.6) * 100
        periods = (clock.now - ALIGNED) / 1e6
        assert periods <= 100 / LIMIT * (1.01 if limit.rule.exact else 1.2)

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

    @with_an_offset
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
        assert admitted <= 100 + 100  # meanwhile a former window that is weighted loses weight

    @every_algorithm
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
        limit = limit_of(algorithm)
        others = [one for one in ONE_OF_EACH if kind_of(one) is not kind_of(algorithm)]
        other = limit_of(others[0], 3, 60).rule
        alike = [limit_of(one, 7).rule for one in (algorithm, *others)]
        for rules, most in (([other], 3), (alike, 7)):
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

    @with_an_offset
    def test_windows_begin_at_their_offset(
        self, store: Store, clock: Clock, algorithm: str
    ) -> None:
        clock.now = ALIGNED + 240_000
        limit = limit_of(algorithm, offset=0.25)
        assert store.acquire([Spend(limit, cost=LIMIT)]).admitted
        denied = store.peek([Spend(limit)])
        assert denied.readings[0].reset_us % 1_000_000 == 10_000
        assert denied.wait_us == 10_000 or (denied.wait_us > 10_000 and not limit.rule.exact)
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
