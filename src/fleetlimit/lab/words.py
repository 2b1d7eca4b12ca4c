"""The figures and the sentences about a run."""

from __future__ import annotations

from typing import Any

from fleetlimit.algorithms.registry import name_of
from fleetlimit.lab.scenario import Scenario

__all__ = ["clock", "excess", "figures", "summary", "tone"]

Numbers = dict[str, Any]

#: More asks per request than this deserve a warning.
_MANY_ASKS = 3


def tone(scenario: Scenario, n: Numbers) -> str:
    """How good the fullest window is: "good" up to the limit, "warn" above the limit where the
    algorithm's own bound allows it, "bad" above that bound."""
    if n["worst"] <= scenario.limit:
        return "good"
    return "warn" if n["worst"] <= n["bound"] else "bad"


def excess(scenario: Scenario, n: Numbers) -> str:
    """By how much the fullest window exceeds the limit: `twice the limit`, or nothing."""
    worst, limit = n["worst"], scenario.limit
    if worst <= limit:
        return ""
    times = round(worst / limit, 1)
    if times == 1:
        return f"{worst - limit:,} above the limit"
    about = "" if times * limit == worst else "about "
    return f"{about}{'twice' if times == 2 else f'{times:,g} times'} the limit"


def figures(scenario: Scenario, n: Numbers) -> list[dict[str, str]]:
    """What stands beside the plot. `tone` is that of `tone()`, or "" where nothing is judged."""
    worst = f"{n['worst']:,} in {scenario.period}"
    refused = "answered with a 429" if scenario.denied == "leave" else "told to come back"
    often = "warn" if n["asks_per_request"] > _MANY_ASKS else ""
    asks = f"{n['asks']:,} asks in all"
    return [
        _figure("Fullest window", worst, _judged(scenario, n), tone(scenario, n)),
        _figure("Admitted", f"{n['admitted']:,}", f"of {n['requests']:,} requests"),
        _figure("Denied", f"{n['denied']:,}", refused),
        _figure("Asks per request", f"{n['asks_per_request']:.2f}", asks, often),
        _figure("Last start after", *_drain(scenario, n)),
    ]


def _figure(label: str, value: str, note: str, tone: str = "") -> dict[str, str]:
    return {"label": label, "value": value, "note": note, "tone": tone}


def _judged(scenario: Scenario, n: Numbers) -> str:
    """One or two sentences: by how much the limit is exceeded, and whether that is allowed."""
    judged = tone(scenario, n)
    if judged == "good":
        return f"Within the limit of {scenario.limit:,}."
    why = {
        "warn": "This algorithm allows it.",
        "bad": f"This algorithm allows {n['bound']:,}.",
    }[judged]
    return f"{excess(scenario, n).capitalize()}. {why}"


def _drain(scenario: Scenario, n: Numbers) -> tuple[str, str]:
    if n["waiting"]:
        return "not yet", f"{n['waiting']:,} still wait; the run was {n['cut']}"
    took, best = n["drain_us"], n["ideal_us"]
    if scenario.denied == "leave":
        return _duration(took), "denied requests do not wait"
    ratio = f"{took / best:.2f} of " if best else ""
    return _duration(took), f"{ratio}the ideal {_duration(best)}"


def summary(scenario: Scenario, n: Numbers) -> str:
    """The run in a few sentences, for readers with and without the plot."""
    return f"{_came(scenario, n)} {_became(scenario, n)} {_window(scenario, n)}"


def _came(scenario: Scenario, n: Numbers) -> str:
    rate = f"{scenario.limit:,} per {scenario.period}, {name_of(scenario.algorithm).title}"
    came = f"{n['requests']:,} requests came to {_fleet(scenario)} ({rate})."
    if n["planned"] == n["requests"]:
        return came
    return f"{came} They stand for {n['planned']:,}, which are too many to simulate."


def _fleet(scenario: Scenario) -> str:
    if scenario.instances == 1 and scenario.state != "naive":
        return "one instance"
    fleet = "one instance" if scenario.instances == 1 else f"{scenario.instances} instances"
    how = {
        "private": "each of which counts for itself",
        "naive": f"whose shared counter is read and written back {scenario.latency} ms later",
        "atomic": "with one limit for all",
    }[scenario.state]
    return f"{fleet}, {how}"


def _became(scenario: Scenario, n: Numbers) -> str:
    if scenario.denied == "leave":
        denied = f"{n['denied']:,} left with a 429" if n["denied"] else "none was denied"
        return f"{n['admitted']:,} started, {denied}."
    if n["waiting"]:
        return f"{n['admitted']:,} started and {n['waiting']:,} still wait: the run was {n['cut']}."
    last = _duration(n["drain_us"])
    return f"All started, the last one {last} after the first request came; {_asks(n)}."


def _asks(n: Numbers) -> str:
    if n["asks"] == n["requests"]:
        return "none had to ask twice"
    return f"each asked {n['asks_per_request']:.1f} times on average"


def _window(scenario: Scenario, n: Numbers) -> str:
    plural = "s" * (n["worst"] != 1)
    begins = clock(n["worst_from_us"])
    held = f"The fullest {scenario.period}, from {begins}, contained {n['worst']:,} start{plural}"
    judged = _judged(scenario, n)
    return f"{held}: {judged[0].lower()}{judged[1:]}"


def clock(us: int) -> str:
    """Minutes, seconds and milliseconds, and hours where there are any: `0:59.300`, `1:00:59.300`."""
    minutes, rest = divmod(us // 1_000, 60_000)
    hours, minutes = divmod(minutes, 60)
    begin = f"{hours}:{minutes:02}" if hours else f"{minutes}"
    return f"{begin}:{rest // 1_000:02}.{rest % 1_000:03}"


def _duration(us: int) -> str:
    if us < 1_000_000:
        return f"{us / 1e3:.3g} ms"
    if us < 10_000_000:
        return f"{us / 1e6:.2f} s"
    return f"{us / 1e6:,.1f} s" if us < 7_200_000_000 else f"{us / 3.6e9:,.1f} h"
