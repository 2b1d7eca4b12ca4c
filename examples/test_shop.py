"""How a project tests its own limited tasks, without Redis, without a broker and without waiting.

The fixtures come with fleetlimit (see docs/testing.md).
"""

from __future__ import annotations

import pytest

from examples.shop import charge, newsletter, refund
from fleetlimit.testing import Limits


def test_newsletter_pays_for_its_recipients(limits_recorded: Limits) -> None:
    newsletter.apply(args=("acme", 40))
    asked = {(one.name, one.key, one.cost) for one in limits_recorded.asked}
    assert asked == {("mail", "", 40), ("mail-tenant", "acme", 1)}


def test_charges_and_refunds_share_one_pace(limits_in_memory: Limits) -> None:
    for order_id in range(2):
        charge.apply(args=(order_id,))
        refund.apply(args=(order_id,))
    # There are four starts at 100 a minute with the margin of 1 %, so the fourth has waited for three intervals.
    assert limits_in_memory.clock.seconds == pytest.approx(3 * 0.606)
