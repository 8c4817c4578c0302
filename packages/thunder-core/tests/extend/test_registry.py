# SPDX-License-Identifier: Apache-2.0
"""The registry: which executors there are, which are used unasked, which end every list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.errors import PluginLoadError
from thunder.executors.pythonex import ex as PYTHON
from thunder.executors.torchex import ex as TORCH
from thunder.extend import (
    FusionExecutor,
    OperatorExecutor,
    add_always_executor,
    add_default_executor,
    deregister_executor,
    get_all_executors,
    get_always_executors,
    get_default_executors,
    get_executor,
    implementations_epoch,
    register_executor,
    registry,
    remove_default_executor,
    resolve_executors,
    set_default_executors,
    symbol_of_id,
)


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Each test finds the registry without executors of ours, and leaves it as it was."""
    get_all_executors()
    before = dict(registry._executors), list(registry._defaults), list(registry._always)
    yield
    registry._executors.clear()
    registry._executors.update(before[0])
    registry._defaults[:], registry._always[:] = before[1:]


def new(name: str, **options: Any) -> OperatorExecutor:
    """A registered executor."""
    out = OperatorExecutor(name)
    register_executor(out, **options)
    return out


def test_what_comes_with_thunder() -> None:
    """torch and python end every list."""
    assert get_always_executors() == (TORCH, PYTHON)
    assert {TORCH, PYTHON} <= set(get_all_executors())
    assert get_executor("torch") is TORCH
    assert resolve_executors([])[-2:] == (TORCH, PYTHON)


def test_registering_makes_known_and_no_more() -> None:
    """It is used when it is named; `default` uses it unasked."""
    a = new("registry_a")
    assert a in get_all_executors()
    assert a not in get_default_executors()
    assert get_executor("registry_a") is a
    assert get_executor(a) is a
    b = new("registry_b", default=True)
    assert b in get_default_executors()
    assert resolve_executors(None)[: len(get_default_executors())] == get_default_executors()


def test_priorities_order_the_defaults() -> None:
    """Higher first, then by name, however they came."""
    names = {"registry_c": 0, "registry_b": 0, "registry_z": 9, "registry_a": -1}
    for name, priority in names.items():
        new(name, default=True, priority=priority)
    ours = [ex.name for ex in get_default_executors() if ex.name in names]
    assert ours == ["registry_z", "registry_b", "registry_c", "registry_a"]
    order = [ex.name for ex in get_all_executors()]
    assert order.index("registry_z") < order.index("torch")
    new("registry_0", default=True, priority=10)
    assert get_default_executors()[0].name == "registry_0"


def test_defaults_can_be_added_removed_and_set() -> None:
    """By name or object."""
    a, b = new("registry_a"), new("registry_b")
    add_default_executor(a)
    add_default_executor("registry_b")
    add_default_executor(a)
    assert [ex for ex in get_default_executors() if ex in (a, b)] == [a, b]
    remove_default_executor("registry_a")
    assert a not in get_default_executors()
    remove_default_executor(a)
    set_default_executors([b, "registry_a"])
    assert get_default_executors() == (b, a)
    set_default_executors([])
    assert get_default_executors() == ()


def test_forgetting_one() -> None:
    """Everywhere; forgetting it again is nothing."""
    a = new("registry_a", default=True)
    add_always_executor(a)
    deregister_executor(a)
    for known in (get_all_executors(), get_default_executors(), get_always_executors()):
        assert a not in known
    deregister_executor("registry_a")
    with pytest.raises(PluginLoadError, match="registry_a"):
        get_executor("registry_a")


def test_the_same_name_again() -> None:
    """A new one of the same kind takes the place of the old; one of another kind is refused."""
    new("registry_a", default=True)
    second = new("registry_a")
    assert get_executor("registry_a") is second
    assert [ex for ex in get_default_executors() if ex.name == "registry_a"] == [second]
    with pytest.raises(ValueError, match="a different executor named 'registry_a' is already registered"):
        register_executor(FusionExecutor("registry_a"))
    with pytest.raises(ValueError, match="a different executor named 'torch'"):
        register_executor(OperatorExecutor("torch"))


