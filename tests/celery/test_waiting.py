"""A waiting task is not a failing task, and the limit holds: real workers on a Redis broker."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import chain, chord, group

from fleetlimit.demo.processes import until

from .harness import Fleet, sent_with, window

EVERY_WAY = [
    "above", "shared_below", "shared_above", "bound_above", "varied", "based", "stacked", "classy",
    "shouting", "hiding",
]  # fmt: skip


def sig(fleet: Fleet, task: str, *args: Any, **kwargs: Any) -> Any:
    return fleet.sender.signature(f"tests.celery.app.{task}", args=args, **kwargs)


def drained(fleet: Fleet, run: str, task: str, tasks: int) -> list[dict[str, Any]]:
    for n in range(tasks):
        fleet.send(task, run, *([n] if task != "above" else []))
    return fleet.wait(run, tasks)


def test_limit_order_and_completeness(workers: Fleet) -> None:
    run = workers.run()
    starts = drained(workers, run, "fifty", 200)
    assert window(starts) <= 50
    assert sorted(one["n"] for one in starts) == list(range(200))


@pytest.mark.parametrize("task", EVERY_WAY)
def test_every_way_in_holds_the_limit(workers: Fleet, task: str) -> None:  # C13
    run = workers.run()
    starts = drained(workers, run, task, 8)
    assert window(starts) <= 5
    assert starts[-1]["at"] - starts[0]["at"] >= 1.35  # 7 intervals of 220 ms, less jitter


def test_denials_cost_no_retries(workers: Fleet) -> None:  # C3
    run = workers.run()
    results = [workers.send("fails_once_allowed", run) for _ in range(6)]
    workers.wait(run, 6)
    for result in results:
        with pytest.raises(Exception, match="real failure"):
            result.get(timeout=10, disable_sync_subtasks=False)
        assert result.state == "FAILURE"
    assert [one["retries"] for one in workers.starts(run)] == [0] * 6
    counts = workers.counts(run)
    assert counts["task_failure"] == 6
    assert "task_retry" not in counts


def test_autoretry_keeps_its_whole_budget(workers: Fleet) -> None:  # C3
    run = workers.run()
    results = [workers.send("autoretries", run) for _ in range(3)]
    for result in results:
        with pytest.raises(Exception, match="real failure"):
            result.get(timeout=30)
    assert len(workers.starts(run)) == 9
    assert window(workers.starts(run)) <= 5


def test_task_object_is_untouched(workers: Fleet) -> None:  # C4
    run = workers.run()
    for _ in range(8):
        workers.send("neighbour", run)
    starts = workers.wait(run, 8)
    assert [(one["max_retries"], one["override"]) for one in starts] == [(3, None)] * 8


def test_everything_a_run_can_see_is_what_was_sent(workers: Fleet) -> None:  # C5
    run = workers.run()
    options = {
        **sent_with(),
        "argsrepr": "('***',)",
        "kwargsrepr": "{'card': '***'}",
        "link_error": sig(workers, "on_failure_link", run),
    }
    for _ in range(7):
        workers.send("snapshot", run, "a", **options)
    starts = workers.wait(run, 7)
    first, *rest = (one["request"] for one in starts)
    for other in rest:
        for name in ("id", "root_id", "correlation_id", "hostname"):
            other.pop(name)
            first.pop(name, None)
        for name in ("correlation_id", "expiration"):  # the latter is what is left of `expires`
            other["properties"].pop(name)
            first["properties"].pop(name, None)
        assert other == first
    assert first["parent_id"] is None
    assert first["argsrepr"] == "('***',)"


def test_waiting_message_does_not_grow(workers: Fleet) -> None:  # C5
    run = workers.run()
    sizes: set[int] = set()
    for n in range(12):
        workers.send("fifty", run, n, headers={"a": "b"})

    def look() -> bool:
        for text in workers.redis.hvals("unacked"):  # type: ignore[union-attr]
            message = json.loads(text)[0]
            ours = message["headers"].get("fleetlimit")
            if ours:
                sizes.add(len(json.dumps(sorted(ours))))
        return len(workers.starts(run)) >= 12

    until(look, "all ran")
    assert len(sizes) <= 1


def test_own_retry_does_not_carry_the_place(workers: Fleet) -> None:
    run = workers.run()
    results = [workers.send("retries_itself", run, headers={"mine": 1}) for _ in range(4)]
    for result in results:
        assert result.get(timeout=30) == {"mine": 1}
    starts = workers.starts(run)
    assert len(starts) == 8
    assert all(one["headers"] == {"mine": 1} for one in starts)
    assert window(starts) <= 5


def test_chain_group_chord_and_replace(workers: Fleet) -> None:  # C6
    run = workers.run()
    chained = chain(
        sig(workers, "add", run, 1, 1), sig(workers, "add_to", run), sig(workers, "add_to", run)
    )
    header = [sig(workers, "add", run, n, n) for n in range(10)]
    with workers.sender.pool.acquire():
        results = [
            (chained.apply_async(), 4),
            (chord(header, sig(workers, "total", run), app=workers.sender).apply_async(), 90),
            (sig(workers, "replaced", run).apply_async(), 4),
        ]
        ordered = group(
            [sig(workers, "add", run, n, 0) for n in range(6)], app=workers.sender
        ).apply_async()
        for result, expected in results:
            assert result.get(timeout=60) == expected
        assert ordered.get(timeout=60) == list(range(6))
    starts = workers.starts(run)
    assert (
        window([one for one in starts if "total" not in one]) <= 2 * 5
    )  # two limited tasks' lines
    assert sum("total" in one for one in starts) == 1


def test_a_chord_of_chords(workers: Fleet) -> None:  # C6
    run, app = workers.run(), workers.sender
    inner = [
        chord([sig(workers, "add", run, n, n) for n in range(5)], sig(workers, "total", run))
        for _ in range(2)
    ]
    with app.pool.acquire():
        result = chord(inner, sig(workers, "total", run), app=app).apply_async()
        assert result.get(timeout=60) == 2 * 20
    starts = workers.starts(run)
    assert sorted(one["total"] for one in starts if "total" in one) == [20, 20, 40]
    assert sum("n" in one for one in starts) == 10
    assert window(starts) <= 5


def test_stamps_are_kept(workers: Fleet) -> None:  # C6
    run = workers.run()
    stamped = group([sig(workers, "snapshot", run, n) for n in range(6)], app=workers.sender)
    stamped.stamp(tenant="acme", order=[7])
    stamped.apply_async()
    requests = [one["request"] for one in workers.wait(run, 6)]
    assert all(one["stamps"] == requests[0]["stamps"] for one in requests)
    assert requests[0]["stamps"]["tenant"] in ("acme", ["acme"])  # as the version of Celery has it
    assert all({"tenant", "order"} <= set(one["stamped_headers"]) for one in requests)


def test_hooks_of_the_user_run_once_per_start(workers: Fleet) -> None:  # C14
    run = workers.run()
    drained(workers, run, "shouting", 8)
    until(lambda: workers.counts(run).get("task_success") == 8, "all succeeded")
    counts = workers.counts(run)
    assert {name: counts.get(name) for name in ("call", "before_start", "on_success")} == {
        "call": 8,
        "before_start": 8,
        "on_success": 8,
    }
    assert not {"on_retry", "on_failure", "task_retry", "task_failure", "apply_async"} & set(counts)


def test_a_task_that_calls_itself_asks_once(workers: Fleet) -> None:
    run = workers.run()
    results = [workers.send("nested", run) for _ in range(4)]
    assert [result.get(timeout=30) for result in results] == [3] * 4
    tops = [one["at"] for one in workers.starts(run) if one["n"] == 3]
    assert len(tops) == 4
    assert len(workers.starts(run)) == 16
    assert window([one for one in workers.starts(run) if one["n"] == 3]) <= 5


def test_direct_calls_inside_a_task_are_plain(workers: Fleet) -> None:
    run = workers.run()
    result = workers.send("calls_another", run)
    assert result.get(timeout=30) == 1
    assert not workers.redis.exists("fleetlimit:{api-10-1-1:" + run + "}")


def test_a_limited_helper_inside_a_task_is_refused(workers: Fleet) -> None:
    """It could only go back from the middle of the task: a clear failure, never "unlimited"."""
    run = workers.run()
    result = workers.send("calls_a_helper", run)
    with pytest.raises(Exception, match="on a function that is no task"):
        result.get(timeout=30)
    assert workers.starts(run) == []


def test_another_key_starts_at_once(workers: Fleet) -> None:  # C16
    run, other = workers.run(), workers.run()
    for n in range(500):
        workers.send("ten", run, n)
    until(lambda: workers.redis.zcard("fleetlimit:{api-10-1-1:" + run + "}:line") > 400, "waiting")  # type: ignore[operator]
    sent = datetime.now(timezone.utc).timestamp()
    workers.send("ten", other)
    assert workers.wait(other, 1)[0]["at"] - sent < 1.0
    assert len(workers.starts(run)) < 300
    workers.sender.control.purge()


def test_expired_before_its_turn(workers: Fleet) -> None:  # C7
    run = workers.run()
    first = workers.send("slow", run)
    assert first.get(timeout=20) == 0
    late = workers.send("slow", run, 1, expires=2)
    until(lambda: late.state == "REVOKED", "revoked", 20)
    assert len(workers.starts(run)) == 1
    assert workers.redis.zcard("fleetlimit:{api-1-30-1:" + run + "}:line") == 0


def test_no_log_line_above_info_and_no_events_of_failure(workers: Fleet) -> None:  # C18
    workers.redis.delete("loud")
    run = workers.run()
    drained(workers, run, "fifty", 150)
    assert workers.redis.lrange("loud", 0, -1) == []
    assert (
        "retry"
        not in workers.log()
        .replace("autoretries", "")
        .replace("retries_itself", "")
        .split("fifty")[-1]
    )
