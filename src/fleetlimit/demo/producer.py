"""The producer: it sends a backlog of charges, then prints what the API sees until all tasks are done.

    python -m fleetlimit.demo.producer TASKS [WORKERS]

`WORKERS` is a host name that stands for all hosts with workers, as the name of a service does in Compose. The backlog
is sent once a worker on each host answers. Without `WORKERS`, one worker is enough.

The exit code is 0 if every task is done and the API saw no more calls than its limit in any window. Otherwise it is 1.
"""

from __future__ import annotations

import math
import socket
import sys
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from fleetlimit.demo.api import Call, Observer
from fleetlimit.demo.app import API, LIMIT, PER, app, charge
from fleetlimit.demo.measure import worst_window
from fleetlimit.demo.processes import until

#: Seconds between two lines.
PACE = 1.0


@dataclass(frozen=True)
class Seen:
    """What the API saw of the tasks. `worst`: the most calls in any window of `PER` seconds, rejected calls
    included."""

    called: int
    done: int
    rejected: int
    worst: int
    seconds: float

    @classmethod
    def of(cls, calls: Sequence[Call]) -> Seen:
        times = [at for at, _, _ in calls]
        return cls(
            called=len({number for _, number, _ in calls}),
            done=len({number for _, number, accepted in calls if accepted}),
            rejected=sum(not accepted for _, _, accepted in calls),
            worst=worst_window(times, PER),
            seconds=times[-1] - times[0] if times else 0.0,
        )

    @property
    def limit_held(self) -> bool:
        return self.worst <= LIMIT and self.rejected == 0


class ApiClock:
    """The API's clock, as far as it is known here. It is computed from the times of calls: the freshest answer so far
    counts."""

    def __init__(self) -> None:
        self._ahead = math.inf

    def recent(self, calls: Sequence[Call]) -> int:
        """How many of `calls` came in the last `PER` seconds."""
        if not calls:
            return 0
        here = time.monotonic()
        self._ahead = min(self._ahead, here - calls[-1][0])
        since = here - self._ahead - PER
        return len(calls) - bisect_right(calls, since, key=lambda call: call[0])


def workers(host: str | None) -> list[str]:
    """The names of the workers that answer. The list is empty as long as a host has no worker that answers."""
    names = [name for reply in app.control.ping(timeout=1) for name in reply]
    return names if len(names) >= _hosts(host) else []


def _hosts(name: str | None) -> int:
    try:
        return len(socket.gethostbyname_ex(name)[2]) if name else 1
    except OSError:
        return 1  # the name does not exist yet


def send(tasks: int) -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for number in range(tasks):
            charge.apply_async((number,), producer=producer)


def watch(api: Observer, tasks: int) -> None:
    """Print a line every `PACE` seconds, until all tasks have called, or until three times the expected time is
    over."""
    clock = ApiClock()
    give_up = time.monotonic() + 30 + 3 * tasks * PER / LIMIT
    while True:
        time.sleep(PACE)
        calls = api.calls()
        seen = Seen.of(calls)
        say(
            f"done {seen.done:4}, waiting {tasks - seen.called:4} | last {PER:g} s: "
            f"{clock.recent(calls):3} calls | worst window so far: {seen.worst}, limit {LIMIT} | "
            f"rejected: {seen.rejected}"
        )
        if seen.called >= tasks or time.monotonic() > give_up:
            return


def verdict(seen: Seen, tasks: int, fleet: int) -> str:
    if not seen.limit_held:
        word = "LIMIT BROKEN"
    else:
        word = "limit held" if seen.done == tasks else "limit held, but TASKS MISSING"
    return (
        f"{word}: {fleet} workers made {seen.done} of {tasks} calls in {seen.seconds:.1f} s, "
        f"at most {seen.worst} in any {PER:g} s (limit {LIMIT}), {seen.rejected} rejected"
    )


def say(line: str) -> None:
    print(line, flush=True)


def main(argv: list[str]) -> int:
    tasks, host = int(argv[0]), argv[1] if len(argv) > 1 else None
    fleet = len(until(lambda: workers(host), "a worker on every host", 120))
    say(f"{fleet} workers are up; sending {tasks} tasks; the API allows {LIMIT} calls in {PER:g} s")
    api = Observer(API)
    api.forget()
    send(tasks)
    watch(api, tasks)
    time.sleep(PER)  # an unwanted call may still be on its way
    seen = Seen.of(api.calls())
    say(verdict(seen, tasks, fleet))
    return 0 if seen.limit_held and seen.done == tasks else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
