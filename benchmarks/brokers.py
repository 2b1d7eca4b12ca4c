"""1,000 tasks at 50 per 1 s on each kind of queue, with the waiting room and without it: three workers of
two processes.

    python benchmarks/brokers.py [AMQP_URL [RUNS]]

Without the URL of a RabbitMQ only Redis is tried. The baseline of the drain is the ideal one,
(tasks - 1) / (limit / per), of the same run.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from typing import Any

from fleetlimit.demo.measure import VARIANTS, fleet, result

TASKS, LIMIT = 1000, 50


def conf(kind: str, amqp: str, room: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"fleetlimit_waiting_room": room}
    if kind != "redis":
        found |= {"broker_url": amqp, "task_default_queue": f"bench-{uuid.uuid4().hex[:8]}"}
    if kind == "quorum":
        found |= {"task_default_queue_type": "quorum", "task_default_exchange_type": "topic"}
        found["task_default_exchange"] = found["task_default_queue"]
    return found


def run(kind: str, amqp: str, room: bool) -> None:
    settings = json.dumps(conf(kind, amqp, room))
    with fleet(LIMIT, 1.0, FLEETLIMIT_DEMO_CONF=settings) as one, one.workers(3, 2):
        one.run(VARIANTS["fleetlimit"], TASKS, patience=60, tick=lambda *_: None)
        time.sleep(3)  # a second start, or a straggler, would be seen
        calls, deliveries = one.seen()
    said = result(calls, deliveries, TASKS, LIMIT, 1.0)
    numbers = [number for _, number, _ in calls]
    print(
        f"{kind:8} {'room' if room else 'countdown':10} lost {TASKS - len(set(numbers))}, "
        f"started twice {len(numbers) - len(set(numbers))}, worst window {said.worst_window}, "
        f"deliveries per task {said.deliveries_per_task:.3f}, "
        f"drain / ideal {said.drain_over_ideal:.4f}",
        flush=True,
    )


def main(amqp: str, runs: int) -> None:
    for _ in range(runs):
        for kind in ("redis", "classic", "quorum") if amqp else ("redis",):
            for room in (True, False):
                run(kind, amqp, room)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "", int(sys.argv[2]) if len(sys.argv) > 2 else 1)
