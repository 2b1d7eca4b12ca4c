"""The page in headless Chromium: what it draws, and how it is used."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from fleetlimit.lab.scenario import CHOICES
from tests.lab.conftest import Lab

ALGORITHMS = CHOICES["algorithm"]
NARROW = 380


def figures(page: Page) -> list[list[str]]:
    boxes = page.locator("#figures > div")
    return [boxes.nth(n).locator("dt, dd").all_inner_texts() for n in range(boxes.count())]


def drawn(page: Page) -> dict[str, int]:
    """Marks by kind, counted in the paths: a disc is one move, a cross two."""
    paths = {name: page.locator(f"#plot path.{name}") for name in ("started", "denied")}
    count = {
        name: len(re.findall("[Mm]", path.get_attribute("d") or "")) for name, path in paths.items()
    }
    return {"started": count["started"], "denied": count["denied"] // 2}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_tab_draws_what_the_simulation_says(lab: Lab, algorithm: str) -> None:
    page = lab.open()
    page.get_by_role("tab").and_(page.locator(f"#tab-{algorithm}")).click()
    lab.shown(algorithm=algorithm)
    said = lab.api(algorithm=algorithm)
    numbers = said["numbers"]
    assert figures(page) == [[f["label"], f["value"], f["note"]] for f in said["figures"]]
    assert page.locator("#code").inner_text() == said["code"]
    assert drawn(page) == {"started": numbers["admitted"], "denied": numbers["denied"]}
    assert page.locator("#plot .claim").text_content() == said["worst"]["label"]
    texts = page.locator("article:visible")
    assert texts.count() == 1
    assert texts.get_attribute("data-text") == algorithm
    assert len(texts.locator("dd").all()) == 4
    starts = page.locator("#plot path.boundary")
    assert starts.count() == (algorithm in ("fixed_window", "sliding_counter"))


def test_the_worst_window_stands_where_it_is(lab: Lab) -> None:
    query = {"algorithm": "fixed_window", "traffic": "boundary", "instances": 1, "denied": "leave"}
    page = lab.open(**query)
    said = lab.api(**query)
    assert page.locator("#plot .claim").text_content() == "20 in 60 s: twice the limit"
    shade = page.locator("#plot rect.worst")
    left, width = (float(shade.get_attribute(name) or "") for name in ("x", "width"))
    (begin, end), worst = said["view"], said["worst"]
    first = re.match(r"M([\d.]+)", page.locator("#plot path.started").get_attribute("d") or "")
    assert first
    assert float(first[1]) + 4 == pytest.approx(left, abs=0.1)  # a disc is 4 wide to each side
    axis = re.findall(r"M([\d.]+)", page.locator("#plot path.boundary").get_attribute("d") or "")
    at = {60_000_000: float(axis[0])}
    scale = (left + width - at[60_000_000]) / (worst["to"] - 60_000_000)
    assert width == pytest.approx(scale * 60_000_000, abs=0.5)
    assert begin < worst["from"] < worst["to"] <= end


@pytest.mark.parametrize("instances", [1, 3, 30])
def test_every_instance_has_a_lane(lab: Lab, instances: int) -> None:
    query = {"traffic": "overload", "instances": instances, "denied": "leave", "state": "private"}
    page = lab.open(**query)
    numbers = lab.api(**query)["numbers"]
    assert drawn(page) == {"started": numbers["admitted"], "denied": numbers["denied"]}
    path = page.locator("#plot path.started").get_attribute("d") or ""
    heights = {round(float(y)) for y in re.findall(r"M[\d.]+ ([\d.]+)a", path)}
    assert len(heights) >= instances


def test_only_with_the_keyboard(lab: Lab) -> None:
    page = lab.open()
    page.keyboard.press("Tab")
    expect(page.locator("#tab-gcra")).to_be_focused()
    for key, algorithm in (
        ("ArrowRight", "token_bucket"), ("ArrowLeft", "gcra"), ("ArrowLeft", "sliding_counter"),
        ("ArrowRight", "gcra"), ("End", "sliding_counter"), ("Home", "gcra"),
        ("ArrowRight", "token_bucket"),
    ):  # fmt: skip
        page.keyboard.press(key)
        expect(page.locator(f"#tab-{algorithm}")).to_be_focused()
        expect(page.get_by_role("tab", selected=True)).to_have_id(f"tab-{algorithm}")
        assert page.locator("[role=tab][tabindex='0']").count() == 1
    lab.shown(algorithm="token_bucket")
    page.keyboard.press("Tab")  # the traffic
    page.keyboard.press("ArrowUp")
    lab.shown(algorithm="token_bucket", traffic="steady")
    page.keyboard.press("Tab")  # the instances
    page.keyboard.press("ArrowRight")
    lab.shown(algorithm="token_bucket", traffic="steady", instances=30)
    for _ in range(3):
        page.keyboard.press("Tab")  # the state, a denied request, the limit
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("7")
    query = {"algorithm": "token_bucket", "traffic": "steady", "instances": 30, "limit": 7}
    lab.shown(**query)
    assert page.url == f"{lab.url}?{urlencode(query)}"
    page.get_by_role("link", name="All wake together").focus()
    page.keyboard.press("Enter")
    lab.shown(denied="countdown")


def test_walking_through_the_plot(lab: Lab) -> None:
    page = lab.open(denied="leave")
    plot, tip = page.get_by_role("slider"), page.locator("#tip")
    plot.focus()
    expect(tip).to_be_hidden()
    page.keyboard.press("ArrowRight")
    expect(tip).to_have_text("0:15.000 · instance 1\nstarted\nrequest 1, ask 1")
    expect(plot).to_have_attribute(
        "aria-valuetext", "0:15.000 · instance 1, started, request 1, ask 1"
    )
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("0:15.001 · instance 2\ndenied; free in 6.1 s")
    page.keyboard.press("ArrowLeft")
    expect(tip).to_contain_text("0:15.000 · instance 1\nstarted")
    page.keyboard.press("End")
    expect(tip).to_contain_text("0:15.014 · instance 3")
    expect(plot).to_have_attribute("aria-valuenow", "15")
    page.keyboard.press("Home")
    expect(plot).to_have_attribute("aria-valuenow", "1")
    page.keyboard.press("Tab")
    expect(tip).to_be_hidden()


def test_hovering_over_a_mark(lab: Lab) -> None:
    page = lab.open(instances=1, denied="leave")
    path = page.locator("#plot path.started").get_attribute("d") or ""
    x, y = map(float, re.findall(r"M([\d.]+) ([\d.]+)a", path)[0])
    page.locator("#plot").hover(position={"x": x + 4, "y": y})
    expect(page.locator("#tip")).to_have_text("0:15.000 · instance 1\nstarted\nrequest 1, ask 1")
    page.locator("#plot").hover(position={"x": x + 100, "y": y})
    expect(page.locator("#tip")).to_be_hidden()


def test_a_view_is_a_link(lab: Lab) -> None:
    query = {
        "algorithm": "sliding_log", "traffic": "overload", "instances": 30, "state": "naive",
        "denied": "countdown", "limit": 3, "per": 2.5, "latency": 7, "seed": 12,
    }  # fmt: skip
    page = lab.open(**query)
    for name in ("traffic", "instances", "state", "denied"):
        assert page.locator(f"[name={name}]:checked").input_value() == str(query[name])
    for name in ("limit", "per", "latency", "seed"):
        assert page.locator(f"[name={name}]").input_value() == str(query[name])
    page.get_by_role("link", name="Each waits for its turn").click()
    lab.shown()
    page.go_back()
    lab.shown(**query)
    assert page.locator("[name=limit]").input_value() == "3"


def test_controls_that_suit(lab: Lab) -> None:
    page = lab.open()
    place, latency, burst = (
        page.locator("[value=place]"), page.locator("[name=latency]"), page.locator("[name=burst]"),
    )  # fmt: skip
    expect(latency).to_be_hidden()
    page.get_by_label("Shared, naive").check()
    lab.shown(state="naive", denied="countdown")
    expect(place).to_be_disabled()
    expect(latency).to_be_visible()
    page.get_by_label("Shared, atomic").check()
    lab.shown()
    expect(place).to_be_checked()
    burst.fill("4")
    lab.shown(burst=4)
    page.get_by_role("tab", name="Fixed window").click()
    lab.shown(algorithm="fixed_window")
    expect(burst).to_be_hidden()


def test_a_wrong_number_is_named(browser: Browser, url: str) -> None:
    lab = Lab(browser, url)
    page = lab.open()
    limit = page.get_by_label("Limit", exact=True)
    limit.fill("5000")
    expect(page.get_by_role("alert")).to_have_text(
        "limit='5000': must be a whole number from 1 to 1,000"
    )
    for part in ("#summary", "#figures", "#plot", "#code"):  # of the former run
        expect(page.locator(part)).to_be_hidden()
    limit.fill("9")
    lab.shown(limit=9)
    expect(page.locator("#plot svg")).to_be_visible()
    limit.fill("")
    expect(page.get_by_role("alert")).to_have_text(
        "limit='': must be a whole number from 1 to 1,000"
    )
    expect(page.locator("#plot")).to_be_hidden()
    limit.fill("8")
    lab.shown(limit=8)
    page.get_by_label("Burst", exact=True).last.press_sequentially("e")
    expect(page.get_by_role("alert")).to_contain_text("burst=''")
    expect(page.locator("#plot")).to_be_hidden()
    page.goto(f"{url}?instances=7")
    expect(page.get_by_role("alert")).to_contain_text("instances='7'")
    lab.context.close()


def test_the_limit_of_the_readme_is_drawn(lab: Lab) -> None:
    page = lab.open()
    page.get_by_label("Limit", exact=True).press("ControlOrMeta+a")
    page.keyboard.type("100")
    lab.shown(limit=100)
    assert drawn(page) == {"started": 150, "denied": 149}
    page.get_by_label("Period, s").fill("0.1")
    lab.shown(limit=100, per=0.1)
    page.get_by_label("Period, s").fill("86400")
    lab.shown(limit=100, per=86400)
    hours = page.locator("#plot text").all_text_contents()
    assert "6 h" in hours
    assert "Starts within the last 86,400 s" in hours


@pytest.mark.parametrize(
    ("query", "tone", "sign"),
    [
        ({"algorithm": "sliding_log"}, "good", "✓"),
        ({"algorithm": "fixed_window"}, "warn", "⚠"),
        ({"algorithm": "fixed_window", "state": "private"}, "bad", "✕"),
    ],
)
def test_what_exceeds_the_limit_is_no_success(
    lab: Lab, query: dict[str, Any], tone: str, sign: str
) -> None:
    query = {**query, "traffic": "boundary", "denied": "leave"}
    page = lab.open(**query)
    figure = page.locator("#figures > div").first
    assert figure.get_attribute("class") == tone
    note = figure.locator(".note")
    assert note.inner_text() == lab.api(**query)["figures"][0]["note"]  # in words
    assert sign in note.evaluate("box => getComputedStyle(box, '::before').content")
    colours = {
        name: note.evaluate(
            f"box => {{box.parentNode.className = '{name}'; return getComputedStyle(box).color}}"
        )
        for name in ("good", "warn", "bad")
    }
    assert len(set(colours.values())) == 3
    assert page.locator("#plot .excess").count() == (tone != "good")
    assert page.locator(f"#plot .claim.{tone}").count() == 1


def test_only_the_newest_of_many_changes_is_shown(lab: Lab) -> None:
    """The page asks for a run after the former one is answered, as the server plays one at a time."""
    page = lab.open()
    asked: list[str] = []
    page.on("response", lambda answer: asked.append(f"{answer.status} {answer.url}"))
    limit = page.get_by_label("Limit", exact=True)
    for number in range(11, 41):
        limit.fill(str(number))
    lab.shown(limit=40)
    assert asked
    assert all(answer.startswith("200 ") for answer in asked), asked


def test_a_busy_server_is_asked_again(browser: Browser, url: str) -> None:
    lab = Lab(browser, url)
    page = lab.open()
    answers = [429, 503]

    def busy(route: Route) -> None:
        if not answers:
            return route.continue_()
        body, later = json.dumps({"error": "one at a time"}), {"retry-after": "0.01"}
        return route.fulfill(status=answers.pop(), body=body, headers=later)

    page.route("**/api/run?*", busy)
    page.get_by_label("Limit", exact=True).fill("12")
    lab.shown(limit=12)
    assert answers == []
    lab.context.close()


@pytest.mark.parametrize("width", [NARROW, 700, 1600])
@pytest.mark.parametrize("instances", [1, 30])
def test_nothing_is_wider_than_the_screen(
    browser: Browser, url: str, width: int, instances: int
) -> None:
    lab = Lab(browser, url, width)
    query = {
        "algorithm": "sliding_counter", "instances": instances, "state": "naive",
        "denied": "countdown", "limit": 1000, "per": 86400, "traffic": "overload",
    }  # fmt: skip
    page = lab.open(**query)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    plot = page.locator("#plot svg").bounding_box()
    assert plot
    assert plot["x"] >= 0
    assert plot["x"] + plot["width"] <= width
    lab.context.close()
    assert lab.wrong == []
