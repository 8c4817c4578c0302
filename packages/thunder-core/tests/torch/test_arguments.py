# SPDX-License-Identifier: Apache-2.0
"""One call has one form, however it is spelt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace

SPELLINGS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "permute": (lambda a: a.permute(1, 0), lambda a: a.permute((1, 0)), lambda a: ltorch.permute(a, dims=(1, 0))),
    "reshape": (lambda a: a.reshape(3, -1), lambda a: a.reshape((3, -1)), lambda a: ltorch.reshape(a, shape=(3, -1))),
    "view": (lambda a: a.view(6, 1), lambda a: a.view((6, 1)), lambda a: a.view(size=(6, 1))),
    "view of a dtype": (lambda a: a.view(torch.int32), lambda a: a.view(dtype=torch.int32)),
    "expand": (lambda a: a.expand(4, -1, 3), lambda a: a.expand((4, -1, 3)), lambda a: a.expand(size=(4, -1, 3))),
    "repeat": (lambda a: a.repeat(2, 1), lambda a: a.repeat((2, 1)), lambda a: a.repeat(repeats=(2, 1))),
    "tile": (lambda a: a.tile(2, 1), lambda a: a.tile((2, 1)), lambda a: ltorch.tile(a, dims=(2, 1))),
    "flip": (lambda a: a.flip(0, 1), lambda a: a.flip((0, 1)), lambda a: ltorch.flip(a, dims=(0, 1))),
    "flip of one": (lambda a: a.flip(0), lambda a: a.flip((0,))),
    "squeeze": (lambda a: a.unsqueeze(0).squeeze(0, 1), lambda a: a.unsqueeze(0).squeeze((0, 1))),
    "split": (lambda a: a.split(2), lambda a: a.split(split_size=2), lambda a: ltorch.split(a, 2, 0)),
    "sum": (lambda a: a.cumsum(0), lambda a: a.cumsum(dim=0), lambda a: a.cumsum(axis=0)),
    "to": (
        lambda a: a.to(torch.float64), lambda a: a.to(dtype=torch.float64), lambda a: a.to(torch.float64, False),
        lambda a: a.to(torch.float64, non_blocking=False, copy=False),
    ),
    "to a device": (lambda a: a.to("cpu", torch.half), lambda a: a.to(dtype=torch.half, device="cpu")),
}  # fmt: skip


def _call(fn: Callable[[Any], Any]) -> tuple[Any, ...]:
    trace = Trace()
    with tracectx(trace):
        fn(TensorProxy("a", shape=(2, 3), device="cpu", dtype=torch.float32))
    (*_, bsym) = trace.bound_symbols
    # Names of intermediate values do not matter here.
    return bsym.sym.name, [x if not isinstance(x, TensorProxy) else "tensor" for x in bsym.args], bsym.kwargs


@pytest.mark.parametrize("spellings", SPELLINGS.values(), ids=list(SPELLINGS))
def test_spellings_are_one_call(spellings: tuple[Callable[[Any], Any], ...]) -> None:
    """So that equal calls are common subexpressions, and patterns and checkers see one form."""
    first, *others = [_call(fn) for fn in spellings]
    for other in others:
        assert other == first


def test_a_lone_dimension_stays_a_number() -> None:
    """squeeze takes one or several; one is not made a tuple of."""
    assert _call(lambda a: a.squeeze(0))[1] == ["tensor", 0]
    assert _call(lambda a: a.squeeze())[1] == ["tensor"]


def test_to_takes_another_tensor() -> None:
    """For its dtype and device; the tensor itself is no argument of what is recorded."""
    a, b = torch.randn(3), torch.randn(2, dtype=torch.float64)
    jitted = thunder.jit(lambda a, b: a.to(b))
    assert torch.equal(jitted(a, b), a.to(b))
    name, args, kwargs = _call(lambda a: a.to(a.to(torch.half)))
    assert (name, [str(x) for x in args[1:]], kwargs) == ("to", ["cpu", "float16"], {})


def test_to_refuses_what_it_does_not_know() -> None:
    """With Python's exception for it."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'layuot'"):
        _call(lambda a: a.to(layuot=torch.strided))
