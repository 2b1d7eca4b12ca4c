"""Tracing libraries see one transaction for each task, however often it is denied."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fleetlimit.demo.processes import Server, until

from .harness import Fleet, fleet, numbers, patient, shut_down

#: The trace and the span of the sender, by the number of the task: several tasks of one trace, as from one request.
SENDERS = [(f"{n // 5 + 1:032x}", f"{n + 100:016x}") for n in range(20)]
#: Tasks of senders that nothing traces.
OTHERS = 4
TASKS = len(SENDERS) + OTHERS

#: The library, how it is set up, and whether deliveries without a start are there, marked.
LIBRARIES = [
    pytest.param("sentry", {}, False, id="sentry"),
    pytest.param("sentry", {"trace_lifecycle": "stream"}, True, id="sentry-stream"),
    pytest.param("opentelemetry", {}, True, id="opentelemetry"),
    pytest.param("opentelemetry", {"recipe": True}, False, id="opentelemetry-recipe"),
    pytest.param("datadog", {}, True, id="datadog"),
    pytest.param("datadog", {"recipe": True}, False, id="datadog-recipe"),
]
MODULES = {"sentry": "sentry_sdk", "datadog": "ddtrace"}
#: Datadog speaks with nobody, and continues the trace of the sender.
ENV = {
    "DD_CELERY_DISTRIBUTED_TRACING": "true",
    "DD_CRASHTRACKING_ENABLED": "false",
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
    "DD_REMOTE_CONFIGURATION_ENABLED": "false",
}


def headers(trace: str, span: str) -> dict[str, Any]:
    """What the libraries add to a message when it is sent."""
    own = {
        "sentry-trace": f"{trace}-{span}-1",
        "sentry-task-enqueued-time": time.time(),
        "x-datadog-trace-id": str(int(trace, 16)),
        "x-datadog-parent-id": str(int(span, 16)),
        "x-datadog-sampling-priority": "1",
    }
    return {**own, "traceparent": f"00-{trace}-{span}-01", "headers": own}


def environment(folder: Path, library: str, room: bool, **options: Any) -> dict[str, str]:
    conf = {
        "fleetlimit_waiting_room": room,
        "fleetlimit_horizon": 1,  # with it a countdown is denied several times
        "fleetlimit_waiting_state": "PENDING" if room else "RETRY",
    }
    return {
        "TEST_APP": "tests.celery.traced",
        "TEST_CONF": json.dumps(conf),
        "TEST_TRACER": library,
        "TEST_TRACER_OPTIONS": json.dumps(options),
        "TEST_SPANS": str(folder / "spans"),
        **ENV,
    }


def spans(folder: Path) -> list[dict[str, Any]]:
    path = folder / "spans"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def need(library: str) -> None:
    if not importlib.util.find_spec(MODULES.get(library, library)):
        pytest.skip(f"{library} is not installed")


@pytest.mark.parametrize(
    ("room", "pool"), [(True, "prefork"), (False, "threads")], ids=["room", "countdown"]
)
@pytest.mark.parametrize(("library", "options", "marked"), LIBRARIES)
def test_one_transaction_for_each_task(
    server: Server,
    tmp_path: Path,
    library: str,
    options: dict[str, Any],
    marked: bool,
    room: bool,
    pool: str,
) -> None:
    need(library)
    env = environment(tmp_path, library, room, **options)
    with fleet(tmp_path, server.url, server.url, **env) as one:
        worker, run, limiter = started(one, pool, room), one.run(), patient(one)
        limiter.pause("partner", 3600)
        for n, sender in enumerate(SENDERS):
            one.send("call", run, n, headers=headers(*sender))
        for n in range(OTHERS):
            one.send("call", run, len(SENDERS) + n)
        sent = time.time()
        until(lambda: len(set(denied(one, run))) == TASKS, "each was denied")
        resumed = time.time()
        limiter.resume("partner")
        starts = one.wait(run, TASKS)
        until(lambda: sum(not span["denied"] for span in spans(tmp_path)) >= TASKS, "their spans")
        shut_down(worker)
        denials = len(denied(one, run))
    assert numbers(starts) == list(range(TASKS))
    runs = [span for span in spans(tmp_path) if not span["denied"]]
    others = [span for span in spans(tmp_path) if span["denied"]]
    assert (len(runs), len(others)) == (TASKS, denials if marked else 0)
    # Each is in the trace that sent it, below the span that sent it; so is each denial of it.
    seen = [(span["trace"], span["parent"]) for span in runs]
    assert sorted(sender for sender in seen if sender in SENDERS) == sorted(SENDERS)
    if marked:
        assert {(span["trace"], span["parent"]) for span in others} >= set(SENDERS)
    if library == "datadog":
        assert all(span["kept"] > 0 for span in runs)
        assert all(span["kept"] < 0 for span in others)
    waits = [span["waited_s"] for span in runs if span.get("waited_s")]
    if library == "sentry" and not marked:
        assert len(waits) == len(SENDERS)
        assert min(waits) >= resumed - sent


def started(one: Fleet, pool: str, room: bool) -> Any:
    """A worker, which lets parked tasks go."""
    worker = one.start(pool, 2)
    until(lambda: not room or one.redis.exists("fleetlimit:brokers"), "the releaser looks")
    return worker


def denied(one: Fleet, run: str) -> list[str]:
    """The ids of the tasks that were denied, once for each denial."""
    return list(one.redis.lrange(f"throttled:{run}", 0, -1))


@pytest.mark.parametrize("room", [True, False], ids=["room", "countdown"])
def test_a_library_that_fails_does_no_harm(server: Server, tmp_path: Path, room: bool) -> None:
    env = environment(tmp_path, "broken", room)
    with fleet(tmp_path, server.url, server.url, **env) as one:
        started(one, "threads", room)
        run, limiter = one.run(), patient(one)
        limiter.pause("partner", 3600)
        results = [one.send("call", run, n, headers=headers(*SENDERS[n])) for n in range(5)]
        until(lambda: len(set(denied(one, run))) == 5, "each was denied")
        state = "PENDING" if room else "RETRY"
        until(lambda: {result.state for result in results} == {state}, "all wait")
        limiter.resume("partner")
        starts = one.wait(run, 5)
        assert [result.get(timeout=20) for result in results] == list(range(5))
    for start in starts:  # nothing traces the worker, and the headers come to the body all the same
        trace, span = SENDERS[start["n"]]
        assert start["traceparent"] == f"00-{trace}-{span}-01"
        assert start["sentry-trace"] == start["nested"] == f"{trace}-{span}-1"


#: The program's own transaction, in a thread of which a worker runs, and then whether it was touched.
AROUND = {
    "sentry": """
