# SPDX-License-Identifier: Apache-2.0
"""Random numbers inside fusions: of which kind they are, that they repeat, and that backward draws the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import thunder
from thunder.toolkit import conformance

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def jit(f: Callable[..., Any], **options: Any) -> Any:
    """With the fusion executor alone."""
    return thunder.jit(f, executors=["triton"], **options)


def names(trace: Any) -> list[str]:
    """The operations of a program."""
    return [op.sym.name for op in trace.bound_symbols if op.sym.fn is not None or op.sym.is_fusion]


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor that requires grad."""
    return torch.ones(shape, device=DEVICE, dtype=dtype, requires_grad=True)


def test_residual_dropout_norm() -> None:
    """Is one kernel, and so is its gradient; no mask is kept."""
    jitted = conformance.assert_residual_dropout_norm(jit, DEVICE)
    assert names(thunder.last_traces(jitted)[-1]) == ["triton_seeds", "Triton0"]
    assert names(thunder.last_backward_traces(jitted)[-1]) == ["Triton0"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_dropout(dtype: torch.dtype) -> None:
    conformance.assert_dropout(jit, DEVICE, dtype)


def test_seeds_are_of_torchs_generator() -> None:
    conformance.assert_seeds_are_torchs(jit, DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_distributions(dtype: torch.dtype) -> None:
    jitted = conformance.assert_distributions(jit, DEVICE, dtype)
    assert names(thunder.last_traces(jitted)[-1])[:2] == ["triton_seeds", "Triton0"]


def test_numbers_do_not_hang_on_the_kernel() -> None:
    """Another tile, another index, the operator by itself: the same numbers of a seed."""
    from thunder.extend import get_executor

    seed, where = torch.tensor([12345678901, -987654321], device=DEVICE), thunder.devices.to_device(DEVICE)
    for shape in ((3, 5), (7, 64), (1030,), (4, 2, 32), (1,)):
        draw = lambda seed, shape: get_executor("triton").opmap["triton_uniform"](seed, shape, where)  # noqa: E731
        expected = draw(seed, shape)
        assert expected.min() >= 0
        assert expected.max() < 1
        trace = {}
        for name, f in (
            ("elements", lambda s, shape=shape: draw(s, shape) + 0),
            ("rows", lambda s, shape=shape: draw(s, shape) + draw(s, shape).sum(-1, keepdim=True) * 0),
            ("columns", lambda s, shape=shape: draw(s, shape) + draw(s, shape).sum(0, keepdim=True) * 0),
            ("turned", lambda s, shape=shape: (draw(s, shape).transpose(0, -1) + 0).transpose(0, -1)),
        ):
            trace[name] = _run(f, seed)
            torch.testing.assert_close(trace[name], expected, rtol=0, atol=0, msg=f"{name} of {shape}")


def _run(f: Callable[..., Any], seed: torch.Tensor) -> torch.Tensor:
    return jit(f)(seed)


def test_checkpointed_regions() -> None:
    """Are computed again with the same numbers, from the same seed; the generator is left alone."""

    def block(x: Any, w: Any) -> Any:
        return F.dropout(F.gelu(x @ w), 0.5) @ w

    def f(x: Any, w: Any) -> Any:
        return checkpoint(block, x, w, use_reentrant=False)

    x, w = torch.randn(8, 16, device=DEVICE, requires_grad=True), torch.eye(16, device=DEVICE, requires_grad=True)
    jitted = jit(f)
    out = jitted(x, w)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient == 0, out == 0)
    text = str(thunder.last_traces(jitted)[-1]) + str(thunder.last_backward_traces(jitted)[-1])
    assert "rng_state" not in text
    assert text.count("= triton_seeds(") == 1


def test_a_model() -> None:
    """Every dropout of a training step is part of a fusion; there is one draw of seeds."""
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 16), nn.Dropout(0.1))
    model = model.to(DEVICE)
    jitted = jit(model)
    jitted(torch.randn(4, 16, device=DEVICE)).sum().backward()
    found = names(thunder.last_traces(jitted)[-1])
    assert found.count("triton_seeds") == 1
    assert not any("dropout" in name for name in found)
    assert all(p.grad is not None for p in model.parameters())
    model.eval()
    jitted(torch.randn(4, 16, device=DEVICE))
    assert "triton_seeds" not in names(thunder.last_traces(jitted)[-1])


def test_what_is_left_to_torch() -> None:
    """Draws that no fusion reads, of a generator of the user's, in other ways, and all of them where that is asked."""
    x = torch.ones(4, 8, device=DEVICE)
    generator = torch.Generator(DEVICE)
    left: dict[str, Callable[..., Any]] = {
        "alone": lambda x: torch.rand_like(x),
        "read by a product": lambda x: torch.rand_like(x) @ x.T,
        "a generator": lambda x: torch.empty_like(x).uniform_(generator=generator) * 2,
        "in double precision": lambda x: torch.rand_like(x, dtype=torch.float64) * 2,
        "whole numbers": lambda x: torch.randint_like(x, 3) * 2,
        "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
    }
    for name, f in left.items():
        jitted = jit(f)
        jitted(x)
        assert "triton_seeds" not in names(thunder.last_traces(jitted)[-1]), name

    def f(x: Any) -> Any:
        return F.dropout(x, 0.5) * 2

    jitted = jit(f, triton_random=False)
    torch.manual_seed(3)
    expected = f(x)
    torch.manual_seed(3)
    assert torch.equal(jitted(x), expected)


def test_without_fuel() -> None:
    """What is drawn of a seed is drawn by the operator's own kernel where nothing is fused: the same numbers."""
    from thunder.extend import get_executor

    executor: Any = get_executor("triton")
    x = ones(6, 33)

    def f(x: Any) -> Any:
        return F.dropout(x * 2, 0.5)

    torch.manual_seed(5)
    expected = jit(f)(x)
    executor.set_fuel(0)
    try:
        torch.manual_seed(5)
        jitted = jit(f)
        assert torch.equal(jitted(x), expected)
        assert "triton_uniform" in names(thunder.last_traces(jitted)[-1])
    finally:
        executor.set_fuel(None)


@pytest.mark.skipif(DEVICE != "cuda", reason="graphs are captured on a GPU")
def test_captured_in_a_graph() -> None:
    """Each launch of the graph draws anew."""
    x = ones(64, 64)
    jitted = jit(lambda x: F.dropout(x, 0.5) * 1, transforms=[thunder.transforms.CUDAGraphTransform(min_operations=1)])
    results = [jitted(x).detach() for _ in range(5)]
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(results))
    assert all(set(a.unique().tolist()) == {0, 2} for a in results)
