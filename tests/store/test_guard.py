"""When the store gives no answer: one timeout, then the policy, and back by itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from fleetlimit import ConfigurationError, RateLimit, RateLimiter, StoreUnavailable
from fleetlimit.demo.measure import worst_window
from fleetlimit.demo.processes import Server, redis_server, until
from fleetlimit.store.base import Spend, Ticket, Verdict
from fleetlimit.store.connection import _COMMAND
from fleetlimit.store.guard import Guard
from fleetlimit.store.redis import RedisStore
from tests.proxy import Proxy, proxy

TEN = RateLimit("ten", 10, 1, burst=10)


@pytest.fixture
def between(server: Server) -> Iterator[Proxy]:
    with proxy(server.port) as one:
        yield one


def limiter(between: Proxy, **options: object) -> RateLimiter:
    return RateLimiter(f"redis://127.0.0.1:{between.port}/0", **options)  # type: ignore[arg-type]


def guard(between: Proxy, policy: str = "share", number: int | None = 4) -> Guard:
    store = RedisStore(f"redis://127.0.0.1:{between.port}/0")
    return Guard(store, policy, lambda: number)


def away(one: RateLimiter) -> bool:
    health = one.health()
    assert health
    return health.away


@pytest.mark.parametrize("how", ["refuse", "black_hole"])
def test_each_policy(between: Proxy, how: str) -> None:  # R6
    limits = {policy: RateLimit(policy, 1, 60, on_outage=policy) for policy in ("wait", "open")}
    one = limiter(between)
    assert one.acquire(TEN)
    between.refuse()
    if how != "refuse":
        between.black_hole = how == "black_hole"
        between.accept()
    with pytest.raises(StoreUnavailable):
        one.acquire(TEN)
    assert 5 <= one.acquire(limits["wait"]).retry_after <= 15
    assert all(one.acquire(limits["open"]) for _ in range(5))
    with pytest.raises(StoreUnavailable):
        one.acquire([limits["open"], TEN])  # the strictest rules
    assert not one.acquire([limits["open"], limits["wait"]])
    health = one.health()
    assert health
    assert (health.away, health.outages) == (True, 1)
    assert (health.admitted_alone, health.denied_alone) == (5, 2)
    between.black_hole = False
    if how == "refuse":
        between.accept()
    until(lambda: not away(one), "it is back")
    assert one.acquire(TEN)


def test_an_outage_costs_one_timeout(between: Proxy) -> None:  # R6
    one = limiter(between, on_outage="wait")
    one.acquire(TEN)
    between.black_hole = True
    began = time.perf_counter()
    one.acquire(TEN)
    first = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(1000):
        one.acquire(TEN)
    assert time.perf_counter() - began < first


def test_three_lost_replies_are_three_spends(between: Proxy, server: Server) -> None:  # R2
    between.lose_replies = 3
    for n in range(3):
        with pytest.raises(StoreUnavailable):
            limiter(between).acquire(TEN)  # each a process of its own, as it were
        assert RateLimiter(server.url).peek(TEN).remaining == 10 - 1 - n
    stats = redis.Redis.from_url(server.url).info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] >= 3  # type: ignore[index]


def test_a_share_is_a_part_of_the_limit(between: Proxy) -> None:
    fast = RateLimit("fast", 100, 1)
    one = guard(between, number=4)
    between.refuse()
    starts = []
    until_s = time.monotonic() + 2
    while time.monotonic() < until_s:
        outcome = one.acquire([Spend(fast)], Ticket("x"))
        assert outcome.alone
        assert outcome.admitted  # it sleeps for its cell
        time.sleep(outcome.sleep_us / 1e6)
        starts.append(time.monotonic())
    assert worst_window(starts, 1.0) <= 25
    assert len(starts) > 1.8 * 25 * 0.7


def test_a_share_holds_for_many_threads(between: Proxy) -> None:
    limit, threads = RateLimit("threads", 100, 1), 20
    one = guard(between, number=2)
    between.refuse()
    one.acquire([Spend(limit)])
    starts: list[float] = []
    end = time.monotonic() + 1.5

    def work(n: int) -> None:
        while time.monotonic() < end:
            outcome = one.acquire([Spend(limit)], Ticket(f"t{n}"))
            if outcome.admitted:
                starts.append(time.monotonic() + outcome.sleep_us / 1e6)  # when its cell is

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    assert worst_window(sorted(starts), 1.0) <= 50 + 1


def test_a_program_is_not_told_to_start_ahead_of_time(between: Proxy) -> None:
    """It has nobody who would sleep for it: a decision is for now."""
    limit = RateLimit("now", 20, 1)
    one = limiter(between, on_outage="share", processes=1)
    between.refuse()
    end, admitted = time.monotonic() + 1.0, 0
    while time.monotonic() < end:
        decision = one.acquire(limit)
        admitted += bool(decision)
        if not decision:
            assert decision.retry_after <= 0.06
            time.sleep(decision.retry_after)
    assert 10 <= admitted <= 21


def test_a_copy_from_a_room_waits(between: Proxy) -> None:
    """It may be one of two, and only the store knows."""
    one = guard(between, number=1)
    between.refuse()
    assert not one.acquire([Spend(TEN)], Ticket("x", copy="1")).admitted


def test_a_crowd_of_our_own_is_no_outage(between: Proxy) -> None:
    one = guard(between, "open")
    pool = one.inner.connection.client.connection_pool
    pool.timeout = 0.05
    taken = [pool.get_connection(*_COMMAND) for _ in range(pool.max_connections)]
    outcome = one.acquire([Spend(TEN)])
    assert (outcome.verdict, outcome.alone) == (Verdict.DENIED, True)
    assert 0 < outcome.wait_us < 1_000_000
    assert not one.health.away
    for connection in taken:
        pool.release(connection)
    assert not one.acquire([Spend(TEN)]).alone


@pytest.mark.parametrize("policy", ["share", "wait", "open"])
def test_a_crowd_takes_no_share_beside_the_limit(between: Proxy, policy: str) -> None:
    """The other processes get the whole limit from Redis meanwhile."""
    fast, one = RateLimit("fast", 100, 1), guard(between, policy, number=1)
    pool = one.inner.connection.client.connection_pool
    pool.timeout = 0.01
    taken = [pool.get_connection(*_COMMAND) for _ in range(pool.max_connections)]
    outcomes = [one.acquire([Spend(fast)], Ticket(f"t{n}")) for n in range(20)]
    assert not any(outcome.admitted for outcome in outcomes)
    assert (
        min(outcome.wait_us for outcome in outcomes) > Ticket.max_sleep_us
    )  # it goes into the queue
    health = one.health
    assert (health.away, health.admitted_alone, health.denied_alone) == (False, 0, 20)
    for connection in taken:
        pool.release(connection)


def test_a_client_with_too_few_connections_is_no_outage(server: Server) -> None:
    class Small(redis.ConnectionPool):
        """A user's own pool, which does not wait."""

    pool = Small.from_url(server.url, max_connections=1)
    taken = pool.get_connection(*_COMMAND)
    one = RateLimiter(redis.Redis(connection_pool=pool), on_outage="open")
    assert not one.acquire(TEN)
    assert not away(one)
    pool.release(taken)
    assert one.acquire(TEN)


