"""The suite itself, from the source distribution of the Celery that is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

__all__ = ["fetched"]

CACHE = Path(__file__).parents[2] / ".cache" / "celery-suite"


def fetched() -> Path:
    """The folder that holds Celery's `t/integration`, downloaded by pip when it is asked for first.

    :raises subprocess.CalledProcessError: where pip cannot download it.
    """
    name = f"celery-{version('celery')}"
    if not (CACHE / name).exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            unpacked = _unpacked(Path(folder), name)
            try:
                os.rename(unpacked, CACHE / name)
            except OSError:  # another run was faster
                shutil.rmtree(unpacked)
    return CACHE / name


def _unpacked(folder: Path, name: str) -> Path:
    """The tests and pytest's settings alone, so that what is tested is the Celery that is installed."""
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "celery",
        "--dest", str(folder), name.replace("-", "=="),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        wanted = [
            one for one in archive.getmembers()
            if one.name == f"{name}/pyproject.toml" or one.name.startswith(f"{name}/t/")
        ]  # fmt: skip
        archive.extractall(folder, wanted, filter="data")
    return folder / name
