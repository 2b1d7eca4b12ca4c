"""The Lua scripts: found, joined with their preludes, run by their digest; a typed face for each.

A script begins with `--@ name name`: the files it needs before it; `*` stands for all algorithms of the registry, each of
which is made when a rule or a state asks for it, so that a limit pays for its own only. Numbers that Python knows too are
put before all of it, from `shared.py`. The scripts lie in `lua/` at the
top of the repository and in `fleetlimit/lua/` inside the wheel. `python -m fleetlimit.store acquire` prints one as Redis
gets it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from redis.exceptions import NoScriptError, ResponseError

from fleetlimit.algorithms.registry import KINDS, TWINS
from fleetlimit.store.connection import Connection
from fleetlimit.store.shared import SHARED

__all__ = ["Call", "Script", "script", "script_names"]

#: Keys and arguments.
Call: TypeAlias = "tuple[Sequence[str | bytes], Sequence[str | int | bytes]]"


def _folder() -> Path:
    here = Path(__file__).resolve().parent.parent
    inside = here / "lua"
    return inside if inside.is_dir() else here.parent.parent / "lua"


class Script:
    """One script. Only NOSCRIPT is replayed: the server then certainly did not run it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = _with_numbers(_assembled(name))
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def __call__(
        self,
        connection: Connection,
        keys: Sequence[str | bytes],
        args: Sequence[str | int | bytes],
    ) -> Any:
        try:
            return connection.call("EVALSHA", self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return connection.call("EVAL", self.text, len(keys), *keys, *args)

    def begin(self, connection: Connection, calls: Sequence[Call]) -> Iterator[list[Any]]:
        """Send several calls at once; their replies come as one list, whenever it is taken. An error stands in the
        place of a reply."""
        commands = [("EVALSHA", self.sha, len(keys), *keys, *args) for keys, args in calls]
        replies = connection.sent(commands)
        next(replies)
        return self._received(connection, calls, replies)

    def _received(
        self, connection: Connection, calls: Sequence[Call], replies: Iterator[Any]
    ) -> Iterator[list[Any]]:
        found = list(replies)
        for n, reply in enumerate(found):
            if isinstance(reply, NoScriptError):
                try:
                    found[n] = self(connection, *calls[n])
                except ResponseError as error:
                    found[n] = error
        yield found


def _assembled(name: str) -> str:
    text = (_folder() / f"{name}.lua").read_text()
    first, _, _ = text.partition("\n")
    if not first.startswith("--@"):
        return text
    needed = []
    for part in first[3:].split():
        if part == "*":
            needed += [_made_late(letter, name) for letter, name in TWINS.items()]
            needed.append(f"DEFAULT = '{KINDS[0].letter}'")
        else:
            needed.append(_assembled(part))
    return "\n".join([*needed, text])


def _with_numbers(text: str) -> str:
    """A script behind the numbers that it uses and that Python knows too."""
    code = re.sub(r"--[^\n]*", "", text)
    used = [name for name in SHARED if re.search(rf"\b{name}\b", code)]
    if not used:
        return text
    values = ", ".join(str(SHARED[name]) for name in used)
    return f"local {', '.join(used)} = {values}\n{text}"


def _made_late(letter: str, name: str) -> str:
    return f"MAKERS.{letter} = function()\n{_assembled(name)}\nend"


def script_names() -> list[str]:
    """The scripts that Redis gets. (The other files in `lua/` are parts of them.)"""
    texts = {path.stem: path.read_text() for path in _folder().glob("*.lua")}
    firsts = [text.partition("\n")[0] for text in texts.values()]
    parts = {part for first in firsts if first.startswith("--@") for part in first[3:].split()}
    return sorted(set(texts) - parts - set(TWINS.values()))


@cache
def script(name: str) -> Script:
    """The script `lua/<name>.lua`, read once per process."""
    return Script(name)
