"""The registry of algorithms: what it finds, what it refuses, and that nothing else names an algorithm."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetlimit.algorithms import registry
from fleetlimit.algorithms.base import Algorithm, Name
from fleetlimit.algorithms.gcra import Rule
from fleetlimit.limit import ALGORITHMS

ROOT = Path(__file__).parents[2]


def test_the_names_stand_in_this_order() -> None:
    assert ALGORITHMS == (
        "gcra",
        "token_bucket",
        "leaky_bucket",
        "fixed_window",
        "sliding_log",
        "sliding_counter",
    )
    assert ALGORITHMS[0] == registry.DEFAULT
    assert registry.ONE_OF_EACH == ("gcra", "fixed_window", "sliding_log", "sliding_counter")


def test_each_algorithm_has_its_twin() -> None:
    assert registry.TWINS.keys() == {kind.letter for kind in registry.KINDS}
    for letter, name in registry.TWINS.items():
        lua = (ROOT / "lua" / f"{name}.lua").read_text()
        assert re.search(rf"^local \w+ = {{ letter = '{letter}', size = (\d+),", lua, re.MULTILINE)


def other(name: str, letter: str) -> type[Algorithm]:
    class Other(Rule):
        names = {name: Name("another")}  # noqa: RUF012  # a ClassVar of the base

    Other.letter = letter
    return Other


@pytest.mark.parametrize(
    ("name", "letter", "said"),
    [
        ("another", "g", "same letter"),
        ("leaky_bucket", "x", "same name"),
        ("another", "ab", "one of a to z"),
        ("another", "", "one of a to z"),
        ("another", "É", "one of a to z"),
        ("another", "~", "one of a to z"),
    ],
)
def test_what_could_not_be_told_apart_is_refused(name: str, letter: str, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        registry._checked([*registry.KINDS, other(name, letter)])


def texts_in(path: Path) -> Iterator[str]:
    """Each text in a Python file that is no docstring."""
    tree = ast.parse(path.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def without_comments(path: Path) -> str:
    return re.sub(r"--.*", "", path.read_text())


def test_nothing_else_names_an_algorithm() -> None:
    own = set(registry.TWINS.values())
    names = re.compile(rf"\b({'|'.join(ALGORITHMS)})\b")
    found = [
        f"{path.name}: {text}"
        for path in (ROOT / "src").rglob("*.py")
        for text in texts_in(path)
        if path.stem not in own and names.search(text)
    ]
    assert found == [f"registry.py: {registry.DEFAULT}"]
    lua = [path for path in (ROOT / "lua").glob("*.lua") if path.stem not in own]
    assert [path.name for path in lua if names.search(without_comments(path))] == []
    letters = re.compile(rf"['\[]({'|'.join(registry.TWINS)})['\]]|\b(ALGORITHMS|MAKERS)\.\w")
    assert [path.name for path in lua if letters.search(without_comments(path))] == []
