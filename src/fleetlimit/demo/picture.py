"""Draws the picture: for each variant, the calls that the API got within the last `per` seconds, over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fleetlimit.demo.api import Call
from fleetlimit.demo.measure import Result
from fleetlimit.demo.run import CELERY, OURS, RETRY, Outcome, Plan

__all__ = ["draw", "trailing"]

_INK, _QUIET, _GOOD, _BAD, _LIMIT = "#1f2933", "#6b7785", "#2a78b5", "#e4572e", "#111111"
_TITLES = {
    OURS: ("fleetlimit", "one limit for the whole fleet; every task waits for its own turn"),
    CELERY: ("Celery's rate_limit", "each worker counts for itself: together they are too fast"),
    RETRY: (
        "self.retry(countdown=...)",
        "all waiting tasks wake at once; one starts, the others retry",
    ),
}


def draw(plan: Plan, outcomes: Sequence[Outcome], path: Path) -> None:
    """Write a PNG to `path`."""
    figure = Figure(figsize=(11, 2.3 + 2.1 * len(outcomes)), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)  # needs no display
    axes = figure.subplots(len(outcomes), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axis, outcome in zip(axes, outcomes, strict=True):
        _panel(axis, plan, outcome)
    top = max(plan.limit, *(one.result.worst_window for one in outcomes))
    axes[0].set_ylim(0, top * 1.15)
    axes[0].set_xlim(0, max(_length(one.calls) for one in outcomes) + 1.2 * plan.per)
    axes[-1].set_xlabel("seconds since the first call", color=_INK)
    height = figure.get_figheight()
    figure.subplots_adjust(
        left=0.075, right=0.775, top=1 - 1.25 / height, bottom=0.95 / height, hspace=0.38
    )
    _words(figure, plan, height)
    figure.savefig(path, format="png")


def trailing(times: Sequence[float], per: float) -> tuple[list[float], list[int]]:
    """How many of `times` lie within the `per` seconds before t, as steps: (every t, the counts)."""
    changes = sorted([(t, 1) for t in times] + [(t + per, -1) for t in times])
    at, counts, count = [], [], 0
    for t, change in changes:
        count += change
        at.append(t)
        counts.append(count)
    return at, counts


def _length(calls: Sequence[Call]) -> float:
    return calls[-1][0] - calls[0][0] if calls else 0.0


def _panel(axis: Any, plan: Plan, outcome: Outcome) -> None:
    calls = outcome.calls
    start = calls[0][0] if calls else 0.0
    at, seen = trailing([t - start for t, _, _ in calls], plan.per)
    passed = _accepted(calls, start, plan.per, at)
    axis.fill_between(at, passed, step="post", color=_GOOD, alpha=0.75, linewidth=0)
    axis.fill_between(at, passed, seen, step="post", color=_BAD, alpha=0.8, linewidth=0)
    axis.axhline(plan.limit, color=_LIMIT, linewidth=1.4, linestyle=(0, (5, 3)), zorder=3)
    _title(axis, *_TITLES[outcome.variant])
    _facts(axis, outcome.result)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#c5ccd3")
    axis.tick_params(colors=_QUIET, labelsize=9)
    axis.grid(axis="y", color="#e6eaee", linewidth=0.8)
    axis.set_axisbelow(True)


def _accepted(calls: Sequence[Call], start: float, per: float, at: Sequence[float]) -> list[int]:
    """The accepted calls in the window that ends at each of `at`."""
    changes, counts = trailing([t - start for t, _, accepted in calls if accepted], per)
    found, next_change = [], 0
    for t in at:
        while next_change < len(changes) and changes[next_change] <= t:
            next_change += 1
        found.append(counts[next_change - 1] if next_change else 0)
    return found


def _title(axis: Any, name: str, meaning: str) -> None:
    title = axis.annotate(
        name, (0, 1), xytext=(0, 7), xycoords="axes fraction", textcoords="offset points",
        fontsize=11, color=_INK, weight="bold",
    )  # fmt: skip
    axis.annotate(
        meaning, (1, 0), xytext=(10, 0), xycoords=title, textcoords="offset points",
        fontsize=10, color=_QUIET, va="bottom",
    )  # fmt: skip


def _facts(axis: Any, one: Result) -> None:
    """The numbers beside the panel. Bad numbers are red."""
    facts = [
        (f"worst window: {one.worst_window}, limit {one.limit}", one.worst_window > one.limit),
        (f"429s: {one.api_rejections}", one.api_rejections > 0),
        (f"completed: {one.completed} of {one.tasks}", one.completed < one.tasks),
        (f"deliveries per task: {one.deliveries_per_task:.1f}", one.deliveries_per_task > 3),
        (f"drain / ideal: {one.drain_over_ideal:.2f}", False),
    ]
    for row, (text, bad) in enumerate(facts):
        axis.annotate(
            text, (1, 1), xytext=(14, -3 - 17 * row), xycoords="axes fraction",
            textcoords="offset points", va="top", fontsize=10,
            color=_BAD if bad else _INK, weight="bold" if bad else "normal",
        )  # fmt: skip


def _words(figure: Figure, plan: Plan, height: float) -> None:
    left = 0.075
    figure.text(
        left, 1 - 0.22 / height, f"What an API that allows {plan.limit} calls per {plan.per:g} s saw "
        f"from {plan.workers} Celery workers",
        fontsize=14, weight="bold", color=_INK, va="top",
    )  # fmt: skip
    figure.text(
        left, 1 - 0.55 / height,
        f"Height: calls that reached the API within the last {plan.per:g} s. It refuses calls that do "
        "not fit under the dashed line.",
        fontsize=10, color=_QUIET, va="top",
    )  # fmt: skip
    handles = [
        Patch(color=_GOOD, alpha=0.75, label="accepted"),
        Patch(color=_BAD, alpha=0.8, label="refused with 429"),
        Line2D([], [], color=_LIMIT, linewidth=1.4, linestyle=(0, (5, 3)), label="the API's limit"),
    ]
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(left - 0.01, 0.0), ncols=3,
        frameon=False, fontsize=10,
    )  # fmt: skip
