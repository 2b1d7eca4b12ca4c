"""What a forked child must do first; nothing where processes do not fork (Windows)."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["after_fork"]


def after_fork(action: Callable[[], object]) -> None:
    """Call `action` in every child that this process forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)
