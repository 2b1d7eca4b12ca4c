"""Hosts on one machine, each a network namespace of its own, on a switch that is another one: Linux, as root.

A unix socket reaches from any of them to any other, and so does the file system.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleetlimit.demo.processes import server_binary, spawn, stop, until

from .conftest import need

PORT = 6379


class Hosts:
    """They count from 1, and the n-th has the address 10.77.0.n."""

    def __init__(self, ip: str, number: int) -> None:
        self._ip = ip
        self._names = [f"fleetlimit-{uuid.uuid4().hex[:8]}-{n}" for n in range(number + 1)]
        self._switch = self._names[0]

    def up(self) -> None:
        """:raises subprocess.CalledProcessError: where that is not allowed."""
        for name in self._names:
            self._run("netns", "add", name)
            self._run("-n", name, "link", "set", "lo", "up")
        self._run("-n", self._switch, "link", "add", "br0", "type", "bridge")
        self._run("-n", self._switch, "link", "set", "br0", "up")
        for n, name in enumerate(self._names[1:], 1):
            cable = ("type", "veth", "peer", f"p{n}", "netns", self._switch)
            self._run("-n", name, "link", "add", "e0", *cable)
            self._run("-n", self._switch, "link", "set", f"p{n}", "master", "br0", "up")
            self._run("-n", name, "addr", "add", f"10.77.0.{n}/24", "dev", "e0")
            self._run("-n", name, "link", "set", "e0", "up")

    def down(self) -> None:
        """What runs in them keeps them, without their names, until it ends."""
        for name in self._names:
            subprocess.run([self._ip, "netns", "del", name], capture_output=True, check=False)

    def on(self, host: int) -> list[str]:
        """What stands before a command, for it to run on a host."""
        return [self._ip, "netns", "exec", self._names[host]]

    def reaches(self, host: int, other: int) -> bool:
        """Whether a host gets through to another one's Redis, within a second."""
        call = f"import socket; socket.create_connection(('10.77.0.{other}', {PORT}), 1)"
        command = [*self.on(host), sys.executable, "-c", call]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def cut(self, host: int) -> None:
        """Pull its cable."""
        self._run("-n", self._switch, "link", "set", f"p{host}", "down")

    def heal(self, host: int) -> None:
        self._run("-n", self._switch, "link", "set", f"p{host}", "up")

    def _run(self, *arguments: str) -> None:
        subprocess.run([self._ip, *arguments], capture_output=True, text=True, check=True)


@contextmanager
def hosts(number: int) -> Iterator[Hosts]:
    found = Hosts(need("ip", "no host is cut off"), number)
    if os.geteuid() != 0:
        pytest.skip("only root makes network namespaces: no host is cut off")
    try:
        try:
            found.up()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here, no host is cut off: {error.stderr}")
        yield found
    finally:
        found.down()


@contextmanager
def redis_on(found: Hosts, host: int) -> Iterator[Path]:
    """A Redis or Valkey at a host's address, and at the unix socket that is returned."""
    with tempfile.TemporaryDirectory(
        prefix="fleetlimit-"
    ) as folder:  # a socket's path must be short
        socket = Path(folder) / "socket"
        command = [
            *found.on(host), server_binary(), "--port", str(PORT), "--bind", f"10.77.0.{host}",
            "--protected-mode", "no", "--unixsocket", str(socket), "--save", "", "--dir", folder,
        ]  # fmt: skip
        process = spawn(command, Path(folder) / "redis.log")
        try:
            until(socket.exists, "the Redis server")
            yield socket
        finally:
            stop(process)
