"""Key values are data, never key syntax."""

from __future__ import annotations

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlimit import KeyValueError
from fleetlimit.keys import encode

values = st.text(min_size=1) | st.tuples(st.text(min_size=1), st.text(min_size=1))


@given(st.lists(values, min_size=2, max_size=6, unique=True))
def test_different_values_never_meet(several: list[object]) -> None:  # N13
    assert len({encode(value) for value in several}) == len(several)


@given(values)
def test_only_harmless_characters(value: object) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.%:~-]{1,128}", encode(value))


@pytest.mark.parametrize(
    "value", ["a{b", "a}b", "a:b", "a*", "a\nb", "a\0b", "x" * 10_000, "\ud800"]
)
def test_hostile_values_are_data(value: str) -> None:
    assert not set(encode(value)) & set("{}*\n\0 ")


@pytest.mark.parametrize("value", [None, "", (), ("a", None), ("a", ""), 1.5, True, b"a", ["a"]])
def test_refused(value: object) -> None:
    with pytest.raises(KeyValueError, match="key="):
        encode(value)


def test_plain_values_read_as_they_are() -> None:
    some = uuid.uuid4()
    assert [encode(v) for v in (5, "acct-5", some, ("eu", 7))] == ["5", "acct-5", str(some), "eu:7"]


def test_long_values_are_bounded_and_apart() -> None:
    assert encode("x" * 10_000) != encode("x" * 10_001)
    assert len(encode("x" * 10_000)) == 65