import sentry_sdk
sentry_sdk.init(dsn="http://key@127.0.0.1/1", traces_sample_rate=1.0, transport=lambda event: None)
with sentry_sdk.start_transaction(op="http.server", name="page") as span:
    ends_without_start()
    print(span.sampled)
""",
    "datadog": """
from ddtrace.trace import TraceFilter, tracer
class Nobody(TraceFilter):
    def process_trace(self, trace):
        return None
tracer.configure(trace_processors=[Nobody()])
with tracer.trace("web.request") as span:
    ends_without_start()
    print(span.get_tag("fleetlimit.denied") is None and span.context.sampling_priority is None)
""",
}


@pytest.mark.parametrize("library", AROUND)
def test_a_transaction_of_the_program_around_a_worker_is_left_alone(library: str) -> None:
    need(library)
    assert output_of(AROUND[library]).endswith("True\n")


def test_no_library_is_loaded_for_it() -> None:
    added = "{name.partition('.')[0] for name in sys.modules.keys() - before}"
    libraries = "{'sentry_sdk', 'opentelemetry', 'ddtrace'}"
    assert output_of(f"print({added} & {libraries})") == "set()\n"


def output_of(code: str) -> str:
    """What a program writes in which fleetlimit was told of a delivery."""
    before = """
import sys
import redis  # uses opentelemetry itself, where it is installed
before = set(sys.modules)
import fleetlimit.celery.setup
from fleetlimit.celery.tracing import ends_without_start
ends_without_start()
"""
    command = [sys.executable, "-c", before + code]
    env = {**os.environ, **ENV}
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=60, check=True
    ).stdout
