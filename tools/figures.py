"""Draw the figures of docs/images that show how fleetlimit works, as SVG that is readable in light and in dark.

A figure has a background of its own, so it is readable on any page. Its texts are large enough for a phone: the drawing is 480
units wide.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path

from fleetlimit import RateLimit, RateLimiter
from fleetlimit.limit import ALGORITHMS
from fleetlimit.testing import in_memory

__all__ = ["figures"]

WIDTH = 480
STYLE = """
  svg { font: 15px system-ui, sans-serif; }
  .paper { fill: #fff; stroke: #d5d9e0; }
  .box { fill: #eef1f6; stroke: #7b879b; stroke-width: 1.5; }
  .redis { fill: none; stroke: #7b879b; stroke-width: 1.5; stroke-dasharray: 5 4; }
  .task { fill: #4f6bd8; }
  .faint { fill: #c9d0dd; }
  .over { fill: #c2410c; }
  text { fill: #1f2733; }
  .small { font-size: 13px; fill: #4b5667; }
  .on { fill: #fff; font-size: 13px; font-weight: 600; }
  .way { fill: none; stroke: #1f2733; stroke-width: 1.7; }
  .axis { stroke: #9aa4b5; stroke-width: 1; }
  .head { fill: #1f2733; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #1b1f27; stroke: #3a4250; }
    .box { fill: #2a303c; stroke: #8e9ab0; }
    .redis { stroke: #8e9ab0; }
    .task { fill: #6f88ec; }
    .faint { fill: #4a5263; }
    .over { fill: #fb923c; }
    text { fill: #e8ebf1; }
    .small { fill: #b4bdcc; }
    .on { fill: #10131a; }
    .way { stroke: #e8ebf1; }
    .axis { stroke: #6b7587; }
    .head { fill: #e8ebf1; }
  }
"""


def drawing(height: int, title: str, *parts: str) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path class="head" d="M0 0 10 5 0 10z"/></marker></defs>',
            f'<rect class="paper" x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="8"/>',
            *parts,
            "</svg>",
        ]
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, *lines: str, kind: str = "box") -> str:
    first = y + height / 2 + 5 - 9 * (len(lines) - 1)
    parts = [
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'
    ]
    for number, line in enumerate(lines):
        parts.append(text(x + width / 2, first + 18 * number, line, "small" if number else ""))
    return "".join(parts)


def way(path: str, both: bool = False) -> str:
    start = ' marker-start="url(#head)"' if both else ""
    return f'<path class="way" d="{path}" marker-end="url(#head)"{start}/>'


def step(x: float, y: float, number: int) -> str:
    """A number in a disc; the page says what happens there."""
    return f'<circle class="task" cx="{x:g}" cy="{y:g}" r="11"/>' + text(
        x, y + 4.5, str(number), "on"
    )


# --- the line and the room ------------------------------------------------------------------------


def line_and_room() -> str:
    """Where a task is, from the queue to its start."""
    parts = [
        box(20, 24, 120, 62, "Queue", "of the broker"),
        box(182, 24, 120, 62, "Worker", "any of the fleet"),
        box(344, 24, 116, 62, "Your task", "starts"),
        '<rect class="redis" x="20" y="166" width="440" height="290" rx="8"/>',
        text(34, 190, "Redis", anchor="start"),
        box(172, 182, 140, 62, "The limit", "100 per 60 s"),
        way("M140 55H178"),
        step(159, 38, 1),
        way("M242 90V178", both=True),
        step(262, 132, 2),
        way("M302 55H340"),
        step(321, 38, 3),
        way("M312 213H424V290"),
        step(400, 250, 4),
        text(34, 286, "The line", anchor="start"),
    ]
    for place in range(6):
        left = 34 + 72 * place
        parts.append(box(left, 298, 52, 40, str(place)))
        parts.append(f'<path class="axis" d="M{left + 26} 338V372"/>')
        parts.append(f'<rect class="task" x="{left}" y="372" width="52" height="34" rx="4"/>')
        parts.append(
            f'<path d="M{left + 4} 376 {left + 26} 392 {left + 48} 376" fill="none" stroke="#fff" stroke-width="1.5"/>'
        )
    parts.append(text(34, 436, "The waiting room: the messages of the tasks", anchor="start"))
    parts.append(way("M34 389H10V120H80V90"))
    parts.append(step(80, 120, 5))
    return drawing(
        472,
        "A task's way from its queue through the line and the waiting room to its start",
        *parts,
    )


# --- an outage ------------------------------------------------------------------------------------


def outage() -> str:
    """Who admits while Redis is there, while it is away, and when it is back."""
    parts = [
        text(80, 36, "Redis answers"),
        text(240, 36, "Redis is away"),
        text(400, 36, "Redis answers"),
    ]
    for x in (160, 320):
        parts.append(f'<path class="axis" d="M{x} 20V300" stroke-dasharray="4 4"/>')
    for number in range(3):
        top = 66 + 56 * number
        parts.append(text(14, top - 4, f"Process {number + 1}", "small", "start"))
        parts.append(f'<path class="axis" d="M14 {top + 16}H466"/>')
        parts += [start(14 + 16.5 * (3 * slot + number), top) for slot in range(3)]
        parts += [start(168 + 49.5 * slot + 8 * number, top, "over") for slot in range(3)]
        parts += [start(328 + 15.3 * (3 * slot + number), top) for slot in range(3)]
    parts.append(text(14, 242, "All together", "small", "start"))
    parts.append('<path class="axis" d="M14 264H466"/>')
    parts += [start(14 + 16.5 * slot, 248) for slot in range(9)]
    parts += [
        start(168 + 49.5 * slot + 8 * number, 248, "over")
        for slot in range(3)
        for number in range(3)
    ]
    parts += [start(328 + 15.3 * slot, 248) for slot in range(9)]
    parts.append(text(240, 290, "each process takes", "small"))
    parts.append(text(240, 307, "a third of the limit", "small"))
    return drawing(
        320, "Three processes while Redis answers, while it is away, and afterwards", *parts
    )


def start(x: float, y: float, kind: str = "task") -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="7" height="16" rx="1.5"/>'


# --- the algorithms -------------------------------------------------------------------------------

LIMIT, PER, FROM_S, UNTIL_S = 10, 60, 30, 180


def starts(algorithm: str) -> list[float]:
    """When tasks start that all come at one moment, seconds: asked of the real algorithm."""
    limit, found = RateLimit(algorithm, LIMIT, PER, algorithm=algorithm, margin=0), []
    with in_memory() as limits:
        limiter, clock = RateLimiter(), limits.clock
        clock.advance(FROM_S)
        while clock.seconds < UNTIL_S:
            if decision := limiter.acquire(limit):
                found.append(clock.seconds)
            else:
                clock.advance(decision.retry_after)
    return found


def fullest(times: list[float]) -> int:
    """The most starts in any window of the period."""
    return max(sum(begin <= time < begin + PER - 1e-5 for time in times) for begin in times)


def algorithms() -> str:
    """What each algorithm does with forty tasks at half past a minute."""

    def x(seconds: float) -> float:
        return 16 + (seconds - 20) * 2.3

    parts = [text(16, 30, f"Starts at {LIMIT} per {PER} s", anchor="start")]
    parts.append(text(464, 30, f"most in any {PER} s", "small", "end"))
    for row, algorithm in enumerate(ALGORITHMS):
        top, times = 60 + 58 * row, [time for time in starts(algorithm) if time < UNTIL_S]
        most = fullest(times)
        parts.append(text(16, top - 6, algorithm, "small", "start"))
        parts.append(text(464, top + 14, str(most), "over" if most > LIMIT else "", "end"))
        parts.append(f'<path class="axis" d="M16 {top + 18}H{x(UNTIL_S):g}"/>')
        for minute in (60, 120, 180):
            parts.append(f'<path class="axis" d="M{x(minute):g} {top}v22" stroke-dasharray="2 3"/>')
        for time in sorted(set(times)):
            high = 4 + 1.4 * times.count(time)
            parts.append(
                f'<rect class="task" x="{x(time):.1f}" y="{top + 18 - high:.1f}" width="3" height="{high:.1f}"/>'
            )
    bottom = 60 + 58 * len(ALGORITHMS)
    for minute in (1, 2, 3):
        parts.append(text(x(60 * minute), bottom - 8, f"{minute}:00", "small"))
    return drawing(bottom + 10, "The starts that six algorithms allow", *parts)


# --- all ------------------------------------------------------------------------------------------

FIGURES: dict[str, Callable[[], str]] = {
    "line-and-room.svg": line_and_room,
    "outage.svg": outage,
    "algorithms.svg": algorithms,
}


def figures(folder: Path) -> dict[Path, str]:
    """Each figure, and what its file must contain."""
    return {folder / name: f"{drawn()}\n" for name, drawn in FIGURES.items()}
