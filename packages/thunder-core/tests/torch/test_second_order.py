# SPDX-License-Identifier: Apache-2.0
"""Gradients of gradients: every rule that a differentiated program rests on can be differentiated again.

The gradients of a nonlinear function of the result, then those of a nonlinear function of these, against torch's
autograd; run as torch's executor claims them, and primitive by primitive, which is what fusion executors see.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.langctx import set_langctx
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace
from thunder.extend import get_always_executors
from thunder.passes.autodiff import differentiate
from thunder.passes.dce import dce
from thunder.tests.running import execution_trace, to_primitives

NUMBERS = torch.tensor([0, 1, 2, 3, 4, 0])


def _causal(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    blocked = ~torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(blocked, -math.inf).softmax(-1) @ v


# name: (operation of thunder, the same in torch, shapes of its tensors)
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]] = {
    "softmax": (lambda x: ltorch.softmax(x, 1), lambda x: x.softmax(1), [(6, 5)]),
    "log_softmax": (lambda x: ltorch.log_softmax(x, 1), lambda x: x.log_softmax(1), [(6, 5)]),
    "logsumexp": (lambda x: ltorch.logsumexp(x, 1), lambda x: x.logsumexp(1), [(6, 5)]),
    "layer_norm": (
        lambda x, w, b: ltorch.layer_norm(x, (5,), w, b),
        lambda x, w, b: F.layer_norm(x, (5,), w, b),
        [(6, 5), (5,), (5,)],
    ),
    "rms_norm": (lambda x, w: ltorch.rms_norm(x, (5,), w), lambda x, w: F.rms_norm(x, (5,), w), [(6, 5), (5,)]),
    "group_norm": (
        lambda x, w, b: ltorch.group_norm(x, 2, w, b),
        lambda x, w, b: F.group_norm(x, 2, w, b),
        [(2, 4, 3), (4,), (4,)],
    ),
    "batch_norm": (
        lambda x, w, b: ltorch.batch_norm(x, None, None, w, b, True),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        [(3, 4, 3), (4,), (4,)],
    ),
    "cross_entropy": (
        lambda x: ltorch.cross_entropy(x, ltorch.tensor(NUMBERS.tolist())),
        lambda x: F.cross_entropy(x, NUMBERS),
        [(6, 5)],
    ),
    "cross_entropy_smooth": (
        lambda x: ltorch.cross_entropy(x, ltorch.tensor(NUMBERS.tolist()), ignore_index=1, label_smoothing=0.2),
        lambda x: F.cross_entropy(x, NUMBERS, ignore_index=1, label_smoothing=0.2),
        [(6, 5)],
    ),
    "cross_entropy_of_probabilities": (
        lambda x, y: ltorch.cross_entropy(x, y),
        lambda x, y: F.cross_entropy(x, y),
        [(6, 5), (6, 5)],
    ),
    "attention": (
        lambda q, k, v: ltorch.scaled_dot_product_attention(q, k, v, is_causal=True),
        _causal,
        [(2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 8)],
    ),
    "attention_mask": (
        lambda q, k, v, m: ltorch.scaled_dot_product_attention(q, k, v, m),
        lambda q, k, v, m: (q @ k.mT / math.sqrt(8) + m).softmax(-1) @ v,
        [(2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 8), (4, 5)],
    ),
    "attention_steps": (
        lambda q, k, v: ltorch.scaled_dot_product_attention(q, k, v),
        lambda q, k, v: (q @ k.mT / math.sqrt(8)).softmax(-1) @ v,
        [(4, 8), (5, 8), (5, 8)],
    ),
    "linear": (ltorch.linear, F.linear, [(2, 3, 5), (4, 5), (4,)]),
    "matmul": (ltorch.matmul, torch.matmul, [(2, 1, 3, 4), (5, 4, 2)]),
    "matmul_vector": (ltorch.matmul, torch.matmul, [(4,), (2, 4, 5)]),
    "addmm": (
        lambda c, a, b: ltorch.addmm(c, a, b, beta=0.5, alpha=2),
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2),
        [(5,), (3, 4), (4, 5)],
    ),
    "einsum": (
        lambda a, b: ltorch.einsum("bij,bjk->ik", a, b),
        lambda a, b: torch.einsum("bij,bjk->ik", a, b),
        [(2, 3, 4), (2, 4, 5)],
    ),
    "conv2d": (
        lambda x, w, b: ltorch.conv2d(x, w, b, stride=2, padding=1, groups=2),
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1, groups=2),
        [(2, 4, 5, 5), (6, 2, 3, 3), (6,)],
    ),
    "conv_transpose2d": (
        lambda x, w: ltorch.conv_transpose2d(x, w, stride=2, output_padding=1),
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1),
        [(2, 4, 3, 3), (4, 3, 3, 3)],
    ),
    "max_pool2d": (lambda x: ltorch.max_pool2d(x, 2), lambda x: F.max_pool2d(x, 2), [(2, 3, 4, 4)]),
    "avg_pool2d": (lambda x: ltorch.avg_pool2d(x, 3, 2, 1), lambda x: F.avg_pool2d(x, 3, 2, 1), [(2, 3, 5, 5)]),
    "adaptive_avg_pool2d": (
        lambda x: ltorch.adaptive_avg_pool2d(x, 3),
        lambda x: F.adaptive_avg_pool2d(x, 3),
        [(2, 3, 5, 4)],
    ),
    "adaptive_max_pool2d": (
        lambda x: ltorch.adaptive_max_pool2d(x, 3),
        lambda x: F.adaptive_max_pool2d(x, 3),
        [(2, 3, 5, 4)],
    ),
    "embedding": (
        lambda w: ltorch.embedding(ltorch.tensor(NUMBERS.tolist()), w, 2),
        lambda w: F.embedding(NUMBERS, w, 2),
        [(6, 5)],
    ),
    "interpolate": (
        lambda x: ltorch.interpolate(x, (7, 3), mode="bicubic"),
        lambda x: F.interpolate(x, (7, 3), mode="bicubic"),
        [(2, 3, 5, 4)],
    ),
    "prod": (lambda x: ltorch.prod(x, 1), lambda x: x.prod(1), [(6, 5)]),
    "var": (lambda x: ltorch.var(x, 1), lambda x: x.var(1), [(6, 5)]),
    "std": (lambda x: ltorch.std(x, 1), lambda x: x.std(1), [(6, 5)]),
    "amax": (lambda x: ltorch.amax(x, 1), lambda x: x.amax(1), [(6, 5)]),
    "norm": (lambda x: ltorch.vector_norm(x, 3, 1), lambda x: torch.linalg.vector_norm(x, 3, 1), [(6, 5)]),
    "mse_loss": (ltorch.mse_loss, F.mse_loss, [(6, 5), (6, 5)]),
    "huber_loss": (ltorch.huber_loss, F.huber_loss, [(6, 5), (6, 5)]),
    "binary_cross_entropy_with_logits": (
        ltorch.binary_cross_entropy_with_logits,
        F.binary_cross_entropy_with_logits,
        [(6, 5), (6, 5)],
    ),
}


def _trace(fn: Callable[..., Any], shapes: list[tuple[int, ...]]) -> Trace:
    """The trace of the sum of the sines of what `fn` gives."""
    trace = Trace("f")
    trace.args = [
        TensorProxy(trace.make_name("x"), shape=s, device="cpu", dtype=torch.float64, requires_grad=True)
        for s in shapes
    ]
    with tracectx(trace), set_langctx("torch"):
        trace.output = ltorch.sum(ltorch.sin(fn(*trace.args)))
        prims.python_return(trace.output)
    return trace


def _of_gradients(gradients: Trace) -> Trace:
    """The trace of the sum of the cosines of the gradients that a differentiated trace gives."""
    out = gradients.derive()
    out.bound_symbols[:] = [b for b in gradients.bound_symbols if b.sym is not prims.python_return]
    with tracectx(out), set_langctx("torch"):
        out.output = sum(
            (ltorch.sum(ltorch.cos(g)) for g in gradients.output[1:]), ltorch.sum(ltorch.cos(gradients.output[0]))
        )
        prims.python_return(out.output)
    return out


def _by_autograd(fn: Callable[..., Any], inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    first = torch.autograd.grad(torch.sin(fn(*leaves)).sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(torch.cos(g).sum() for g in first), leaves, allow_unused=True)
    return list(first), [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, second)]


@pytest.mark.parametrize("primitives", [False, True], ids=["claimed", "primitives"])
@pytest.mark.parametrize("name", CASES)
def test_against_autograd(name: str, primitives: bool) -> None:
    """Both orders, to the precision of float64."""
    ours, theirs, shapes = CASES[name]
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(s, dtype=torch.float64, generator=generator) for s in shapes]
    executors = get_always_executors()
    first = differentiate(_trace(ours, shapes), executors)
    second = differentiate(_of_gradients(first), executors)
    for trace, expected in zip((first, second), _by_autograd(theirs, inputs)):
        trace = dce(trace)
        trace = to_primitives(trace) if primitives else trace
        actual = execution_trace(trace, executors).python_callable()(*inputs)
        torch.testing.assert_close(list(actual), expected, rtol=1e-8, atol=1e-8)
