"""The waiting room on a real server, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from fleetlimit import ConfigurationError, RateLimit, RateLimiter, StateError
from fleetlimit.conformance import START, Clock
from fleetlimit.demo.processes import Server
from fleetlimit.store.base import Outcome, Spend, Ticket, Verdict
from fleetlimit.store.memory import MemoryStore
from fleetlimit.store.redis import LEASE_US, RedisStore
from fleetlimit.store.room import Fate, Released, Room

TEN = RateLimit("ten", 10, 1, margin=0)
LEAD = 150_000
LINE = "fleetlimit:{ten}"


class Rig:
    """One line, its room, and what a fleet would do with them."""

    def __init__(self, store: RedisStore, clock: Clock) -> None:
        self.store, self.clock, self.room = store, clock, Room(store)
        self.started: list[str] = []
        #: Messages in the "queue": id, first-seen time, copy.
        self.queue: list[tuple[str, int, str]] = []

    def ask(self, id: str, seen: int = 0, copy: str = "", message: str = "body") -> Outcome:
        ticket = Ticket(id, seen, copy=copy, message=message and f"{message} of {id}")
        outcome = self.store.acquire([Spend(TEN)], ticket)
        if outcome.admitted:
            self.started.append(id)
        return outcome

    def park(self, number: int) -> None:
        """The first starts, the next two are near and never come back, the others are parked."""
        assert self.ask("first").admitted
        for n in range(number):
            self.clock.now += 10
            self.ask(f"t{n}")

    def let_go(self, *, confirm: bool = True) -> list[str]:
        released = self.release()
        ids = [id for id, _, _ in released.messages]
        self.queue += [(id, seen, str(released.copy)) for id, seen, _ in released.messages]
        if confirm and ids:
            self.confirm(released)
        return ids

    def release(self, line: str = LINE) -> Released:
        (found,) = self.room.release([line], LEAD)
        if isinstance(found, StateError):
            raise found
        return found

    def confirm(self, released: Released) -> None:
        self.room.settle([Fate(released, {id: None for id, _, _ in released.messages})])

    def deliver(self) -> list[Verdict]:
        queue, self.queue = self.queue, []
        return [self.ask(*one).verdict for one in queue]

    def parked(self) -> int:
        return self.room.status("ten").parked


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["valkey", "redis7"])
def rig(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Rig]:
    server: Server = request.getfixturevalue(request.param)
    redis.Redis.from_url(server.url).flushall()
    store = RedisStore(server.url, clock=clock)
    yield Rig(store, clock)
    store.close()


def test_far_turns_are_parked_near_ones_are_not(rig: Rig) -> None:
    assert rig.ask("first").admitted
    verdicts = [rig.ask(f"t{n}").verdict for n in range(6)]
    assert verdicts == [Verdict.DENIED] * 2 + [Verdict.PARKED] * 4
    status = rig.room.status("ten")
    assert (status.waiting, status.parked) == (6, 4)
    assert rig.room.parked("ten") == ["t2", "t3", "t4", "t5"]


def test_drains_in_order_at_the_limits_pace(rig: Rig, clock: Clock) -> None:
    rig.park(40)
    for n in range(2):  # the two near ones come by themselves
        rig.queue.append((f"t{n}", START + 10 * (n + 1), ""))
    while len(rig.started) < 41:
        rig.let_go()
        assert Verdict.PARKED not in rig.deliver()
        clock.now += 50_000
        assert clock.now < START + 5_000_000
    assert rig.started == ["first", *(f"t{n}" for n in range(40))]
    assert clock.now <= START + 4_200_000


def test_one_keeps_exactly_its_message(rig: Rig, clock: Clock) -> None:
    rig.park(5)
    clock.forward(1.4)
    released = rig.release()
    (id, seen, message) = released.messages[0]
    assert (id, message) == ("t2", "body of t2")
    assert seen == START + 30
    assert released.copy == clock.now


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_log"])
def test_all_for_whom_there_are_units_are_let_go_at_once(
    rig: Rig, clock: Clock, algorithm: str
) -> None:
    """A long window's whole limit exists at its start, and not at the limit's even pace."""
    limit = RateLimit("day", 50, 3600, algorithm=algorithm, margin=0)
    for n in range(90):
        clock.now += 10
        rig.store.acquire([Spend(limit)], Ticket(f"t{n}", message="x"))
    line = "fleetlimit:{day}"
    assert rig.release(line).messages == []
    clock.now = rig.release(line).next_us + LEAD + 1000
    assert len(rig.release(line).messages) == 40


def test_who_was_let_go_and_has_not_started_counts(rig: Rig, clock: Clock) -> None:
    """The workers stall for a minute, the releasers do not: no burst is let go."""
    rig.park(300)
    out = 0
    for _ in range(600):
        clock.forward(0.1)
        out += len(rig.let_go())
    assert out <= 10 * (60 * 0.3 + 5)  # 3 s' worth at once, and again when their tickets are void
    assert rig.parked() >= 100


def test_dead_tasks_make_no_hole(rig: Rig, clock: Clock) -> None:
    """Four tasks were let go to a worker that died: the next go on after a second."""
    rig.park(20)
    clock.forward(1.4)
    assert rig.let_go()
    rig.queue.clear()
    started = len(rig.started)
    for _ in range(40):
        clock.forward(0.1)
        rig.let_go()
        rig.deliver()
    assert len(rig.started) - started >= 14


def test_a_task_is_let_go_as_early_as_the_way_takes(rig: Rig, clock: Clock) -> None:
    """Early sleepers hold the pool's slots, late ones lose their cells."""
    rig.park(20)
    clock.forward(1.1)  # those who never come back count no more

    def next_let_go() -> float:
        before = clock.now
        while not rig.let_go():
            clock.forward(0.005)
        return (clock.now - before) / 1e6

    paces = []
    next_let_go()
    for _ in range(5):
        assert rig.deliver() == [Verdict.ADMITTED]
        paces.append(next_let_go())
    assert paces[-3:] == [pytest.approx(0.1, abs=0.006)] * 3  # 50 ms before each turn
    # This one does not arrive: the one behind it goes the earlier.
    assert next_let_go() < 0.06


