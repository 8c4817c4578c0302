# SPDX-License-Identifier: Apache-2.0
"""What the forward programs of usual operations save for backward is no more than what eager saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder

B, T, C = 2, 32, 64
LABELS = torch.arange(B * T) % C
TOKENS = torch.arange(B * T).reshape(B, T)


def leaf(*shape: int) -> torch.Tensor:
    """A leaf that requires grad."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


X, W, V, IMAGE, KERNEL = leaf(B, T, C), leaf(2 * C, C), leaf(C), leaf(2, 8, 16, 16), leaf(8, 8, 3, 3)
CHANNEL, Q = leaf(8), leaf(B, 4, T, 16)

# Each takes what came before, so that what an operation saves is not an input.
CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "layer_norm": (lambda x, w: F.layer_norm(x, (C,), w, w), (X, V)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (C,), w), (X, V)),
    "group_norm": (lambda x: F.group_norm(x, 4), (IMAGE,)),
    "batch_norm": (lambda x, w: F.batch_norm(x, None, None, w, w, True), (IMAGE, CHANNEL)),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q + 1, q + 2, is_causal=True), (Q,)),
    "attention with a mask": (
        lambda q: F.scaled_dot_product_attention(q, q + 1, q + 2, torch.ones(T, T, dtype=torch.bool).tril()), (Q,),
    ),
    "attention with dropout": (lambda q: F.scaled_dot_product_attention(q, q + 1, q + 2, dropout_p=0.1), (Q,)),
    "cross_entropy": (lambda x: F.cross_entropy(x.view(-1, C), LABELS), (X,)),
    "cross_entropy, smoothed": (lambda x: F.cross_entropy(x.view(-1, C), LABELS, label_smoothing=0.1), (X,)),
    "dropout": (lambda x: F.dropout(x, 0.1), (X,)),
    "convolution, norm and relu": (
        lambda x, k, w: F.batch_norm(F.conv2d(x, k, padding=1), None, None, w, w, True).relu(),
        (IMAGE, KERNEL, CHANNEL),
    ),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (IMAGE,)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), (IMAGE,)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (IMAGE,)),
    "embedding": (lambda w: F.embedding(TOKENS, w), (W,)),
    "mlp": (lambda x, w: F.linear(F.gelu(F.linear(x, w)), w.t()), (X, W)),
    "gated mlp": (lambda x, w: F.linear(F.silu(F.linear(x, w)) * F.linear(x, w), w.t()), (X, W)),
    "division": (lambda x: x / (x + 1), (X,)),
    "where": (lambda x: torch.where(x > 0.5, x, x * 3), (X,)),
    "kl_div": (lambda x: F.kl_div(x.log_softmax(-1), x.detach().softmax(-1), reduction="batchmean"), (X,)),
    "binary_cross_entropy_with_logits": (lambda x: F.binary_cross_entropy_with_logits(x, x.detach()), (X,)),
    "gather": (lambda x: x.gather(-1, torch.zeros(B, T, 4, dtype=torch.long)), (X,)),
    "topk": (lambda x: x.topk(4).values, (X,)),
    "cdist": (lambda x: torch.cdist(x, x + 1), (X,)),
}  # fmt: skip
for _name in ("gelu", "silu", "relu", "leaky_relu", "mish", "hardswish", "softplus", "elu", "glu", "sigmoid", "tanh"):
    CASES[_name] = getattr(F, _name) if hasattr(F, _name) else getattr(torch, _name), (X,)
for _name in ("var", "std", "norm", "amax", "logsumexp", "cumsum", "sort", "square", "rsqrt", "softmax"):
    _dims = () if _name in ("square", "rsqrt") else (-1,)
    CASES[_name] = (lambda x, name=_name, dims=_dims: getattr(x, name)(*dims)), (X,)
CASES["norm"] = (lambda x: x.norm(dim=-1)), (X,)


def saved_by(fn: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> int:
    """The bytes behind what autograd keeps of a call, without inputs."""
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = fn(*args)
    memory = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in kept}
    inputs = {t.untyped_storage()._cdata for t in args}
    del out
    return sum(size for key, size in memory.items() if key not in inputs)


@pytest.mark.parametrize("name", CASES)
def test_at_most_what_eager_saves(name: str) -> None:
    """Up to a kilobyte of odds and ends."""
    fn, args = CASES[name]

    def program(x: Any, *rest: Any) -> Any:
        return fn(x * 2, *rest)

    jitted = thunder.jit(program)
    jitted(*args)
    assert saved_by(jitted, args) <= saved_by(program, args) + 1024
