"""The page in headless Chromium: what it draws, how it is used, and how it reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from fleetlimit.lab.scenario import CHOICES
from tests.conftest import need

ALGORITHMS = CHOICES["algorithm"]
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
WIDE, NARROW = 1440, 380


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
        with urlopen(f"{self.url}api/run?{urlencode(query)}", timeout=20) as answer:
            return dict(json.load(answer))


@pytest.fixture
def lab(browser: Browser, url: str) -> Iterator[Lab]:
    one = Lab(browser, url)
    yield one
    one.context.close()
    assert one.wrong == []


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
    assert page.locator("#plot .claim").text_content() == f"{numbers['worst']} in 60 s"
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
    assert page.locator("#plot .claim").text_content() == "20 in 60 s"
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
    page.get_by_role("link", name="Each its own turn").click()
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
    page.get_by_label("Limit", exact=True).fill("99")
    expect(page.get_by_role("alert")).to_have_text(
        "limit='99': must be a whole number from 1 to 40"
    )
    page.get_by_label("Limit", exact=True).fill("9")
    lab.shown(limit=9)
    page.goto(f"{url}?instances=7")
    expect(page.get_by_role("alert")).to_contain_text("instances='7'")
    lab.context.close()


@pytest.mark.parametrize("width", [NARROW, 700, 1600])
@pytest.mark.parametrize("instances", [1, 30])
def test_nothing_is_wider_than_the_screen(
    browser: Browser, url: str, width: int, instances: int
) -> None:
    lab = Lab(browser, url, width)
    query = {
        "algorithm": "sliding_counter",
        "instances": instances,
        "state": "naive",
        "denied": "countdown",
    }
    page = lab.open(**query)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    plot = page.locator("#plot svg").bounding_box()
    assert plot
    assert plot["x"] >= 0
    assert plot["x"] + plot["width"] <= width
    lab.context.close()
    assert lab.wrong == []


#: Each text of the page with the colours that it really has: [text, colour, ground].
COLOURS = """() => {
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode.textContent.trim(), box = walk.currentNode.parentElement;
    const style = getComputedStyle(box);
    if (!text || !box.getClientRects().length || style.visibility === "hidden") continue;
    let ground = "rgba(0, 0, 0, 0)";
    for (let up = box; up && ground === "rgba(0, 0, 0, 0)"; up = up.parentElement)
      ground = getComputedStyle(up).backgroundColor;
    found.push([text, box.closest("svg") ? style.fill : style.color, ground]);
  }
  for (const name of ["started", "denied"]) {
    const style = getComputedStyle(document.querySelector(`#plot .${name}`));
    const shade = getComputedStyle(document.querySelector("#plot .worst")).fill;
    found.push([name, name === "started" ? style.fill : style.stroke, shade]);
  }
  return found;
}"""


def luminance(colour: str) -> float:
    parts = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """As WCAG defines it: 1 to 21."""
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_contrast() -> None:
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(118, 118, 118)", "rgb(255, 255, 255)") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read(browser: Browser, url: str, scheme: str) -> None:
    lab = Lab(browser, url, scheme=scheme)
    page = lab.open(
        state="private", denied="countdown", traffic="overload", algorithm="fixed_window"
    )
    page.locator("#plot").focus()
    page.keyboard.press("Home")  # the tip, too
    seen = page.evaluate(COLOURS)
    assert len(seen) > 60
    poor = [(text, contrast(colour, ground)) for text, colour, ground in seen]
    assert [pair for pair in poor if pair[1] < 4.5] == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(ground) > 0.5) is (scheme == "light")
    lab.context.close()


def test_focus_is_seen(lab: Lab) -> None:
    page = lab.open()
    for _ in range(14):
        page.keyboard.press("Tab")
        style = page.evaluate(
            "(({outlineStyle, outlineWidth}) => [outlineStyle, outlineWidth])"
            "(getComputedStyle(document.activeElement))"
        )
        assert style == ["solid", "2px"], page.evaluate("document.activeElement.outerHTML")
    assert page.evaluate("document.activeElement.closest('.result') !== null")
