"""A run in the form that the page shows: marks, curve, figures and words. The page only draws them."""

from __future__ import annotations

from typing import Any

from fleetlimit.lab.measure import ideal, trailing, worst_window
from fleetlimit.lab.scenario import Scenario
from fleetlimit.lab.simulate import Run
from fleetlimit.lab.traffic import planned
from fleetlimit.lab.words import excess, figures, summary, tone

__all__ = ["report"]

#: The algorithms whose windows begin at fixed times.
_ALIGNED = ("fixed_window", "sliding_counter")


def report(run: Run) -> dict[str, Any]:
    """A JSON document. Its times are microseconds since the start of the run.

    `period`: `per` in words. `view`: the ends of the time axis. `worst`: the fullest window.
    `marks`: [at, instance, admitted, wait, request, number of the ask], in order of `at`.
    `curve`: [from when, starts within the last period].
    """
    scenario, limit = run.scenario, run.scenario.rate_limit()
    starts, per = run.starts, limit.per_us
    most, begins = worst_window(starts, per)
    marks = sorted(
        [ask.at_us, ask.instance, int(ask.admitted), ask.wait_us, ask.request, ask.number]
        for ask in run.asks
    )
    begin = per * 3 // 4 if scenario.traffic == "boundary" else 0  # nothing happens before
    end = max(marks[-1][0], begins + per)
    numbers = {**_numbers(run), "worst": most, "bound": limit.bound, "worst_from_us": begins}
    return {
        "scenario": scenario.as_dict(),
        "code": scenario.code(),
        "per_us": per,
        "period": scenario.period,
        "limit": scenario.limit,
        "instances": scenario.instances,
        "view": [begin, end],
        "boundaries": [
            t for t in range(0, end + 1, per) if t >= begin and scenario.algorithm in _ALIGNED
        ],
        "marks": marks,
        "curve": trailing(starts, per),
        "worst": {
            "from": begins,
            "to": begins + per,
            "label": _label(scenario, numbers),
            "tone": tone(scenario, numbers),
        },
        "numbers": numbers,
        "figures": figures(scenario, numbers),
        "summary": summary(scenario, numbers),
    }


def _label(scenario: Scenario, numbers: dict[str, Any]) -> str:
    """The text above the fullest window in the plot, such as `20 in 60 s: twice the limit`."""
    count = f"{numbers['worst']:,} in {scenario.period}"
    over = excess(scenario, numbers)
    return f"{count}: {over}" if over else count


def _numbers(run: Run) -> dict[str, Any]:
    """The numbers of a run. `planned`: the requests that the traffic would bring if a run had room for all of them.
    `drain_us`: the time from the first arrival to the last start. `ideal_us`: the same if each request had asked at the
    best moment; None if requests do not wait, or if some still wait at the end."""
    starts, count = run.starts, len(run.arrivals)
    drained = run.scenario.denied != "leave" and not run.waiting
    arrived = [run.base_us + at for at in run.arrivals]
    best = ideal(run.scenario.rate_limit(), arrived) - arrived[0] if drained else None
    return {
        "requests": count,
        "planned": planned(run.scenario),
        "admitted": len(starts),
        "denied": len(run.asks) - len(starts),
        "waiting": run.waiting,
        "asks": len(run.asks),
        "asks_per_request": len(run.asks) / count,
        "drain_us": starts[-1] - run.arrivals[0],
        "ideal_us": best,
        "cut": run.cut,
    }
