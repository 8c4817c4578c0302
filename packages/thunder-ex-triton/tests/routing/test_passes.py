# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: one sort, and gathers, forward and backward. Results and gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import thunder
from thunder_ex_triton.routing import passes

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def routed(x: Any, logits: Any, scale: Any, choices: int, sums: bool = True) -> Any:
    """Route tokens as Transformers does. The experts multiply their tokens by a row."""
    experts = scale.shape[0]
    weights, ids = torch.topk(logits.softmax(-1), choices, dim=-1)
    weights, ids = weights.reshape(-1), ids.reshape(-1)
    found, order = torch.sort(ids)
    counts = torch.histc(found.float() if x.device.type == "cpu" else found.int(), experts, min=0, max=experts - 1)
    ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
    y = torch.tanh(x[order // choices] * scale[found]) * weights[order].unsqueeze(-1)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.size(0), device=order.device)
    y = y[inverse]
    return (y.view(x.shape[0], choices, -1).sum(dim=1) if sums else y), ends


def make(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype).requires_grad_()


def texts(jitted: Any) -> tuple[str, str]:
    """The forward and the backward program, if there is one."""
    return str(thunder.last_traces(jitted)[-1]), "".join(map(str, thunder.last_backward_traces(jitted)[-1:]))


def compare(f: Callable[..., Any], *args: torch.Tensor, tolerance: float = 1e-5, **options: Any) -> Any:
    jitted = thunder.jit(f, **options)
    (found, *ends), (expected, *right) = jitted(*args), f(*args)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert all(torch.equal(a, b) for a, b in zip(ends, right, strict=True))
    g = torch.randn(found.shape, generator=torch.Generator().manual_seed(0)).to(found)
    gradients = [torch.autograd.grad(out, args, g) for out in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=tolerance, atol=tolerance)
    return jitted


@settings(max_examples=5, phases=(Phase.explicit, Phase.generate))  # each example compiles a program
@given(tokens=st.integers(2, 40), experts=st.integers(2, 9), choices=st.integers(1, 3), sums=st.booleans())
@example(tokens=2, experts=2, choices=1, sums=True)
def test_any_sizes(tokens: int, experts: int, choices: int, sums: bool) -> None:
    choices = min(choices, experts)
    args = make(tokens, 6), make(tokens, experts), make(experts, 6)
    jitted = compare(lambda *a: routed(*a, choices, sums), *args)
    forward, backward = texts(jitted)
    assert forward.count(" = triton_route(") == 1
    assert not any(f"torch.{name}(" in forward for name in ("sort", "histc", "cumsum", "empty_like"))
    assert backward.count(" = triton_add_rows(") <= 1  # the gradient of what the ids index


def test_experts_without_tokens_and_equal_choices() -> None:
    logits = torch.zeros(9, 5, device=DEVICE)
    logits[:, 3] = 4.0
    compare(lambda *a: routed(*a, 2), make(9, 4), logits.requires_grad_(), make(5, 4))


def test_half_precision_is_summed_in_single_precision() -> None:
    args = [make(*shape, dtype=torch.float16) for shape in ((20, 8), (20, 6), (6, 8))]
    compare(lambda *a: routed(*a, 4), *args, tolerance=4e-3)


def test_grouped_products() -> None:
    def layer(x: Any, logits: Any, up: Any, down: Any) -> Any:
        weights, ids = torch.topk(logits.softmax(-1), 2, dim=-1)
        found, order = torch.sort(ids.flatten(), stable=True)
        ends = torch.histc(found.float(), bins=4, min=0, max=3).cumsum(0, dtype=torch.int32)
        y = torch._grouped_mm(F.silu(torch._grouped_mm(x[order // 2], up, offs=ends)), down, offs=ends)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=order.device)
        return ((y * weights.flatten()[order][:, None])[inverse].view(16, 2, -1).sum(1),)

    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    args = [make(*shape, dtype=dtype) for shape in ((16, 16), (16, 4), (4, 16, 32), (4, 32, 16))]
    jitted = compare(layer, *args, tolerance=5e-2 if DEVICE == "cuda" else 1e-5)
    assert "torch._grouped_mm(" in texts(jitted)[0] and "add_rows" not in texts(jitted)[1]


@pytest.mark.parametrize(
    "order",
    [
        lambda ids: torch.argsort(ids + 1),  # numbers that may be as large as the number of experts
        lambda ids: torch.argsort(ids, descending=True),
        lambda ids: torch.argsort(ids.view(-1, 2), dim=0).flatten(),
    ],
)
def test_other_sorts_are_left_to_torch(order: Callable[[Any], Any]) -> None:
    def f(x: Any, logits: Any) -> Any:
        ids = torch.topk(logits, 2).indices.flatten()
        return (x.repeat(2, 1)[order(ids) % 8],)

    jitted = thunder.jit(f)
    args = make(8, 3), make(8, 5)
    torch.testing.assert_close(jitted(*args), f(*args))
    assert "triton_route" not in texts(jitted)[0]


def test_other_counts_are_left_to_torch() -> None:
    """Of fewer bins than there are experts."""

    def f(logits: Any) -> Any:
        found, order = torch.topk(logits, 2).indices.flatten().sort()
        counts = torch.histc(found.float(), bins=3, min=0, max=2)
        return counts.cumsum(0), logits.flatten()[order]

    jitted = thunder.jit(f)
    torch.testing.assert_close(jitted(make(8, 5)), f(make(8, 5)))
    assert "histc" in texts(jitted)[0] and "triton_route" in texts(jitted)[0]


def test_it_can_be_turned_off() -> None:
    args = make(8, 4), make(8, 4), make(4, 4)
    jitted = compare(lambda *a: routed(*a, 2), *args, **{passes.OPTION: False})
    assert "triton_route" not in texts(jitted)[0]
