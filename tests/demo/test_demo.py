"""The demo: what it measures is right, what it prints is complete, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fleetlimit.cli import main
from fleetlimit.demo import measure, run
from fleetlimit.demo.api import Call
from fleetlimit.demo.measure import Result, result, worst_window
from fleetlimit.demo.picture import draw, trailing
from fleetlimit.demo.processes import until
from fleetlimit.demo.run import CELERY, OURS, RETRY, Outcome, Plan
from fleetlimit.demo.view import screen

KEYS = {
    "limit", "per", "tasks", "completed", "worst_window", "api_rejections",
    "deliveries_per_task", "drain_s", "drain_over_ideal",
}  # fmt: skip
TICK = 1024  # times in 1/1024 s are exact as floats

ticks = st.lists(st.integers(0, 5 * TICK), max_size=40).map(sorted)


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "fleetlimit.cli", "demo", *options]


def calls(times: Sequence[float], refused: Sequence[int] = ()) -> list[Call]:
    return [(t, n, n not in refused) for n, t in enumerate(times)]


@given(ticks, st.integers(1, 2 * TICK))
def test_worst_window(times: list[int], per: int) -> None:
    brute = max((sum(s <= t < s + per for t in times) for s in times), default=0)
    assert worst_window([t / TICK for t in times], per / TICK) == brute


def test_a_window_does_not_hold_its_own_end() -> None:
    assert worst_window([0.0, 0.5, 1.0], 1.0) == 2
    assert worst_window([0.0, 0.5, 0.999], 1.0) == 3


@given(ticks.filter(bool), st.integers(1, 2 * TICK))
def test_the_picture_shows_the_worst_window(times: list[int], per: int) -> None:
    seconds = [t / TICK for t in times]
    at, counts = trailing(seconds, per / TICK)
    settled = dict(zip(at, counts, strict=True))  # the last one at each time
    assert max(settled.values()) == worst_window(seconds, per / TICK)
    assert counts[-1] == 0


def test_result() -> None:
    seen = calls([10.0, 10.1, 10.2, 11.0, 11.05, 12.5], refused=[2])
    seen.append((13.0, 0, True))  # a second time: not one more task
    one = result(seen, deliveries=14, tasks=7, limit=2, per=1.0)
    assert one == Result(
        limit=2, per=1.0, tasks=7, completed=5, worst_window=4, api_rejections=1,
        deliveries_per_task=2.0, drain_s=3.0, drain_over_ideal=1.0,
    )  # fmt: skip
    assert not one.promise_kept


def test_result_of_nothing() -> None:
    one = result([], deliveries=0, tasks=3, limit=2, per=1.0)
    assert (one.completed, one.worst_window, one.drain_s) == (0, 0, 0.0)
    assert not one.promise_kept


def outcome(variant: str = OURS, tasks: int = 3, **changes: Any) -> Outcome:
    numbers = {
        "limit": 20, "per": 1.0, "tasks": tasks, "completed": tasks, "worst_window": 20,
        "api_rejections": 0, "deliveries_per_task": 2.0, "drain_s": 1.0, "drain_over_ideal": 1.0,
    }  # fmt: skip
    times = [n / 20 for n in range(tasks)]
    return Outcome(variant, calls(times), Result(**{**numbers, **changes}))  # type: ignore[arg-type]


BROKEN = [{"worst_window": 21}, {"api_rejections": 1}, {"completed": 2}]


@pytest.mark.parametrize("changes", [{}, *BROKEN])
@pytest.mark.parametrize("options", [["--json"], []])
def test_exit_status_says_whether_the_promise_was_kept(
    changes: dict[str, int], options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "play", lambda plan, watcher: [outcome(**changes)])
    done = CliRunner().invoke(main, ["demo", "--tasks", "3", "--no-picture", *options])
    assert done.exit_code == (1 if changes else 0), done.output
    if options:
        assert json.loads(done.stdout)["promise_kept"] is not bool(changes)
    else:
        assert ("THE PROMISE WAS BROKEN" in done.stdout) is bool(changes)


def test_a_broken_baseline_is_no_broken_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [outcome(), outcome(CELERY, worst_window=60, api_rejections=40)]
    monkeypatch.setattr(run, "play", lambda plan, watcher: both)
    done = CliRunner().invoke(main, ["demo", "--no-picture", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["baselines"]["celery_rate_limit"]["api_rejections"] == 40


def test_a_real_run_notices_an_api_that_is_stricter(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = measure.fragile_api
    monkeypatch.setattr(
        measure, "fragile_api", lambda folder, limit, per: serve(folder, limit // 2, per)
    )
    options = ["--tasks", "25", "--workers", "1", "--skip-baselines", "--no-picture", "--json"]
    done = CliRunner().invoke(main, ["demo", *options])
    assert done.exit_code == 1, done.output
    said = json.loads(done.stdout)
    assert said["api_rejections"] > 0
    assert said["completed"] == 25 - said["api_rejections"]
    assert said["baselines"] == {}


def test_json_of_a_real_run(tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    done = subprocess.run(
        command("--json", "--limit", "30", "--per", "5", "--tasks", "70", "--picture", str(picture)),
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    said = json.loads(done.stdout)
    assert said.keys() >= KEYS | {"promise_kept", "baselines"}
    assert (said["limit"], said["per"], said["tasks"], said["completed"]) == (30, 5.0, 70, 70)
    assert 20 < said["worst_window"] <= 30
    assert said["api_rejections"] == 0
    assert 0.99 < said["drain_over_ideal"] < 1.5
    each, naive = said["baselines"]["celery_rate_limit"], said["baselines"]["retry_countdown"]
    assert each.keys() >= KEYS
    assert naive.keys() >= KEYS
    assert each["worst_window"] > 30
    assert each["completed"] == each["tasks"] - each["api_rejections"]
    assert naive["deliveries_per_task"] > 2 * said["deliveries_per_task"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert said["picture"] == str(picture)


def marked(mark: str) -> list[str]:
    """The command lines of all processes with `mark` in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # gone, or not ours
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_ended_early_it_leaves_nothing_behind(by: signal.Signals, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    demo = subprocess.Popen(
        command("--no-picture"), start_new_session=True, env={**os.environ, "DEMO_MARK": mark},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path,
        # A shell's background job ignores it, and so would all that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        until(lambda: sum("-m celery" in one for one in marked(mark)) >= 9, "workers with pools")
        time.sleep(0.5)  # into the run
        if by == signal.SIGINT:
            os.killpg(demo.pid, by)  # as a terminal does
        else:
            demo.send_signal(by)
        said, _ = demo.communicate(timeout=20)
        assert demo.returncode == 128 + by, said.decode()
        assert b"Traceback" not in said
        until(lambda: not marked(mark), f"the end of {marked(mark)}", 10)
    finally:
        demo.kill()


ALL = [
    outcome(OURS, 150),
    outcome(CELERY, 108, worst_window=90, api_rejections=68, completed=40),
    outcome(RETRY, 150, deliveries_per_task=123.4),
]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30)])
def test_the_last_screen_fits(width: int, height: int) -> None:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(screen(Plan(), ALL, "fleetlimit-demo.png"))
    lines = captured.get().splitlines()
    assert len(lines) < height  # the prompt needs one
    assert max(map(len, lines)) <= width
    for word in ("fleetlimit", "celery rate_limit", "retry(countdown)", "123.4", "40/108", ".png"):
        assert any(word in line for line in lines), word


def test_a_picture_of_nothing_is_still_a_picture(tmp_path: Path) -> None:
    empty = Outcome(OURS, [], result([], 0, 3, 20, 1.0))
    draw(Plan(), [empty], tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--limit", "0"], "limit=0"),
        (["--per", "nan"], "per=nan"),
        (["--per", "-1"], "per=-1"),
        (["--per", "0.001"], "--per"),
        (["--limit", "100000"], "--limit 100000"),
        (["--tasks", "0"], "--tasks"),
        (["--workers", "0"], "--workers"),
        (["--workers", "1000"], "--workers"),
        (["--per", "60", "--tasks", "100000"], "--tasks 100000"),
        (["--picture", "/no/such/folder/x.png"], "/no/such/folder"),
    ],
)
def test_nonsense_is_refused_by_name(
    options: list[str], names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "play", lambda plan, watcher: pytest.fail("it ran"))
    done = CliRunner().invoke(main, ["demo", *options])
    assert done.exit_code == 2
    assert names in done.output


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(main, ["demo"])
    assert done.exit_code == 2
    assert "matplotlib" in done.output
    assert "pip install 'fleetlimit[demo]'" in done.output
