"""A run as the page shows it: marks, curve, figures and words. The page only draws them."""

from __future__ import annotations

from typing import Any

from fleetlimit.lab.measure import ideal, trailing, worst_window
from fleetlimit.lab.simulate import Run
from fleetlimit.lab.words import figures, summary

__all__ = ["report"]

#: Those whose windows begin at fixed times.
_ALIGNED = ("fixed_window", "sliding_counter")


def report(run: Run) -> dict[str, Any]:
    """A JSON document; times are microseconds since the start of the run.

    `view`: what the time axis spans. `worst`: the fullest window.
    `marks`: [at, instance, admitted, wait, request, which of its asks], in order of `at`.
    `curve`: [from when, starts within the last period].
    """
    one, limit = run.scenario, run.scenario.rate_limit()
    starts, per = run.starts, limit.per_us
    most, begins = worst_window(starts, per)
    marks = sorted(
        [ask.at_us, ask.instance, int(ask.admitted), ask.wait_us, ask.request, ask.number]
        for ask in run.asks
    )
    begin = per * 3 // 4 if one.traffic == "boundary" else 0  # nothing happens before
    end = max(marks[-1][0], begins + per)
    numbers = {**_numbers(run), "worst": most, "bound": limit.bound, "worst_from_us": begins}
    return {
        "scenario": one.as_dict(),
        "code": one.code(),
        "per_us": per,
        "limit": one.limit,
        "instances": one.instances,
        "view": [begin, end],
        "boundaries": [
            t for t in range(0, end + 1, per) if t >= begin and one.algorithm in _ALIGNED
        ],
        "marks": marks,
        "curve": trailing(starts, per),
        "worst": {"from": begins, "to": begins + per, "label": f"{most} in {one.per:g} s"},
        "numbers": numbers,
        "figures": figures(one, numbers),
        "summary": summary(one, numbers),
    }


def _numbers(run: Run) -> dict[str, Any]:
    """`drain_us`: from the first arrival to the last start. `ideal_us`: the same, had each asked
    at the best instant; None where nobody waits, and where some still do."""
    starts, count = run.starts, len(run.arrivals)
    drained = run.scenario.denied != "leave" and not run.waiting
    arrived = [run.base_us + at for at in run.arrivals]
    best = ideal(run.scenario.rate_limit(), arrived) - arrived[0] if drained else None
    return {
        "requests": count,
        "admitted": len(starts),
        "denied": len(run.asks) - len(starts),
        "waiting": run.waiting,
        "asks": len(run.asks),
        "asks_per_request": len(run.asks) / count,
        "drain_us": starts[-1] - run.arrivals[0],
        "ideal_us": best,
        "cut": run.cut,
    }
