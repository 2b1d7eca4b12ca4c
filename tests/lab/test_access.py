"""Who may ask the lab, and how much at a time."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from urllib.parse import urlsplit

import pytest

from fleetlimit.demo.processes import until
from fleetlimit.lab.access import RUNS, Busy, Gate
from tests.lab.conftest import started

LIGHT = "/api/run?limit=1"
#: As many asks as a run has.
HEAVY = "/api/run?limit=100&instances=30&traffic=overload&algorithm=sliding_counter"


@pytest.fixture(scope="module")
def port(url: str) -> int:
    found = urlsplit(url).port
    assert found
    return found


def ask(port: int, path: str = LIGHT, to: str = "127.0.0.1", **headers: str) -> tuple[int, str]:
    """The status, and the error or what else was answered. `Sec_Fetch_Site` stands for that header."""
    connection = http.client.HTTPConnection(to, port, timeout=60)
    try:
        connection.request(
            "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        if answer.status in (429, 503):
            assert answer.headers["retry-after"] == "1"
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_our_own_names(port: int, name: str) -> None:
    host = f"{name}:{port}"
    assert ask(port, Host=host)[0] == 200
    assert ask(port, Host=host, Origin=f"http://{host}")[0] == 200
    assert ask(port, Host=host, Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize("path", [LIGHT, "/", "/static/lab.js"])
@pytest.mark.parametrize(
    "host", ["evil.example:{port}", "evil.example", "127.0.0.1", "localhost:1", "127.0.0.2:{port}",
             "localhost.evil.example:{port}", "localhost:{port}.evil.example", ":{port}", "[::2]:{port}"]
)  # fmt: skip
def test_a_name_that_another_site_points_here_is_refused(port: int, path: str, host: str) -> None:
    status, text = ask(port, path, Host=host.format(port=port))
    assert status == 403
    assert json.loads(text)["error"].startswith("Host=")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://127.0.0.1", "http://127.0.0.1:1", "null", "",
               "https://127.0.0.1:{port}", "http://localhost:{port}"]
)  # fmt: skip
def test_a_page_of_another_origin_is_refused(port: int, origin: str) -> None:
    status, text = ask(port, Origin=origin.format(port=port))
    assert status == 403
    assert json.loads(text)["error"].startswith("Origin=")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_an_image_of_another_site_is_refused(port: int, site: str) -> None:
    """It has no Origin. A link to the page may stand anywhere."""
    image = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "image"}
    link = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    frame = {**link, "Sec_Fetch_Dest": "iframe"}
    assert ask(port, **image)[0] == 403
    assert ask(port, **link)[0] == 403
    assert ask(port, "/?limit=5", **image)[0] == 403
    assert ask(port, "/?limit=5", **frame)[0] == 403
    assert ask(port, "/?limit=5", **link)[0] == 200


def test_on_every_address_it_is_the_one_connected_to(tmp_path: Path) -> None:
    with started(tmp_path / "log", "--port", "0", "--host", "0.0.0.0") as (_, url):
        port = urlsplit(url).port
        assert port
        until(lambda: ask(port)[0] == 200, "the lab")
        assert ask(port, to="127.0.0.2", Host=f"127.0.0.2:{port}")[0] == 200
        assert ask(port, to="127.0.0.2", Host=f"127.0.0.3:{port}")[0] == 403
        assert ask(port, Host=f"0.0.0.0:{port}")[0] == 200  # the URL that it printed


def test_many_heavy_runs_do_not_block_a_light_one(port: int) -> None:
    """Sixty at once from one client: one is played, the others are told to come back. So the light
    one, which comes last and does come back, is played after one of them, not after sixty."""
    order: list[tuple[str, int]] = []
    together = Barrier(61)

    def heavy() -> None:
        together.wait(30)
        order.append(("heavy", ask(port, HEAVY)[0]))

    def light() -> bool:
        order.append(("light", ask(port, LIGHT)[0]))
        return order[-1][1] == 200

    with ThreadPoolExecutor(60) as pool:
        runs = [pool.submit(heavy) for _ in range(60)]
        together.wait(30)
        until(lambda: ("heavy", 429) in order, "a refusal")
        until(light, "the light run")
        before = order[: order.index(("light", 200))]
        for run in runs:
            run.result()
    assert before.count(("heavy", 200)) <= 2
    assert {status for _, status in order} == {200, 429}
    assert order.count(("heavy", 429)) >= 50


def test_the_page_is_served_while_a_run_goes_on(port: int) -> None:
    order: list[str] = []

    def heavy() -> None:
        while ask(port, HEAVY)[0] != 200:
            pass
        order.append("run")

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(heavy)
        until(lambda: ask(port, LIGHT)[0] == 429 or run.done(), "the heavy run")
        assert ask(port, "/")[0] == 200
        order.append("page")
        run.result()
    assert order == ["page", "run"]


def test_a_refused_query_takes_no_place(port: int) -> None:
    assert ask(port, "/api/run?limit=0")[0] == 400
    assert ask(port)[0] == 200


def test_another_name_in_a_forwarding_header_makes_no_other_client(port: int) -> None:
    """Else whoever asks from this machine has as many places as names."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda n: ask(port, HEAVY, X_Forwarded_For=f"192.0.2.{n}")[0], range(8))
        )
    assert 429 in answers
    assert 503 not in answers


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_each_client_has_one_place(gate: Gate) -> None:
    with gate.run("a"):
        with pytest.raises(Busy) as seen, gate.run("a"):
            pass
        assert seen.value.status == 429
        with gate.run("b"):
            pass
    with gate.run("a"):
        pass


def test_a_run_that_fails_leaves_its_place(gate: Gate) -> None:
    with pytest.raises(RuntimeError), gate.run("a"):
        raise RuntimeError
    with gate.run("a"):
        pass


def test_all_clients_together_have_a_few_places(gate: Gate) -> None:
    places = [gate.run(f"client {n}") for n in range(RUNS)]
    for place in places:
        place.__enter__()
    with pytest.raises(Busy) as seen, gate.run("one more"):
        pass
    assert seen.value.status == 503
    places[0].__exit__(None, None, None)
    with gate.run("one more"):
        pass
