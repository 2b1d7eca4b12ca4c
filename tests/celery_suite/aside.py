"""Tests that are left out where most deliveries are denied, and why."""

from __future__ import annotations

__all__ = ["ASIDE"]

_LARGE = "its 1,000 tasks take 50.5 s at 20 per second, of the 60 s that it waits for them"
ASIDE = {
    "test_large_group": _LARGE,
    "test_large_header": _LARGE,
    "test_chain_to_a_chord_with_large_header": _LARGE,
    "test_mutable_errback_called_by_chord_from_group_fail_multiple_on_body_failure": (
        "it waits a second for the error callbacks of 42 failures, which take four at 20 per second"
    ),
    "test_chord_header_id_duplicated_on_rabbitmq_msg_duplication": (
        "it publishes the same message twice, which counts as one that was delivered twice "
        "while it is parked (docs/waiting-room.md)"
    ),
}
