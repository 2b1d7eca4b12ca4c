"""A backlog that workers drain while something goes wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleetlimit.demo.processes import Server, until
from tests.celery.harness import Fleet, fleet, heard

LIMIT, TASKS, PROCESSES = 10, 80, 4
#: By how much a window may be exceeded when processes leave Redis or go back to it: one for each, which may
#: start in a cell of its share just before or after.
SWITCH = PROCESSES


@dataclass
class Drain:
    fleet: Fleet
    run: str
    #: All starts, once the backlog is done.
    starts: list[dict[str, Any]] = field(default_factory=list)
    #: When the fault was over.
    healed: float | None = None

    def heals(self) -> None:
        self.healed = time.time()


@contextmanager
def draining(
    server: Server, folder: Path, url: str, *, traceback: bool = False, **conf: Any
) -> Iterator[Drain]:
    """Two workers in the middle of a backlog of TASKS; afterwards its starts, all if none is lost."""
    settings = json.dumps({"fleetlimit_url": url, **conf})
    with fleet(folder, server.url, server.url, TEST_CONF=settings) as one:
        for _ in range(2):
            one.start("prefork", PROCESSES // 2)
        heard()
        drain = Drain(one, one.run())
        send(one, drain.run, TASKS)
        one.wait(drain.run, 15)
        yield drain
        drain.starts += all_of(one, drain.run, TASKS)
        until(lambda: away(one.log()) == 0, "all are back")
        assert traceback or "Traceback" not in one.log()


def send(one: Fleet, run: str, tasks: int, task: str = "ten", **options: Any) -> list[Any]:
    return [one.send(task, run, n, **options) for n in range(tasks)]


def all_of(
    one: Fleet,
    run: str,
    tasks: int,
    timeout: float = 60,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """All starts of a run, once each task has started; after the timeout those that there are."""

    def there() -> bool:
        meanwhile()
        began: Any = one.redis.llen(f"starts:{run}")
        return began >= tasks and len({item["n"] for item in one.starts(run)}) == tasks

    with suppress(TimeoutError):
        until(there, "all of them", timeout)
    return one.starts(run)


def away(log: str) -> int:
    """How many processes decide without Redis, by what their workers logged."""
    return log.count(" until Redis answers again") - log.count("Redis is back")
