# SPDX-License-Identifier: Apache-2.0
"""Classes of the program's tensors and numbers are those of eager mode."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.overrides
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_unary, is_tensor_like

import thunder

W, B = nn.Parameter(torch.ones(3)), nn.Buffer(torch.ones(3))
BY_TYPE = {torch.Tensor: 2.0, nn.Parameter: 3.0, float: 5.0, int: 7.0, bool: 11.0}
ALIAS = type


class Weight(nn.Parameter):
    pass


OWN = Weight(torch.ones(3))


@functools.singledispatch
def dispatched(x: Any) -> float:
    return 1.0


@dispatched.register(torch.Tensor)
def _(x: Any) -> float:
    return 2.0


@dispatched.register(nn.Parameter)
def _(x: Any) -> float:
    return 3.0


class Overriding:
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> float:
        return 7.0


OVERRIDING = Overriding()


def overridable(x: Any) -> float:
    return handle_torch_function(overridable, (x,), x) if has_torch_function((x,)) else 2.0


def made_classes() -> list[bool]:
    """`type` as a class, a metaclass and a function that makes classes."""

    class Meta(type):
        def __new__(cls, *args: Any) -> Any:
            return super().__new__(cls, *args)

    class Made(metaclass=Meta):
        pass

    class Usual:
        pass

    three = type("Three", (), {"n": 3})
    return [
        isinstance(Made, type), type(Made) is Meta, type(Usual) is type, isinstance(Made, Meta),
        isinstance(Usual, Meta), issubclass(Meta, type), type(type) is type, isinstance(type, type), three.n == 3,
    ]  # fmt: skip


PROGRAMS: list[Callable[[Any], Any]] = [
    lambda x: [type(t) is torch.Tensor for t in (x, x * 2, W * 2, W, B, W.data, x.detach())],
    lambda x: [type(t) is nn.Parameter for t in (x, W, B, OWN)],
    lambda x: [t.__class__ is torch.Tensor for t in (x, x * 2, W)],
    lambda x: [t.__class__.__name__ for t in (x, x * 2, W, B, OWN)],
    lambda x: [type(t).__name__ for t in (x, x * 2, W, B, OWN)],
    lambda x: [type(t).__mro__[-1] is object for t in (x, W)],
    lambda x: [isinstance(t, Weight) for t in (x, x * 2, OWN, W)],
    lambda x: [BY_TYPE[type(t)] for t in (x, W, x.sum().item(), x.long().sum().item(), (x > 0).all().item())],
    lambda x: ALIAS(x) is torch.Tensor,
    lambda x: [*map(type, [x, 1, 1.0])] == [torch.Tensor, int, float],
    lambda x: x.sum().item().__class__ is float,
    lambda x: [isinstance(x.sum().item(), kind) for kind in (int, float, bool)],
    lambda x: [type(x.shape) is torch.Size, type(x.shape[0]) is int, type(x.dtype) is torch.dtype],
    lambda x: [dispatched(x), dispatched(W), dispatched(3)],
    lambda x: [has_torch_function((x, W)), has_torch_function_unary(x), is_tensor_like(x), torch.is_tensor(x)],
    lambda x: torch.overrides.has_torch_function_variadic(x, W),
    lambda x: [overridable(x), overridable(OVERRIDING)],
    lambda x: made_classes(),
]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_answers_are_those_of_eager(fn: Callable[[Any], Any]) -> None:
    """At the first call and when cached."""
    x = torch.ones(3)
    jitted = thunder.jit(lambda x: (x * 2, fn(x)))
    for _ in range(3):
        assert jitted(x)[1] == fn(x)


@pytest.mark.parametrize("fn", PROGRAMS[:13])
def test_asking_for_a_class_is_cached(fn: Callable[[Any], Any]) -> None:
    """The class of each tensor is guarded anyway."""
    jitted = thunder.jit(lambda x: (x * 2, fn(x)))
    for _ in range(3):
        jitted(torch.ones(3))
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (1, 2)


def test_an_argument_of_another_class() -> None:
    """A parameter instead of a tensor is a cache miss."""

    def fn(x: Any) -> Any:
        return x * 2 if type(x) is nn.Parameter else x * 3

    jitted = thunder.jit(fn)
    for x in (W, torch.ones(3), W, torch.ones(3)):
        torch.testing.assert_close(jitted(x), fn(x))
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (2, 2)


def test_classes_that_the_program_stores() -> None:
    """Are those of eager mode, also `type` itself."""
    found: dict[str, Any] = {}

    def fn(x: Any) -> Any:
        found.update(type=type, of=type(x), listed=[float])
        return x * 2

    jitted = thunder.jit(fn)
    for _ in range(3):
        found.clear()
        jitted(torch.ones(3))
        assert found["type"] is type
        assert found["of"] is torch.Tensor
        assert found["listed"] == [float]


def test_code_outside_of_the_program_sees_no_replacement() -> None:
    """After the call, the module's globals are as before."""
    jitted = thunder.jit(lambda x: (type(x), x * 2)[1])
    jitted(torch.ones(3))
    assert "type" not in globals()
    assert ALIAS is type


def test_modes_override_torch_functions() -> None:
    def f(x):
        with torch.device("meta"):
            inside = has_torch_function((W,))
        return x + 1, has_torch_function((W,)), has_torch_function_unary(x), inside

    for device in (None, "cpu", "meta"):
        x = torch.ones(2)
        with contextlib.nullcontext() if device is None else torch.device(device):
            jitted = thunder.jit(f)
            for _ in range(2):
                assert jitted(x)[1:] == f(x)[1:] == (device is not None, device is not None, True)
