"""A limit changes nothing of how its task is called; and keys see the arguments as the body does."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from celery import Celery
from pydantic import BaseModel

from fleetlimit import ConfigurationError, KeyValueError, rate_limited
from fleetlimit.celery.declared import plan_of
from fleetlimit.celery.task import install


@pytest.fixture
def app() -> Celery:
    """Nobody listens there: a test that would ask Redis fails."""
    one = Celery("signatures", broker="memory://", set_as_current=False)
    one.conf.task_always_eager = True
    return one


def inject(function: Any) -> Any:
    """Passes an argument of its own, as decorators for dependencies do."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function("client", *args, **kwargs)

    return call


def inject_by_name(function: Any) -> Any:
    @functools.wraps(function)
    def call(order: str, **kwargs: Any) -> Any:
        return function(order, client="client", **kwargs)

    return call


def passes(function: Any) -> Any:
    """Passes on what it gets."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


@pytest.mark.parametrize("above", [True, False])
def test_a_decorator_that_passes_an_argument_of_its_own(app: Celery, above: bool) -> None:
    def charge(client: str, order: str) -> str:
        return f"{client} {order}"

    limit = rate_limited("sig-inject", 5, per=1)
    if above:
        task = limit(app.task(inject(charge), name="sig.above", shared=False))
    else:
        task = app.task(limit(inject(charge)), name="sig.below", shared=False)
    assert task.delay("o1").get() == "client o1"
    assert task.apply_async(kwargs={"order": "o1"}).get() == "client o1"


def test_keys_take_the_names_by_which_a_task_is_called(app: Celery) -> None:
    def charge(order: str, *, client: str, size: int = 1) -> str:
        return order + client

    limit = rate_limited("sig-key", 5, per=1, key="{order}")
    task = app.task(limit(inject_by_name(charge)), name="sig.named", shared=False)
    assert task.delay("o1", size=3).get() == "o1client"
    assert plan_of(task).spends(("o1",), {})[0].key == "o1"
    with pytest.raises(ConfigurationError, match="no argument 'nobody'"):
        rate_limited("sig-key", 5, per=1, key="{nobody}")(passes(charge))


def bound(self: Any, order: str) -> str:
    return str(self.name) + order


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize("wrapper", [passes, lambda function: function], ids=["wrapped", "plain"])
@pytest.mark.parametrize("options", [{}, {"autoretry_for": (ValueError,)}], ids=["", "autoretry"])
def test_keys_of_a_bound_task(
    app: Celery, above: bool, wrapper: Any, options: dict[str, Any]
) -> None:
    limit = rate_limited("sig-bound", 5, per=1, key="{order}")
    options = {**options, "name": "sig.bound", "shared": False, "bind": True}
    if above:
        task = limit(app.task(wrapper(bound), **options))
    else:
        task = app.task(limit(wrapper(bound)), **options)
    app.finalize()
    install(app.tasks["sig.bound"])  # again, as a worker does when it starts
    assert plan_of(task).spends(("o1",), {})[0].key == "o1"
    assert task.delay("o1").get() == "sig.boundo1"


class Order(BaseModel):
    account_id: str
    size: int = 2

    @property
    def doubled(self) -> int:
        return 2 * self.size


def charge(order: Order, note: str = "") -> str:
    return order.account_id


def charge_bound(self: Any, order: Order | None = None) -> str:
    return order.account_id if order else ""


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize("bind", [True, False])
@pytest.mark.parametrize(
    "spec",
    [
        {"key": "{order.account_id}", "cost": "{order.doubled}"},
        {"key": lambda order, **_: order.account_id, "cost": lambda order: order.doubled},
    ],
    ids=["template", "callable"],
)
def test_keys_and_costs_from_pydantic_models(
    app: Celery, above: bool, bind: bool, spec: dict[str, Any]
) -> None:
    limit = rate_limited("sig-model", 50, per=1, burst=20, **spec)
    function = charge_bound if bind else charge
    options = {"name": "sig.model", "shared": False, "bind": bind, "pydantic": True}
    task = limit(app.task(function, **options)) if above else app.task(limit(function), **options)
    app.finalize()
    sent = {"account_id": "a1"}  # as it travels
    for args, kwargs in ((sent,), {}), ((), {"order": sent}):
        (spend,) = plan_of(task).spends(args, kwargs)
        assert (spend.key, spend.cost) == ("a1", 4)
    with pytest.raises(KeyValueError, match="account_id"):
        plan_of(task).spends(({"size": 1},), {})
    assert task.delay(sent).get() == "a1"
