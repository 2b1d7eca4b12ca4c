"""Without a worker: what decoration refuses, direct and eager calls, keys and costs."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
from celery import Celery, Task, shared_task

from fleetlimit import (
    ConfigurationError,
    CostError,
    KeyValueError,
    LimitConflictWarning,
    RateLimit,
    RateLimitedTask,
    rate_limited,
)
from fleetlimit.celery.binding import Binding
from fleetlimit.celery.declared import limits_of


@pytest.fixture
def app() -> Celery:
    """Nobody listens there: a test that would ask Redis fails."""
    return Celery("unit", broker="redis://127.0.0.1:1/0", set_as_current=False)


def function(account: dict[str, Any], order: str = "o", *, force: bool = False) -> str:
    return f"{account['id']}-{order}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": 0}, "limit=0"),
        ({"per": -1}, "per=-1"),
        ({"burst": 0}, "burst=0"),
        ({"burst": 11}, "burst=11"),
        ({"cost": 0}, "cost=0"),
        ({"cost": 2}, "cost=2"),
        ({"cost": True}, "cost=True"),
        ({"key": "{acount}"}, "'acount'"),
        ({"key": "{acount}"}, "account, order, force"),
        ({"key": "constant"}, "key='constant'"),
        ({"key": "{order"}, "key='{order'"),
        ({"key": "{0}"}, "key='{0}'"),
        ({"key": "{order!r}"}, "key='{order!r}'"),
        ({"key": "{order}{force}"}, "separator"),
        ({"key": 5}, "key=5"),
        ({"cost": "{ordr}"}, "'ordr'"),
        ({"name": "a:b"}, "name='a:b'"),
        ({"limit": None}, "limit=None"),
    ],
)
def test_refused_at_decoration(app: Celery, options: dict[str, Any], said: str) -> None:  # N7, N13
    arguments = {"name": "unit-bad", "limit": 10, "per": 1, **options}
    name = arguments.pop("name")
    with pytest.raises(ConfigurationError) as caught:
        rate_limited(name, **arguments)(function)
    assert said in str(caught.value)
    with pytest.raises(ConfigurationError):
        rate_limited(name, **arguments)(app.task(function, shared=False))


def test_base_class_limits_are_checked(app: Celery) -> None:
    with pytest.raises(ConfigurationError, match="nobody"):
        app.task(
            base=RateLimitedTask,
            limits=[rate_limited("unit-b", 1, key="{nobody}")],
            lazy=False,
            shared=False,
        )(function)
    with pytest.raises(ConfigurationError, match="limits"):
        app.task(base=RateLimitedTask, limits=["5/s"], lazy=False, shared=False, name="other")(
            function
        )


def spend(bound: Binding, *args: Any, **kwargs: Any) -> tuple[str, int]:
    one = bound.spend(inspect.signature(function), args, kwargs)
    return one.key, one.cost


def test_keys_and_costs_from_arguments() -> None:
    def bound(**options: Any) -> Binding:
        return rate_limited("unit-key", 10, 1, burst=5, **options)

    acme = {"id": "acme", "size": 3}
    assert spend(bound(), acme) == ("", 1)
    assert spend(bound(key="{account[id]}"), acme) == ("acme", 1)
    assert spend(bound(key="acct-{account[id]}"), acme) == ("acct-acme", 1)
    assert spend(bound(key="{order}"), acme) == ("o", 1)
    assert spend(bound(key="{order}", cost="{account[size]}"), acme, order="x") == ("x", 3)
    assert spend(bound(key=lambda account, **_: account["id"]), acme, force=True) == ("acme", 1)
    assert spend(bound(cost=lambda account, *_: account["size"]), acme) == ("", 3)


def test_fields_of_one_template_do_not_run_together() -> None:  # N13
    bound = rate_limited("unit-two", 10, key="{account}:{order}")
    keys = {spend(bound, *args)[0] for args in [("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c")]}
    assert len(keys) == 3


@pytest.mark.parametrize(
    "key", ["{account[id]}", lambda account, *_: account["id"], lambda *_: 1 / 0, lambda *_: 1.5]
)
def test_a_key_that_cannot_be_computed_is_an_error(key: Any) -> None:  # N13
    with pytest.raises(KeyValueError):
        spend(rate_limited("unit-none", 10, key=key), {"id": None})


def test_a_cost_that_cannot_be_admitted_is_an_error() -> None:  # N3
    with pytest.raises(CostError, match="cost=2"):
        spend(rate_limited("unit-none", 10, cost=lambda *_: 2), {})
    with pytest.raises(CostError, match="cost='x'"):
        spend(rate_limited("unit-none", 10, cost="{order}"), {}, "x")


def test_two_definitions_of_one_name() -> None:
    rate_limited("unit-shared", 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rate_limited("unit-shared", 10, 1.0)
    with pytest.warns(LimitConflictWarning, match="unit-shared") as caught:
        rate_limited("unit-shared", 20)
    text = str(caught[0].message)
    assert text.count("test_decorator.py:") == 2
    assert caught[0].filename == __file__


def test_a_ready_limit_is_taken_as_it_is() -> None:
    ready = RateLimit("unit-ready", 10, 60)
    assert rate_limited(ready).limit is ready
    with pytest.raises(ConfigurationError, match="limit=5"):
        rate_limited(ready, 5)


def test_direct_and_eager_calls_are_plain(app: Celery) -> None:  # C12
    below = app.task(rate_limited("unit-plain", 1, 3600)(function))
    above = rate_limited("unit-plain", 1, 3600)(app.task(name="above")(function))
    based = app.task(
        base=RateLimitedTask, limits=[rate_limited("unit-plain", 1, 3600)], name="based"
    )(function)
    for task in (below, above, based):
        for _ in range(3):
            assert task({"id": 1}) == "1-o"
            assert task.run({"id": 1}) == "1-o"
            assert task.apply(({"id": 1},)).get() == "1-o"
    app.conf.task_always_eager = True
    assert [below.delay({"id": 1}).get() for _ in range(3)] == ["1-o"] * 3


def test_eager_calls_wait_if_asked_to(app: Celery) -> None:  # C12
    from fleetlimit.store.memory import MemoryStore

    app.conf.update(fleetlimit_eager="wait", fleetlimit_url=MemoryStore())
    task = app.task(rate_limited("unit-eager", 10, 0.1, margin=0)(function))
    assert [task.apply(({"id": 1},)).get() for _ in range(4)] == ["1-o"] * 4
    store = app.conf.fleetlimit_url
    assert (
        store.peek([limits_of(task)[0].spend(inspect.signature(function), ({},), {})]).wait_us > 0
    )


def test_celery_checks_the_users_own_signature(app: Celery) -> None:  # C13
    @app.task
    @rate_limited("unit-signature", 1)
    def picky(a: int, *, b: int) -> None: ...

    with pytest.raises(TypeError):
        picky.apply_async((1, 2))
    with pytest.raises(TypeError):
        picky.apply_async((1,))
    assert str(inspect.signature(picky)) == "(a: 'int', *, b: 'int') -> 'None'"


def test_stacking_and_every_target_know_their_limits(app: Celery) -> None:
    def named(n: int) -> rate_limited:
        return rate_limited(f"unit-stack{n}", n)

    two = app.task(name="two")(named(1)(named(2)(function)))
    assert limits_of(app.task(name="free", shared=False)(function)) == ()
    assert [b.limit.limit for b in limits_of(two)] == [2, 1]

    @named(1)
    @app.task
    @named(2)
    def both() -> None: ...

    assert sorted(b.limit.limit for b in limits_of(both)) == [1, 2]

    @named(3)
    @shared_task(name="unit.shared")
    def shared() -> None: ...

    assert [b.limit.limit for b in limits_of(app.tasks["unit.shared"])] == [3]

    @named(5)
    @shared_task(name="unit.shared-above")
    def shared_above() -> None: ...

    for one in (app, Celery("later", set_as_current=False)):
        assert [b.limit.limit for b in limits_of(one.tasks["unit.shared-above"])] == [5]

    @named(4)
    class Classy(Task):  # type: ignore[misc]
        name = "unit.classy"

        def run(self, n: int) -> None: ...

    assert [b.limit.limit for b in limits_of(app.register_task(Classy()))] == [4]


def test_not_a_task() -> None:
    with pytest.raises(ConfigurationError, match="'nothing'"):
        rate_limited("unit-not", 1)("nothing")
