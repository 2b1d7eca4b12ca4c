"""The registry: all algorithms, found in the modules of this package.

Nothing else in fleetlimit names an algorithm. A module that is added here, with its twin in `lua/`, is known
everywhere: to `RateLimit`, to the scripts, to the commands, to the lab and to the conformance suite.
"""

from __future__ import annotations

import importlib
import pkgutil
import string
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from fleetlimit import algorithms
from fleetlimit.algorithms.base import LEAST_MARGIN, Algorithm, Name
from fleetlimit.algorithms.whole import EXACT, Limit, inexact, stretched_us

__all__ = [
    "ALGORITHMS",
    "DEFAULT",
    "KINDS",
    "ONE_OF_EACH",
    "TWINS",
    "from_wire",
    "kind_of",
    "name_of",
    "rule_of",
]

#: The algorithm of a limit that names none. Its states may be stored without a letter.
DEFAULT = "gcra"


def _classes() -> Iterator[type[Algorithm]]:
    for module in pkgutil.iter_modules(algorithms.__path__, f"{algorithms.__name__}."):
        if module.name == __name__:
            continue
        for one in vars(importlib.import_module(module.name)).values():
            own = isinstance(one, type) and one.__module__ == module.name
            if own and issubclass(one, Algorithm) and "names" in vars(one):
                yield one


def _checked(kinds: Sequence[type[Algorithm]]) -> tuple[type[Algorithm], ...]:
    """:raises TypeError: for two algorithms that could not be told apart."""
    letters = [one.letter for one in kinds]
    names = [name for one in kinds for name in one.names]
    for what, values in (("letter", letters), ("name", names)):
        if len(set(values)) < len(values):
            raise TypeError(f"two algorithms have the same {what}: {values}")
    if wrong := [one for one in letters if len(one) != 1 or one not in string.ascii_lowercase]:
        raise TypeError(f"an algorithm's letter must be one of a to z: {wrong}")
    return tuple(kinds)


#: The classes of all algorithms, the default one first.
KINDS = _checked(
    sorted(_classes(), key=lambda one: (DEFAULT not in one.names, one.order, one.letter))
)
#: All public names.
ALGORITHMS = tuple(name for kind in KINDS for name in kind.names)
#: One name for each class.
ONE_OF_EACH = tuple(next(iter(kind.names)) for kind in KINDS)
#: The file in `lua/` that counts as a class does, by the letter of its rules: it is called as the class's module is.
TWINS = {kind.letter: kind.__module__.rpartition(".")[2] for kind in KINDS}

_BY_NAME = {name: kind for kind in KINDS for name in kind.names}
_BY_LETTER = {kind.letter: kind for kind in KINDS}


def kind_of(name: str) -> type[Algorithm]:
    """The class that serves a public name.

    :raises KeyError: for a name that is none of `ALGORITHMS`.
    """
    return _BY_NAME[name]


def name_of(name: str) -> Name:
    """What is declared of a public name.

    :raises KeyError: for a name that is none of `ALGORITHMS`.
    """
    return _BY_NAME[name].names[name]


def rule_of(limit: Limit) -> Algorithm:
    """A limit in whole numbers.

    :raises ConfigurationError: for numbers that cannot be counted exactly.
    """
    if stretched_us(limit) >= EXACT // 2:
        raise inexact(limit)
    rule = kind_of(limit.algorithm).from_limit(limit)
    return replace(rule, margin=LEAST_MARGIN) if limit.margin == "auto" else rule


@lru_cache(maxsize=1024)
def from_wire(text: str) -> Algorithm:
    """The rule that a script or a store names.

    :raises ValueError: for what is no rule.
    """
    own, _, margin = text.partition("~")
    letter, *rest = own.split(",")
    numbers = [int(one) for one in rest]
    kind = _BY_LETTER.get(letter)
    if kind is None or len(numbers) != kind.size:
        raise ValueError(f"{text:.80} is no rule")
    return kind.from_numbers(numbers, int(margin or 0))
