"""Every error travels: from a pool's process to the worker, with all it carries."""

from __future__ import annotations

import pickle

import pytest

from fleetlimit import errors
from fleetlimit.decision import Decision, RateLimited

DENIED = Decision(allowed=False, retry_after=2.5, remaining=0, reset_after=3.0)


@pytest.mark.parametrize(
    "error",
    [
        errors.FleetlimitError("text"),
        errors.ConfigurationError("limit=0", "more"),
        errors.CostError("cost=2"),
        errors.KeyValueError("key"),
        errors.StateError("foreign"),
        errors.StoreUnavailable("too many", crowded=True),
        errors.StoreUnavailable("no answer"),
        RateLimited(DENIED),
        errors.UnknownLimitError("partner-apl", "partner-api"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_pickling_keeps_everything(error: Exception) -> None:
    error.noted = "by a caller"  # type: ignore[attr-defined]
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), back.args, vars(back)) == (str(error), error.args, vars(error))
