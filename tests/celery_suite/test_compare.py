"""A difference between two runs is found; what differs from delivery to delivery is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .compare import Records, different


def records(path: Path, *lines: dict[str, Any]) -> Records:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Records(path)


def ended(name: str, outcome: str) -> dict[str, Any]:
    return {"kind": "test", "test": name, "outcome": outcome, "why": ["why"]}


def came(*, first: bool = True, redelivered: bool = False, **fields: Any) -> dict[str, Any]:
    return {"kind": "came", "key": "a", "first": first, "fields": request(redelivered, **fields)}


def began(*, redelivered: bool = False, **fields: Any) -> dict[str, Any]:
    return {"kind": "began", "key": "a", "fields": request(redelivered, **fields)}


def request(redelivered: bool, *, tag: int = 1, **fields: Any) -> dict[str, Any]:
    again = {"redelivered": True} if redelivered else {}
    return {
        "delivery_info": {"exchange": "", "redelivered": redelivered},
        "properties": {"delivery_tag": tag, "delivery_info": {"exchange": "", **again}},
        **fields,
    }


def test_tests_that_end_differently(tmp_path: Path) -> None:
    plain = records(
        tmp_path / "plain", ended("one", "passed"), ended("two", "passed"), ended("lost", "passed")
    )
    limited = records(
        tmp_path / "limited",
        ended("one", "rerun"),
        ended("one", "passed"),
        ended("two", "failed"),
        ended("two", "passed"),  # its teardown, or the last of its subtests
    )
    assert different(plain, limited) == ["lost", "two"]
    assert limited.counts["rerun"] == 1


@pytest.mark.parametrize(
    "lines",
    [
        [came(eta=None), began(eta=None)],
        [came(eta=None), came(first=False, eta="now"), began(eta=None, tag=2)],
        [came(), came(first=False, redelivered=True), began(redelivered=True)],
        [came(), began(), came(redelivered=True), came(first=False), began(redelivered=True)],
    ],
    ids=["at once", "waited", "delivered again", "gave itself back"],
)
def test_a_request_that_stays_what_it_was(tmp_path: Path, lines: list[dict[str, Any]]) -> None:
    assert records(tmp_path / "records", *lines).altered() == {}


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ([came(eta=None), began(eta="now")], {"request.eta"}),
        ([came(stamps={"a": 1}), began()], {"request.stamps"}),
        ([came(), came(first=False), began(headers={"x": 1})], {"request.headers"}),
        (
            [came(), began(), came(redelivered=True), came(first=False), began()],
            {
                "request.delivery_info.redelivered",
                "request.properties.delivery_info.redelivered",
            },
        ),
        ([began()], {"request.delivery_info", "request.properties"}),
    ],
    ids=["changed", "lost", "added", "redelivered is lost", "never came"],
)
def test_a_request_that_is_altered(
    tmp_path: Path, lines: list[dict[str, Any]], names: set[str]
) -> None:
    assert set(records(tmp_path / "records", *lines).altered()) == names
