"""An extension of Griffe, which reads the docstrings for the site: two habits of this project that it does not know.

- A `#:` comment above an attribute is its docstring, as it is for Sphinx.
- `:param burst, margin: ...` describes several parameters at once.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["Comments"]

#: A field for several parameters, with its text up to the next field.
TOGETHER = re.compile(r"^:param (\w+(?:, \w+)+):(.*(?:\n(?!:).*)*)", re.MULTILINE)


class Comments(griffe.Extension):
    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        if attr.docstring or attr.lineno is None or isinstance(attr.filepath, list):
            return
        lines = attr.lines_collection[attr.filepath]
        first = attr.lineno - 1
        while lines[first - 1].lstrip().startswith("#:"):
            first -= 1
        if text := [line.lstrip()[2:].strip() for line in lines[first : attr.lineno - 1]]:
            attr.docstring = griffe.Docstring(
                "\n".join(text), lineno=first + 1, endlineno=attr.lineno - 1, parent=attr
            )

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = TOGETHER.sub(_each, obj.docstring.value)


def _each(field: re.Match[str]) -> str:
    return "\n".join(f":param {name}:{field[2].rstrip()}" for name in field[1].split(", "))