def test_a_claim_without_confirmation_is_void_after_the_lease(rig: Rig, clock: Clock) -> None:
    rig.park(5)
    clock.forward(1.4)
    ids = rig.let_go(confirm=False)
    assert ids
    rig.queue.clear()  # the releaser died before it published
    assert not set(ids) & set(rig.let_go(confirm=False))
    clock.now += LEASE_US
    assert set(ids) <= set(rig.let_go())


@pytest.mark.parametrize("order", ["early first", "late first"])
def test_two_copies_start_once(rig: Rig, clock: Clock, order: str) -> None:
    """A releaser dies between publishing and confirming: both copies come, in either order."""
    rig.park(5)
    clock.forward(1.4)
    first = rig.let_go(confirm=False)[0]
    early = next(one for one in rig.queue if one[0] == first)
    rig.queue.clear()
    clock.now += LEASE_US
    assert first in rig.let_go()
    late = next(one for one in rig.queue if one[0] == first)
    one, other = (early, late) if order == "early first" else (late, early)
    assert rig.ask(*one).admitted
    assert rig.ask(*other).verdict is Verdict.DUPLICATE
    assert first not in rig.room.parked("ten")
    clock.forward(1)
    assert rig.ask(
        *one
    ).admitted  # the copy that started, again: a crash, and Celery's own guarantee


def test_parked_again_before_the_confirmation_is_kept(rig: Rig, clock: Clock) -> None:
    rig.park(8)
    clock.forward(1.4)
    released = rig.release()
    id, seen, _ = released.messages[0]
    rig.store.change_override("ten", pause_us=10**7)
    assert rig.ask(id, seen, str(released.copy)).verdict is Verdict.PARKED
    rig.confirm(released)
    assert id in rig.room.parked("ten")


