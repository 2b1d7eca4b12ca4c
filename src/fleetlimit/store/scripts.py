"""The Lua scripts: found, joined with their preludes, run by their digest; a typed face for each.

A script begins with `--@ name name`: the files it needs before it; `*` stands for the algorithms that are asked
for, so that a limit pays for its own only. The scripts lie in `lua/` at the
top of the repository and in `fleetlimit/lua/` inside the wheel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from fleetlimit.store.connection import Connection

__all__ = ["EVERY", "Script", "script"]

#: The file of an algorithm, by the letter of its rules.
_ALGORITHMS = {
    "c": "sliding_counter",
    "f": "fixed_window",
    "g": "gcra",
    "l": "sliding_log",
}
#: All of these letters.
EVERY = "".join(_ALGORITHMS)


def _folder() -> Path:
    here = Path(__file__).resolve().parent.parent
    inside = here / "lua"
    return inside if inside.is_dir() else here.parent.parent / "lua"


class Script:
    """One script. Only NOSCRIPT is replayed: the server then certainly did not run it."""

    def __init__(self, name: str, letters: str) -> None:
        self.name = name
        self.text = _assembled(name, letters)
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

    def many(
        self,
        connection: Connection,
        calls: Sequence[tuple[Sequence[str | bytes], Sequence[str | int | bytes]]],
    ) -> list[Any]:
        """Several calls (keys, arguments) in one round trip; an error stands in the place of its reply."""
        commands = [("EVALSHA", self.sha, len(keys), *keys, *args) for keys, args in calls]
        replies = connection.call_many(commands)
        for n, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                try:
                    replies[n] = self(connection, *calls[n])
                except ResponseError as error:
                    replies[n] = error
        return replies


def _assembled(name: str, letters: str) -> str:
    text = (_folder() / f"{name}.lua").read_text()
    first, _, _ = text.partition("\n")
    if not first.startswith("--@"):
        return text
    needed: list[str] = []
    for part in first[3:].split():
        needed += [_ALGORITHMS[letter] for letter in sorted(letters)] if part == "*" else [part]
    return "\n".join([*(_assembled(part, letters) for part in needed), text])


@cache
def script(name: str, letters: str = EVERY) -> Script:
    """The script `lua/<name>.lua` for rules with these letters, read once per process."""
    return Script(name, letters)
