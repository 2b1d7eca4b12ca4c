"""A wheel that was built from the source distribution works with the repository gone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from fleetlimit.demo.processes import Server, environment

ROOT = Path(__file__).parents[1]
PROGRAM = """
import pathlib, sys, fleetlimit
from fleetlimit.store.scripts import _folder
home = pathlib.Path(sys.argv[1])
assert home in pathlib.Path(fleetlimit.__file__).parents, fleetlimit.__file__
assert home in _folder().parents, _folder()
assert (home / "fleetlimit" / "py.typed").exists()
for name in ("index.html", "lab.css", "lab.js", "plot.js"):
    assert (home / "fleetlimit" / "lab" / "static" / name).exists(), name
limiter = fleetlimit.RateLimiter(sys.argv[2])
limit = fleetlimit.RateLimit("wheel", 1, 60)
assert limiter.acquire(limit) and not limiter.acquire(limit)
assert fleetlimit.rate_limited("wheel", 1, 60)
assert sys.argv[3] == f"fleetlimit-{fleetlimit.__version__}-py3-none-any.whl", fleetlimit.__version__
print("works")
"""


def test_wheel(server: Server, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    for name in ("src", "lua", "pyproject.toml", "README.md", "LICENSE"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, repository / name)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    # The source distribution, and from it the wheel.
    build = [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(repository)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("fleetlimit-*.whl")
    shutil.rmtree(repository)
    home = tmp_path / "home"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(home), str(wheel)], check=True)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(home), server.url, wheel.name],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(home)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "works\n", ran.stderr
    said = subprocess.check_output(
        [sys.executable, "-m", "fleetlimit", "--version"],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(home)),
        text=True,
    )
    assert wheel.name.split("-")[1] in said
