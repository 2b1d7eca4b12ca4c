"""Tests that are left out where most deliveries are denied, and why."""

from __future__ import annotations

__all__ = ["ASIDE"]

_LARGE = "its 1,000 tasks take 50.5 s at 20 per second, of the 60 s that it waits for them"
ASIDE = {
    "test_large_group": _LARGE,
    "test_large_header": _LARGE,
    "test_chain_to_a_chord_with_large_header": _LARGE,
    "test_chord_header_id_duplicated_on_rabbitmq_msg_duplication": (
        "it publishes the same message twice, which counts as one that was delivered twice "
        "while it is parked (docs/waiting-room.md)"
    ),
}
