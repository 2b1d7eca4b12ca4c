"""`make test-all`: the whole suite on each Celery and on each CPython that is supported, paired so that every
version of either is met once; those Pythons that this machine has."""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False

#: Python, Celery, and what else is held at its oldest.
PAIRS = [
    ("3.10", "5.5", ("redis==5.2.*",)),
    ("3.11", "5.7", ()),
    ("3.12", "5.7", ()),
    ("3.13", "5.6", ()),
    ("3.14", "5.7", ()),
]


@nox.session
@nox.parametrize(
    ("python", "celery", "pins"),
    PAIRS,
    ids=[f"{python}-celery{celery}" for python, celery, _ in PAIRS],
)
def tests(session: nox.Session, celery: str, pins: tuple[str, ...]) -> None:
    """All of it."""
    session.install("--upgrade", "pip>=25.1")  # the first that knows --group
    session.install("-e", ".[demo,lab]", f"celery=={celery}.*", *pins, "--group", "test")
    session.run("pytest", "-q", *session.posargs)
