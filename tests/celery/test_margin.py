"""What workers see of their hosts, and that the fleet keeps the margin that one of them needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from fleetlimit import RateLimit
from fleetlimit.celery import host
from fleetlimit.celery.host import MOMENT_US, SATURATED_US, Host, Lateness, Saturation
from fleetlimit.celery.punctual import Punctuality
from fleetlimit.celery.runtime import runtime_of
from fleetlimit.celery.start import start
from fleetlimit.demo.processes import Server, stop, until
from fleetlimit.store.base import Spend, Ticket
from fleetlimit.store.memory import MemoryStore

from .harness import fleet, patient, shop

SECOND = RateLimit("second", 20, 1, margin="auto")


class Processors:
    """A host's processors, and the clock beside it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.idle, self.all = 0.0, 0, 0
        monkeypatch.setattr(host, "processor_times", lambda: (self.idle, self.all))
        self.saturation = Saturation(lambda: self.now)

    def second(self, idle: float) -> bool:
        """One passes, with so much of its time idle; whether the host is saturated."""
        self.now += 1
        self.all += 200
        self.idle += round(200 * idle)
        self.saturation.look()
        return self.saturation.now


def test_a_host_is_saturated_when_it_is_never_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    host_of = Processors(monkeypatch)
    assert host_of.second(0)  # since the worker was started
    assert not host_of.second(0.1)
    assert [host_of.second(0) for _ in range(6)] == [False] * 3 + [True] * 3
    assert not host_of.second(0.1)
    # A burst, as workers make when they start, is none.
    assert not any(host_of.second(idle) for idle in (0, 0, 0, 0.2, 0, 0, 0.01, 0.5))


def test_a_host_that_does_not_say_is_not_saturated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "processor_times", lambda: None)
    now = [0.0]
    saturation = Saturation(lambda: now[0])
    for now[0] in range(60):
        saturation.look()
    assert not saturation.now


def test_this_host_says_it() -> None:
    if not Path("/proc/stat").exists():
        pytest.skip("there is no /proc/stat")
    times = host.processor_times()
    assert times
    assert 0 <= times[0] <= times[1]
    until(lambda: host.processor_times() != times, "time that passes")


def test_lateness_that_lasts() -> None:
    now = [100.0]
    lateness = Lateness(lambda: now[0])
    for now[0] in (100.1, 100.9, 101.5, 102.2):  # a worker that starts
        lateness.note(80_000)
        assert lateness.lasting_us() == 0
    for now[0] in (106.0, 109.5):
        lateness.note(30_000)
    assert lateness.lasting_us() == 80_000
    now[0] = 115.0
    assert lateness.lasting_us() == 0  # two are left
    for now[0] in (115.5, 116.5):
        lateness.note(20_000)
    now[0] = 115.9
    assert lateness.lasting_us() == 30_000


def _ask(its_host: Host, limit: RateLimit, store: MemoryStore, *, twice: bool = True) -> Any:
    asked = [Spend(limit)]
    outcome = store.acquire(asked, Ticket("a"))
    if twice:
        outcome = store.acquire(asked, Ticket("b"))
    its_host.ask_for_margin(store, asked, outcome)
    return store.override(limit.name).margin_at(store.now_us())


def test_a_margin_is_asked_for_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    store, its_host = MemoryStore(), Host()
    assert _ask(its_host, SECOND, store) == 0
    busy = Processors(monkeypatch)
    its_host.saturation = busy.saturation
    assert busy.second(0)
    assert _ask(its_host, SECOND, store) == SATURATED_US // 1000
    assert _ask(its_host, RateLimit("short", 20, 0.2, margin="auto"), store) == 100
    minute = RateLimit("minute", 20, 60, margin="auto")  # its least margin is 600 ms
    assert _ask(its_host, minute, store) == 0
    assert _ask(its_host, RateLimit("said", 20, 1, margin=0.01), store) == 0


class Late:
    """A host whose starts are late, on a clock that only moves when it is told so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_us = 1_767_225_600_000_000
        self.said: list[int] = []
        self.store = MemoryStore(lambda: self.now_us)
        monkeypatch.setattr(self.store, "delay", lambda spends, late_us: self.said.append(late_us))
        clock = Punctuality(lambda: self.now_us)
        clock.due_us(self.now_us, 0)  # the difference of the two clocks is known
        self.app = Celery("late", set_as_current=False)
        self.host = runtime_of(self.app).host
        self.host.lateness = Lateness(lambda: self.now_us / 1e6)
        runtime_of(self.app).clock = clock

    def start(self, limit: RateLimit, late_us: int) -> int:
        """Start a run so late; what is said of it."""
        asked = [Spend(limit)]
        self.now_us += 2_000_000
        outcome = self.store.acquire(asked)
        self.now_us += late_us
        self.said.clear()
        start(self.app, self.store, asked, outcome)
        return self.said[0] if self.said else 0


def test_late_starts_ask_for_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts that come later than the margin allows, over several seconds."""
    late = Late(monkeypatch)
    late.start(SECOND, 500)
    for _ in range(3):
        assert late.host.lateness.lasting_us() == 0
        late.start(SECOND, 35_000)
    late.now_us += 2_000_000  # what each of them asked for by itself is over
    assert _ask(late.host, SECOND, late.store) == 35


def test_one_late_start_widens_it_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Late(monkeypatch)
    late.start(SECOND, 3_500)
    assert late.store.override("second").margin == 0
    late.start(SECOND, 20_000)
    override = late.store.override("second")
    seen = [override.margin_at(late.now_us + n * 100_000) for n in range(22)]
    assert MOMENT_US // 1000 - 1 <= seen[0] <= MOMENT_US // 1000
    assert seen == sorted(seen, reverse=True)
    assert seen[10] > 15
    assert seen[20:] == [0, 0]
    late.start(RateLimit("said", 20, 1, margin=0.01), 20_000)
    assert late.store.override("said").margin == 0
    late.start(RateLimit("minute", 20, 60, margin="auto"), 20_000)
    assert late.store.override("minute").margin == 0


def test_a_widened_margin_covers_a_part_of_a_late_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to half of itself; one that is later moves the cells that follow by all of it."""
    late = Late(monkeypatch)
    assert late.start(SECOND, 40_000) == 40_000
    late.store.change_override("second", margin=100)
    assert late.start(SECOND, 40_000) == 0
    assert late.start(SECOND, 70_000) == 70_000
    assert late.start(RateLimit("second", 20, 1, margin=0.1), 40_000) == 40_000  # it is a number


def test_one_busy_host_widens_the_margin_of_the_fleet(valkey: Server, tmp_path: Path) -> None:
    redis.Redis.from_url(valkey.url).flushall()
    with fleet(tmp_path, valkey.url, valkey.url, **shop({"call": ("partner", 20)})) as one:
        one.start("prefork", 1, TEST_MARGIN='"auto"', TEST_IDLE="0.5")
        busy = one.start("prefork", 1, TEST_MARGIN='"auto"', TEST_IDLE="0")
        limiter = patient(one)
        run = one.run()
        for n in range(200):
            one.send("call", run, n)
        until(lambda: limiter.status("partner").margin >= 0.06, "the margin that one host needs")
        stop(busy)
        asked = limiter.store.peek([Spend(RateLimit("partner", 20, 1, margin="auto"))])
        assert asked.readings[0].rule.pace_us(20) >= 1_060_000  # whoever asks
