# SPDX-License-Identifier: Apache-2.0
"""The staged registry: nothing is in use before the commit, everything after it, and nothing when it fails half way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from thunder.plugins import PluginRegistry
from thunder.plugins.catalog import Catalog
from thunder.plugins.registry import withdraw


def _fake(name: str, version: str | None = None) -> SimpleNamespace:
    """An executor that writes down what it is told."""
    calls: list[Any] = []

    def register_operator(operator: str, **definition: Any) -> str:
        calls.append(("operator", operator, definition))
        return f"symbol {operator}"

    def register_implementation(*arguments: Any, **keywords: Any) -> None:
        calls.append(("implementation", arguments, keywords))

    return SimpleNamespace(
        name=name,
        version=version,
        calls=calls,
        register_operator=register_operator,
        register_implementation=register_implementation,
    )


def test_commit(host) -> None:
    """Executors, operators, implementations, options and passes, in one step."""
    registry, catalog = PluginRegistry("acme"), Catalog()
    executor = registry.register_executor(_fake("acme", "3"), default=True, priority=7)
    symbol = registry.register_operator("mm", like=len, fn=len)
    registry.register_implementation("torch.mul", checker=len, execution_transform=abs)
    registry.register_implementation("torch.add", symbol, priority=9)
    registry.register_option("acme_level", type=int, default=1, help="how hard to try", choices=[1, 2])
    registry.register_transform("fold", abs, phase="before_grad", before="x", after=["y", "z"])
    assert (host.registered, catalog.options(), catalog.transforms("before_grad")) == ({}, {}, ())
    assert executor.calls == [("operator", "mm", {"kernel": True, "like": len, "fn": len})]

    registry.commit(host, catalog)
    assert host.registered == {"acme": (executor, True, 7)}
    assert executor.calls[1:] == [
        ("implementation", ("torch.mul",), {"checker": len, "execution_transform": abs}),
        ("implementation", ("torch.add", "symbol mm"), {"priority": 9}),
    ]
    option = catalog.options()["acme_level"]
    assert (option.choices, option.owner, option.help) == ((1, 2), "plugin 'acme'", "how hard to try")
    (spec,) = catalog.transforms("before_grad")
    assert (spec.name, spec.before, spec.after, spec.owner) == ("fold", ("x",), ("y", "z"), "plugin 'acme'")


def test_several_executors(host) -> None:
    """With several executors each call says which one it means, by name or by object."""
    registry = PluginRegistry("acme")
    first, second = registry.register_executor(_fake("first")), registry.register_executor(_fake("second"))
    registry.register_operator("a", executor="first", fn=len)
    registry.register_operator("b", executor=second, fn=len)
    registry.register_implementation("torch.mul", registry.operator("b"), executor="second")
    with pytest.raises(ValueError, match=r"name the executor .* has registered first, second"):
        registry.register_operator("c", fn=len)
    registry.commit(host, Catalog())
    assert [call[:2] for call in first.calls] == [("operator", "a")]
    assert [call[:2] for call in second.calls] == [("operator", "b"), ("implementation", ("torch.mul", "symbol b"))]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda r: r.register_executor("acme"), TypeError, "needs an executor such as OperatorExecutor.*got 'acme'"),
        (lambda r: r.register_executor(_fake), TypeError, "needs an executor"),
        (
            lambda r: r.register_executor(_fake("x"), priority="high"),
            TypeError,
            "priority of executor 'x' must be an integer",
        ),
        (lambda r: r.register_executor(_fake("x"), priority=True), TypeError, "must be an integer, but it is True"),
        (
            lambda r: r.register_executor(_fake("acme")),
            ValueError,
            "plugin 'acme' registers two executors named 'acme'",
        ),
        (lambda r: r.register_operator("mm", fn=len), ValueError, "plugin 'acme' registers two operators named 'mm'"),
        (lambda r: r.register_operator("x", executor="other"), ValueError, "has not registered an executor 'other'"),
        (
            lambda r: r.register_implementation("x", executor=_fake("torch")),
            ValueError,
            "not registered an executor 'torch'",
        ),
        (lambda r: r.operator("nn"), ValueError, "has not registered an operator 'nn'; it has: mm"),
        (lambda r: r.register_option("no-name"), ValueError, "must be a Python identifier"),
        (lambda r: r.register_transform("t", abs, phase="never"), ValueError, "the phases are before_grad"),
        (
            lambda r: r.register_transform("t", abs, phase="before_grad", executor="other"),
            ValueError,
            "has not registered an executor 'other'",
        ),
    ],
)
def test_misuse(call, error: type[Exception], message: str) -> None:
    """Mistakes are named at the call that makes them."""
    registry = PluginRegistry("acme")
    registry.register_executor(_fake("acme"))
    registry.register_operator("mm", fn=len)
    with pytest.raises(error, match=message):
        call(registry)


def test_executors_come_first() -> None:
    """An operator without an executor to run it is a plugin's mistake."""
    with pytest.raises(ValueError, match="plugin 'acme' has registered none"):
        PluginRegistry("acme").register_operator("mm", fn=len)
    with pytest.raises(ValueError, match="it has: none"):
        PluginRegistry("acme").operator("mm")


