"""Lanes of a line: whose tasks are where, and who counts as ahead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetlimit import RateLimit
from fleetlimit.conformance import Clock
from fleetlimit.demo.processes import Server
from fleetlimit.store.base import Outcome, Spend, Ticket, Verdict
from fleetlimit.store.redis import RedisStore
from fleetlimit.store.room import SERVED_US, Fate, Released, Room

from .simulation import WAY_US, Copy, Fleet

TEN = RateLimit("ten", 10, 1, margin=0)
LINE = "fleetlimit:{ten}"
LEAD = 150_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(server: Server, clock: Clock) -> Iterator[RedisStore]:
    found = RedisStore(server.url, clock=clock)
    yield found
    found.close()


def ask(
    store: RedisStore, id: str, seen: int = 0, broker: str = "ours", message: str = "body"
) -> Outcome:
    where = {"broker": broker, "lane": f"lane{broker}", "queue": "celery"}
    return store.acquire([Spend(TEN)], Ticket(id, seen, message=message, **where))


def ids(released: object) -> list[str]:
    assert isinstance(released, Released)
    return [id for id, _, _ in released.messages]


def test_a_task_that_parks_is_let_go_by_whoever_serves_the_queue_it_came_from(
    store: RedisStore, clock: Clock
) -> None:
    """Its first denial came while the name of the broker was not known; its place stays the same."""
    for n in range(40):
        clock.now += 10
        ask(store, f"before{n}", message="")
    clock.now += 10
    first = ask(store, "it", broker="", message="")
    assert first.verdict is Verdict.DENIED
    clock.forward(0.01)
    ask(store, "after")
    again = ask(store, "it", first.first_seen_us)
    assert again.verdict is Verdict.PARKED
    assert again.first_seen_us == first.first_seen_us
    clock.forward(60)  # all others have been too late by then
    (released,) = Room(store, "ours").release([LINE], LEAD)
    assert ids(released)[:1] == ["it"]


def test_who_joined_later_does_not_bring_back_those_who_are_gone(
    store: RedisStore, clock: Clock
) -> None:
    assert ask(store, "first", message="").admitted
    for n in range(50):  # they wait as countdowns, and die with their worker
        clock.now += 10
        ask(store, f"dead{n}", message="")
    clock.forward(1.6)
    for n in range(3):  # the cells that stood idle are one, with a burst of one
        later = [ask(store, f"later{n}-{m}", message="") for m in range(3)]
        assert [one.admitted for one in later] == [True, False, False]
        assert max(one.wait_us for one in later) <= 300_000
        for m, one in enumerate(later[1:], 1):
            clock.forward(0.1)
            assert ask(store, f"later{n}-{m}", one.first_seen_us, message="").admitted
        clock.forward(0.2)


def long_queue(store: RedisStore, clock: Clock) -> Room:
    """Tasks were let go into a queue so long that none of them has come."""
    room = Room(store, "ours")
    assert ask(store, "first").admitted
    for n in range(30):
        clock.now += 10
        ask(store, f"parked{n}")
    for _ in range(30):
        clock.forward(0.1)
        (released,) = room.release([LINE], LEAD)
        assert isinstance(released, Released)
        room.settle([Fate(released, dict.fromkeys(ids(released)))])
    return room


def test_who_comes_from_a_long_queue_is_parked_also_if_its_turn_is_near(
    store: RedisStore, clock: Clock
) -> None:
    """In the queue it would come behind all that is there, be denied, and go round again."""
    long_queue(store, clock)
    seen = [ask(store, f"new{n}") for n in range(20)]
    assert [one.verdict for one in seen].count(Verdict.DENIED) == 0
    assert min(one.wait_us for one in seen if not one.admitted) < LEAD


def test_a_long_queue_is_not_fed_with_each_task_that_comes_from_it(
    store: RedisStore, clock: Clock
) -> None:
    room = long_queue(store, clock)
    fed = 0
    for n in range(400):  # for two seconds
        clock.forward(0.005)
        ask(store, f"new{n}")
        (released,) = room.release([LINE], LEAD)
        fed += len(ids(released))
    assert 2 <= fed <= 5


class Slow(Fleet):
    """A queue in which each task takes eight seconds from its release to a worker."""

    def check(self) -> None:
        pass

    def _deliver(self, copy: Copy, after_us: int) -> None:
        super()._deliver(copy, 8_000_000 if copy.mark and after_us == WAY_US else after_us)


def test_as_much_is_on_its_way_as_a_slow_way_takes(server: Server) -> None:
    """(Three seconds' worth alone would use three eighths of the limit.)"""
    fleet = Slow(server.url)
    try:
        fleet.send("cheap", 400)
        fleet.run(24)
        before = len(fleet.starts)
        fleet.run(24)
        assert len(fleet.starts) - before >= 0.7 * 24 * 10
    finally:
        fleet.close()


def test_lines_are_visited_when_another_broker_is_served_no_more(
    store: RedisStore, clock: Clock
) -> None:
    ours, theirs = Room(store, "ours"), Room(store, "theirs")
    assert ask(store, "first").admitted
    for n in range(30):
        clock.now += 10
        ask(store, f"theirs{n}", broker="theirs")
    clock.now += 10
    ask(store, "ours")
    for room in (theirs, ours):
        room.due_lines()
    (released,) = ours.release([LINE], LEAD)
    assert ids(released) == []  # three seconds from now
    clock.now += SERVED_US + 1
    lines = [ours.due_lines().lines for _ in range(2)]  # at the second look at the latest
    assert (LINE,) in lines
    (released,) = ours.release([LINE], LEAD)
    assert ids(released) == ["ours"]
