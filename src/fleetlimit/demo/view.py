"""Shows the demo: a live table while it runs (or a few lines of text), then one screen with the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fleetlimit.demo.api import Call
from fleetlimit.demo.measure import Result, worst_window
from fleetlimit.demo.run import CELERY, OURS, RETRY, Outcome, Plan, Watcher

__all__ = ["Lines", "Screen", "console_for", "screen", "watching"]

_WIDEST = 100
_LEGEND = {
    "worst window": "most calls to the API within any {per:g} s, refused calls included",
    "429s": "calls the API refused; completed: tasks whose call it accepted",
    "deliveries": "how often workers took a task from the queue until it was done",
    "drain / ideal": "1.00 is as fast as the limit allows; less is too fast",
}


def console_for(stream: IO[str]) -> Console:
    """A console on `stream` that is not too wide to read."""
    console = Console(file=stream, highlight=False)
    console.width = min(console.width, _WIDEST)
    return console


class Lines:
    """A watcher for logs and pipes: two lines for each variant."""

    def __init__(self, plan: Plan, write: Callable[[str], None]) -> None:
        self.plan, self._write = plan, write

    def starting(self) -> None:
        self._write(f"Starting a Redis and {_rate(self.plan)}.")

    def began(self, variant: str) -> None:
        plan = self.plan
        self._write(f"{variant}: {plan.size(variant)} tasks to {_workers(plan)} ...")

    def tick(self, variant: str, calls: Sequence[Call], deliveries: int) -> None:
        """Print nothing, because ten lines a second would be too many."""

    def ended(self, outcome: Outcome) -> None:
        one = outcome.result
        self._write(
            f"{outcome.variant}: {one.completed} of {one.tasks} completed in {one.drain_s:.1f} s, "
            f"worst window {one.worst_window}, {one.api_rejections} times 429"
        )


class Screen:
    """A watcher for terminals: a table that moves."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._now: str | None = None
        self._seen: dict[str, tuple[Sequence[Call], int]] = {}

    def starting(self) -> None:
        """Do nothing, because the table shows that all tasks wait."""

    def began(self, variant: str) -> None:
        self._now = variant

    def tick(self, variant: str, calls: Sequence[Call], deliveries: int) -> None:
        self._seen[variant] = calls, deliveries

    def ended(self, outcome: Outcome) -> None:
        self._now = None

    def __rich__(self) -> RenderableType:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("", no_wrap=True)
        for title in ("calls", "", f"worst {self.plan.per:g} s", "429s", "deliveries"):
            table.add_column(title, justify="right", no_wrap=True)
        for variant in self.plan.variants:
            table.add_row(*self._row(variant))
        return Group(_title(self.plan), "", Padding(table, (0, 1)), "", self._status())

    def _row(self, variant: str) -> list[RenderableType]:
        calls, deliveries = self._seen.get(variant, ((), 0))
        size = self.plan.size(variant)
        bar = ProgressBar(total=size, completed=min(len(calls), size), width=16)
        worst = worst_window([at for at, _, _ in calls], self.plan.per)
        refused = sum(not accepted for _, _, accepted in calls)
        name = Text(variant, style="bold" if variant == self._now else "")
        return [
            name,
            f"{len(calls)}/{size}",
            bar,
            Text(str(worst), style=_bad(worst > self.plan.limit)),
            Text(str(refused), style=_bad(refused > 0)),
            str(deliveries),
        ]

    def _status(self) -> Text:
        if self._now is None:
            return Text(" starting ..." if not self._seen else " done", style="dim")
        if self._now not in self._seen:
            return Text(f" {self._now}: starting {_workers(self.plan)} ...", style="dim")
        return Text(f" {self._now}: {_workers(self.plan)} at work", style="dim")


@contextmanager
def watching(plan: Plan, console: Console, quiet: bool) -> Iterator[Watcher]:
    """A live table in a terminal; lines of text elsewhere, or if `quiet`."""
    if quiet or not console.is_terminal:
        yield Lines(plan, lambda line: console.print(line, markup=False, soft_wrap=True))
        return
    view = Screen(plan)
    # Transient, because the final screen takes its place.
    with Live(view, console=console, refresh_per_second=5, transient=True):
        yield view