def test_a_lost_reply_is_no_outage(between: Proxy, server: Server) -> None:
    """Redis is there: only this call does not know what became of it."""
    one = guard(between, "open")
    between.lose_replies = 1
    outcome = one.acquire([Spend(TEN)])
    assert (outcome.verdict, outcome.alone) == (Verdict.DENIED, True)
    assert not one.health.away
    assert not one.acquire([Spend(TEN)]).alone
    assert RateLimiter(server.url).peek(TEN).remaining == 8  # spent once, and not again


def test_a_late_reply_is_waited_for_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly = RateLimit("hourly", 10, 3600, burst=10)
    with redis_server(tmp_path) as slow:
        one, read = Guard(RedisStore(slow.url), "share", lambda: 1), redis.Connection.read_response
        assert one.acquire([Spend(hourly)]).admitted
        slow.process.send_signal(signal.SIGSTOP)

        def woken(self: redis.Connection, *args: object, **options: object) -> object:
            try:
                return read(self, *args, **options)  # type: ignore[arg-type]
            except redis.TimeoutError:
                slow.process.send_signal(signal.SIGCONT)  # it goes on once it was late
                raise

        monkeypatch.setattr(redis.Connection, "read_response", woken)
        outcome = one.acquire([Spend(hourly)])
        assert (outcome.admitted, outcome.alone, one.health.outages) == (True, False, 0)
        assert one.inner.peek([Spend(hourly)]).readings[0].remaining == 8  # spent once


def test_a_connection_of_a_users_client_has_its_own_patience(between: Proxy) -> None:
    url = f"redis://127.0.0.1:{between.port}/0"
    one = RateLimiter(redis.Redis.from_url(url, socket_timeout=0.6))
    assert one.acquire(TEN)
    between.black_hole = True
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        one.acquire(TEN)
    assert time.monotonic() - began > 0.5
    assert away(one)


