# SPDX-License-Identifier: Apache-2.0
"""Losses that compare two tensors element by element: for regression, probabilities and distributions."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.promotion import result_type
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.core.symint.numbers import equal_shapes
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol
from thunder.torch.loss_arguments import Flag, reduced, reduction_of, upcast, warn_of_sizes
from thunder.torch.loss_kernels import (
    REDUCTIONS,
    huber_loss_kernel,
    l1_loss_kernel,
    mse_loss_kernel,
    own_gradient,
    pair,
    smooth_l1_loss_kernel,
)

_TAGS = (OpTags.REDUCTION_OP,)


def _sizes_match(input: Any, target: Any, text: str) -> None:
    check(input.shape == target.shape, lambda: text, ValueError)


def _weighted(loss: Any, input: Any, weight: Any, reduction: str, *, by_weight: bool) -> Any:
    check(weight.shape == input.shape, lambda: "Weights and input must have the same size.", ValueError)
    loss = loss * weight
    if reduction == "mean" and by_weight:
        return clang.sum(loss) / clang.sum(weight)
    return reduced(loss, reduction)


def pair_samples(make: MakeTensor, **options: Any) -> Any:
    """Yield samples of a loss of two tensors."""
    for shape in ((4, 4), (), (2, 3, 5)):
        for reduction in ("mean", "sum", "none"):
            yield SampleInput(make(shape), make(shape), reduction=reduction, **options)
    yield SampleInput(make((5, 3)).mT, make((3, 5)), **options)
    yield SampleInput(make((0, 3)), make((0, 3)), reduction="sum", **options)


def bad_reduction(make: MakeTensor) -> Any:
    """Yield the error that all losses raise for an unknown reduction."""
    yield SampleInput(make((3,)), make((3,)), reduction="x"), ValueError, "x is not a valid value for reduction"


# -- regression --------------------------------------------------------------------------------------------------------
@torchsymbol(torch.nn.functional.mse_loss, is_method=False, tags=_TAGS, autocast="float32")
def mse_loss(
    input: Any, target: Any, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean", weight: Any = None
) -> Any:
    """Compute (input - target) ** 2."""
    reduction = reduction_of(reduction, size_average, reduce)
    warn_of_sizes(input, target)
    if weight is not None:
        return _weighted((input - target) ** 2, input, weight, reduction, by_weight=True)
    return mse_loss_kernel(*clang.maybe_broadcast(input, target), REDUCTIONS.index(reduction))


@torchsymbol(torch.nn.functional.l1_loss, is_method=False, tags=_TAGS, autocast="float32")
def l1_loss(
    input: Any, target: Any, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean", weight: Any = None
) -> Any:
    """Compute |input - target|."""
    reduction = reduction_of(reduction, size_average, reduce)
    warn_of_sizes(input, target)
    if weight is not None:
        return _weighted(ltorch.abs(input - target), input, weight, reduction, by_weight=True)
    return l1_loss_kernel(*clang.maybe_broadcast(input, target), REDUCTIONS.index(reduction))


@torchsymbol(torch.nn.functional.smooth_l1_loss, is_method=False, tags=_TAGS, autocast="float32")
def smooth_l1_loss(
    input: Any, target: Any, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean", beta: float = 1.0
) -> Any:
    """Compute a squared difference where it is below `beta`, and an absolute difference elsewhere."""
    reduction = reduction_of(reduction, size_average, reduce)
    warn_of_sizes(input, target)
    both = clang.maybe_broadcast(input, target)
    if beta == 0:
        return l1_loss_kernel(*both, REDUCTIONS.index(reduction))
    return smooth_l1_loss_kernel(*both, REDUCTIONS.index(reduction), beta)


@torchsymbol(torch.nn.functional.huber_loss, is_method=False, tags=_TAGS, autocast="float32")
def huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None) -> Any:
    """Compute a squared difference where it is at most `delta`, and an absolute difference times `delta` elsewhere."""
    reduction = reduction_of(reduction)
    warn_of_sizes(input, target)
    if weight is not None:
        return _weighted(huber_loss_kernel(input, target, 0, delta), input, weight, reduction, by_weight=False)
    return huber_loss_kernel(*clang.maybe_broadcast(input, target), REDUCTIONS.index(reduction), delta)


def _weighted_samples(make: MakeTensor) -> Any:
    yield from pair_samples(make)
    for reduction in ("mean", "sum", "none"):
        yield SampleInput(make((2, 3)), make((2, 3)), reduction=reduction, weight=make((2, 3), low=0.1, high=2))


for _sym in (mse_loss, l1_loss, huber_loss):
    _sym.samples(_weighted_samples)
    _sym.errors(bad_reduction)


@smooth_l1_loss.samples
def _(make: MakeTensor) -> Any:
    yield from pair_samples(make)
    yield from pair_samples(make, beta=0.0)
    yield from pair_samples(make, beta=4.0)
    yield SampleInput(make((2, 3)), make((2, 3)), reduce=False)


@smooth_l1_loss.errors
def _(make: MakeTensor) -> Any:
    yield from bad_reduction(make)
    yield SampleInput(make((3,)), make((3,)), beta=-1.0), RuntimeError, "does not support negative values for beta"


# -- probabilities -----------------------------------------------------------------------------------------------------
@torchsymbol(torch.nn.functional.binary_cross_entropy, is_method=False, tags=_TAGS, autocast={"cpu": "float32"})
def binary_cross_entropy(
    input: Any, target: Any, weight: Any = None, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean"
) -> Any:
    """Compute minus the log-likelihood of targets in [0, 1] for probabilities `input`. Logarithms are at least -100."""
    reduction = reduction_of(reduction, size_average, reduce)
    _sizes_match(
        input,
        target,
        f"Using a target size (torch.Size({list(target.shape)})) that is different to the input size "
        f"(torch.Size({list(input.shape)})) is deprecated. Please ensure they have the same size.",
    )
    check(target.dtype is input.dtype, lambda: f"Found dtype {target.dtype} but expected {input.dtype}")
    x, y, w = upcast(input, target, weight)
    loss = -(y * ltorch.clamp_min(ltorch.log(x), -100.0) + (1.0 - y) * ltorch.clamp_min(ltorch.log1p(-x), -100.0))
    return reduced(loss if w is None else loss * w, reduction, input.dtype)


def _scaled(grad: Any, weight: Any, count: int) -> Any:
    """Multiply a gradient by the elements' weights and divide it by their number, in the order of torch's kernels."""
    grad = grad if weight is None else grad * weight
    return grad if count == 1 else grad / count


@binary_cross_entropy.vjp
def _(
    g: Any, out: Any, input: Any, target: Any, weight: Any = None, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean",
) -> Any:  # fmt: skip
    reduction = reduction_of(reduction, size_average, reduce)
    x, y, w = upcast(input, target, weight)
    count = max(math.prod(input.shape), 1) if reduction == "mean" else 1
    of_input = _scaled(g * (x - y) / ltorch.clamp_min((1.0 - x) * x, 1e-12), w, count)
    of_target = _scaled(-ltorch.logit(x) * g, w, count)
    of_weight = None
    if w is not None:
        of_weight = own_gradient(binary_cross_entropy(input, target, None, None, None, "none") * (g / count), weight)
    return own_gradient(of_input, input), own_gradient(ltorch.expand(of_target, target.shape), target), of_weight


@binary_cross_entropy.samples
def _(make: MakeTensor) -> Any:
    for shape in ((4, 4), (), (2, 3, 5)):
        for reduction in ("mean", "sum", "none"):
            yield SampleInput(make(shape, low=0.05, high=0.95), make(shape, low=0, high=1), reduction=reduction)
    yield SampleInput(make((2, 3), low=0.05, high=0.95), make((2, 3), low=0, high=1), make((3,), low=0.1, high=2))


@binary_cross_entropy.errors
def _(make: MakeTensor) -> Any:
    yield from bad_reduction(make)
    yield SampleInput(make((3,)), make((4,))), ValueError, "that is different to the input size"
    yield SampleInput(make((3,)), make((3,), dtype=torch.int64)), RuntimeError, "Found dtype"


@torchsymbol(torch.nn.functional.binary_cross_entropy_with_logits, is_method=False, tags=_TAGS, autocast="float32")
def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, size_average: Flag = None, reduce: Flag = None,
    reduction: str = "mean", pos_weight: Any = None,
) -> Any:  # fmt: skip
    """Compute binary_cross_entropy of sigmoid(input) without overflow. `pos_weight` weights positive targets."""
    reduction = reduction_of(reduction, size_average, reduce)
    _sizes_match(
        input,
        target,
        f"Target size (torch.Size({list(target.shape)})) must be the same as input size "
        f"(torch.Size({list(input.shape)}))",
    )
    x, y, w, p = upcast(input, target, weight, pos_weight)
    minus_log = -ltorch.logsigmoid(x)
    if p is not None:
        minus_log = minus_log * ((p - 1.0) * y + 1.0)
    loss = (1.0 - y) * x + minus_log
    return reduced(loss if w is None else loss * w, reduction, dtypes.to_dtype(result_type(input, target)))


@binary_cross_entropy_with_logits.vjp
def _(
    g: Any, out: Any, input: Any, target: Any, weight: Any = None, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", pos_weight: Any = None,
) -> Any:  # fmt: skip
    reduction = reduction_of(reduction, size_average, reduce)
    x, y, w, p = upcast(input, target, weight, pos_weight)
    count = max(math.prod(input.shape), 1) if reduction == "mean" else 1
    s = ltorch.sigmoid(x)
    if p is None:
        of_input, of_target = (s - y) * g, x * -g
    else:
        positive = p * y
        of_input = ((positive + 1.0 - y) * s - positive) * g
        of_target = (ltorch.logsigmoid(-x) - p * ltorch.logsigmoid(x)) * g
    of_input, of_target = _scaled(of_input, w, count), _scaled(of_target, w, count)
    of_weight = of_pos = None
    if w is not None:
        each = binary_cross_entropy_with_logits(input, target, None, None, None, "none", pos_weight)
        of_weight = own_gradient(each * (g / count), weight)
    if p is not None:
        of_pos = own_gradient(_scaled(-ltorch.logsigmoid(x) * y * g, w, count), pos_weight)
    grads = own_gradient(of_input, input), own_gradient(of_target, target), of_weight
    return (*grads, None, None, None, of_pos)


@binary_cross_entropy_with_logits.samples
def _(make: MakeTensor) -> Any:
    for shape in ((4, 4), (), (2, 3, 5)):
        for reduction in ("mean", "sum", "none"):
            yield SampleInput(make(shape), make(shape, low=0, high=1), reduction=reduction)
    given = {"weight": make((3,), low=0.1, high=2), "pos_weight": make((3,), low=0.1, high=2)}
    for options in (given, {"weight": given["weight"]}, {"pos_weight": given["pos_weight"], "reduction": "sum"}):
        yield SampleInput(make((2, 3)), make((2, 3), low=0, high=1), **options)
    yield SampleInput(make((2, 3)) * 100, make((2, 3), low=0, high=1))


@binary_cross_entropy_with_logits.errors
def _(make: MakeTensor) -> Any:
    yield from bad_reduction(make)
    yield SampleInput(make((3,)), make((4,))), ValueError, "must be the same as input size"


# -- distributions -----------------------------------------------------------------------------------------------------
@torchsymbol(torch.nn.functional.kl_div, is_method=False, tags=_TAGS, autocast="float32")
def kl_div(
    input: Any, target: Any, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean",
    log_target: bool = False,
) -> Any:  # fmt: skip
    """Compute the Kullback-Leibler divergence of probabilities `target` and log-probabilities `input`."""
    batchmean = reduction == "batchmean" and size_average is None and reduce is None
    reduction = "sum" if batchmean else reduction_of(reduction, size_average, reduce)
    check(
        dtypes.is_inexact_dtype(input.dtype) and dtypes.is_inexact_dtype(target.dtype),
        lambda: "kl_div: Integral inputs not supported.",
    )
    if reduction == "mean":
        warnings.warn(
            "reduction: 'mean' divides the total loss by both the batch size and the support size."
            "'batchmean' divides only by the batch size, and aligns with the KL div math definition."
            "'mean' will be changed to behave the same as 'batchmean' in the next major release.",
            stacklevel=5,
        )
    x, y, kind = pair(input, target)
    if log_target:
        loss = ltorch.exp(y) * (y - x)
    else:  # the product comes first, so that its gradient is the last that is added to the gradient of y, as in torch
        product = y * x
        loss = ltorch.xlogy(y, y) - product
    out = reduced(loss, reduction)
    return clang.maybe_convert_to_dtype(out / input.shape[0] if batchmean and input.ndim else out, kind)


@kl_div.samples
def _(make: MakeTensor) -> Any:
    for reduction in ("mean", "sum", "none", "batchmean"):
        yield SampleInput(make((3, 4), high=0), make((3, 4), low=0.1, high=1), reduction=reduction)
        yield SampleInput(make((3, 4), high=0), make((3, 4), low=-2, high=0), reduction=reduction, log_target=True)
    yield SampleInput(make((3, 4), high=0), make((3, 4), low=0, high=1) * 0)
    yield SampleInput(make((), high=0), make((), low=0.1, high=1))


@kl_div.errors
def _(make: MakeTensor) -> Any:
    yield from bad_reduction(make)
    yield SampleInput(make((3,)), make((3,), dtype=torch.int64)), RuntimeError, "Integral inputs not supported"


@torchsymbol(torch.nn.functional.poisson_nll_loss, is_method=False, tags=_TAGS, autocast="float32")
def poisson_nll_loss(
    input: Any, target: Any, log_input: bool = True, full: bool = False, size_average: Flag = None,
    eps: float = 1e-8, reduce: Flag = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    """Compute minus the log-likelihood of `target` for a Poisson distribution with rate exp(input), or rate `input`."""
    reduction = reduction_of(reduction, size_average, reduce)
    x, y, kind = pair(input, target)
    loss = ltorch.exp(x) - y * x if log_input else x - y * ltorch.log(x + eps)
    if full:
        stirling = y * ltorch.log(y) - y + 0.5 * ltorch.log(2 * math.pi * y)
        loss = loss + ltorch.where(y <= 1, 0.0, stirling)
    return reduced(loss, reduction, kind if dtypes.is_inexact_dtype(kind) else None)


@poisson_nll_loss.samples
def _(make: MakeTensor) -> Any:
    for reduction in ("mean", "sum", "none"):
        yield SampleInput(make((3, 4), low=-2, high=2), make((3, 4), low=0, high=4), reduction=reduction)
    yield SampleInput(make((3, 4), low=0.1, high=2), make((3, 4), low=0.1, high=4), False)
    yield SampleInput(make((3, 4), low=-2, high=2), make((3, 4), low=0.5, high=4), full=True)


poisson_nll_loss.errors(bad_reduction)


def _variance(input: Any, var: Any) -> Any:
    """Return the variance of gaussian_nll_loss, with a shape that broadcasts to the input."""
    if not isinstance(var, TensorProxy):
        check(var >= 0, lambda: "var has negative entry/entries", ValueError)
        return ltorch.ones_like(input) * var
    if equal_shapes(var.shape, input.shape):
        return var
    if input.shape[:-1] == var.shape:
        return ltorch.unsqueeze(var, -1)
    differing = [n for m, n in zip(input.shape, var.shape) if m != n]
    check(input.ndim == var.ndim and differing == [1], lambda: "var is of incorrect size", ValueError)
    return var


@torchsymbol(torch.nn.functional.gaussian_nll_loss, is_method=False, tags=_TAGS, executed_by_torch=False)
def gaussian_nll_loss(
    input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Any:
    """Compute minus the log-likelihood of `target` for a normal distribution with mean `input` and variance `var`.

    torch reads the values of `var` to reject negative variances. Here, they become `eps`.
    """
    check(reduction in ("none", "mean", "sum"), lambda: reduction + " is not valid", ValueError)
    var = _variance(input, var)
    # `eps` is the lower bound of the variance, but as in torch, the gradient flows through unchanged.
    var = ltorch.where(var < eps, var - var.detach() + eps, var)
    loss = 0.5 * (ltorch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return reduced(loss, reduction)


@gaussian_nll_loss.samples
def _(make: MakeTensor) -> Any:
    for shape in ((3, 4), (3, 1), (3,)):
        yield SampleInput(make((3, 4)), make((3, 4)), make(shape, low=0.1, high=2))
    yield SampleInput(make((3, 4)), make((3, 4)), make((3, 4), low=0.1, high=2), True, 1.0, "sum")
    yield SampleInput(make((3, 4)), make((3, 4)), 0.5, reduction="none")


@gaussian_nll_loss.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,)), make((3,)), make((2,), low=1)), ValueError, "var is of incorrect size"
    yield SampleInput(make((3,)), make((3,)), make((3,), low=1), reduction="x"), ValueError, "x is not valid"
