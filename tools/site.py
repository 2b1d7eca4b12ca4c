"""Build the site and look through it. Exit status 1 for any warning.

`zensical build --strict` checks the links between pages. It passes over docstrings that cannot be read in full, links
to other files, and what the theme brings along. So the rest is checked here: every link leads to a file and a heading
that exist, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from tools import reference

__all__ = ["problems"]

ROOT = Path(__file__).parents[1]
#: What a browser loads without being asked, and by which attribute.
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.ids.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if target := given.get(LOADED.get(tag, "")):
            self.loads.append(target)


@cache
def _page(path: Path) -> _Page:
    return _Page(path.read_text())


def problems(site: Path) -> Iterator[str]:
    """One line for each link that leads nowhere, and for each thing that would come from elsewhere."""
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":
            continue  # it is shown under any address, so its links begin at the root of the host
        page = _page(path)
        for target in page.loads:
            if urlsplit(target).netloc:
                yield f"{path}: loads {target}"
        for target in (*page.links, *page.loads):
            if reason := _wrong(site, path, target):
                yield f"{path}: {target}: {reason}"


def _wrong(site: Path, path: Path, target: str) -> str | None:
    address, fragment = urldefrag(target)
    if urlsplit(address).scheme or urlsplit(address).netloc:
        return None
    found = (path.parent / unquote(urlsplit(address).path)).resolve() if address else path.resolve()
    if found.is_dir():
        found /= "index.html"
    if site.resolve() not in found.parents:
        return "leaves the site"
    if not found.is_file():
        return "no such file"
    if fragment and found.suffix == ".html" and unquote(fragment) not in _page(found).ids:
        return "no such heading"
    return None


def build() -> list[str]:
    """Build into site/; what was said of docstrings.

    :raises SystemExit: for what the builder itself takes for an error.
    """
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    print(done.stdout + done.stderr)
    if done.returncode:
        sys.exit(done.returncode)
    return [
        line for line in done.stderr.splitlines() if line.startswith(("griffe:", "mkdocstrings:"))
    ]


def main() -> None:
    reference.main()
    if found := [*build(), *problems(ROOT / "site")]:
        sys.exit("\n".join(["The site has problems:", *found]))
    print("The site is in site/. Every link leads somewhere, and nothing is loaded from elsewhere.")


if __name__ == "__main__":
    main()
