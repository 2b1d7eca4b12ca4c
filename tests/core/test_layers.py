"""The parts of fleetlimit import each other in one direction, also where an import is for typing only."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src"
#: From the core outwards: a module may import modules of its own layer and of those before it.
LAYERS = (
    ("errors", "forks", "keys", "algorithms", "limit", "decision"),
    ("store", "standin"),
    ("limiter",),
    ("celery",),
    ("testing", "pytest_plugin", "conformance", "cli_common", "cli_room", "cli_move"),
    ("lab", "demo"),
    ("cli",),
    ("cli_celery",),
    ("__main__", "__init__"),
)


def modules() -> dict[str, Path]:
    found = {}
    for path in (ROOT / "fleetlimit").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__") if name != "fleetlimit.__init__" else name] = path
    return found


def imports() -> dict[str, set[str]]:
    """What each module imports of fleetlimit, anywhere in it."""
    known, found = modules(), {}
    for name, path in known.items():
        there = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for one in node.names:
                    full = f"{node.module}.{one.name}"
                    there.add(full if full in known else node.module)
            elif isinstance(node, ast.Import):
                there |= {one.name for one in node.names}
        found[name] = {one for one in there if one in known and one != name}
    return found


def layer(module: str) -> int:
    part = module.split(".")[1]
    return next(n for n, parts in enumerate(LAYERS) if part in parts)


def test_there_is_no_circle() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


def test_arrows_point_to_the_core() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, others in imports().items()
        for other in others
        if layer(other) > layer(name)
    ]
    assert not wrong
