"""The page: `static/index.html`, with a tab for each algorithm of the registry."""

from __future__ import annotations

from html import escape
from pathlib import Path

from fleetlimit.algorithms.registry import name_of
from fleetlimit.lab.scenario import CHOICES

__all__ = ["STATIC", "page"]

STATIC = Path(__file__).parent / "static"
_TABS = "<!-- a tab for each algorithm -->"


def page() -> str:
    """The HTML. (What the page says about an algorithm stands in the file, as an `article`.)"""
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    return text.replace(_TABS, "\n".join(map(_tab, CHOICES["algorithm"])))


def _tab(algorithm: str) -> str:
    name = name_of(algorithm)
    title = escape(name.title[0].upper() + name.title[1:])
    burst = " data-burst" if "burst" in name.options else ""
    known = f'id="tab-{algorithm}" aria-controls="panel" data-algorithm="{algorithm}"{burst}'
    return f'  <button role="tab" {known}>{title}</button>'
