"""Without a worker: what decoration refuses, direct and eager calls, keys and costs."""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from pathlib import Path
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
        ({"limit": None}, "limit=None: the limit 'unit-bad' has no number of units"),
        ({"name": "10/s", "limit": None}, 'write for instance @rate_limited("partner-api", 100'),
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
            limits=[rate_limited("unit-b", 1, 1, key="{nobody}")],
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


@pytest.mark.parametrize(
    "options",
    [
        {"key": "{account[size]}"},
        {"key": "{order}"},
        {"key": lambda account, **_: account["size"]},
        {"cost": "{account[size]}"},
    ],
)
def test_an_error_of_a_key_names_the_limit(options: dict[str, Any]) -> None:
    """A task may have several."""
    bound = rate_limited("unit-key", 10, 1, burst=5, **options)
    with pytest.raises(KeyValueError, match=r"^limit 'unit-key': (key|cost)"):
        spend(bound, {}, order="")


def test_fields_of_one_template_do_not_run_together() -> None:  # N13
    bound = rate_limited("unit-two", 10, 1, key="{account}:{order}")
    keys = {spend(bound, *args)[0] for args in [("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c")]}
    assert len(keys) == 3


@pytest.mark.parametrize(
    "key", ["{account[id]}", lambda account, *_: account["id"], lambda *_: 1 / 0, lambda *_: 1.5]
)
def test_a_key_that_cannot_be_computed_is_an_error(key: Any) -> None:  # N13
    with pytest.raises(KeyValueError):
        spend(rate_limited("unit-none", 10, 1, key=key), {"id": None})


def test_a_cost_that_cannot_be_admitted_is_an_error() -> None:  # N3
    with pytest.raises(CostError, match="cost=2"):
        spend(rate_limited("unit-none", 10, 1, cost=lambda *_: 2), {})
    with pytest.raises(CostError, match="cost='x'"):
        spend(rate_limited("unit-none", 10, 1, cost="{order}"), {}, "x")


def test_two_definitions_of_one_name() -> None:
    rate_limited("unit-shared", 10, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rate_limited("unit-shared", 10, 1.0)
    with pytest.warns(LimitConflictWarning, match="unit-shared") as caught:
        rate_limited("unit-shared", 20, 1)
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
    @rate_limited("unit-signature", 1, 1)
    def picky(a: int, *, b: int) -> None: ...

    with pytest.raises(TypeError):
        picky.apply_async((1, 2))
    with pytest.raises(TypeError):
        picky.apply_async((1,))
    assert str(inspect.signature(picky)) == "(a: 'int', *, b: 'int') -> 'None'"


def test_stacking_and_every_target_know_their_limits(app: Celery) -> None:
    def named(n: int) -> rate_limited:
        return rate_limited(f"unit-stack{n}", n, 1)

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
        rate_limited("unit-not", 1, 1)("nothing")


def test_what_stands_beside_a_ready_limit() -> None:
    ready = RateLimit("unit-ready", 10, 60)
    for said in ({"burst": 50}, {"tz": "Europe/Berlin"}, {"margin": 0.01}, {"offset": 0.0}):
        with pytest.raises(ConfigurationError, match="unit-ready") as caught:
            rate_limited(ready, **said)
        ((name, value),) = said.items()
        assert f"{name}={value!r}" in str(caught.value)
    with pytest.raises(TypeError, match="brust"):
        rate_limited("unit-ready", 10, 60, brust=5)


@pytest.mark.parametrize("arguments", [("unit-per", 10), ("unit-per", "100/m"), ("unit-per",)])
def test_a_limit_without_its_period(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        rate_limited(*arguments)
    assert "test_decorator.py:" in str(caught.value)  # the place
    assert ("per=None" if arguments[1:] == (10,) else "limit=") in str(caught.value)


def test_without_parentheses(app: Celery) -> None:
    task = app.task(function, name="unit.bare", shared=False)
    for target, said in ((function, "function"), (task, "'unit.bare'")):
        with pytest.raises(ConfigurationError, match="without parentheses") as caught:
            rate_limited(target)
        assert said in str(caught.value)
        assert "test_decorator.py:" in str(caught.value)


def test_a_coroutine_function_never_runs() -> None:
    async def coroutine() -> None: ...

    with pytest.raises(ConfigurationError, match="async def") as caught:
        rate_limited("unit-async", 1, 1)(coroutine)
    assert "coroutine (" in str(caught.value)
    assert "test_decorator.py:" in str(caught.value)


def test_an_error_names_the_task_and_its_place(app: Celery) -> None:
    def fails(**options: Any) -> str:
        with pytest.raises(ConfigurationError) as caught:
            app.task(lazy=False, shared=False, **options)(function)
        return str(caught.value)

    wrong = [rate_limited("unit-b", 1, 1, key="{nobody}")]
    for name, limits in (("a", wrong), ("b", ["5/s"]), ("c", "partner"), ("d", 5), ("e", None)):
        text = fails(base=RateLimitedTask, limits=limits, name=f"unit.{name}")
        assert f"task 'unit.{name}'" in text
        assert "test_decorator.py:" in text


def limited_by(number: int) -> Any:
    return rate_limited("unit-factory", number, 1)


def test_two_definitions_of_one_factory() -> None:
    limited_by(10)
    limited_by(10)
    with pytest.warns(LimitConflictWarning, match="unit-factory"):
        limited_by(20)


def test_two_definitions_of_ready_limits(app: Celery) -> None:
    def task(name: str, number: int) -> None:
        limits = [RateLimit("unit-listed", number, 1)]
        app.task(base=RateLimitedTask, limits=limits, name=name, lazy=False, shared=False)(function)

    task("unit.five", 5)
    with pytest.warns(LimitConflictWarning, match="unit-listed") as caught:
        task("unit.seven", 7)
    assert "test_decorator.py:" in str(caught[0].message)


FACTORY = (
    "from fleetlimit import rate_limited\ndef at(n): return rate_limited('unit-reload', n, 1)\n"
)
LISTED = """
from celery import Celery
from fleetlimit import RateLimit, RateLimitedTask
app = Celery("reload", set_as_current=False)
@app.task(base=RateLimitedTask, limits=[RateLimit("unit-relisted", {n}, 1)], lazy=False, shared=False)
def listed(): ...
"""


def test_a_module_that_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it was defined is the same place in newer code: the newer numbers replace the older."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "unit_factory.py").write_text(FACTORY)
    first = "from fleetlimit import rate_limited\nrate_limited('unit-again', {n}, 1)\n"
    for n in (10, 20, 30):
        (tmp_path / "unit_again.py").write_text(
            first.format(n=n) + f"import unit_factory\nunit_factory.at({n})\n" + LISTED.format(n=n)
        )
        importlib.invalidate_caches()
        if n == 20:
            importlib.reload(sys.modules["unit_again"])
        else:
            sys.modules.pop("unit_again", None)
            importlib.import_module("unit_again")
    for name in ("unit-again", "unit-reload", "unit-relisted"):
        with pytest.warns(LimitConflictWarning, match="30"):
            rate_limited(name, 5, 1)
