"""The figures and the sentences about a run."""

from __future__ import annotations

from typing import Any

from fleetlimit.lab.scenario import Scenario

__all__ = ["clock", "figures", "summary"]

Numbers = dict[str, Any]

TITLES = {
    "gcra": "GCRA",
    "token_bucket": "token bucket",
    "leaky_bucket": "leaky bucket",
    "fixed_window": "fixed window",
    "sliding_log": "sliding log",
    "sliding_counter": "sliding counter",
}


def figures(one: Scenario, n: Numbers) -> list[dict[str, str]]:
    """What stands beside the plot. `tone` is "bad", "good" or ""."""
    over = n["worst"] > n["bound"]
    worst = f"{'above' if over else 'within'} the bound of {n['bound']}"
    refused = "answered 429" if one.denied == "leave" else "told to come back"
    often = "bad" if n["asks_per_request"] > 3 else ""
    return [
        _figure("Worst window", f"{n['worst']} in {one.per:g} s", worst, "bad" if over else "good"),
        _figure("Admitted", f"{n['admitted']:,}", f"of {n['requests']:,} requests"),
        _figure("Denied", f"{n['denied']:,}", refused),
        _figure(
            "Asks per request", f"{n['asks_per_request']:.2f}", f"{n['asks']:,} asks in all", often
        ),
        _figure("Last start after", *_drain(one, n)),
    ]


def _figure(label: str, value: str, note: str, tone: str = "") -> dict[str, str]:
    return {"label": label, "value": value, "note": note, "tone": tone}


def _drain(one: Scenario, n: Numbers) -> tuple[str, str]:
    if n["waiting"]:
        return "not yet", f"{n['waiting']:,} still wait, {n['cut']}"
    took, best = n["drain_us"], n["ideal_us"]
    if one.denied == "leave":
        return _seconds(took), "nobody waits"
    ratio = f"{took / best:.2f} of " if best else ""
    return _seconds(took), f"{ratio}the ideal {_seconds(best)}"


def summary(one: Scenario, n: Numbers) -> str:
    """The run in three sentences, for those who do not see the plot and for those who do."""
    return f"{_came(one, n)} {_became(one, n)} {_window(one, n)}"


def _came(one: Scenario, n: Numbers) -> str:
    rate = f"{one.limit} per {one.per:g} s, {TITLES[one.algorithm]}"
    if one.instances == 1 and one.state != "naive":
        return f"{n['requests']:,} requests came to one instance ({rate})."
    fleet = "one instance" if one.instances == 1 else f"{one.instances} instances"
    how = {
        "private": "each of which counts for itself",
        "naive": f"whose counter is read and written back {one.latency} ms later",
        "atomic": "with one limit for all",
    }[one.state]
    return f"{n['requests']:,} requests came to {fleet}, {how} ({rate})."


def _became(one: Scenario, n: Numbers) -> str:
    if one.denied == "leave":
        denied = f"{n['denied']:,} left with a 429" if n["denied"] else "none was denied"
        return f"{n['admitted']:,} started, {denied}."
    if n["waiting"]:
        return f"{n['admitted']:,} started and {n['waiting']:,} still wait (the run is {n['cut']})."
    return f"All started, {_seconds(n['drain_us'])} after the first came; {_asks(n)}."


def _asks(n: Numbers) -> str:
    if n["asks"] == n["requests"]:
        return "none had to ask twice"
    return f"each asked {n['asks_per_request']:.1f} times"


def _window(one: Scenario, n: Numbers) -> str:
    held = "above" if n["worst"] > n["bound"] else "within"
    much = f", {_times(n['worst'] / one.limit)} the limit" if n["worst"] > one.limit else ""
    return (
        f"The fullest {one.per:g} s, from {clock(n['worst_from_us'])}, held {n['worst']} start{'s' * (n['worst'] != 1)}"
        f"{much}: {held} the bound of {n['bound']}."
    )


def _times(ratio: float) -> str:
    return "twice" if ratio == 2 else f"{round(ratio, 1):g} times"


def clock(us: int) -> str:
    """Minutes, seconds and milliseconds: `0:59.300`."""
    minutes, rest = divmod(us // 1_000, 60_000)
    return f"{minutes}:{rest // 1_000:02}.{rest % 1_000:03}"


def _seconds(us: int) -> str:
    return f"{us / 1e6:,.1f} s" if us >= 10_000_000 else f"{us / 1e6:.2f} s"
