"""What other sites' pages can reach of the lab, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
import uvicorn
from playwright.sync_api import Browser, expect
from starlette.types import Message, Receive, Scope, Send

from fleetlimit.lab.server import app, listen


class _OtherSite(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<p>Another site.")

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def other_port() -> Iterator[int]:
    """The port of a server with another site's page."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _OtherSite) as server:
        Thread(target=server.serve_forever).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def watched() -> Iterator[tuple[str, list[int]]]:
    """The URL of a lab in this process, and the statuses of what it has answered."""
    lab, statuses = app("127.0.0.1"), list[int]()

    async def watching(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        await lab(scope, receive, sending)

    bound = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(watching, log_level="warning", lifespan="off"))
    thread = Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    yield f"http://127.0.0.1:{bound.getsockname()[1]}/", statuses
    server.should_exit = True
    thread.join(10)
    bound.close()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])  # another site, and another port
@pytest.mark.parametrize(
    "script",
    ["url => { new Image().src = url }", "url => { fetch(url, {mode: 'no-cors'}) }",
     "url => { fetch(url) }", "url => { location = url }"],
)  # fmt: skip
def test_the_page_of_another_site_gets_no_run(
    browser: Browser, watched: tuple[str, list[int]], other_port: int, name: str, script: str
) -> None:
    """The browser keeps the answer from that page, but not the query from the server."""
    url, statuses = watched
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://{name}:{other_port}/")
    page.evaluate(script, f"{url}api/run?limit=3")
    for _ in range(1000):  # not `until`: the browser's events need this thread
        if statuses:
            break
        page.wait_for_timeout(10)
    assert statuses[0] == 403
    context.close()


def test_a_link_of_another_site_leads_to_the_page(
    browser: Browser, url: str, other_port: int
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://localhost:{other_port}/")
    page.evaluate("url => { location = url }", url)
    expect(page.locator("#summary")).to_contain_text("15 requests came")
    context.close()