def test_pause_and_resume(rig: Rig, clock: Clock) -> None:
    limiter = RateLimiter(rig.store)
    rig.park(8)
    limiter.pause("ten", 30)
    clock.forward(5)
    assert rig.let_go() == []
    assert rig.ask("fresh").verdict is Verdict.PARKED
    assert limiter.status("ten").paused == pytest.approx(25)
    assert limiter.peek(TEN).retry_after > 25
    limiter.resume("ten")
    assert rig.let_go()
    assert RateLimiter(rig.store).status("ten").paused == 0


def test_a_raised_limit_changes_the_pace_of_those_who_wait(rig: Rig, clock: Clock) -> None:
    limiter = RateLimiter(rig.store)
    rig.park(200)
    rig.room.due_lines()  # a releaser is there
    limiter.configure("ten", 100, 1, margin=0)
    assert rig.room.due_lines().lines == (LINE,)  # woken
    ids = 0
    for _ in range(100):
        clock.forward(0.01)
        ids += len(rig.let_go())
        rig.deliver()
    assert len(rig.started) >= 90
    limiter.configure("ten")
    assert rig.store.override("ten").rules == ()


def test_cancelled_tasks_are_gone_and_free_their_places(rig: Rig, clock: Clock) -> None:
    limiter = RateLimiter(rig.store)
    rig.park(10)
    assert limiter.cancel("ten", "t5")
    assert not limiter.cancel("ten", "t5")
    assert not limiter.cancel("ten", "t0")  # near: not parked
    assert limiter.status("ten").waiting == 9
    assert "t5" not in limiter.parked("ten")


def test_parked_tasks_never_expire_and_an_empty_line_does(rig: Rig, clock: Clock) -> None:
    rig.park(6)
    client = rig.store.connection.client
    assert [client.pttl(LINE + key) for key in ("", ":line", ":room")] == [-1] * 3
    assert client.zcard("fleetlimit:rooms:") == 1
    for _ in range(30):
        clock.forward(0.1)
        rig.let_go()
        rig.deliver()
    clock.forward(30)
    rig.ask("last", message="")
    rig.release()
    assert client.zcard("fleetlimit:rooms:") == 0
    left = {
        key.decode(): client.pttl(key) for key in client.keys("*") if key != b"fleetlimit:brokers"
    }
    assert all(ttl > 0 for ttl in left.values()), left


def test_the_last_confirmation_does_not_shorten_the_bucket(rig: Rig) -> None:
    """A full bucket that lasts longer than the deadline of who was let go."""
    wide = RateLimit("wide", 100, 60, burst=100)
    for _ in range(100):
        assert rig.store.acquire([Spend(wide)]).admitted
    ticket = Ticket("x", message="m")
    assert rig.store.acquire([Spend(wide)], ticket).verdict is Verdict.PARKED
    rig.clock.forward(0.58)
    released = rig.release("fleetlimit:{wide}")
    rig.confirm(released)
    assert rig.store.connection.client.pttl("fleetlimit:{wide}") > 59_000


def test_a_retry_with_the_same_id_is_a_new_life(rig: Rig, clock: Clock) -> None:
    """Let go twice, started; then its body retries, waits, is let go and comes late."""
    rig.park(5)
    clock.forward(1.4)
    id = rig.let_go(confirm=False)[0]
    clock.now += LEASE_US
    rig.let_go()
    _, seen, copy = next(one for one in rig.queue if one[0] == id)
    assert rig.ask(id, seen, copy).admitted
    clock.now += 1
    assert rig.ask(id).verdict in (Verdict.PARKED, Verdict.DENIED)  # the retry, a newcomer
    for _ in range(40):
        clock.forward(0.1)
        rig.queue.clear()
        if id in rig.let_go():
            break
    _, seen, copy = next(one for one in rig.queue if one[0] == id)
    clock.forward(11)  # its ticket is void by now
    assert rig.ask(id, seen, copy).admitted


