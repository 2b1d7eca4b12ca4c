"""Runs actions in a forked child. Where processes do not fork (on Windows) there is nothing to do."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["after_fork"]


def after_fork(action: Callable[[], object]) -> None:
    """Call `action` in every child that this process forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)
