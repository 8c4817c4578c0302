# SPDX-License-Identifier: Apache-2.0
"""Norms against torch in double precision: what is taken, and what is made of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder
from thunder.toolkit.testing import repeats
from thunder_ex_apex import samples

TOLERANCES = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
SHAPES = (((3, 4), (4,)), ((2, 3, 4), (3, 4)), ((7,), (7,)), ((5, 33), (33,)), ((3, 1030), (1030,)))


def check(norm: Any, x: torch.Tensor, shape: Any, *parameters: Any, taken: bool = True) -> None:
    """Result and gradients are torch's in double precision."""
    f = thunder.jit(lambda x, *parameters: norm(x, shape, *parameters), executors=["apex_norm"])
    inputs = [x, *(p for p in parameters)]
    leaves = [None if p is None else p.detach().requires_grad_() for p in inputs]
    wide = [None if p is None else p.detach().double().requires_grad_() for p in inputs]
    found, expected = f(*leaves), norm(wide[0], shape, *wide[1:])
    assert ("apex_" in str(thunder.last_traces(f)[-1])) is taken
    tolerance: Any = {"rtol": TOLERANCES[x.dtype], "atol": TOLERANCES[x.dtype]}
    assert found.dtype is x.dtype and found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected, **tolerance)
    g = torch.linspace(-1, 1, expected.numel(), device=x.device).reshape(expected.shape)
    given = [(a, b) for a, b in zip(leaves, wide) if a is not None]
    gradients = torch.autograd.grad(found, [a for a, _ in given], g.to(x.dtype))
    for mine, right in zip(gradients, torch.autograd.grad(expected, [b for _, b in given], g.double())):
        torch.testing.assert_close(mine.double(), right, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_layer_norm(device: str, dtype: torch.dtype) -> None:
    """With and without parameters, over one dimension and several."""
    torch.manual_seed(0)
    for shape, last in SHAPES:
        x = torch.randn(shape, device=device).to(dtype)
        check(
            F.layer_norm,
            x,
            last,
            torch.randn(last, device=device).to(dtype),
            torch.randn(last, device=device).to(dtype),
        )
        check(F.layer_norm, x, last)
    check(F.layer_norm, torch.randn(4, 3, device=device).to(dtype).mT, (4,))


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_rms_norm(device: str, dtype: torch.dtype) -> None:
    """With and without a weight, over one dimension and several."""
    torch.manual_seed(0)
    for shape, last in SHAPES:
        x = torch.randn(shape, device=device).to(dtype)
        check(F.rms_norm, x, last, torch.randn(last, device=device).to(dtype))
        check(F.rms_norm, x, last)
    check(F.rms_norm, torch.randn(4, 3, device=device).to(dtype).mT, (4,))


def test_what_it_leaves_to_others(device: str) -> None:
    """Reasons, and torch's results."""
    x, w = torch.randn(3, 4, device=device), torch.randn(4, device=device)
    check(F.layer_norm, x, (4,), w, taken=False)
    check(F.layer_norm, x.double(), (4,), w.double(), w.double(), taken=False)
    for norm, args, reason in (
        (F.layer_norm, (x, (4,), w), "a weight and a bias, or none of them"),
        (F.layer_norm, (x.double(), (4,)), "no gradient in"),
        (F.layer_norm, (x[:0], (4,)), "has no elements"),
        (F.rms_norm, (x, (4,), w.double()), "with the same dtype"),
    ):
        said = thunder.examine(lambda *args: norm(*args), *args, executors=["apex_norm"])
        assert reason in str(said)


def test_nobody_gets_them_unasked(device: str) -> None:
    """torch's norms are faster in most cases."""
    f = thunder.jit(lambda x: F.layer_norm(x, (4,)))
    f(torch.randn(3, 4, device=device))
    assert "apex" not in str(thunder.last_traces(f)[-1])


@pytest.mark.parametrize("norm", [F.layer_norm, F.rms_norm])
def test_deterministic_algorithms(norm: Any, device: str) -> None:
    """Gradients of parameters, which apex sums over many rows, repeat bit by bit."""
    rows = 16384 if device == "cuda" else 40
    x, w = (torch.randn(*shape, device=device, requires_grad=True) for shape in ((rows, 64), (64,)))
    extra = [w] if norm is F.layer_norm else []
    f = thunder.jit(lambda x, w: norm(x, w.shape, w, *extra), executors=["apex_norm"])
    assert repeats(f, x, w)
    assert "apex_" in str(thunder.last_traces(f)[-1])


def test_gradients_of_the_operators(device: str) -> None:
    """Also those of statistics and of gradients, with the references of the conformance suite."""
    for info in samples.norm_opinfos():
        for sample in info.sample_inputs(device, torch.float32, requires_grad=True):
            found = thunder.jit(info.symbol, executors=["apex_norm"])(*sample.args, **sample.kwargs)
            expected = info.torch_reference(*sample.args, **sample.kwargs)
            pairs = [(a, b) for a, b in zip(found, expected, strict=True) if b is not None]
            assert [a.requires_grad for a, _ in pairs] == [b.requires_grad for _, b in pairs], info.name
            leaves = [x for x in sample.args if isinstance(x, torch.Tensor) and x.requires_grad]
            sums = [sum(x.square().sum() for x in xs) for xs in zip(*pairs)]
            gradients = [torch.autograd.grad(x, leaves, materialize_grads=True) for x in sums]
            for mine, right in (*pairs, *zip(*gradients)):
                torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4, msg=info.name)
