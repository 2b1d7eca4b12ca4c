"""A resolver that hangs: names are looked up within the time for a connection."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleetlimit import RateLimit, RateLimiter
from fleetlimit.demo.processes import Server
from fleetlimit.store import sockets
from tests.conftest import need

PROGRAM = """
import socket, threading, time
from fleetlimit import RateLimit, RateLimiter

silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
silent.bind(("127.0.0.1", 53))  # hears every question and answers none
answered = threading.Event()

def look_up():
    try:
        socket.getaddrinfo("limits.test", 6379)
    except OSError:
        pass
    answered.set()

threading.Thread(target=look_up, daemon=True).start()
limiter = RateLimiter("redis://limits.test:6379/0", on_outage="wait")
for _ in range(3):
    assert not limiter.acquire(RateLimit("one", 1, 1))
assert limiter.health().away
assert not answered.is_set(), "the resolver did not hang"
lookups = [one for one in threading.enumerate() if one.name == "fleetlimit-resolver"]
assert len(lookups) == 1, lookups
print("decided")
"""


def test_a_resolver_that_hangs(tmp_path: Path) -> None:
    """In a world of its own, where nothing answers for names."""
    unshare = need("unshare", "no resolver is made to hang")
    if os.geteuid() != 0:
        pytest.skip("only root makes namespaces: no resolver is made to hang")
    conf = tmp_path / "resolv.conf"
    conf.write_text("nameserver 127.0.0.1\noptions timeout:20 attempts:1\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    script = (
        f"ip link set lo up && mount --bind {conf} /etc/resolv.conf && "
        f"exec {sys.executable} {tmp_path / 'program.py'}"
    )
    began = time.monotonic()
    done = subprocess.run(
        [unshare, "--mount", "--net", "sh", "-c", script],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if "not permitted" in done.stderr:
        pytest.skip(f"no namespaces here, no resolver is made to hang: {done.stderr}")
    assert "decided" in done.stdout, done.stderr
    assert time.monotonic() - began < 20  # and nothing keeps the program from ending


def test_names_are_looked_up(server: Server) -> None:
    assert RateLimiter(f"redis://localhost:{server.port}/0").acquire(RateLimit("one", 1, 1))
    assert not sockets._lookups


def test_a_name_that_is_none_says_so() -> None:
    limiter = RateLimiter("redis://no-such-host.invalid:1/0")
    with pytest.raises(Exception, match=r"no-such-host\.invalid"):
        limiter.acquire(RateLimit("one", 1, 1))


def test_of_several_addresses_one_may_be_a_black_hole(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    hole = socket.socket()  # its backlog is full: who connects waits
    hole.bind(("127.0.0.1", 0))
    hole.listen(0)
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(hole.getsockname())
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", hole.getsockname()),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port)),
    ]
    monkeypatch.setattr(sockets, "_addresses", lambda *_: found)
    assert RateLimiter("redis://two.test:1/0").acquire(RateLimit("one", 1, 1))
    for one in (hole, *fillers):
        one.close()
