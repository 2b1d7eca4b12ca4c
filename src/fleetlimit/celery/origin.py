"""Where limits and tasks were defined, for the texts of errors and warnings."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any

from celery.app.task import Task

from fleetlimit.errors import ConfigurationError

__all__ = ["Origin", "caller", "described", "naming", "origin_of"]


@dataclass(frozen=True, eq=False)
class Origin:
    """A place in a program, and the code that was being executed there: `code` is the code object of the module that
    was being loaded, or of a task's function, and `unit` is the file and name of that code."""

    file: str
    line: int
    unit: tuple[str, str]
    code: CodeType | None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def reloads(self, former: Origin) -> bool:
        """Whether the same part of a program was loaded again since `former`. Its code object is then a new one. (A
        factory that is called twice has the same code object both times.)"""
        return self.unit == former.unit and self.code is not former.code


def caller(depth: int) -> Origin:
    """The place of the caller, `depth` frames up, with the module that was being loaded meanwhile."""
    frame = sys._getframe(depth + 1)
    module: Any = frame
    while module and module.f_code.co_name != "<module>":
        module = module.f_back
    code = (module or frame).f_code
    return Origin(frame.f_code.co_filename, frame.f_lineno, (code.co_filename, code.co_name), code)


def origin_of(target: Any) -> Origin:
    """The place of the body of a function, a task or a task class."""
    body = inspect.unwrap(_body(target))
    while isinstance(body, functools.partial):
        body = body.func
    code = getattr(body, "__code__", None)
    if code is None:
        return Origin("?", 0, ("?", repr(target)), None)
    name = getattr(body, "__qualname__", code.co_name)
    return Origin(code.co_filename, code.co_firstlineno, (code.co_filename, name), code)


def described(target: Any) -> str:
    """The name that a user knows for a task or function, and its place."""
    if _is_task(target):
        label = f"task {target.name!r}"
    else:
        label = f"{target.__module__}.{getattr(target, '__qualname__', target)}"
    return f"{label} ({origin_of(target)})"


@contextmanager
def naming(what: str) -> Iterator[None]:
    """:raises ConfigurationError: the one that was raised inside, with `what` (the place) before its text."""
    try:
        yield
    except ConfigurationError as error:
        raise type(error)(f"{what}: {error}") from error


def _body(target: Any) -> Any:
    body = getattr(target, "run", target) if _is_task(target) else target
    return getattr(body, "__func__", body)


def _is_task(target: Any) -> bool:
    return isinstance(target, Task) or (isinstance(target, type) and issubclass(target, Task))
