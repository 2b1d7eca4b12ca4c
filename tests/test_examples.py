"""The README's code and the examples run as they stand."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import click
import pytest

from fleetlimit.cli import main
from fleetlimit.demo.processes import Server, environment, spawn, stop, until

ROOT = Path(__file__).parents[1]


def test_readme_code_runs(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 2
    namespace: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        code = block.replace("redis://localhost:6379/0", server.url)
        exec(compile(code, "README.md", "exec"), namespace)
    assert namespace["decision"].allowed  # type: ignore[attr-defined]
    namespace["app"].close()  # type: ignore[attr-defined]


def test_waiting_room_code_runs(server: Server) -> None:
    from celery import Celery

    from fleetlimit import RateLimiter

    text = (ROOT / "docs" / "waiting-room.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    app = Celery("shop", broker=server.url)
    namespace = {"app": app, "task_id": "order-7", "RateLimiter": RateLimiter}
    for block in blocks:
        exec(compile(block, "waiting-room.md", "exec"), namespace)
    app.close()


def test_commands_of_the_docs_exist() -> None:
    """Each `fleetlimit ...` in a console block or within the text, with its arguments and options."""
    seen = 0
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text()
        blocks = "\n".join(re.findall(r"```console\n(.*?)```", text, re.DOTALL))
        found = re.findall(r"^fleetlimit .*$", blocks, re.MULTILINE)
        found += re.findall(r"`(fleetlimit [a-z][^`]*)`", text)
        for command in found:
            if not re.search(
                r"\[|\.\.\.$", command
            ):  # a form with optional parts, or with an ellipsis
                _parse(shlex.split(command)[1:])
                seen += 1
    assert seen > 20


def _parse(words: list[str]) -> None:
    """:raises click.UsageError: for an option that the command does not have."""
    command = main.commands[words[0]]
    _, left, _ = command.make_parser(click.Context(command)).parse_args(words[1:])
    assert not left, words


def test_readme_options_are_accepted() -> None:
    from fleetlimit import RateLimitedTask, rate_limited

    rows = re.findall(r"\| `@(rate_limited\([^`]*\))` \|", (ROOT / "README.md").read_text())
    assert len(rows) >= 2
    for row in rows:
        renamed = row.replace("partner-api", f"readme-{abs(hash(row))}")
        eval(renamed, {"rate_limited": rate_limited})(lambda account_id, batch_size: None)
    assert RateLimitedTask


def test_shop(server: Server, tmp_path: Path) -> None:
    env = environment(BROKER_URL=server.url, PYTHONPATH=str(ROOT), PYTHONUNBUFFERED="1")
    log = tmp_path / "worker.log"
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "examples.shop",
        "worker",
        "-c",
        "2",
        "-l",
        "INFO",
    ]
    worker = spawn(command, log, env=env, cwd=ROOT)
    try:
        sender = spawn(
            [sys.executable, "-m", "examples.send"], tmp_path / "send.log", env=env, cwd=ROOT
        )
        assert sender.wait(30) == 0, (tmp_path / "send.log").read_text()
        for line in ("charge 0", "newsletter of acme to 40"):
            until(lambda line=line: line in log.read_text(), line, 30)  # type: ignore[misc]
    finally:
        stop(worker)


def test_plain(server: Server, tmp_path: Path) -> None:
    env = environment(FLEETLIMIT_URL=server.url, PYTHONPATH=str(ROOT))
    log = tmp_path / "log"
    program = spawn([sys.executable, "-m", "examples.plain"], log, env=env, cwd=ROOT)
    assert program.wait(30) == 0, log.read_text()
    assert log.read_text().count("call ") == 12
