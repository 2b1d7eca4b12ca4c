"""Whatever lies in the waiting room: it goes into quarantine or waits, and the others go on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from fleetlimit.demo.processes import Server

from .parked import Rig, message, rig

SECRET = "a secret of 32 characters or more"


@pytest.fixture
def one(server: Server) -> Iterator[Rig]:
    with rig(server.url) as made:
        yield made


def text(one: Rig, task: str, /, **fields: Any) -> str:
    """A sound message with other fields."""
    return json.dumps({**json.loads(message(task).packed()), **fields})


WRONG = {
    "id": [7, None, ["x"]],
    "headers": [None, [], "x"],
    "properties": [None, "x", {"priority": {"a": 1}}, {"delivery_mode": "x" * 10}],
    "serializer": [None],
    "exchange": [None, 5],
    "routing_key": [None, {}],
    "eta": [5, {}],
    "copy": [5],
    "ticket": [None],
    "more": ["x", None],
    "queues": [None, "x", [["x"]], [7], [["q", "e", "no-such-type", "k", None, True]]],
    "body": [
        None,
        "x",
        ["a"],
        ["application/json", "utf-8", 5],
        ["application/data", "binary", "%"],
    ],
}
FORGED = [(name, value) for name, values in WRONG.items() for value in values]
PLAIN = ["", "{", "{}", "[]", "null", "7", '{"id": "x"}', "[" * 100_000, '{"a": NaN}', "\0", "x;{}"]


@pytest.mark.parametrize("forged", FORGED, ids=lambda it: f"{it[0]}={it[1]!r:.40}")
def test_a_field_of_another_type(one: Rig, forged: tuple[str, Any]) -> None:
    bad = one.park(text(one, "bad", **dict([forged])), "bad")
    good = one.good(3)
    for _ in range(2):
        one.look()
    assert set(good) <= set(one.ids())
    gone_its_way = len(one.ids()) == 4  # Celery's own consumer will say what it thinks of it
    assert gone_its_way or one.room.status("api").parked == 1
    assert one.raw.hexists("fleetlimit:{api}:room", bad) is not gone_its_way


@pytest.mark.parametrize("plain", PLAIN, ids=lambda it: f"{it!r:.30}")
def test_what_is_no_message_lies_in_quarantine(one: Rig, plain: str) -> None:
    one.park(plain, "bad")
    good = one.good(3)
    _until_quarantined(one)
    assert set(one.ids()) == set(good)
    assert "no message of fleetlimit's" in one.bad()["bad"]


def _until_quarantined(one: Rig, number: int = 1) -> None:
    """Eight tries, with the pauses between them left out."""
    for _ in range(12 + number):
        one.look()
        if one.room.status("api").quarantined == number:
            return
        _no_pauses(one)
    raise AssertionError(one.raw.hgetall("fleetlimit:{api}:tickets"))


def _no_pauses(one: Rig) -> None:
    key = "fleetlimit:{api}:tickets"
    for ticket, value in one.raw.hgetall(key).items():
        one.raw.hset(key, ticket, value.rpartition(b":")[0] + b":0")


def test_bytes_that_are_no_text(one: Rig) -> None:
    one.park(b"\xff\xfe{", "bad")
    one.park(message("odd").packed(), "odd")
    room, tickets, line = (f"fleetlimit:{{api}}:{name}" for name in ("room", "tickets", "line"))
    for key in (room, tickets):  # its id is none either
        one.raw.hset(key, b"odd\xff", one.raw.hget(key, "odd"))
        one.raw.hdel(key, "odd")
    (member,) = (one for one in one.raw.zrange(line, 0, -1) if one.endswith(b":odd"))
    one.raw.zrem(line, member)
    one.raw.zadd(line, {member + b"\xff": 0})
    good = one.good(3)
    _until_quarantined(one)
    assert set(one.ids()) == {*good, "odd"}


def test_unreadable_ones_at_the_head_hold_up_nobody(one: Rig) -> None:
    for _ in range(68):
        one.park('{"v": 99}')
    good = one.good(132)
    for _ in range(8):
        one.look()
    assert set(one.ids()) == set(good)
    assert one.room.status("api").parked == 68  # they are tried again
    _until_quarantined(one, 68)


TARGETS = [
    ("celery.pidbox", ""),
    ("", "w@host.celery.pidbox"),
    ("reply.celery.pidbox", "x"),
    ("", "4f.reply.celery.pidbox"),
    ("celeryev", "task.sent"),
    ("", "celeryev.4f"),
]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_celerys_own_control_is_refused(one: Rig, target: tuple[str, str]) -> None:
    exchange, routing_key = target
    queue = ["w@host.celery.pidbox", exchange or "x", "direct", routing_key, None, True]
    forged = message("bad", exchange=exchange, routing_key=routing_key, queues=[queue])
    one.park(forged.packed(), "bad")
    good = one.good(2)
    _until_quarantined(one)
    assert set(one.ids()) == set(good)
    assert "belongs to Celery" in one.bad()["bad"]
    assert not one.raw.keys("*pidbox*")


def test_a_queue_of_celerys_own_behind_another_exchange_is_refused(one: Rig) -> None:
    """The way around: a binding of one's own to a worker's mailbox."""
    queue = ["w@host.celery.pidbox", "mine", "direct", "key", None, True]
    one.park(message("bad", exchange="mine", routing_key="key", queues=[queue]).packed(), "bad")
    _until_quarantined(one)
    assert "belongs to Celery" in one.bad()["bad"]
    assert not one.raw.keys("*pidbox*")


def test_a_target_that_is_no_queue_in_redis(one: Rig) -> None:
    """The routing key names a key of another type: that says nothing of the broker."""
    one.raw.set("a string", "x")
    one.park(message("bad", routing_key="a string").packed(), "bad")
    good = one.good(3)
    one.look()
    assert set(one.ids()) == set(good)
    assert not one.releaser.away
    _until_quarantined(one)
    assert "WRONGTYPE" in one.bad()["bad"]


def test_a_later_form_waits_and_is_said_once(one: Rig, caplog: pytest.LogCaptureFixture) -> None:
    ticket = one.park(message("later").packed(), "later")
    room = "fleetlimit:{api}:room"
    stored = one.raw.hget(room, ticket)
    one.raw.hset(room, ticket, b"2" + stored[1:])
    good = one.good(3)
    for _ in range(4):
        one.look()
    assert set(one.ids()) == set(good)
    assert one.raw.hget(room, ticket) == b"2" + stored[1:]
    assert one.bad() == {}
    assert len([it for it in caplog.records if "later version" in it.getMessage()]) == 1


def test_a_state_of_a_later_form_stops_its_own_line_only(
    one: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    one.good(2)
    other = one.good(2, "other")
    state = one.raw.get("fleetlimit:{api}")
    one.raw.set("fleetlimit:{api}", "2g:1:2:3:4:5", keepttl=True)
    for _ in range(3):
        one.look()
    assert set(one.ids()) == set(other)
    said = [it for it in caplog.records if "newer than this version" in it.getMessage()]
    assert len(said) == 1
    assert said[0].levelno == logging.ERROR
    one.raw.set("fleetlimit:{api}", state)
    one.look()
    assert len(one.ids()) == 4


def test_unknown_fields_are_kept(one: Rig) -> None:
    one.park(text(one, "t", tomorrow={"a": 1}, more={"also": 2}), "t")
    one.look()
    (headers,) = one.published()
    assert headers["fleetlimit"]["tomorrow"] == {"a": 1}
    assert headers["fleetlimit"]["also"] == 2


def test_quarantine_retry_and_drop(one: Rig) -> None:
    one.raw.set("a string", "x")
    for id in ("again", "away"):
        one.park(message(id, routing_key="a string").packed(), id)
    _until_quarantined(one, 2)
    assert set(one.bad()) == {"again", "away"}
    one.raw.delete("a string")
    assert one.room.recover("api", "again")
    assert one.room.recover("api", "away", drop=True)
    assert not one.room.recover("api", "away", drop=True)
    one.look()
    assert [it["id"] for it in one.published("a string")] == ["again"]
    assert one.bad() == {}


def test_a_foreign_entry_in_the_quarantine_can_be_dropped(one: Rig) -> None:
    one.raw.hset(
        "fleetlimit:{api}:bad",
        mapping={"x": "what is this", "y": "a:b:c:d:e:f\n", "z\xff": b"\xff"},
    )
    assert len(one.room.quarantined("api")) == 3
    assert not one.room.recover("api", "x")
    assert one.room.recover("api", "x", drop=True)
    assert len(one.room.quarantined("api")) == 2


def test_signed_messages(server: Server) -> None:
    with rig(server.url, fleetlimit_secret=SECRET) as one:
        good = one.good(2)
        one.park(message("unsigned").packed(), "unsigned")
        one.park(message("other").packed("another secret of 32 characters"), "other")
        _until_quarantined(one, 2)
        assert set(one.ids()) == set(good)
        assert set(one.bad().values()) == {"its signature does not match fleetlimit_secret"}


def test_a_secret_that_was_removed(server: Server) -> None:
    with rig(server.url) as one:
        one.park(message("t").packed(SECRET), "t")
        one.look()
        assert one.ids() == ["t"]
