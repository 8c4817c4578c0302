# SPDX-License-Identifier: Apache-2.0
"""Autocast, as torch's documentation lists it: which operations run in the lower precision, which in float32.

A trace says every type itself, so the casts that torch would make when autocast is on become operations of the trace,
where common subexpressions make each weight's cast once.
"""

from __future__ import annotations

from typing import Any

import torch

import thunder.torch as ltorch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol, map_proxies, proxies_in

__all__ = ["autocast_arguments"]

_CONVOLUTIONS = {f"{name}{n}d" for name in ("conv", "conv_transpose") for n in (1, 2, 3)}
_PRODUCTS = {
    "addbmm", "addmm", "baddbmm", "bmm", "chain_matmul", "linear", "matmul", "mm", "multi_dot", "convolution", "einsum",
    "scaled_dot_product_attention", "vecdot", "inner",
}  # fmt: skip

_LOWER = {
    "cuda": _CONVOLUTIONS | _PRODUCTS | {"addmv", "addr", "mv", "prelu", "tensordot"},
    "cpu": _CONVOLUTIONS | _PRODUCTS,
}
_FLOAT32 = {
    "cuda": {
        "rsqrt", "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "pow",
        "reciprocal", "sinh", "tan", "softplus", "layer_norm", "group_norm", "norm", "vector_norm", "nuclear_norm",
        "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "hinge_embedding_loss", "kl_div",
        "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss",
        "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist",
        "pdist", "cdist", "renorm", "logsumexp", "cross_entropy", "rms_norm", "softmax", "log_softmax", "softmin",
        "cumprod", "cumsum", "prod", "sum", "normalize",
    },
    "cpu": {
        "avg_pool3d", "binary_cross_entropy", "grid_sample", "polar", "prod", "quantile", "nanquantile", "stft",
        "cdist", "trace", "cholesky", "inverse", "mse_loss", "cosine_embedding_loss", "nll_loss", "cross_entropy",
        "hinge_embedding_loss", "poisson_nll_loss", "smooth_l1_loss", "l1_loss", "huber_loss", "margin_ranking_loss",
        "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "multilabel_margin_loss", "ctc_loss", "kl_div",
        "binary_cross_entropy_with_logits", "pdist", "reflection_pad",
    },
}  # fmt: skip
_WIDEST = {
    "cuda": {"addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sample", "index_put",
             "scatter_add", "tensordot", "cat", "stack"},
    "cpu": {"cat", "stack", "index_copy"},
}  # fmt: skip


def autocast_arguments(sym: Symbol, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """A call's arguments with the casts that torch makes for it when autocast is on."""
    tensors = [p for p in proxies_in((args, kwargs)) if isinstance(p, TensorProxy)]
    kind = next((p.device.type for p in tensors if p.ndim), tensors[0].device.type if tensors else "")
    if kind not in _LOWER or not torch.is_autocast_enabled(kind):
        return args, kwargs
    target = _target(sym.name, kind, tensors)
    if target is None:
        return args, kwargs
    lower = target is not dtypes.float32 and sym.name in _LOWER[kind]

    def cast(p: Any) -> Any:
        if not isinstance(p, TensorProxy) or not dtypes.is_float_dtype(p.dtype) or p.dtype is target:
            return p
        if p.dtype is dtypes.float64 or (not lower and p.dtype.bytes > target.bytes) or p.device.type != kind:
            return p

        return ltorch.to(p, target)

    return map_proxies(args, cast), map_proxies(kwargs, cast)


def _target(name: str, kind: str, tensors: list[TensorProxy]) -> dtypes.dtype | None:
    if name in _LOWER[kind]:
        return dtypes.to_dtype(torch.get_autocast_dtype(kind))
    if name in _FLOAT32[kind]:
        return dtypes.float32
    if name in _WIDEST[kind]:
        return dtypes.float32 if any(p.dtype is dtypes.float32 for p in tensors) else None
    return None
