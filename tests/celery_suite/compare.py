"""What the records of a run say, and how those of two runs differ."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

__all__ = ["Records", "different"]

#: What belongs to a delivery and not to the task: the broker tells its deliveries apart by it.
OF_A_DELIVERY = {"delivery_tag", "consumer_tag"}
NOTHING = "(nothing)"
KINDS = ("came", "denied", "began")


@dataclass(frozen=True)
class Records:
    """The lines that `plugin.py` wrote."""

    path: Path

    def lines(self, *kinds: str) -> Iterator[dict[str, Any]]:
        begins = tuple(f'{{"kind": "{kind}"' for kind in kinds)  # most are long, and not wanted
        with self.path.open() as lines:
            yield from (json.loads(line) for line in lines if line.startswith(begins))

    @cached_property
    def outcomes(self) -> dict[str, str]:
        """How each test ended, its last try if it was tried again: "passed" if all parts of it were."""
        found: dict[str, str] = {}
        for line in self.lines("test"):
            test, outcome = line["test"], line["outcome"]
            if found.get(test) != "failed":
                found[test] = outcome
        return found

    @cached_property
    def counts(self) -> Counter[str]:
        """How many deliveries came, how many were denied, how many bodies began, how often a test was tried again."""
        found = Counter({kind: sum(1 for _ in self.lines(kind)) for kind in KINDS})
        found["rerun"] = sum(line["outcome"] == "rerun" for line in self.lines("test"))
        return found

    def passed(self) -> set[str]:
        return {test for test, outcome in self.outcomes.items() if outcome == "passed"}

    def why(self, test: str) -> str:
        """The last line of what a test failed with."""
        said = [line["why"] for line in self.lines("test") if line["test"] == test and line["why"]]
        return str(said[-1][0]) if said else ""

    def altered(self) -> dict[str, list[str]]:
        """The fields of `request` that a body saw otherwise than its first delivery had them: by name, each time both
        values. A message that was delivered again since its body last began is one that was redelivered."""
        found: dict[str, list[str]] = defaultdict(list)
        first: dict[str, dict[str, Any]] = {}
        again: set[str] = set()
        for line in self.lines("came", "began"):
            key, fields = line["key"], line["fields"]
            if line["kind"] == "came":
                redelivered = (fields.get("delivery_info") or {}).get("redelivered")
                again |= {key} if redelivered else set()
                if line["first"]:
                    first[key] = fields
                continue
            for name, both in _differences(
                "request", _expected(first.get(key), key in again), fields
            ):
                found[name].append(f"{both} ({key})")
            again.discard(key)
        return found


def _expected(fields: dict[str, Any] | None, redelivered: bool) -> dict[str, Any]:
    """What a body is to see where its message first had `fields`; kombu's own transports say twice whether it was
    delivered again."""
    if fields is None:
        return {}
    found = {
        **fields,
        "delivery_info": {**(fields["delivery_info"] or {}), "redelivered": redelivered},
    }
    if way := fields["properties"].get("delivery_info"):
        kept = {name: value for name, value in way.items() if name != "redelivered"}
        again = {"redelivered": True} if redelivered else {}
        found["properties"] = {**fields["properties"], "delivery_info": {**kept, **again}}
    return found


def _differences(name: str, was: Any, now: Any) -> Iterator[tuple[str, str]]:
    """Where two values differ, and how; of a mapping, which of its values."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted({*was, *now} - OF_A_DELIVERY):
            yield from _differences(f"{name}.{key}", was.get(key, NOTHING), now.get(key, NOTHING))
    elif was != now:
        yield name, f"{was!r} became {now!r}"


def different(plain: Records, limited: Records) -> list[str]:
    """The tests that pass in one of two runs only."""
    return sorted(plain.passed() ^ limited.passed())
