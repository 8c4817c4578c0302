# SPDX-License-Identifier: Apache-2.0
"""A cached program is never used for a program that has changed, and is used where nothing that it read has.

Each case calls, changes something, calls again and compares with eager. `changed` says whether that had to trace anew.
Here: arguments, torch's state and functions, and what is never cached. What else a program reads is in the files
beside this one: variables, modules, objects, classes.
"""

from __future__ import annotations

import contextvars
import enum
import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch

import thunder

X = torch.linspace(-1, 1, 6)


# -- arguments --------------------------------------------------------------------------------------------------------
class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Batch:
    def __init__(self, x: Any, k: float = 2.0):
        self.x = x
        self.k = k
        self.unused = 1


def test_objects_as_arguments(watch: Any) -> None:
    w = watch(lambda b: b.x * b.k, Batch(X))
    w.kept(Batch(X + 1))
    other = Batch(X)
    other.unused = 7
    w.kept(other)
    w.changed(Batch(X, 3.0))
    w.changed(Batch(X.double(), 3.0))


def test_functions_as_arguments(watch: Any) -> None:
    def make(k: float) -> Any:
        return lambda x: x * k

    w = watch(lambda f, x: f(x), make(2.0), X)
    w.kept(make(2.0), X)
    w.changed(make(3.0), X)
    w.changed(torch.sin, X)
    w.changed(torch.cos, X)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (1, 2), (1, 1.0), (1, True), ("a", "b"), (None, 0), (Colour.RED, Colour.BLUE), (torch.float32, torch.float64),
        (slice(0, 2), slice(0, 3)), ([1, 2], [1, 3]), ((1, 2), [1, 2]), ({"a": 1}, {"b": 1}), (0.0, -0.0), (1j, 2j),
        (range(3), range(4)), ({1}, {2}),
    ],
)  # fmt: skip
def test_plain_arguments(one: Any, two: Any) -> None:
    jitted = thunder.jit(lambda x, v: (x + 1, repr(v)))
    for value in (one, two, one, two):
        assert jitted(X, value)[1] == repr(value)
    assert thunder.cache_misses(jitted) == 2


def test_arguments_that_are_one_tensor() -> None:
    def f(a: Any, b: Any) -> Any:
        return a * 2 + b if a is b else a + b

    jitted = thunder.jit(f)
    y = X.clone()
    for a, b in ((X, X), (X, y), (y, y), (y, X)):
        torch.testing.assert_close(jitted(a, b), f(a, b))
    assert thunder.cache_misses(jitted) == 2


def test_arguments_that_are_leaves_and_not() -> None:
    """Programs that ask for it, and those that write, which a leaf that requires grad refuses."""
    leaf = torch.ones(2, requires_grad=True)

    def write(x: Any) -> Any:
        with torch.no_grad():
            alike = x.clone()
        return alike + x.mul_(2)

    programs = [lambda x: x * (2 if x.is_leaf else 3), lambda x: x + 1 if x.grad_fn is None else x.sin()]
    for f in programs:
        for order in ((leaf, leaf * 1, leaf), (leaf * 1, leaf, leaf * 1)):
            jitted = thunder.jit(f)
            for x in order:
                torch.testing.assert_close(jitted(x), f(x))
    jitted = thunder.jit(write)
    with pytest.raises(RuntimeError, match="gradients cannot flow back through that write"):
        thunder.jit(write, sharp_edges="error")(leaf * 1)
    torch.testing.assert_close(jitted(leaf * 1), write(leaf * 1))
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        jitted(leaf)


# -- torch's state ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "mode",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["grad", "inference", "autocast"],
)
def test_modes(mode: Any) -> None:
    jitted = thunder.jit(lambda x: x @ x.t())
    x = torch.randn(3, 3)
    jitted(x)
    with mode():
        jitted(x)
    assert thunder.cache_misses(jitted) == 2


def test_default_dtype(watch: Any) -> None:
    w = watch(lambda x: x + torch.zeros(6))
    torch.set_default_dtype(torch.float64)
    try:
        w.changed()
    finally:
        torch.set_default_dtype(torch.float32)


VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE", default=2.0)


def test_context_variables(watch: Any) -> None:
    w = watch(lambda x: x * VARIABLE.get())
    token = VARIABLE.set(5.0)
    w.changed()
    VARIABLE.reset(token)
    w.kept()


# -- torch's functions ------------------------------------------------------------------------------------------------
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2


def test_custom_functions_by_name(watch: Any) -> None:
    """What `Doubled.apply` is while a program is traced is not what is guarded, but its forward is."""
    watched = watch(lambda x: Doubled.apply(x))
    before = Doubled.forward
    try:
        Doubled.forward = staticmethod(lambda ctx, x: x * 3)
        watched.changed()
    finally:
        Doubled.forward = staticmethod(before)


def test_custom_operators_with_gradients(watch: Any) -> None:
    """torch gives them an autograd function, which is none of the program's."""

    @torch.library.custom_op("thunder_test_stale::triple", mutates_args=())
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    triple.register_fake(lambda x: torch.empty_like(x))
    triple.register_autograd(lambda ctx, g: g * 3)
    x = X.clone().requires_grad_()
    watched = watch(lambda x: torch.ops.thunder_test_stale.triple(x).sin(), x)
    watched.kept()
    (found,) = torch.autograd.grad(watched.jitted(x).sum(), x)
    torch.testing.assert_close(found, 3 * (3 * X).cos())


def test_the_compiling_flag_is_a_boolean() -> None:
    """`torch.compiler.is_compiling()` is used like any other."""

    def f(x: Any) -> Any:
        flag = torch.compiler.is_compiling()
        both = flag | False
        both &= True
        flag |= False
        assert (both, flag == True, flag ^ True, int(flag), repr(flag)) == (True, True, False, 1, "True")  # noqa: E712
        assert {True: 1}[flag] == 1
        return x + 1

    thunder.jit(f)(X)


# -- what is never cached ---------------------------------------------------------------------------------------------
ITERATOR: Iterator[float] = iter(())


def test_iterators(never_cached: Any, module_globals: Any) -> None:
    module_globals("ITERATOR", iter([float(i) for i in range(100)]))
    assert "ITERATOR" in never_cached(lambda x: x * next(ITERATOR))


def test_chance_and_clocks(never_cached: Any) -> None:
    assert "random" in never_cached(lambda x: x * random.random())
    assert "random" in never_cached(lambda x: x * float(numpy.random.rand()))


def test_sharp_edges_refuse_it() -> None:
    jitted = thunder.jit(lambda x: x * random.random(), sharp_edges="error")
    with pytest.raises(RuntimeError, match="random"):
        jitted(X)