def test_parked_for_one_limit_does_not_stand_in_the_way_at_another(rig: Rig, clock: Clock) -> None:
    slow = RateLimit("slow", 1, 100)
    rig.store.acquire([Spend(TEN), Spend(slow)])
    for n in range(20):
        both = Ticket(f"both{n}", message="m")
        assert rig.store.acquire([Spend(TEN), Spend(slow)], both).verdict is Verdict.PARKED
    clock.forward(1)
    assert rig.room.status("ten").waiting == 0
    rig.park(10)
    for _ in range(40):
        clock.forward(0.1)
        rig.let_go()
        rig.deliver()
    assert len(rig.started) >= 9


def test_dead_tickets_leave_no_units_behind(rig: Rig, clock: Clock) -> None:
    rig.ask("first")
    for n in range(60):
        rig.ask(f"dead{n}", message="")
    for n in range(20):
        rig.ask(f"t{n}")
    clock.forward(30)
    while rig.parked():
        clock.forward(0.05)
        rig.let_go()
        rig.deliver()
    assert clock.now - START < 36_000_000
    assert len(rig.started) >= 20


def test_dropping_an_override_frees_those_who_were_parked_under_it(rig: Rig, clock: Clock) -> None:
    limiter = RateLimiter(rig.store)
    limiter.configure("ten", 1, 3600, force=True)
    rig.ask("first")
    for n in range(4):
        assert rig.ask(f"t{n}").verdict is Verdict.PARKED
    limiter.configure("ten")
    assert rig.let_go()  # it is visited at once


def test_a_raised_limit_counts_from_the_next_visit_and_not_from_each(
    rig: Rig, clock: Clock
) -> None:
    """Nobody asks meanwhile: the releaser alone must keep the clamp."""  # N8
    limiter = RateLimiter(rig.store)
    limiter.configure("ten", 1, 3600, margin=0, force=True)
    rig.ask("first")
    for n in range(3):
        assert rig.ask(f"t{n}").verdict is Verdict.PARKED
    limiter.configure("ten", 1, 10, margin=0)
    assert rig.let_go() == ["t0"]  # offered, so that the new numbers are kept
    assert rig.deliver() == [Verdict.PARKED]
    for _ in range(4):
        clock.forward(2.4)
        assert rig.let_go() == []
    clock.forward(0.4)
    assert rig.let_go() == ["t0"]


def test_a_limit_lowered_by_a_deploy_is_not_undone_by_who_is_parked(rig: Rig, clock: Clock) -> None:
    """They were parked under the old numbers, but start under the new ones."""  # N8
    lowered = RateLimit("ten", 1, 10, margin=0)
    rig.park(30)
    started = 0
    for _ in range(100):
        clock.forward(0.05)
        rig.let_go()
        queue, rig.queue = rig.queue, []
        for id, seen, copy in queue:
            ticket = Ticket(id, seen, copy=copy, message=f"again {id}")
            started += rig.store.acquire([Spend(lowered)], ticket).admitted
    assert 1 <= started <= 2


def test_cancelling_the_last_one_lets_the_keys_expire(rig: Rig) -> None:
    rig.park(6)
    for id in rig.room.parked("ten"):
        assert rig.room.cancel("ten", id)
    client = rig.store.connection.client
    assert all(client.pttl(LINE + key) > 0 for key in ("", ":line"))


