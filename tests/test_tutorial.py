"""The tutorial, followed to the letter: its files are saved, and its commands are typed, but for those that install."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleetlimit.demo.processes import Server, environment, spawn, stop, until

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
#: What is there already: an environment with everything in it.
INSTALL = ("pip ", "python3 -m venv", ". .venv")
BLOCK = re.compile(r"```(console|python)\n(.*?)```", re.DOTALL)


@dataclass
class Reader:
    """A newcomer with a shell."""

    folder: Path
    url: str
    env: dict[str, str]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def follow(self, text: str) -> None:
        for kind, block in BLOCK.findall(text):
            said = block.replace("redis://localhost:6379/0", self.url)
            if kind == "python":
                self._save(said)
            else:
                for line in said.splitlines():
                    self._type(line)

    def _save(self, code: str) -> None:
        name = code.splitlines()[0].removeprefix("# ")
        path = self.folder / name
        path.write_text((path.read_text() if path.name == "settings.py" else "") + code)

    def _type(self, line: str) -> None:
        words = shlex.split(line)
        if line.startswith(INSTALL):
            return
        self._look_before(line)
        if words[0] == "mkdir":
            (self.folder / words[1]).mkdir()
        elif words[0] == "cd":
            self.folder /= words[1]
        elif words[0] == "export":
            name, value = words[1].split("=", 1)
            self.env[name] = value
        elif words[0] == "celery":
            self.log.touch()
            self.workers.append(spawn(words, self.log, env=self.env, cwd=self.folder))
        else:
            subprocess.run(words, env=self.env, cwd=self.folder, check=True, timeout=60)

    def _look_before(self, line: str) -> None:
        """What a reader sees before going on."""
        if line == "fleetlimit status partner-api":
            until(lambda: self.orders() >= 5, "the first orders")
        elif line == "fleetlimit configure partner-api":
            until(lambda: self.orders() == 100, "all orders at the new pace")

    @property
    def log(self) -> Path:
        return self.folder / "worker.log"

    def orders(self) -> int:
        """How many different ones the workers have printed."""
        return len(set(re.findall(r"order (\d+)", self.log.read_text())))

    def leave(self) -> None:
        while self.workers:
            stop(self.workers.pop())


@pytest.fixture
def reader(server: Server, tmp_path: Path) -> Iterator[Reader]:
    programs = str(Path(sys.executable).parent)
    env = environment(PYTHONUNBUFFERED="1")
    env["PATH"] = f"{programs}:{env['PATH']}"
    env.pop("FLEETLIMIT_URL", None)
    found = Reader(tmp_path, server.url, env)
    yield found
    found.leave()


def test_the_tutorial(reader: Reader, capfd: pytest.CaptureFixture[str]) -> None:
    plain, django = PAGE.read_text().split("## 7. ")
    reader.follow(plain)
    shown = re.findall(r"```text\n(.*?)```", plain, re.DOTALL)[0]
    printed = capfd.readouterr().out
    for label in re.findall(r"^(?:next due|\w+)", shown, re.MULTILINE):
        assert re.search(rf"^{label} ", printed, re.MULTILINE), label
    reader.leave()
    reader.follow(django)
    until(lambda: reader.orders() >= 3, "orders of the Django project")
