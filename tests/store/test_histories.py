"""Random histories of a fleet: what must always hold, whatever happens in whatever order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetlimit.demo.processes import Server

from .simulation import Fleet

queues, brokers = st.sampled_from(["cheap", "dear", "far"]), st.sampled_from("ab")
nth = st.integers(0, 20)
happenings = st.one_of(
    st.tuples(st.just("send"), queues, st.integers(1, 40)),
    st.tuples(st.just("send"), queues, st.integers(1, 5)),
    st.tuples(st.just("run"), st.sampled_from([0.05, 0.3, 1, 3, 8])),
    st.tuples(st.just("run"), st.sampled_from([0.05, 0.3, 1, 3, 8, 20])),
    st.tuples(st.just("revoke"), nth),
    st.tuples(st.just("cancel"), nth),
    st.tuples(st.just("die"), nth),
    st.tuples(st.just("claim"), brokers, st.sampled_from(["before", "after", "refuses"])),
    st.tuples(st.just("pause"), st.sampled_from([0.5, 4])),
    st.tuples(st.just("resume")),
    st.tuples(st.just("configure"), st.sampled_from([5, 10, 40])),
    st.tuples(st.just("read"), queues, st.booleans()),
    st.tuples(st.just("serve"), st.just("b"), st.booleans()),
)


def play(url: str, history: list[tuple[Any, ...]], algorithm: str = "gcra") -> Fleet:
    fleet = Fleet(url, algorithm)
    try:
        for verb, *arguments in history:
            getattr(fleet, verb)(*arguments)
            fleet.check()
        for name in fleet.brokers:
            fleet.serve(name, True)
        for name in fleet.queues:
            fleet.read(name, True)
        units = sum(fleet.queues[fleet.sent[id]].cost for id in fleet.waiting())
        fleet.drain(30 + 1.5 * units / fleet.rates[-1][1])
        fleet.run(15)
    finally:
        fleet.close()
    return fleet


@pytest.mark.timeout(600)
@pytest.mark.parametrize("algorithm", ["gcra", "fixed_window", "sliding_log"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=st.lists(happenings, min_size=3, max_size=25))
def test_whatever_happens(valkey: Server, algorithm: str, history: list[tuple[Any, ...]]) -> None:
    fleet = play(valkey.url, history, algorithm)
    assert fleet.asks.total() <= 3 * len(fleet.sent) + 50 * len(
        history
    )  # nobody asks again and again


@pytest.mark.parametrize("name", ["valkey", "redis7"])
@pytest.mark.parametrize(
    "history",
    [
        [("send", "dear", 40), ("send", "cheap", 20), ("read", "dear", False), ("run", 20)],
        [("send", "cheap", 37), ("send", "far", 13), ("run", 8)],
        [("pause", 4), ("send", "cheap", 1), ("claim", "a", "after"), ("run", 6)],
        [
            *[("send", "far", 21), ("run", 3), ("serve", "b", False), ("run", 8)],
            *[("send", "cheap", 30), ("run", 3)],
        ],
    ],
    ids=[
        "dear tasks of a dead queue",
        "another broker's lane behind",
        "started before it was confirmed",
        "another broker's releasers died",
    ],
)
def test_once_it_went_wrong(
    request: pytest.FixtureRequest, name: str, history: list[tuple[Any, ...]]
) -> None:
    play(request.getfixturevalue(name).url, history)


def test_looks_do_not_meet_every_window_at_its_beginning(valkey: Server) -> None:
    """There the limit never seems idle, and a task waited for another broker's, which nobody let go."""
    lost = ("claim", "b", "before")
    play(
        valkey.url,
        [("send", "far", 15), lost, ("send", "cheap", 1), ("run", 1), lost],
        "fixed_window",
    )
