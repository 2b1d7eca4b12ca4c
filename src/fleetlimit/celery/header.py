"""The one header that a waiting task's message carries. It contains the task's place in a line, and the values that are
restored when the task starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "FIELDS",
    "FORM",
    "HEADER",
    "copy_of",
    "due",
    "is_newer",
    "is_revoked",
    "line_of",
    "ours",
    "seen_us",
    "ticket_of",
]

#: The name of the header. It is removed before the body starts.
HEADER = "fleetlimit"
#: The number of the header's form. This version does not read a later form.
FORM = 1


def ours(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of our header among the fields of a request or message. They are empty if the header cannot be read
    (another program may have written it). The task is then treated as if it came for the first time."""
    found = fields.get(HEADER)
    if not isinstance(found, dict) or is_newer(fields):
        return {}
    wrong = [name for name, right in FIELDS.items() if name in found and not right(found[name])]
    return {} if wrong else found


def is_newer(fields: Mapping[str, Any]) -> bool:
    """Whether a later version put the task back, with a header in a form that this version does not read. The task then
    waits for a worker of that version."""
    found = fields.get(HEADER)
    form = found.get("form", 1) if isinstance(found, dict) else 1
    return _is_count(form) and form > FORM


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**53


def _is_line(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_text, value))


#: For each field, what must be true of it if it is there. Other fields are kept as they are.
FIELDS: dict[str, Callable[[Any], bool]] = {
    "form": lambda value: value == FORM and not isinstance(value, bool),
    "seen_us": _is_count,
    "copy": lambda value: isinstance(value, str) and value.isdecimal(),
    "ticket": _is_text,
    "line": _is_line,
    "exchange": _is_text,
    "routing_key": _is_text,
    "properties": lambda value: isinstance(value, dict),
    "eta": lambda value: value is None or _is_text(value),
    "due_us": _is_count,
    "countdown": _is_count,
    "revoked": lambda value: isinstance(value, bool),
    "redelivered": lambda value: isinstance(value, bool),
}


def seen_us(request: Any) -> int:
    """When this task was first denied, by the store's clock. This is its place in the line; 0: it was never denied."""
    return int(ours(vars(request)).get("seen_us", 0))


def copy_of(request: Any) -> str:
    """The mark of the copy that the waiting room let go; '' if the message does not come from a waiting room."""
    return str(ours(vars(request)).get("copy", ""))


def line_of(request: Any) -> tuple[str, str] | None:
    """The limit and key in whose line this task stands; None: in none."""
    line = ours(vars(request)).get("line")
    return (line[0], line[1]) if line else None


def ticket_of(request: Any) -> str:
    """The ticket of the task in its line."""
    return str(ours(vars(request)).get("ticket", request.id))


def due(fields: dict[str, Any]) -> tuple[int, float]:
    """When a task that waits as a countdown is due, by the store's clock (0: the header does not say it), and the
    countdown in seconds. The task waits no longer than the countdown, even if a clock has stepped."""
    found = ours(fields)
    return int(found.get("due_us", 0)), float(found.get("countdown", 0))


def is_revoked(fields: dict[str, Any]) -> bool:
    """Whether the task was revoked while it was parked."""
    return bool(ours(fields).get("revoked"))
