"""The pages: their code runs, their links lead somewhere, and those made from the code are up to date."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import unquote

import pytest
from celery import Celery, _state

import fleetlimit
from fleetlimit.celery import binding
from fleetlimit.celery.options import OPTIONS
from fleetlimit.celery.task import install_all
from fleetlimit.demo.processes import Server, environment
from fleetlimit.store.memory import MemoryStore
from tools import reference, site

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MADE = reference.pages()
MADE_PAGES = [path for path in MADE if path.suffix == ".md"]
PAGES = sorted(path for path in DOCS.rglob("*.md") if path not in MADE)
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
#: Their code runs in a test of its own.
ELSEWHERE = {"tutorial.md", "waiting-room.md", "how-to/test-your-tasks.md"}


def blocks_of(path: Path) -> list[str]:
    return [textwrap.dedent(block) for _, block in BLOCK.findall(path.read_text())]


def name_of(path: Path) -> str:
    return path.relative_to(DOCS).as_posix()


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_pages_made_from_the_code_are_up_to_date(path: Path) -> None:
    assert path.read_text() == MADE[path], "run `make docs`"


# --- code -----------------------------------------------------------------------------------------


@pytest.fixture
def app(server: Server) -> Iterator[Celery]:
    found = Celery("docs", broker=server.url, set_as_current=False)
    yield found
    found.close()


@pytest.fixture
def names(app: Celery, server: Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a page takes for granted: an app, our own names, and what is the reader's."""
    # Each page is a program of its own. Celery keeps the tasks of all apps, for the apps to come.
    monkeypatch.setattr(binding, "_defined", {})
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
    theirs: dict[str, Any] = {
        "__name__": "docs",
        "app": app,
        "url": server.url,
        "statsd": MagicMock(),
        "pytest": pytest,
    }
    theirs |= {"call_partner": MagicMock(), "MyStore": MemoryStore, "my_database": {}}
    return theirs | {name: getattr(fleetlimit, name) for name in fleetlimit.__all__}


def run(block: str, names: dict[str, Any], page: str) -> None:
    """A block as it stands. Where it is no program, but lists several ways to write something, each line of it."""
    try:
        code = compile(block, page, "exec")
    except SyntaxError:
        for line in block.splitlines():
            whole = f"{line}\ndef task(account_id): ..." if line.startswith("@") else line
            exec(compile(whole, page, "exec"), names)
        return
    exec(code, names)


@pytest.mark.parametrize(
    "path", [one for one in PAGES if blocks_of(one) and name_of(one) not in ELSEWHERE], ids=name_of
)
def test_code_runs(path: Path, names: dict[str, Any], app: Celery, server: Server) -> None:
    from fleetlimit import RateLimit, RateLimiter

    RateLimiter(server.url).acquire(RateLimit("partner-api", 100, per=60))  # it is in use
    for block in blocks_of(path):
        run(block.replace("redis://localhost:6379/0", server.url), names, name_of(path))
    app.finalize()
    install_all(app)  # checks the templates against the tasks' arguments


def test_code_of_the_tests_page_runs(tmp_path: Path) -> None:
    head = "from celery import Celery\nfrom fleetlimit import rate_limited\napp = Celery('shop')\n"
    page = tmp_path / "test_page.py"
    page.write_text(head + "\n".join(blocks_of(DOCS / "how-to" / "test-your-tasks.md")))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:ddtrace", str(page)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), text=True, capture_output=True, check=False
    )
    assert "2 passed" in done.stdout, done.stdout


# --- links ----------------------------------------------------------------------------------------


def slugs_of(path: Path) -> set[str]:
    """The anchors that a code host and the site give to the headings of a page."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one).strip().lower().replace(" ", "-") for one in headings}


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES, *MADE_PAGES], ids=str
)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        address, _, heading = unquote(target).partition("#")
        found = path.parent / address if address else path
        assert found.is_file(), target
        assert not heading or heading in slugs_of(found), target


def test_the_site_shows_every_page() -> None:
    listed = set(re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


def test_compatibility_names_what_is_tested() -> None:
    text = (DOCS / "compatibility.md").read_text()
    for python, celery in re.findall(
        r'\("(3\.\d+)", "(5\.\d+)"', (ROOT / "noxfile.py").read_text()
    ):
        assert re.search(rf"Python \(CPython\) \|[^|]*\b{python}\b", text), python
        assert re.search(rf"Celery \|[^|]*\b{celery}\b", text), celery


def test_what_is_wrong_in_a_site_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h2 id="here"></h2><a href="#here"></a><a href="b.html#there"></a>'
    )
    (tmp_path / "b.html").write_text(
        '<script src="https://elsewhere.example/x.js"></script><a href="c.html"></a>'
    )
    found = [line.removeprefix(f"{tmp_path}/") for line in site.problems(tmp_path)]
    assert found == [
        "a.html: b.html#there: no such heading",
        "b.html: loads https://elsewhere.example/x.js",
        "b.html: c.html: no such file",
    ]


def test_settings_that_pages_name_exist() -> None:
    for path in (ROOT / "README.md", *PAGES):
        named = set(re.findall(r"\bfleetlimit_[a-z_]*[a-z]\b", path.read_text()))
        assert named <= set(OPTIONS), path
