"""The lab as its users start it, and its page in headless Chromium."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from fleetlimit.demo.processes import environment, spawn, stop, until
from fleetlimit.lab.report import report
from fleetlimit.lab.scenario import parse
from fleetlimit.lab.simulate import simulate
from tests.conftest import need

COMMAND = [sys.executable, "-m", "fleetlimit.cli", "lab"]
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
WIDE = 1440


@contextmanager
def started(log: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A `fleetlimit lab`, and the URL that it printed."""
    process = spawn([*COMMAND, *options], log, env=environment())

    def printed() -> re.Match[str] | None:
        assert process.poll() is None, log.read_text()
        return re.search(r"http://\S+/", log.read_text())

    try:
        yield process, until(printed, "the lab's URL")[0]
    finally:
        stop(process)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with started(tmp_path_factory.mktemp("lab") / "log", "--port", "0") as (_, url):
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = need("chromium", "the lab's page is not seen by a browser")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield found
        found.close()


class Lab:
    """A page, and what must not happen on it."""

    def __init__(
        self, browser: Browser, url: str, width: int = WIDE, scheme: Any = "light"
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        self.page, self.url = self.context.new_page(), url
        self.wrong: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.context.route("**/*", self._only_ours)

    def _only_ours(self, route: Route) -> None:
        if route.request.url.startswith((self.url, "data:")):
            route.continue_()
        else:
            self.wrong.append(f"asked elsewhere: {route.request.url}")
            route.abort()

    def open(self, **query: Any) -> Page:
        self.page.goto(f"{self.url}?{urlencode(query)}")
        return self.shown(**query)

    def shown(self, **query: Any) -> Page:
        """Wait until the page shows that run."""
        expect(self.page.locator("#summary")).to_have_text(self.api(**query)["summary"])
        expect(self.page.locator("#error")).to_be_hidden()
        return self.page

    def api(self, **query: Any) -> dict[str, Any]:
        """What the server answers, without asking it: the page may have a run going on."""
        scenario = parse({name: str(value) for name, value in query.items()})
        return dict(json.loads(json.dumps(report(simulate(scenario)))))


@pytest.fixture
def lab(browser: Browser, url: str) -> Iterator[Lab]:
    one = Lab(browser, url)
    yield one
    one.context.close()
    assert one.wrong == []
