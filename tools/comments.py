"""An extension of Griffe: a `#:` comment above an attribute is its docstring, as it is for Sphinx."""

from __future__ import annotations

from typing import Any

import griffe

__all__ = ["Comments"]


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