def test_a_parked_task_that_starts_leaves_nothing_for_ever(rig: Rig) -> None:
    """Behind it in line stood one that never came back."""
    rig.ask("first")
    rig.ask("parked", seen=1)
    rig.store.acquire([Spend(TEN)], Ticket("dead", max_sleep_us=0))
    rig.clock.forward(1)
    assert rig.ask("parked", seen=1).admitted
    client = rig.store.connection.client
    assert {key for key in client.scan_iter("fleetlimit:{ten}*") if client.pttl(key) == -1} == set()


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_log"])
def test_a_new_window_belongs_to_those_who_waited_for_it(
    rig: Rig, clock: Clock, algorithm: str
) -> None:
    """Newcomers ask each millisecond around its begin; those parked come 5 ms after they were let go."""
    limit = RateLimit("day", 20, 86_400, algorithm=algorithm, margin=0)
    for n in range(60):
        rig.store.acquire([Spend(limit)], Ticket(f"t{n:02}", message="x"))
    line, started, coming = "fleetlimit:{day}", list[str](), list[tuple[int, str, int, int]]()
    clock.now = rig.release(line).next_us + 200_000 - 100_000
    for n in range(400):
        clock.now += 1000
        if n % 10 == 0:
            released = rig.release(line)
            rig.confirm(released)
            coming += [(clock.now + 5000, id, at, released.copy) for id, at, _ in released.messages]
        for due in [one for one in coming if one[0] <= clock.now]:
            coming.remove(due)
            ticket = Ticket(due[1], due[2], copy=str(due[3]), message="x")
            started += [due[1]] * rig.store.acquire([Spend(limit)], ticket).admitted
        started += ["new"] * rig.store.acquire(
            [Spend(limit)], Ticket(f"n{n}", message="x")
        ).admitted
    assert len(started) == 20
    assert started.count("new") <= 2


def test_reset_wakes_who_is_parked(rig: Rig) -> None:
    slow = RateLimit("slow", 1, 3600)
    rig.store.acquire([Spend(slow)])
    rig.store.acquire([Spend(slow)], Ticket("x", message="m"))
    rig.room.due_lines()
    rig.store.reset(slow.name)
    assert rig.room.due_lines().lines == ("fleetlimit:{slow}",)


def test_messages_of_another_broker_stay(rig: Rig, clock: Clock) -> None:
    rig.ask("first")
    for n in range(8):
        ticket = Ticket(f"t{n}", lane=str(n % 2), broker="theirs" if n % 2 else "", message="m")
        rig.store.acquire([Spend(TEN)], ticket)
    clock.forward(1.5)
    ours = set(rig.let_go())
    other = Room(rig.store, "theirs")
    other.due_lines()
    (theirs,) = other.release([LINE], LEAD)
    assert isinstance(theirs, Released)
    assert ours <= {"t0", "t2", "t4", "t6"}
    assert ours
    assert {id for id, _, _ in theirs.messages} <= {"t1", "t3", "t5", "t7"}


@pytest.mark.parametrize("suffix", [":override", ":room"])
def test_foreign_data_is_a_typed_error(rig: Rig, suffix: str) -> None:
    rig.park(5)
    rig.store.connection.client.delete(LINE + suffix)
    rig.store.connection.client.set(LINE + suffix, "x")
    with pytest.raises(StateError, match="fleetlimit"):
        rig.release()
    if suffix == ":override":
        with pytest.raises(StateError, match="fleetlimit"):
            rig.ask("t9", 5)
        with pytest.raises(StateError, match="fleetlimit"):
            rig.store.override("ten")


def test_memory_store_has_no_room() -> None:
    with pytest.raises(ConfigurationError, match="no waiting room"):
        RateLimiter(MemoryStore()).status("ten")


@pytest.mark.parametrize("seconds", [0, -1, True, "5", float("nan"), float("inf")])
def test_bad_pause(seconds: object) -> None:
    with pytest.raises(ConfigurationError, match="seconds="):
        RateLimiter(MemoryStore()).pause("ten", seconds)  # type: ignore[arg-type]


def test_override_in_memory_is_the_same(clock: Clock) -> None:
    limiter = RateLimiter(MemoryStore(clock))
    limiter.configure("ten", 100, 1, margin=0)
    limiter.acquire(TEN)
    assert limiter.peek(TEN).retry_after == pytest.approx(0.01)
    limiter.pause("ten", 5)
    assert limiter.peek(TEN).retry_after == pytest.approx(5)
    limiter.resume("ten")
    limiter.configure("ten")
    assert limiter.peek(TEN).retry_after == pytest.approx(0.01)
