# SPDX-License-Identifier: Apache-2.0
"""Samples for the conformance tests of this plugin's operators.

The reference of a loss is its decomposition, run by torch. Those of norms are written out, because torch's operators
are not meant to be differentiated again: some take statistics for constants, some raise an error on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from thunder.toolkit.conformance import OperatorSamples, SampleInput, TensorMaker, operator_opinfos
from thunder_ex_apex import cross_entropy, norms

__all__ = ["loss_opinfos", "norm_opinfos"]

# Rows and classes: the fewest classes, unaligned rows, and rows longer than a thread block reads at a time.
SHAPES = ((1, 32), (7, 33), (4, 45), (3, 127), (5, 1030), (2, 32001))
HOW = (("mean", 0.0), ("sum", 0.1), ("none", 0.3))
# The shape of a tensor, and the normalized dimensions.
NORMALIZED: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 4), (4,)), ((2, 3, 4), (3, 4)), ((7,), (7,)), ((5, 33), (33,)), ((2, 1030), (1030,)), ((3, 4096), (4096,)),
)  # fmt: skip


Samples = Iterator["SampleInput | tuple[Any, ...]"]


def _made(make: TensorMaker, shape: tuple[int, ...]) -> torch.Tensor:
    return make(shape, low=-3, high=3)


def _fixed(make: TensorMaker, shape: tuple[int, ...], low: float = 0.5, high: float = 2) -> torch.Tensor:
    """Make a tensor that is not differentiated, e.g. statistics or a cotangent of losses."""
    return make.saved(shape, low=low, high=high)


def _labels(rows: int, classes: int, device: Any) -> torch.Tensor:
    return torch.arange(rows, device=device) * 7 % classes


def _forward(make: TensorMaker) -> Samples:
    for rows, classes in SHAPES:
        for reduction, smoothing in HOW:
            logits = _made(make, (rows, classes))
            labels = _labels(rows, classes, logits.device)
            yield logits, labels, reduction, smoothing
            ignored = int(labels[-1]) if rows > 1 else -100
            yield _made(make, (classes, rows)).mT, labels, reduction, smoothing, ignored


def _backward(make: TensorMaker) -> Samples:
    for rows, classes in SHAPES:
        logits = _made(make, (rows, classes))
        saved = {
            "target": _labels(rows, classes, logits.device),
            "max_log_sum_exp": _fixed(make, (rows,), low=4, high=6),
        }
        for smoothing in (0.0, 0.2):
            yield SampleInput(_fixed(make, (rows,)), logits, **saved, label_smoothing=smoothing)


def _layer_norm(make: TensorMaker) -> Samples:
    for shape, last in NORMALIZED:
        yield _made(make, shape), last, _made(make, last), _made(make, last), 1e-5
        yield _made(make, shape), last, None, None, 0.1


def _layer_norm_backward(make: TensorMaker) -> Samples:
    for shape, last in NORMALIZED:
        rows = (*shape[: len(shape) - len(last)], *([1] * len(last)))
        statistics = _fixed(make, rows), _fixed(make, rows)
        yield _made(make, shape), _made(make, shape), last, *statistics, _made(make, last), _made(make, last), 1e-5
        yield _made(make, shape), _made(make, shape), last, *statistics, None, None, 0.1


def _rows(x: Any, shape: Any) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return the rows in the dtype of statistics, and their dimensions."""
    return x.to(torch.promote_types(x.dtype, torch.float32)), tuple(range(x.ndim - len(shape), x.ndim))


def _layer_norm_reference(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    wide, dims = _rows(x, shape)
    variance, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
    rstd = (variance + eps).rsqrt()
    out = (wide - mean) * rstd
    return (out if weight is None else out * weight + bias).to(x.dtype), mean, rstd


def _layer_norm_backward_reference(
    grad: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, eps: float
) -> Any:
    (wide, dims), (g, _) = _rows(x, shape), _rows(grad, shape)
    normal, gx = (wide - mean) * rstd, g if weight is None else g * weight
    of_x = rstd * (gx - gx.mean(dims, keepdim=True) - normal * (gx * normal).mean(dims, keepdim=True))
    of_parameters = [None if weight is None else of.reshape(-1, *shape).sum(0).to(x.dtype) for of in (g * normal, g)]
    return of_x.to(x.dtype), *of_parameters


def _rms_norm(make: TensorMaker) -> Samples:
    for shape, last in NORMALIZED:
        yield _made(make, shape), last, _made(make, last), None
        yield _made(make, shape), last, None, 0.1


def _rms_norm_reference(x: Any, shape: Any, weight: Any, eps: float | None) -> Any:
    wide, dims = _rows(x, shape)
    eps = torch.finfo(wide.dtype).eps if eps is None else eps
    rstd = (wide.square().mean(dims, keepdim=True) + eps).rsqrt()
    return (wide * rstd if weight is None else wide * rstd * weight).to(x.dtype), rstd


def _rms_norm_backward_reference(grad: Any, x: Any, shape: Any, rstd: Any, weight: Any, eps: float | None) -> Any:
    (wide, dims), (g, _) = _rows(x, shape), _rows(grad, shape)
    gx = g if weight is None else g * weight
    of_x = rstd * (gx - wide * rstd.square() * (gx * wide).mean(dims, keepdim=True))
    return of_x.to(x.dtype), None if weight is None else (g * wide * rstd).reshape(-1, *shape).sum(0).to(x.dtype)


def _rms_norm_backward(make: TensorMaker) -> Samples:
    for shape, last in NORMALIZED:
        rows = (*shape[: len(shape) - len(last)], *([1] * len(last)))
        yield _made(make, shape), _made(make, shape), last, _fixed(make, rows), _made(make, last), None
        yield _made(make, shape), _made(make, shape), last, _fixed(make, rows), None, 0.1


def loss_opinfos() -> list[Any]:
    """Return an OpInfo for each operator of cross-entropy."""
    taken = cross_entropy.TAKEN
    table = {
        "apex_cross_entropy": OperatorSamples(_forward, cross_entropy.forward_like, taken),
        "apex_cross_entropy_backward": OperatorSamples(_backward, cross_entropy.backward_like, taken),
    }
    return operator_opinfos("apex", table, family="loss")


def norm_opinfos() -> list[Any]:
    """Return an OpInfo for each operator of the norms."""
    layers, roots = norms.OF_LAYERS, norms.OF_ROOTS
    table = {
        "apex_layer_norm": OperatorSamples(_layer_norm, _layer_norm_reference, layers),
        "apex_layer_norm_backward": OperatorSamples(_layer_norm_backward, _layer_norm_backward_reference, layers),
        "apex_rms_norm": OperatorSamples(_rms_norm, _rms_norm_reference, roots),
        "apex_rms_norm_backward": OperatorSamples(_rms_norm_backward, _rms_norm_backward_reference, roots),
    }
    return operator_opinfos("apex_norm", table, family="normalization")
