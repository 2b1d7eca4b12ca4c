"""`make test-all`: the whole suite on each Celery, and on each CPython that this machine has."""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False

NEWEST = "5.7"


def run(session: nox.Session, celery: str) -> None:
    install(session, f"celery=={celery}.*")
    session.run("pytest", "-q", *session.posargs)


def install(session: nox.Session, *pins: str) -> None:
    session.install("--upgrade", "pip>=25.1")  # the first that knows --group
    session.install("-e", ".[demo]", *pins, "--group", "test")


@nox.session(python="3.11")
@nox.parametrize("celery", ["5.5", "5.6"])
def celery(session: nox.Session, celery: str) -> None:
    """The older ones, on one Python."""
    run(session, celery)


@nox.session(python=["3.10", "3.11", "3.12", "3.13", "3.14"])
def python(session: nox.Session) -> None:
    """The newest Celery on every Python."""
    run(session, NEWEST)


@nox.session(python="3.10")
def oldest(session: nox.Session) -> None:
    """The oldest of everything that is supported."""
    install(session, "celery==5.5.*", "redis==5.2.*")
    session.run("pytest", "-q", *session.posargs)
