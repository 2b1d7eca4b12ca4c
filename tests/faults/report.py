"""What the faults did: noted by their tests, shown by pytest, and for `make soak` summed up over its rounds.

python -m tests.faults.report FILE
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fleetlimit.demo.measure import worst_window


@dataclass
class Fault:
    """One fault in one round; what is None was not learned."""

    name: str
    #: Tasks that never started.
    lost: int | None = None
    #: The most starts in any window, and how many there may be.
    worst: int | None = None
    bound: float | None = None
    #: Seconds from the fault's end to the normal pace; None also if the backlog was over before.
    recovery: float | None = None
    passed: bool = True


#: The fixture: takes what `measured` takes, but for the name; and `twice`, how many tasks may start twice.
Note: TypeAlias = Callable[..., Fault]


def measured(
    name: str,
    starts: Sequence[dict[str, Any]],
    bound: float,
    *,
    tasks: int,
    healed: float | None = None,
    limit: int = 10,
    per: float = 1.0,
) -> Fault:
    """What the `starts` of `tasks` tasks tell of a fault that was over at `healed` (None: it has no end)."""
    times = sorted(item["at"] for item in starts)
    lost = tasks - len({item["n"] for item in starts})
    back = None if healed is None else recovery(times, healed, limit, per)
    return Fault(name, lost, worst_window(times, per), bound, back)


def recovery(times: Sequence[float], healed: float, limit: int, per: float) -> float | None:
    """Seconds until 0.9 of the limit starts within one period; None if that was never again."""
    for t in (healed, *(t for t in times if t > healed)):
        if sum(t <= u < t + per for u in times) >= 0.9 * limit:
            return round(t - healed, 3)
    return None


def table(faults: Iterable[Fault]) -> list[str]:
    """A line for each fault, over all its rounds."""
    by_name: dict[str, list[Fault]] = {}
    for one in faults:
        by_name.setdefault(one.name, []).append(one)
    rows = [("fault", "passed", "lost", "window / bound", "back after s: least, median, most")]
    rows += [_row(name, rounds) for name, rounds in by_name.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _row(name: str, rounds: Sequence[Fault]) -> tuple[str, str, str, str, str]:
    known = [one for one in rounds if one.worst is not None]
    back = [one.recovery for one in known if one.recovery is not None]
    spread = (min(back), statistics.median(back), max(back)) if back else ()
    return (
        name,
        f"{sum(one.passed for one in rounds)} of {len(rounds)}",
        str(sum(one.lost or 0 for one in known)) if known else "?",
        f"{max(one.worst or 0 for one in known)} / {known[0].bound:g}" if known else "?",
        "  ".join(f"{one:.1f}" for one in spread) or "-",
    )


def main(file: str) -> int:
    faults = [Fault(**json.loads(line)) for line in Path(file).read_text().splitlines()]
    print("\n".join(table(faults)))
    return 0 if faults and all(one.passed for one in faults) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
