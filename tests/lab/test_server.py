"""The lab over HTTP, and its command."""

from __future__ import annotations

import json
import signal
import socket
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from fleetlimit.algorithms.registry import name_of
from fleetlimit.cli import main
from fleetlimit.lab.report import report
from fleetlimit.lab.scenario import CHOICES, RANGES, Scenario
from fleetlimit.lab.simulate import simulate
from tests.lab.conftest import started


def get(url: str) -> tuple[int, dict[str, str], str]:
    try:
        with urlopen(url, timeout=20) as answer:
            return (
                answer.status,
                {name.lower(): value for name, value in answer.headers.items()},
                answer.read().decode(),
            )
    except HTTPError as error:
        return error.code, {}, error.read().decode()


def test_the_page(url: str) -> None:
    status, headers, text = get(url)
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "<title>fleetlimit lab</title>" in text
    for name, kind in (("lab.css", "text/css"), ("lab.js", "text/javascript")):
        status, headers, _ = get(f"{url}static/{name}")
        assert (status, headers["content-type"].split(";")[0]) == (200, kind)
    assert get(f"{url}static/../server.py")[0] == 404


@pytest.mark.parametrize(
    "changes", [{}, {"algorithm": "sliding_log", "instances": 30, "state": "naive",
                     "denied": "countdown", "per": 2.5, "latency": 5, "limit": 4}]
)  # fmt: skip
def test_a_run(url: str, changes: dict[str, Any]) -> None:
    status, _, text = get(f"{url}api/run?{urlencode(changes)}")
    assert status == 200
    expected = report(simulate(Scenario(**changes)))
    assert json.loads(text) == json.loads(json.dumps(expected))
    assert json.loads(text)["scenario"].items() >= changes.items()


@pytest.mark.parametrize(
    ("limit", "per", "code"),
    [
        (100, 60, 'RateLimit("partner-api", 100, per=60)'),
        (1000, 86_400, 'RateLimit("partner-api", 1000, per=86400)'),
        (1, 0.1, 'RateLimit("partner-api", 1, per=0.1)'),
        (7, 12345.678, 'RateLimit("partner-api", 7, per=12345.678)'),
    ],
)
def test_limits_that_users_have(url: str, limit: int, per: float, code: str) -> None:
    status, _, text = get(f"{url}api/run?{urlencode({'limit': limit, 'per': per})}")
    shown = json.loads(text)
    assert status == 200, text
    assert shown["code"] == code
    assert shown["numbers"]["admitted"] == shown["numbers"]["requests"] > limit


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("algorithm=gcar", "algorithm='gcar': must be one of gcra, token_bucket"),
        ("traffic=", "traffic='': must be one of steady"),
        ("instances=2", "instances='2': must be one of 1, 3, 30"),
        ("limit=0", "limit='0': must be a whole number from 1 to 1,000"),
        ("limit=", "limit='': must be a whole number"),
        ("limit=1001", "limit='1001': must be"),
        ("limit=1.5", "limit='1.5': must be a whole number"),
        ("per=0.09", "per='0.09': must be a number from 0.1 to 86,400"),
        ("per=86401", "per='86401': must be a number"),
        ("per=nan", "per='nan': must be a number"),
        ("per=inf", "per='inf': must be a number"),
        ("latency=-1", "latency='-1': must be"),
        ("seed=10000", "seed='10000': must be"),
        ("seed=" + "9" * 5000, "seed='999"),
        ("burst=11", "burst=11 is above limit=10"),
        ("burst=2&algorithm=sliding_log", "burst=2: sliding_log has no burst"),
        ("state=naive", "denied='place': with state='naive' there is no line"),
        ("speed=2", "speed='2': there is no such parameter"),
    ],
)
def test_bad_parameters(url: str, query: str, says: str) -> None:
    status, _, text = get(f"{url}api/run?{query}")
    assert status == 400
    assert says in json.loads(text)["error"]
    assert len(text) < 300


class Inputs(HTMLParser):
    """What the page lets one choose."""

    def __init__(self) -> None:
        super().__init__()
        self.choices: dict[str, list[str]] = {}
        self.defaults: dict[str, str] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        self.tabs: dict[str, bool] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if found.get("role") == "tab":
            self.tabs[found["data-algorithm"]] = "data-burst" in found
        if tag != "input":
            return
        name = found["name"]
        if found["type"] == "radio":
            self.choices.setdefault(name, []).append(found["value"])
            if "checked" in found:
                self.defaults[name] = found["value"]
        else:
            self.ranges[name] = float(found["min"]), float(found["max"])
            self.defaults[name] = found.get("value", "None")


def test_the_page_offers_what_the_server_takes(url: str) -> None:
    page = Inputs()
    page.feed(get(url)[2])
    algorithms = list(CHOICES["algorithm"])
    assert list(page.tabs) == algorithms
    assert page.tabs == {name: "burst" in name_of(name).options for name in algorithms}
    assert {k: tuple(v) for k, v in page.choices.items()} == {
        k: v for k, v in CHOICES.items() if k != "algorithm"
    }
    assert page.ranges == RANGES
    assert {**page.defaults, "algorithm": algorithms[0]} == {
        k: str(v) for k, v in Scenario().as_dict().items()
    }


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with started(log, "--port", "0") as (process, url):
        assert url.startswith("http://127.0.0.1:")
        assert get(url)[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    assert log.read_text().splitlines() == [f"{url}  (Ctrl-C ends it)", "Ended."]


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = CliRunner().invoke(main, ["lab", "--port", str(port)])
    assert done.exit_code == 2
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in done.output


@pytest.mark.parametrize("missing", ["starlette.applications", "uvicorn"])
def test_without_the_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "fleetlimit.lab.server", raising=False)
    done = CliRunner().invoke(main, ["lab"])
    assert done.exit_code == 2
    assert done.output == (
        f"Error: the lab needs {missing.split('.')[0]}, which is not installed: "
        "pip install 'fleetlimit[lab]'\n"
    )
