"""The start of an admitted run: at its cell, and reported if it comes late."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from fleetlimit import standin
from fleetlimit.algorithms.base import LEAST_MARGIN
from fleetlimit.celery.runtime import runtime_of
from fleetlimit.celery.wiring import limiter_of
from fleetlimit.errors import StoreUnavailable
from fleetlimit.store.base import Outcome, Spend, Store

__all__ = ["give_back", "start", "warm"]

#: A start is late when it lags by a tenth of what the margin allows, and this.
_LATE_US = 1_000
#: A report takes time itself, on a host that is late: then the rest of it is reported too.
_REPORTS = 3


def start(app: Any, store: Store, spends: Sequence[Spend], outcome: Outcome) -> None:
    """Sleep until the admitted cell, and report a start that comes late all the same."""
    if outcome.alone or standin.current:
        standin.sleep(outcome.sleep_us / 1e6)
        return
    clock = runtime_of(app).clock
    due = clock.due_us(outcome.now_us, outcome.sleep_us)
    if (early := due - clock.clock()) > 0:
        standin.sleep(early / 1e6)
    tolerated = min(one.limit.per_us * one.limit.least_margin for one in spends) / 10 + _LATE_US
    if (late := clock.late_us(due)) <= tolerated:
        return
    runtime_of(app).host.note_late(store, spends, outcome, late)
    tolerated = max(tolerated, _spared_us(spends, outcome))
    reported = 0
    for _ in range(_REPORTS):
        late = clock.late_us(due) - reported
        if late <= tolerated:
            return
        with contextlib.suppress(StoreUnavailable):
            store.delay(spends, late)
        reported += late


def _spared_us(spends: Sequence[Spend], outcome: Outcome) -> int:
    """Up to which lateness a widened margin needs no report: half of it, for the other half is for the way to the
    API. 0 if a limit's margin is at its least."""
    pairs = zip(spends, outcome.readings, strict=False)
    margins = ((one.limit.per_us, reading.rule.margin) for one, reading in pairs)
    spared = (per * margin // 2000 if margin > LEAST_MARGIN else 0 for per, margin in margins)
    return min(spared, default=0)


def give_back(store: Store, spends: Sequence[Spend], outcome: Outcome) -> None:
    """An admitted run that will not start after all."""
    if outcome.alone:
        return
    with contextlib.suppress(StoreUnavailable):
        for one, reading in zip(spends, outcome.readings, strict=True):
            store.give_back(one, reading)


def warm(app: Any) -> None:
    """Connect, and learn the difference of the clocks, before a pool process gets its first task:
    else a first start that comes late would not be seen to be."""
    store = limiter_of(app).store
    with contextlib.suppress(StoreUnavailable):
        for _ in range(3):
            runtime_of(app).clock.due_us(store.now_us(), 0)