def screen(plan: Plan, outcomes: Sequence[Outcome], picture: str | None) -> RenderableType:
    """The final screen: what was run, the numbers, and what they mean."""
    parts: list[RenderableType] = [_title(plan), _setting(plan, outcomes), ""]
    parts += [_numbers(plan, outcomes), "", _legend(plan), ""]
    parts += [_meaning(plan, outcomes), ""]
    if picture is not None:
        parts.append(Text(f"Picture: {picture}", overflow="fold"))
    return Group(*parts)


def _title(plan: Plan) -> Text:
    text = f"fleetlimit demo: {plan.tasks} tasks, {_workers(plan)}, {_rate(plan)}"
    return Text(text, style="bold")


def _setting(plan: Plan, outcomes: Sequence[Outcome]) -> Text:
    text = (
        "Each task calls a real HTTP API once. The API counts all calls itself and answers 429 to "
        f"calls above {plan.limit} within {plan.per:g} s."
    )
    if len(outcomes) > 1:
        text += f" The {len(outcomes)} runs limit them differently:"
    return Text(text)


def _numbers(plan: Plan, outcomes: Sequence[Outcome]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    for title in (
        f"worst window\n(limit {plan.limit})", "429s\n", "completed\n",
        "deliveries\nper task", "drain /\nideal",
    ):  # fmt: skip
        table.add_column(title, justify="right", no_wrap=True)
    for one in outcomes:
        good = one.variant == OURS and one.result.promise_kept
        table.add_row(Text(one.variant, style=_name_style(good)), *_cells(one.result))
    return table


def _cells(one: Result) -> list[Text]:
    return [
        Text(str(one.worst_window), style=_bad(one.worst_window > one.limit)),
        Text(str(one.api_rejections), style=_bad(one.api_rejections > 0)),
        Text(f"{one.completed}/{one.tasks}", style=_bad(one.completed < one.tasks)),
        Text(f"{one.deliveries_per_task:.2f}", style=_bad(one.deliveries_per_task > 3)),
        Text(f"{one.drain_over_ideal:.2f}"),
    ]


def _legend(plan: Plan) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, meaning in _LEGEND.items():
        table.add_row(Text(name, style="dim"), Text(meaning.format(per=plan.per), style="dim"))
    return table


def _meaning(plan: Plan, outcomes: Sequence[Outcome]) -> Group:
    """Two lines for each variant: how the task is limited, and the result."""
    lines = []
    for one in outcomes:
        code, text = _TELL[one.variant](plan, one.result)
        head = Text.assemble((one.variant, "bold"), "  ", (code, "cyan"))
        broken = one.variant == OURS and not one.result.promise_kept
        lines += [head, Text(f"  {text}", style=_bad(broken))]
    return Group(*lines)


def _ours(plan: Plan, one: Result) -> tuple[str, str]:
    code = f'@rate_limited("fragile-api", {plan.limit}, per={plan.per:g})'
    if one.promise_kept:
        return code, "One limit for the whole fleet: never exceeded, no call refused, no task lost."
    broken = [
        f"{one.worst_window} calls in a window" * (one.worst_window > one.limit),
        f"{one.api_rejections} times 429" * (one.api_rejections > 0),
        f"{one.tasks - one.completed} tasks not done" * (one.completed < one.tasks),
    ]
    return code, "THE PROMISE WAS BROKEN: " + ", ".join(filter(None, broken)) + "."


def _celery(plan: Plan, one: Result) -> tuple[str, str]:
    code = f'@app.task(rate_limit="{plan.limit / plan.per:g}/s")'
    if plan.workers == 1:
        return code, "Each worker counts for itself: right with one worker, wrong with two."
    text = f"Each worker counts for itself: {plan.workers} workers, {plan.workers} x the limit."
    return code, text + f" ({one.tasks} tasks show it.)" * (one.tasks < plan.tasks)


def _retry(plan: Plan, one: Result) -> tuple[str, str]:
    rounds = f"{one.deliveries_per_task:.0f} rounds each"
    return (
        "self.retry(countdown=retry_after)",
        f"All waiting tasks get the same time: all wake, one starts. {rounds}.",
    )


_TELL = {OURS: _ours, CELERY: _celery, RETRY: _retry}


def _workers(plan: Plan) -> str:
    return f"{plan.workers} Celery worker{'s' * (plan.workers != 1)}"


def _rate(plan: Plan) -> str:
    return f"an API allowing {plan.limit} calls per {plan.per:g} s"


def _name_style(good: bool) -> str:
    return "bold green" if good else "bold"


def _bad(yes: bool) -> str:
    return "bold red" if yes else ""
