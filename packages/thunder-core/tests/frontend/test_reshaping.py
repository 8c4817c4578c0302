# SPDX-License-Identifier: Apache-2.0
"""`squeeze_`, `t_` and the like: the same tensor object looks different from then on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder

CALLS: dict[str, tuple[Any, ...]] = {
    "transpose_": (0, 2),
    "squeeze_": (1,),
    "unsqueeze_": (0,),
    "swapaxes_": (0, 1),
    "swapdims_": (0, 2),
    "as_strided_": ((2, 2), (3, 1), 1),
}


def with_call(name: str, program: Any) -> Any:
    return lambda x: program(x, lambda y: getattr(y, name)(*CALLS.get(name, ())))


def compare(f: Any, *shape: int, gradient: bool = True) -> None:
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    torch.testing.assert_close(thunder.jit(f)(x.clone()), f(x.clone()))
    if not gradient:
        return
    leaf, ours = x.clone().requires_grad_(), x.clone().requires_grad_()
    for result, given in ((f(leaf), leaf), (thunder.jit(f)(ours), ours)):
        sum(t.sin().sum() for t in result if t.requires_grad).backward()
        assert given.grad is not None
    torch.testing.assert_close(ours.grad, leaf.grad)


@pytest.mark.parametrize("name", [*CALLS, "t_"])
def test_the_same_tensor(name: str) -> None:
    """The call returns the tensor itself, which has the view's shape, strides and elements."""

    def program(x: Any, change: Any) -> Any:
        y = x * 2
        z = change(y)
        assert z is y
        strides = torch.tensor(y.stride())
        return y, z + 1, strides, torch.tensor(y.shape)

    compare(with_call(name, program), *((2, 3) if name == "t_" else (2, 1, 3)))


@pytest.mark.parametrize("name", [*CALLS, "t_"])
def test_writes_afterwards(name: str) -> None:
    """Reach what shares the memory, from both sides, views from before included."""

    def program(x: Any, change: Any) -> Any:
        y = x * 2
        whole = y.view(-1)
        first = y[0]
        flat = y.reshape(-1)  # a view, found out only when it matters
        change(y)
        y[..., -1] = 7.0
        whole.add_(1)
        flat[0] = 3.0
        return y, whole, first, flat

    # torch itself cannot differentiate a write to what as_strided_ made.
    compare(with_call(name, program), *((2, 3) if name == "t_" else (2, 1, 3)), gradient=name != "as_strided_")


def test_nothing_to_squeeze() -> None:
    """Leaves the tensor alone."""
    compare(lambda x: ((x * 2).squeeze_(), x), 2, 3)


def test_the_callers_tensor() -> None:
    """Is changed by Python."""
    jitted = thunder.jit(lambda x: x.t_() * 2)
    for x in (torch.ones(2, 3), torch.ones(4, 3)):
        shape = tuple(x.shape)
        assert jitted(x).shape == x.shape == shape[::-1]
    assert "t_ changes the shape of a tensor that comes from outside" in thunder.explain(jitted)


def test_same_size() -> None:
    """resize_ to the shape that a tensor has does nothing."""
    compare(lambda x: (x.detach().clone().resize_(2, 3), x.detach().clone().resize_as_(x), x + 1), 2, 3)
