"""Forged and foreign entries in every key of a line and of the room: the good tasks start at the limit's rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from fleetlimit import StateError
from fleetlimit.conformance import START
from fleetlimit.demo.processes import Server
from fleetlimit.store.base import Spend, Ticket
from fleetlimit.store.mend import mend
from fleetlimit.store.room import Released

from .simulation import LINE, Broker, Fleet

Plant = Callable[[redis.Redis, Fleet], object]
NOW = "1767225600000999"


class Garden(Fleet):
    """Only the good tasks are followed: what is foreign need not add up."""

    def check(self) -> None:
        self._check_windows()

    def _publish(self, broker: Broker, released: Released) -> None:
        released.messages[:] = [one for one in released.messages if one[0] in self.sent]
        super()._publish(broker, released)


@pytest.fixture(params=["valkey", "redis7"])
def fleet(request: pytest.FixtureRequest) -> Iterator[Garden]:
    server: Server = request.getfixturevalue(request.param)
    one = Garden(server.url)
    yield one
    one.close()


def hset(suffix: str, field: str | bytes, value: str | bytes) -> Plant:
    return lambda raw, fleet: raw.hset(LINE + suffix, field, value)


def zadd(key: str, member: str | bytes, score: float = 0) -> Plant:
    return lambda raw, fleet: raw.zadd(key.format(line=LINE), {member: score})


def ticket(value: str, id: str = "ghost", lane: str = "cheap", place: str = NOW) -> Plant:
    """A forged ticket that stands in the line, before all others."""

    def plant(raw: redis.Redis, fleet: Fleet) -> None:
        raw.hset(LINE + ":tickets", id, value)
        raw.zadd(LINE + ":line", {f"{lane}:{place}:{id}": 0})

    return plant


def parked(message: str | bytes, value: str = f"cheap:{NOW}:1:1:0:0:0") -> Plant:
    def plant(raw: redis.Redis, fleet: Fleet) -> None:
        ticket(value)(raw, fleet)
        raw.hset(LINE + ":room", "ghost", message)

    return plant


BIG = "9" * 400
PLANTS: dict[str, Plant] = {
    "line: text": zadd("{line}:line", "x"),
    "line: empty": zadd("{line}:line", ""),
    "line: bytes": zadd("{line}:line", b"cheap:\xff\xfe"),
    "line: no ticket": zadd("{line}:line", "cheap:0000000000000000:ghost"),
    "line: no lane": zadd("{line}:line", "nowhere:0000000000000000:ghost"),
    "line: a score": zadd("{line}:line", f"cheap:{NOW}:ghost", 5),
    "tickets: text": ticket("what"),
    "tickets: no line": hset(":tickets", "ghost", f"cheap:{NOW}:1:1:0:0:0"),
    "tickets: a huge cost": ticket(f"cheap:{NOW}:{BIG}:0:0:0:0"),
    "tickets: a huge place": ticket(f"cheap:{BIG}:1:1:0:0:0"),
    "tickets: let go in the future": ticket(f"cheap:{NOW}:1:1:{NOW[:-1]}99:0:0"),
    "tickets: let go for ever": ticket(f"cheap:{NOW}:1:1:{BIG}:0:0"),
    "tickets: tried too often": ticket(f"cheap:{NOW}:1:1:0:{BIG}:0"),
    "tickets: bytes": ticket("\udcff".encode("utf-8", "surrogatepass").decode("latin-1")),
    "lanes: text": hset(":lanes", "x", "what"),
    "lanes: bytes": hset(":lanes", b"\xff", b"\xff"),
    "lanes: huge": hset(":lanes", "x", f"1:{BIG}:{BIG}:{BIG}:{BIG}:{BIG}:{BIG}:a:q"),
    "lanes: of nobody": hset(":lanes", "x", "1:5:5:0:0:0:0::"),
    "lanes: of a broker with a space": hset(":lanes", "x", "1:5:5:0:0:0:0:a b:q"),
    "due: nobody's": zadd("{line}:due", "ghost"),
    "due: for ever": zadd("{line}:due", "ghost", float("inf")),
    "due: since ever": zadd("{line}:due", "ghost", float("-inf")),
    "due: who is parked": lambda raw, fleet: raw.zadd(LINE + ":due", {"t0030": float("inf")}),
    "room: no ticket": hset(":room", "ghost", "1:g,1,1,1:x"),
    "room: text": parked("what"),
    "room: empty": parked(""),
    "room: bytes": parked(b"\xff"),
    "room: no rule": parked("1:zzz:x"),
    "room: a rule without time": parked("1:g,5,0,5:x"),
    "room: a rule of nothing": parked("1:g,0,0,0:x"),
    "room: another rule": parked("1:f,1,0,0,0,0,0,0:x"),
    "room: a huge rule": parked(f"1:g,{BIG},1,{BIG}:x"),
    "room: a later form": parked("2:g,1,1,1:x"),
    "room: a later form, no ticket": hset(":room", "ghost", "2:what"),
    "started: text": hset(":started", "t0030", "what"),
    "bad: text": hset(":bad", "t0030", "what"),
    "index: text": zadd("fleetlimit:rooms:a", "what"),
    "index: another key": zadd("fleetlimit:rooms:a", "fleetlimit:brokers"),
    "index: bytes": zadd("fleetlimit:rooms:a", b"\xff\xfe"),
    "index: a line of nothing": zadd("fleetlimit:rooms:a", "fleetlimit:{nothing}"),
    "registry: text": zadd("fleetlimit:brokers", "what is this", 9e15),
    "registry: bytes": zadd("fleetlimit:brokers", b"\xff", 9e15),
    "registry: for ever": zadd("fleetlimit:brokers", "b", float("inf")),
    "revoked: bytes": zadd("fleetlimit:revoked:a", b"\xff", 9e9),
}


@pytest.mark.parametrize("name", PLANTS)
def test_good_tasks_start_at_the_limits_rate(fleet: Garden, name: str) -> None:
    fleet.send("cheap", 45)
    fleet.run(0.3)
    PLANTS[name](fleet.raw, fleet)
    fleet.drain(4.2 + 3)
    fleet.brokers["a"].room.status("api")
    fleet.brokers["a"].room.orphans()
    fleet.brokers["a"].room.parked("api")
    looks = fleet.looks
    fleet.run(20)
    assert fleet.looks - looks < 60  # nothing is looked at again and again


@pytest.mark.parametrize("key", [":lanes", ":line", ":tickets"])
def test_what_lost_its_place_lies_in_quarantine(fleet: Garden, key: str) -> None:
    """A key of the line is lost with all who are parked: none of them is forgotten."""
    fleet.send("cheap", 30)
    room = fleet.raw.hlen(LINE + ":room")
    fleet.raw.delete(LINE + key)
    fleet.send("cheap", 20)
    fleet.run(20)
    bad = {one.id for one in fleet.brokers["a"].room.quarantined("api")}
    assert set(fleet.waiting()) <= bad
    assert room > 20
    for id in bad:
        assert fleet.brokers["a"].room.recover("api", id)
    fleet.drain(10)


KINDS = {
    "": ("hset", {"mapping": {"a": "b"}}),
    ":line": ("set", {"value": "x"}),
    ":tickets": ("set", {"value": "x"}),
    ":lanes": ("set", {"value": "x"}),
    ":due": ("set", {"value": "x"}),
    ":room": ("set", {"value": "x"}),
    ":started": ("set", {"value": "x"}),
    ":override": ("set", {"value": "x"}),
}


@pytest.mark.parametrize("suffix", KINDS)
def test_a_key_of_another_type_stops_its_own_line_with_a_typed_error(
    fleet: Garden, suffix: str
) -> None:
    fleet.send("cheap", 20)
    verb, arguments = KINDS[suffix]
    fleet.raw.delete(LINE + suffix)
    getattr(fleet.raw, verb)(LINE + suffix, **arguments)
    with pytest.raises(StateError, match=r"\{api\}"):
        fleet.store.acquire([Spend(fleet.limit)], Ticket("t0010", START, copy=str(START)))
    if suffix != ":started":  # of no use for letting go
        (found,) = fleet.brokers["a"].room.release([LINE], 150_000)
        assert isinstance(found, StateError)


@pytest.mark.parametrize("key", ["rooms:a", "brokers", "revoked:a", "quarantine"])
@pytest.mark.parametrize("kind", ["string", "hash"])
def test_a_shared_key_of_another_type_is_dropped(fleet: Garden, key: str, kind: str) -> None:
    """The index of rooms is made anew: all who are parked start."""
    fleet.send("cheap", 30)
    fleet.raw.delete(f"fleetlimit:{key}")
    if kind == "string":
        fleet.raw.set(f"fleetlimit:{key}", "x")
    else:
        fleet.raw.hset(f"fleetlimit:{key}", "x", "y")
    fleet.send("cheap", 5)  # a decision does not mind
    assert mend(fleet.store, "a")
    assert not mend(fleet.store, "a")
    fleet.drain(6)
