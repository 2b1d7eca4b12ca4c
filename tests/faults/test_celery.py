"""What can happen on Celery's side while workers drain a backlog: the broker dies, a worker dies. The limits'
Redis stays, so no window is above the limit."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from fleetlimit.demo.processes import Server, listening, redis_server, spawn, stop, until
from fleetlimit.store.keyspace import Keys
from tests.brokers import rabbitmq
from tests.celery.harness import Fleet, fleet
from tests.faults.drain import LIMIT, TASKS, all_of, send
from tests.faults.report import Note

LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}
#: What was not acknowledged a Redis broker gives back after so long, RabbitMQ at once.
SOON = {"visibility_timeout": 8, "unacked_restore_interval": 1}


def revived(one: Fleet, workers: list[Any]) -> None:
    """Start again who has ended, as a supervisor does: kombu may stumble over a connection that is reset
    ('NoneType' object has no attribute 'hostname'), and the worker ends."""
    for n, worker in enumerate(workers):
        if worker.poll() is not None:
            workers[n] = one.start("prefork", 2)


@pytest.mark.timeout(240)  # before kombu 5.7 what was not acknowledged may take 100 s to come back
@pytest.mark.parametrize("room", [True, False], ids=["room", "countdown"])
def test_a_redis_broker_is_killed_and_restarted(
    server: Server, tmp_path: Path, note: Note, room: bool
) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    conf = {**LATE, "broker_transport_options": SOON, "fleetlimit_waiting_room": room}
    with (
        redis_server(folder, "--appendonly", "yes", "--appendfsync", "always") as broker,
        fleet(tmp_path, broker.url, server.url, TEST_CONF=json.dumps(conf)) as one,
    ):
        workers = [one.start("prefork", 2) for _ in range(2)]
        run = one.run()
        ids = [result.id for result in send(one, run, TASKS)]
        one.wait(run, 15)
        noted = killed_at_rest(broker, one, run, ids)
        time.sleep(3)
        again = spawn(broker.process.args, folder / "again.log")  # type: ignore[arg-type]
        try:
            until(lambda: listening(broker.port), "the broker is back")
            healed = time.time()
            starts = all_of(one, run, TASKS, 180, lambda: revived(one, workers))
        finally:
            stop(again)
    # Redis gives back what was noted as not acknowledged, also if it ran meanwhile; and nothing else.
    note(starts, LIMIT, tasks=TASKS, healed=healed, twice=len(noted))
    numbers = [item["n"] for item in starts]
    assert {ids[n] for n in numbers if numbers.count(n) > 1} <= noted


def killed_at_rest(broker: Server, one: Fleet, run: str, ids: list[str]) -> set[str]:
    """Kill the broker at an instant at which no message is on its way; the tasks that were noted as not
    acknowledged. kombu takes a message out of the queue first, and notes it then: what is in between when
    Redis dies is lost, be the task limited or not."""
    line = Keys().state("api-10-1-1", run)
    with redis.Redis(port=broker.port, decode_responses=True) as client:
        while True:
            with client.pipeline() as pipe:  # in one transaction; then nothing is taken any more
                pipe.lrange("celery", 0, -1).hvals("unacked").client_pause(3000, all=False)
                queue, unacked, _ = pipe.execute()
            queued = {json.loads(text)["headers"]["id"] for text in queue}
            noted = {json.loads(text)[0]["headers"]["id"] for text in unacked}
            parked = {*one.redis.hkeys(line + ":room")} - {
                *one.redis.zrange(line + ":claims", 0, -1)
            }
            if queued | noted | parked | {ids[item["n"]] for item in one.starts(run)} == {*ids}:
                broker.process.kill()
                broker.process.wait()
                return noted
            client.client_unpause()
            time.sleep(0.01)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_rabbitmq_is_killed_and_restarted(
    server: Server, tmp_path: Path, note: Note, kind: str
) -> None:
    folder = tmp_path / "rabbit"
    folder.mkdir()
    route = {"exchange": f"work-{kind}", "routing_key": "work"}
    with (
        rabbitmq(folder) as broker,
        fleet(
            tmp_path, broker.url, server.url, TEST_CONF=json.dumps(LATE), TEST_QUEUE_TYPE=kind
        ) as one,
    ):
        workers = [one.start("prefork", 2) for _ in range(2)]
        run = one.run()
        send(one, run, TASKS, **route)
        one.wait(run, 15)
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
        until(lambda: not listening(broker.port), "the broker is dead")
        again = broker.start()
        try:
            healed = time.time()
            starts = all_of(one, run, TASKS, 90, lambda: revived(one, workers))
        finally:
            stop(again, 20)
    # RabbitMQ delivers again what was running; and a classic queue what was acknowledged in the last moments,
    # for it writes that down late.
    note(starts, LIMIT, tasks=TASKS, healed=healed, twice=TASKS // 2)


@pytest.mark.timeout(240)  # as above
@pytest.mark.parametrize("room", [True, False], ids=["room", "countdown"])
def test_a_worker_is_killed_with_all_its_processes(
    server: Server, tmp_path: Path, note: Note, room: bool
) -> None:
    conf = {**LATE, "broker_transport_options": SOON, "fleetlimit_waiting_room": room}
    with fleet(tmp_path, server.url, server.url, TEST_CONF=json.dumps(conf)) as one:
        # Each the leader of a process group of its own.
        first, _ = [one.start("prefork", 2, prefix=["setsid"]) for _ in range(2)]
        run = one.run()
        send(one, run, TASKS)
        one.wait(run, 15)
        os.killpg(first.pid, signal.SIGKILL)
        killed = time.time()
        first.wait()
        starts = all_of(one, run, TASKS, 180)
    # What it ran was not acknowledged: the broker gives it to the other one.
    note(starts, LIMIT, tasks=TASKS, healed=killed, twice=2)