@pytest.mark.parametrize("wrong", [None, "torch", OperatorExecutor, 3])
def test_only_executors_are_registered(wrong: Any) -> None:
    """The error says what was given."""
    with pytest.raises(TypeError, match="register_executor needs an Executor"):
        register_executor(wrong)


@pytest.mark.parametrize("wrong", [None, 3, ltorch.add, ["torch"]])
def test_only_executors_and_names_are_resolved(wrong: Any) -> None:
    """An entry of another type is an error where it is given."""
    for take in (
        lambda: thunder.jit(lambda a: a, executors=[wrong]),
        lambda: thunder.compile(lambda a: a, executors_list=[wrong]),
        lambda: thunder.examine(lambda a: a, torch.ones(1), executors=[wrong]),
    ):
        with pytest.raises(TypeError, match="executors must contain names or executor objects, not"):
            take()


@pytest.mark.parametrize("wrong", ["torch", OperatorExecutor("registry_alone"), 3])
def test_executors_are_given_in_a_list(wrong: Any) -> None:
    """The letters of a name are no executors."""
    for take in (
        lambda: thunder.jit(lambda a: a, executors=wrong),
        lambda: thunder.compile(lambda a: a, executors_list=wrong),
        lambda: thunder.examine(lambda a: a, torch.ones(1), executors=wrong),
        lambda: set_default_executors(wrong),
    ):
        with pytest.raises(TypeError, match=r"executors must be a list, not "):
            take()


def test_executors_are_read_once() -> None:
    """An iterator serves all programs of a function."""
    f = thunder.jit(lambda a: a + 1, executors=iter(["torch_compile"]))
    assert f._options.executors == ("torch_compile",)


def test_a_name_that_nobody_has() -> None:
    """The error lists the known ones."""
    with pytest.raises(PluginLoadError, match=r"registry_nobody.*torch"):
        get_executor("registry_nobody")
    with pytest.raises(PluginLoadError, match="registry_nobody"):
        thunder.jit(lambda a: a, executors=["registry_nobody"])(torch.ones(1))


def test_a_list_given_to_jit() -> None:
    """It replaces the defaults, each once, in its order, and torch and python end it unless they are named before."""
    a, b = new("registry_a"), new("registry_b", default=True)
    assert resolve_executors([a, "registry_b", a]) == (a, b, TORCH, PYTHON)
    assert resolve_executors(["torch", a]) == (TORCH, a, PYTHON)
    assert b not in resolve_executors([a])


def test_every_change_is_seen_by_what_was_compiled() -> None:
    """So that a default that is added is used from the next call on."""
    f = thunder.jit(lambda x: x * 2)
    x = torch.ones(2)
    assert f(x).tolist() == [2, 2]
    a = OperatorExecutor("registry_a")
    op = a.register_operator("registry_mul", like=ltorch.mul, fn=lambda p, q: p * q + 1)
    a.register_implementation(ltorch.mul, op)
    for change, expected in (
        (lambda: register_executor(a, default=True), 3),
        (lambda: remove_default_executor(a), 2),
        (lambda: add_default_executor(a), 3),
        (lambda: set_default_executors([]), 2),
        (lambda: add_default_executor(a), 3),
        (lambda: deregister_executor(a), 2),
    ):
        before = implementations_epoch()
        change()
        assert implementations_epoch() > before
        assert f(x).tolist() == [expected] * 2
        assert f(x).tolist() == [expected] * 2


def test_symbols_by_id() -> None:
    """Of primitives and of the torch language, and what does not exist."""
    assert symbol_of_id("torch.add") is ltorch.add
    assert symbol_of_id(prims.PrimIDs.ADD) is prims.add
    with pytest.raises(ValueError, match=r"no operation with the id 'torch\.nothing'"):
        symbol_of_id("torch.nothing")
    with pytest.raises(ValueError, match=r"no operation with the id 'torch\.sillu', did you mean 'torch\.silu'\?"):
        symbol_of_id("torch.sillu")