def test_a_store_that_answers_reads_only_is_away(between: Proxy) -> None:
    one = guard(between, "open")
    between.lose_replies = 10**6
    until(lambda: one.acquire([Spend(TEN)]).admitted, "the policy rules", 10)
    assert one.health.away
    between.lose_replies = 0
    until(lambda: not one.health.away, "it is back")


def test_a_master_that_became_a_replica_is_left(server: Server, tmp_path: Path) -> None:  # R5
    """The address moves to another server; the old one lives on, and refuses writes."""
    folder = tmp_path / "old"
    folder.mkdir()
    with redis_server(folder) as old, proxy(old.port) as between:
        one = guard(between, "open")
        assert not one.acquire([Spend(TEN)]).alone
        redis.Redis(port=old.port).execute_command("REPLICAOF", "127.0.0.1", "1")
        between.target = server.port
        assert one.acquire([Spend(TEN)]).alone
        until(lambda: not one.health.away, "the new one is found", 10)
        assert not one.acquire([Spend(TEN)]).alone


@pytest.mark.parametrize("value", ["theirs", str(10**18), "-5"])
def test_a_foreign_instant_is_set_anew(between: Proxy, server: Server, value: str) -> None:
    redis.Redis.from_url(server.url).set("fleetlimit:back", value)
    one = guard(between, "open")
    between.refuse()
    one.acquire([Spend(TEN)])
    between.accept()
    until(lambda: not one.health.away, "it is back", 10)
    assert not one.acquire([Spend(TEN)]).alone


def test_many_keys_without_the_store(between: Proxy) -> None:
    """Memory and time stay bounded: twice the keys take about twice as long."""
    slow = RateLimit("slow", 1, 3600)
    one = guard(between)
    between.refuse()
    one.acquire([Spend(slow)])
    took = []
    for part in range(2):
        began = time.perf_counter()
        for n in range(8000):
            one.acquire([Spend(slow, f"{part}-{n}")])
        took.append(time.perf_counter() - began)
    assert took[1] < 5 * took[0]


@pytest.mark.parametrize("number", [1, 3, 7])
def test_all_shares_together_stay_near_the_limit(between: Proxy, number: int) -> None:
    burst = RateLimit("burst", 20, 1, burst=20)
    fleet = [guard(between, number=number) for _ in range(number)]
    between.refuse()
    admitted = 0
    for one in fleet:
        while one.acquire([Spend(burst)]).admitted:
            admitted += 1
    assert admitted <= 20 + number


def test_a_long_wait_is_taken_in_the_queue(between: Proxy) -> None:
    slow = RateLimit("slow", 1, 36_000)  # a share begins at random, hardly ever within a sleep
    one = guard(between)
    between.refuse()
    outcome = one.acquire([Spend(slow)], Ticket("x"))
    assert (outcome.verdict, outcome.first_seen_us) == (Verdict.DENIED, 0)
    assert outcome.wait_us >= 1_000_000


def test_all_or_nothing_without_the_store(between: Proxy) -> None:  # N12
    slow, fast = RateLimit("slow", 1, 3600), RateLimit("fast", 1000, 1)
    one = guard(between, number=1)
    between.refuse()
    assert not one.acquire([Spend(fast), Spend(slow)], Ticket("x")).admitted
    assert one.acquire([Spend(fast)], Ticket("x")).sleep_us <= 2000


def test_who_never_learned_the_number_waits(between: Proxy) -> None:
    one = guard(between, number=None)
    between.refuse()
    outcome = one.acquire([Spend(TEN)])
    assert outcome.verdict is Verdict.DENIED
    assert 5e6 <= outcome.wait_us <= 15e6


def test_a_share_follows_the_numbers_that_were_in_force(between: Proxy) -> None:
    one = guard(between, number=1)
    RateLimiter(one.inner).configure("ten", 1, 3600, force=True)
    assert one.acquire([Spend(TEN)]).admitted
    between.refuse()
    assert not one.acquire([Spend(TEN)]).admitted


def test_a_parked_message_is_asked_for_before_a_second_copy_is_made(between: Proxy) -> None:
    slow = RateLimit("slow", 1, 60)
    one = guard(between)
    assert one.acquire([Spend(slow)]).admitted
    between.lose_replies = 2
    ticket = Ticket("x", message="m", broker="b")
    assert one.acquire([Spend(slow)], ticket).verdict is Verdict.PARKED
    assert one.inner.peek([Spend(slow)]).readings[0].waiting == 1


