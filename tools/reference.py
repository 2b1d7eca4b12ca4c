"""Write what is made from the code: the pages settings, commands and examples in docs/reference, and the figures.

They are committed, so that they can be read without the site. `tests/test_docs.py` fails while one of them differs from
what the code says.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from fleetlimit.celery.options import OPTIONS, Option
from fleetlimit.cli import main as fleetlimit
from fleetlimit.cli_celery import throttled
from tools.figures import figures

__all__ = ["pages"]

ROOT = Path(__file__).parents[1]
NOTE = "<!-- Made by `make docs` from {source}. Change it there. -->"

# --- settings -------------------------------------------------------------------------------------

SETTINGS = f"""{NOTE.format(source="src/fleetlimit/celery/options.py")}

# Settings

All settings of fleetlimit stand in the configuration of the Celery app, as `app.conf.fleetlimit_...`. None of them is
required. A worker with a setting that is wrong or misspelt does not start, and its log says why.

With a namespace, as in Django, a setting is written in capital letters behind the namespace: `CELERY_FLEETLIMIT_ON_OUTAGE`
for `fleetlimit_on_outage`.

A program without Celery has no settings. It gives the same values as arguments to
[`RateLimiter`](api.md#limits-and-limiters).
"""


def settings() -> str:
    return "\n".join([SETTINGS, *map("\n".join, map(_setting, OPTIONS, OPTIONS.values()))])


def _setting(name: str, option: Option) -> Iterator[str]:
    yield f"## `{name}`\n"
    yield f"{option.meaning}\n"
    yield f"- Values: {_values(option)}."
    yield f"- Default: {_default(option)}.\n"


def _values(option: Option) -> str:
    if option.choices:
        *most, last = [f'`"{choice}"`' for choice in option.choices]
        return f"{', '.join(most)} or {last}"
    if option.seconds:
        least, greatest = option.seconds
        return f"seconds, a number from {least:,g} to {greatest:,g}"
    return option.values or "`True` or `False`"


def _default(option: Option) -> str:
    if option.choices:
        return f'`"{option.choices[0]}"`'
    return option.unset or f"`{option.default!r}`"


# --- commands -------------------------------------------------------------------------------------

COMMANDS = f"""{NOTE.format(source="the commands in src/fleetlimit/cli*.py")}

# Commands

The command `fleetlimit` comes with the package. Every command can also be typed as `celery fleetlimit ...`.

The commands need to know where the limits' Redis is. There are three ways to say it: the option `--url
redis://host:6379/0`, the environment variable `FLEETLIMIT_URL`, or the option `-A shop`, which takes it from the settings of
the Celery app `shop`.

The exit status is 0 if the command did its work, and 2 if it could not. In the second case it prints one line that says why.
(`demo` and `drain` may also end with 1, as described below.)
"""


def commands() -> str:
    parts = [COMMANDS]
    for name in sorted(fleetlimit.commands):
        parts.append("\n".join(_command(name, fleetlimit.commands[name])))
    parts.append("\n".join(_inspect()))
    return "\n".join(parts)


def _command(name: str, command: click.Command) -> Iterator[str]:
    arguments = [_argument(one) for one in command.params if isinstance(one, click.Argument)]
    options = [one for one in command.params if isinstance(one, click.Option)]
    yield f"## `fleetlimit {name}`\n"
    yield f"```text\n{' '.join(['fleetlimit', name, *arguments, '[OPTIONS]'])}\n```\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    yield "| option | value | meaning |"
    yield "|---|---|---|"
    for option in options:
        forms = ", ".join(f"`{form}`" for form in option.opts)
        text = (option.help or "").replace(" [FLEETLIMIT_URL]", "")
        yield f"| {forms} | {_value(option)} | {text} |"
    yield ""


# Click's own words for these differ from version to version.


def _argument(argument: click.Argument) -> str:
    word = argument.metavar or (argument.name or "").upper()
    return word if argument.required else f"[{word}]"


def _value(option: click.Option) -> str:
    if option.is_flag:
        return ""
    kind = option.type
    if isinstance(kind, click.Choice):
        return " or ".join(f"`{choice}`" for choice in kind.choices)
    words = {"integer": "a whole number", "float": "a number", "file": "a file", "text": "a text"}
    said = words.get(kind.name.removesuffix(" range"), "a number or `auto`")
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        said += f" from {kind.min}" + ("" if kind.max is None else f" to {kind.max}")
    if option.required:
        said += ", required"
    return said + (f"; `{option.default}` if left out" if option.show_default else "")


def _inspect() -> Iterator[str]:
    yield "## `celery inspect throttled`\n"
    yield "```text\ncelery -A app inspect throttled [LIMIT [KEY|- [PAGE]]]\n```\n"
    yield f"{inspect.cleandoc(throttled.__doc__ or '')} The workers answer, so at least one of them must be running.\n"


# --- examples -------------------------------------------------------------------------------------

EXAMPLES = f"""{NOTE.format(source="the folder examples")}

# Examples

These programs are in the folder `examples` of the repository, and the tests run them. Start them in the root of a checkout.
"""
SHOWN = ("shop.py", "send.py", "test_shop.py", "plain.py")


def examples() -> str:
    return "\n".join([EXAMPLES, *map("\n".join, map(_example, SHOWN))])


def _example(name: str) -> Iterator[str]:
    source = (ROOT / "examples" / name).read_text()
    summary = (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]
    yield f"## {name}\n"
    yield f"{summary}\n"
    yield f"```python\n{source}```\n"


# --- all ------------------------------------------------------------------------------------------

PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings,
    "commands.md": commands,
    "examples.md": examples,
}


def pages() -> dict[Path, str]:
    """Each file that is made from the code, and what it must contain."""
    docs = ROOT / "docs"
    made = {docs / "reference" / name: f"{page().rstrip()}\n" for name, page in PAGES.items()}
    return made | figures(docs / "images")


def main() -> None:
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
