"""Messages that the broker refuses, before many good ones: they keep their places, and nobody waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fleetlimit import RateLimit
from fleetlimit.conformance import START
from fleetlimit.store.parked import lanes_of
from fleetlimit.store.room import Fate, Released, Room

from .simulation import LINE, Broker, Fleet, Queue

LIMIT = 20


class Refusing(Fleet):
    """Its broker refuses some messages each time."""

    def __init__(self, url: str, burst: int = 1) -> None:
        super().__init__(url)
        self.burst = burst
        self.limit = RateLimit("api", LIMIT, 1, margin=0, burst=burst)
        self.rates = [(START, LIMIT)]
        self.queues = {"cheap": Queue("a", 1), "other": Queue("a", 1)}
        self.refused: set[str] = set()

    def park(self, number: int) -> set[str]:
        """Their ids. The limit is paused, so that all of them are parked."""
        before = set(self.sent)
        self.send("cheap", number)
        return set(self.sent) - before

    def bad(self) -> set[str]:
        return set(self.raw.hkeys(LINE + ":bad"))

    def waiting(self) -> list[str]:
        return [id for id in super().waiting() if id not in self.refused]

    def _is_able(self, id: str, *ticket: Any) -> bool:
        return id not in self.refused and super()._is_able(id, *ticket)

    def _publish(self, broker: Broker, released: Released) -> None:
        refused = {id for id, _, _ in released.messages} & self.refused
        why = ("KeyError: 'tomorrow'", True)
        broker.room.settle([Fate(released, dict.fromkeys(refused, why))])
        released.messages[:] = [one for one in released.messages if one[0] not in refused]
        super()._publish(broker, released)


@pytest.fixture(params=[("valkey", 1), ("redis7", 5)], ids=["burst 1", "burst 5"])
def fleet(request: pytest.FixtureRequest) -> Iterator[Refusing]:
    server, burst = request.param
    one = Refusing(request.getfixturevalue(server).url, burst)
    one.pause(3600)
    yield one
    one.close()


def test_the_good_ones_start_at_the_limits_rate(fleet: Refusing) -> None:
    fleet.refused = fleet.park(68)
    good = fleet.park(132)
    fleet.run(1)
    fleet.resume()
    began = fleet.clock.now
    fleet.drain(12)
    at = [start for start, _, _ in fleet.starts]
    assert {id for _, _, id in fleet.starts} == good
    assert max(at) - began <= (132 / LIMIT + 1.5) * 1e6  # to the first look it is a second at most
    assert fleet.asks.total() <= 68 + 2.1 * 132  # none comes in vain
    fleet.run(180)
    assert fleet.bad() == fleet.refused
    status = fleet.limiter.status("api")
    assert (status.waiting, status.parked) == (0, 0)


def test_more_of_them_than_one_look_reads(fleet: Refusing) -> None:
    fleet.refused = fleet.park(1050)
    good = fleet.park(20)
    fleet.run(1)
    fleet.resume()
    fleet._disturb(8_000_000)  # each is tried once before it is known
    fleet.drain(12)
    assert {id for _, _, id in fleet.starts} == good
    fleet.run(180)
    assert 200 <= len(fleet.bad()) < 1050  # so many at a time


def test_a_newcomer_does_not_wait_for_them(fleet: Refusing) -> None:
    """While they are tried again and again, others ask for a little more than the limit."""
    fleet.refused = fleet.park(400)
    fleet.run(1)
    fleet.resume()
    fleet.run(5)
    sent = {}
    for _ in range(100):
        (id,) = fleet.park(1)
        sent[id] = fleet.clock.now
        fleet.run(0.045)
    fleet.run(1)
    waits = [at - sent[id] for at, _, id in fleet.starts]
    assert len(waits) == 100
    assert max(waits) < 1_500_000  # ten of them stand in line at the end


def test_who_is_taken_after_all_is_in_its_own_lane_again(fleet: Refusing) -> None:
    fleet.refused = fleet.park(30)
    good = fleet.park(30)
    fleet.run(1)
    fleet.resume()
    fleet.run(1)
    fleet.refused = set()  # its queue was declared again
    fleet.drain(10)
    assert {id for _, _, id in fleet.starts} == set(fleet.sent) > good


def test_they_go_along_when_tasks_are_adopted_and_come_back_from_quarantine(
    fleet: Refusing,
) -> None:
    fleet.refused = fleet.park(5)
    fleet.run(1)
    fleet.resume()
    fleet.run(3)
    lanes = lanes_of(fleet.store, [LINE], "a")
    assert sum(lane.parked for lane in lanes) == 5
    assert {lane.gone for lane in lanes} == {0}  # nobody is told that the queue is not read
    fleet.serve("a", False)
    other = Room(fleet.store, "b")
    assert other.adopt("a") == 5
    assert len(other.release([LINE], -1)[0].messages) == 0  # type: ignore[union-attr]
    assert Room(fleet.store, "a").adopt("b") == 5
    fleet.serve("a", True)
    fleet.run(180)
    assert fleet.bad() == fleet.refused
    (ids, fleet.refused) = (fleet.refused, set())
    for id in ids:
        assert fleet.brokers["a"].room.recover("api", id)
    fleet.drain(5)
    assert {id for _, _, id in fleet.starts} == ids