def test_all_go_back_at_the_same_instant(between: Proxy) -> None:
    fleet = [guard(between) for _ in range(6)]
    back: dict[int, float] = {}
    for n, one in enumerate(fleet):
        one._on_change = lambda away, cause, n=n: None if away else back.setdefault(n, time.time())  # type: ignore[misc]
        one.acquire([Spend(TEN)])
    between.refuse()
    for one in fleet:
        assert one.acquire([Spend(TEN)]).alone
    time.sleep(1)
    between.accept()
    until(lambda: len(back) == 6, "all are back", 10)
    # Without the common instant they would be spread over the probes' interval, 0.2 s at least.
    assert max(back.values()) - min(back.values()) < 0.15
    assert not any(one.acquire([Spend(TEN)]).alone for one in fleet)


def test_a_change_is_told_and_logged_once(between: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[bool, bool]] = []
    one = limiter(
        between, on_outage="open", on_change=lambda away, cause: told.append((away, bool(cause)))
    )
    between.refuse()
    for _ in range(50):
        assert one.acquire(TEN)
    between.accept()
    until(lambda: len(told) == 2, "both changes")
    assert told == [(True, True), (False, False)]
    assert len(caplog.messages) == 2
    assert "LIMITS ARE OPEN" in caplog.messages[0]


def test_a_forked_child_begins_anew(between: Proxy) -> None:  # R7
    one = limiter(between, on_outage="open")
    between.refuse()
    assert one.acquire(TEN)
    between.accept()
    pid = os.fork()
    if not pid:
        os._exit(0 if not away(one) and one.acquire(TEN).remaining == 9 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("number", ["4", 0, -1, 2.5, True])
def test_numbers_of_processes_are_checked(number: object) -> None:
    with pytest.raises(ConfigurationError, match="processes="):
        RateLimiter("redis://127.0.0.1:1/0", processes=number)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["", "Share", 1])
def test_unknown_policies_are_refused(policy: object) -> None:
    with pytest.raises(ConfigurationError, match="on_outage="):
        RateLimiter("redis://127.0.0.1:1/0", on_outage=policy)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="on_outage="):
        RateLimit("x", 1, 1, on_outage=policy)  # type: ignore[arg-type]


def test_no_share_is_taken_beyond_the_return(between: Proxy) -> None:
    """From then on the store hands out the whole limit: a cell of a process's own would come on top."""
    limit, one = RateLimit("back", 10, 1), guard(between, number=4)
    between.refuse()
    assert one.acquire([Spend(limit)], Ticket("first")).alone
    between.accept()
    until(lambda: one._back_us, "it knows when it asks again")
    denied = 0
    while (outcome := one.acquire([Spend(limit)], Ticket("x"))).alone:
        if outcome.admitted:
            assert outcome.now_us + outcome.sleep_us < one._back_us
            time.sleep(outcome.sleep_us / 1e6)
        else:
            denied += 1
            time.sleep(0.01)
    assert denied


def test_peek_follows_the_policy_and_spends_nothing(between: Proxy) -> None:
    one = limiter(between, on_outage="share", processes=1)
    one.acquire(TEN)
    between.refuse()

    def limit(policy: str | None) -> RateLimit:
        return RateLimit(f"peek-{policy}", 1, 3600, on_outage=policy)

    for _ in range(3):  # the first one notices that Redis is away
        assert one.peek(limit("open"))
    assert 5 <= one.peek(limit("wait")).retry_after <= 15
    with pytest.raises(StoreUnavailable):
        one.peek(limit("raise"))
    assert one.peek([limit("open"), limit("wait")]).retry_after >= 5
    with pytest.raises(StoreUnavailable):
        one.peek([limit("open"), limit("raise")])
    health = one.health()
    assert health
    assert (health.away, health.admitted_alone, health.denied_alone) == (True, 0, 0)


def test_peek_tells_what_the_share_would_say(between: Proxy) -> None:
    one, hundred = limiter(between, on_outage="share", processes=10), RateLimit("hundred", 100, 1)
    one.acquire(TEN)
    between.refuse()
    until(lambda: bool(one.peek(hundred)), "a unit of its share", 5)
    assert all(one.peek(hundred) for _ in range(20))  # nobody spent it
    assert one.acquire(hundred)
    denied = one.peek(hundred)
    assert not denied
    assert 0 < denied.retry_after <= 0.11
    assert not one.acquire(hundred)


def test_a_first_peek_notices_the_outage(between: Proxy) -> None:
    one, slow = limiter(between, on_outage="open"), RateLimit("slow", 10, 3600, burst=10)
    one.acquire(slow)
    between.black_hole = True
    assert one.peek(slow)
    began = time.perf_counter()
    for _ in range(100):
        assert one.peek(slow)
    assert away(one)
    assert time.perf_counter() - began < 100 * 0.25  # not one timeout each
    between.black_hole = False
    until(lambda: not away(one), "it is back")
    assert one.peek(slow).remaining == 9
