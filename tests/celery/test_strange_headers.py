"""Messages whose header of ours is foreign, or of a later form; and a limit's key that is: with real workers, and in
parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetlimit.celery import gate
from fleetlimit.celery.broker import identify
from fleetlimit.celery.header import HEADER, due, is_newer, is_revoked, ours
from fleetlimit.celery.message import Message
from fleetlimit.celery.settings import LARGEST_PARKED
from fleetlimit.celery.wiring import settings_of
from fleetlimit.demo.processes import Server, until

from .harness import Fleet, fleet
from .parked import message, rig

STRANGE: list[Any] = [
    *("x", 7, True, None, [], ["x"], {}, 1.5, "", {"seen_us": "x"}, {"seen_us": -1}),
    *({"seen_us": 1e300}, {"seen_us": True}, {"copy": 5}, {"copy": "x"}, {"ticket": None}),
    *({"line": "x"}, {"line": [1, 2]}, {"line": ["a"]}, {"exchange": 5}, {"routing_key": []}),
    *({"eta": 5}, {"due_us": "x"}, {"countdown": "x"}, {"countdown": None}, {"revoked": "yes"}),
    *({"form": "x"}, {"form": None}, {"form": -1}, {"form": True}, {"form": [2]}),
]


@pytest.fixture
def one(server: Server, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, server.url, server.url) as made:
        yield made


@pytest.mark.parametrize("strange", STRANGE, ids=lambda it: f"{it!r:.40}")
def test_a_foreign_header_is_as_none(strange: Any) -> None:
    fields = {HEADER: strange}
    assert ours(fields) in ({}, strange)
    assert not ours(fields)
    assert not is_newer(fields)
    assert not is_revoked(fields)
    assert due(fields) == (0, 0.0)


@pytest.mark.parametrize("form", [2, 17])
def test_a_later_form_is_not_read_and_stays(form: int) -> None:
    theirs = {"form": form, "seen_us": "of tomorrow"}
    fields = {HEADER: theirs}
    assert is_newer(fields)
    assert ours(fields) == {}
    kept = message("t", newer=theirs).waiting(5, ("api", ""), 7)
    assert kept[HEADER] == theirs
    assert kept["eta"]


def test_workers_run_what_has_a_foreign_header(one: Fleet) -> None:
    worker = one.start("prefork", 2)
    run = one.run()
    for n, strange in enumerate(STRANGE):
        one.send("fifty", run, n, headers={HEADER: strange})
    starts = one.wait(run, len(STRANGE))
    assert sorted(it["n"] for it in starts) == list(range(len(STRANGE)))
    assert worker.poll() is None
    assert "Traceback" not in one.log()


def test_a_later_form_waits_for_its_own_workers(one: Fleet) -> None:
    """It is put back as it came, said once, and neither fails nor keeps others."""
    one.start("prefork", 1)
    run, theirs = one.run(), {"form": 2, "place": 5}
    later = [one.send("ten", run, n, headers={HEADER: theirs}) for n in range(3)]
    for n in range(3, 6):
        one.send("ten", run, n)
    assert sorted(it["n"] for it in one.wait(run, 3)) == [3, 4, 5]

    def held() -> list[Any]:
        found = one.sender.control.inspect().scheduled() or {}
        return [it["request"]["id"] for its in found.values() for it in its]

    until(lambda: set(held()) == {it.id for it in later}, "they wait")
    assert all(it.state == "PENDING" for it in later)
    assert len(one.starts(run)) == 3
    assert one.log().count("a later version of fleetlimit put some of them back") == 1


def test_a_state_of_tomorrow_makes_tasks_wait(one: Fleet) -> None:
    one.start("prefork", 1)
    run = one.run()
    key = f"fleetlimit:{{api-10-1-1:{run}}}"
    one.redis.set(key, "2h:0:1:2:3")
    sent = [one.send("ten", run, n) for n in range(5)]
    until(lambda: "newer than this version" in one.log(), "it is said")
    other = one.run()
    one.send("ten", other)
    one.wait(other, 1)
    assert one.starts(run) == []
    one.redis.delete(key)
    assert sorted(it["n"] for it in one.wait(run, 5)) == list(range(5))
    assert all(it.get(timeout=20) == n for n, it in enumerate(sent))
    assert one.log().count("newer than this version") == 1


@pytest.mark.parametrize("over", [0, 1])
def test_the_largest_message_that_is_parked(
    server: Server, monkeypatch: pytest.MonkeyPatch, over: int
) -> None:
    """Exactly 256 KiB are; one byte more waits as a countdown."""
    monkeypatch.setattr(gate, "running", lambda app: True)
    with rig(server.url) as one:
        bare = len(_with_ballast(0).packed())
        delivery = object.__new__(gate._Delivery)
        delivery._message = _with_ballast(LARGEST_PARKED - bare + over)
        delivery._lane = one.broker, "lane", "celery"
        delivery.settings = settings_of(one.app)
        request = SimpleNamespace(is_eager=False)
        delivery.task = SimpleNamespace(app=one.app, request=request)
        assert len(delivery._message.packed()) == LARGEST_PARKED + over
        assert bool(delivery._packed()) is (over == 0)


def _with_ballast(size: int) -> Message:
    return message("t", headers={"task": "x", "id": "t", "ballast": "x" * size})


def test_keys_are_shown_in_pages(server: Server) -> None:
    with rig(server.url) as one:
        index = {f"fleetlimit:{{api:k{n:05}}}": float(n) for n in range(20_000)}
        one.raw.zadd(f"fleetlimit:rooms:{one.broker}", index)
        first, number = one.room.keys(["api"])
        assert (first[0], len(first), number) == (("api", "k00000"), 100, 20_000)
        last, number = one.room.keys(["api"], 100, 19_950)
        assert (last[-1], len(last), number) == (("api", "k19999"), 50, 20_000)


def test_throttled_says_what_it_does_not_show(server: Server) -> None:
    from fleetlimit.celery.control import throttled

    with rig(server.url) as one:
        index = {f"fleetlimit:{{api:k{n:05}}}": float(n) for n in range(20_000)}
        one.raw.zadd(f"fleetlimit:rooms:{one.broker}", index)
        one.room.due_lines()
        answer = throttled(SimpleNamespace(app=one.app), "api", "-")
        assert len([name for name in answer if name.startswith("api:")]) == 100
        assert "19900 more keys of 20000" in json.dumps(answer)
        last = throttled(SimpleNamespace(app=one.app), "api", "-", 200)
        assert len([name for name in last if name.startswith("api:")]) == 100
        assert "more" not in last


@pytest.mark.parametrize("foreign", ["", "two words", b"\xff\xfe", "x" * 5000, "a:b", None])
def test_foreign_data_in_place_of_the_brokers_id(server: Server, foreign: Any) -> None:
    """The broker is known by its URL then, and tasks that were parked under its id are let go."""
    with rig(server.url) as one:
        good = one.good(2)
        one.raw.delete("fleetlimit:broker")
        if foreign is None:
            one.raw.hset("fleetlimit:broker", "a", "b")
        else:
            one.raw.set("fleetlimit:broker", foreign)
        one.releaser._check_at = 0  # it asks once a minute
        one.look()
        assert one.releaser._room.broker not in ("", one.broker)
        assert one.releaser._room.broker == identify(one.app)
        one.look()
        assert set(one.ids()) == set(good)