def test_a_closed_registry() -> None:
    """A registry that a plugin kept is of no use later."""
    registry = PluginRegistry("acme")
    registry.register_executor(_fake("acme"))
    registry.close()
    for call in (
        lambda: registry.register_executor(_fake("late")),
        lambda: registry.register_operator("late", fn=len),
        lambda: registry.register_implementation("late"),
        lambda: registry.register_option("late"),
        lambda: registry.register_transform("late", abs, phase="before_grad"),
    ):
        with pytest.raises(RuntimeError, match="the registry of plugin 'acme' is closed"):
            call()


def test_a_plugin_that_brings_nothing(host) -> None:
    """Hooks that register nothing are a mistake that would otherwise never be seen."""
    with pytest.raises(ValueError, match="plugin 'acme' registers no executor, no option and no transform"):
        PluginRegistry("acme").commit(host, Catalog())


def test_names_in_use(host) -> None:
    """An executor name that is taken is refused; registering the same object again is not taking it."""
    taken = host.register_executor(_fake("acme", "1.0"))
    registry = PluginRegistry("second")
    registry.register_executor(_fake("acme"))
    with pytest.raises(ValueError, match=r"an executor named 'acme' \(version 1.0\) is already registered"):
        registry.commit(host, Catalog())
    assert host.registered["acme"][0] is taken

    registry = PluginRegistry("same")
    registry.register_executor(taken, default=True, priority=3)
    registry.commit(host, Catalog())
    assert host.registered["acme"] == (taken, True, 3)


def test_a_commit_that_fails_half_way(host) -> None:
    """The second executor is refused: the first goes again, and so do options and passes."""
    registry, catalog = PluginRegistry("acme"), Catalog()
    registry.register_executor(_fake("first"))
    registry.register_executor(_fake("second"))
    registry.register_option("acme_level")
    registry.register_transform("fold", abs, phase="before_grad")
    host.refuse = "second"
    with pytest.raises(RuntimeError, match="second is refused"):
        registry.commit(host, catalog)
    assert (host.registered, catalog.options(), catalog.transforms("before_grad")) == ({}, {}, ())


def test_a_catalog_that_refuses(host) -> None:
    """An option whose name is taken: no executor is in use either."""
    catalog = Catalog()
    other = PluginRegistry("other")
    other.register_option("level")
    other.commit(host, catalog)
    registry = PluginRegistry("acme")
    registry.register_executor(_fake("acme"))
    registry.register_option("level")
    with pytest.raises(ValueError, match="option 'level' of plugin 'acme' is already registered by plugin 'other'"):
        registry.commit(host, catalog)
    assert host.registered == {}


def test_withdraw(host) -> None:
    """Only what is in use, and only that very object."""
    mine, other = _fake("acme"), _fake("acme")
    host.register_executor(other)
    withdraw(host, [mine])
    assert host.get_all_executors() == (other,)
    withdraw(host, [other])
    assert host.get_all_executors() == ()
