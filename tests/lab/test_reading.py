"""Whether the page can be read: contrast, and a focus that is seen."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser

from tests.lab.conftest import Lab

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
@pytest.mark.parametrize("state", ["private", "atomic"])  # bad, and a warning
def test_it_can_be_read(browser: Browser, url: str, scheme: str, state: str) -> None:
    lab = Lab(browser, url, scheme=scheme)
    page = lab.open(state=state, denied="countdown", traffic="boundary", algorithm="fixed_window")
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
