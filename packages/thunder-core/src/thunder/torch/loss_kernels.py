# SPDX-License-Identifier: Apache-2.0
"""torch's kernels for losses of the difference of two tensors, and their gradients.

torch's functions call these kernels, with the reduction as a number. The operations in `losses.py` decompose into them,
so that forward and backward run as in eager mode.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.promotion import result_type
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol
from thunder.torch.loss_arguments import reduced

_TAGS = (OpTags.REDUCTION_OP,)
# The index of a reduction is its number in torch.
REDUCTIONS = ("none", "mean", "sum")


def _check_float(name: str, x: Any) -> None:
    if not dtypes.is_inexact_dtype(x.dtype):
        raise NotImplementedError(f'"{name}_cpu" not implemented for {x.dtype}')


def pair(input: Any, target: Any) -> tuple[Any, Any, dtypes.dtype]:
    """Return both tensors in the dtype of the computation, and the dtype of the result."""
    kind = dtypes.to_dtype(result_type(input, target))
    assert kind is not None
    wide = clang.reductions.compute_dtype(kind)
    a, b = clang.maybe_broadcast(input, target)
    return clang.maybe_convert_to_dtype(a, wide), clang.maybe_convert_to_dtype(b, wide), kind


def own_gradient(grad: Any, like: Any) -> Any:
    """Return a gradient with the shape and dtype of its tensor `like`."""
    if not dtypes.is_inexact_dtype(like.dtype):
        return None
    return clang.maybe_convert_to_dtype(ltorch.sum_to_size(grad, like.shape), like.dtype)


def _shared(grad: Any, x: Any, reduction: int) -> Any:
    """Return the gradient of the loss of each element."""
    wide = clang.maybe_convert_to_dtype(grad, clang.reductions.compute_dtype(grad.dtype))
    return wide / max(math.prod(x.shape), 1) if REDUCTIONS[reduction] == "mean" else wide


def _both(grad: Any, self: Any, target: Any) -> tuple[Any, Any]:
    return own_gradient(grad, self), own_gradient(-grad, target)


def _backward(name: str, slope: Any, grad: Any, self: Any, target: Any, reduction: int) -> Any:
    _check_float(f"{name}_backward", self)
    a, b, kind = pair(self, target)
    return clang.maybe_convert_to_dtype(slope(a - b) * _shared(grad, a, reduction), kind)


def _samples(*options: Any) -> Any:
    def samples(make: MakeTensor) -> Any:
        for shape, reduction in (((4, 4), 1), ((4, 4), 0), ((2, 3), 2), ((), 1)):
            yield SampleInput(make(shape), make(shape), reduction, *options)

    return samples


def _backward_samples(*options: Any) -> Any:
    def samples(make: MakeTensor) -> Any:
        for shape, reduction in (((4, 4), 1), ((4, 4), 0), ((2, 3), 2)):
            grad = make(() if reduction else shape)
            yield SampleInput(grad, make(shape), make(shape), reduction, *options)

    return samples


# -- squares -----------------------------------------------------------------------------------------------------------
@torchsymbol(torch._C._nn.mse_loss, is_method=False, tags=_TAGS, autocast="float32")
def mse_loss_kernel(self: Any, target: Any, reduction: int) -> Any:
    """Compute (self - target) ** 2, reduced."""
    _check_float("mse", self)
    a, b, kind = pair(self, target)
    difference = a - b
    return reduced(difference * difference, REDUCTIONS[reduction], kind)


@torchsymbol(id="torch.mse_loss_backward")
def mse_loss_backward(grad: Any, self: Any, target: Any, reduction: int) -> Any:
    """Return the gradient of the first tensor of mse_loss. The gradient of the second one is its negative."""
    _check_float("mse_backward", self)
    a, b, kind = pair(self, target)
    return clang.maybe_convert_to_dtype((a - b) * (_shared(grad, a, reduction) * 2), kind)


@mse_loss_kernel.vjp
def _(g: Any, out: Any, self: Any, target: Any, reduction: int) -> Any:
    return _both(mse_loss_backward(g, self, target, reduction), self, target)


# -- absolute values ---------------------------------------------------------------------------------------------------
@torchsymbol(torch._C._nn.l1_loss, is_method=False, tags=_TAGS, autocast="float32")
def l1_loss_kernel(self: Any, target: Any, reduction: int) -> Any:
    """Compute |self - target|, reduced."""
    a, b, kind = pair(self, target)
    result = dtypes.corresponding_real_dtype(kind) if dtypes.is_inexact_dtype(kind) else None
    return reduced(ltorch.abs(a - b), REDUCTIONS[reduction], result)


@l1_loss_kernel.vjp
def _(g: Any, out: Any, self: Any, target: Any, reduction: int) -> Any:
    a, b, _ = pair(self, target)
    return _both(ltorch.sgn(a - b) * _shared(g, a, reduction), self, target)


# -- squares near zero, absolute values elsewhere ----------------------------------------------------------------------
@torchsymbol(torch._C._nn.smooth_l1_loss, is_method=False, tags=_TAGS, autocast="float32")
def smooth_l1_loss_kernel(self: Any, target: Any, reduction: int, beta: float) -> Any:
    """Compute a squared difference where it is below `beta`, and an absolute difference elsewhere, reduced."""
    check(beta >= 0, lambda: "smooth_l1_loss does not support negative values for beta.")
    _check_float("smooth_l1", self)
    a, b, kind = pair(self, target)
    size = ltorch.abs(a - b)
    loss = size if beta == 0 else ltorch.where(size < beta, size * size * (0.5 / beta), size - 0.5 * beta)
    return reduced(loss, REDUCTIONS[reduction], kind)


@torchsymbol(id="torch.smooth_l1_loss_backward")
def smooth_l1_loss_backward(grad: Any, self: Any, target: Any, reduction: int, beta: float) -> Any:
    """Return the gradient of the first tensor of smooth_l1_loss. The gradient of the second one is its negative."""

    def slope(difference: Any) -> Any:
        far = ltorch.sign(difference)
        return ltorch.where(ltorch.abs(difference) < beta, difference / beta, far) if beta else far

    return _backward("smooth_l1", slope, grad, self, target, reduction)


@smooth_l1_loss_kernel.vjp
def _(g: Any, out: Any, self: Any, target: Any, reduction: int, beta: float) -> Any:
    return _both(smooth_l1_loss_backward(g, self, target, reduction, beta), self, target)


@torchsymbol(torch._C._nn.huber_loss, is_method=False, tags=_TAGS, autocast="float32")
def huber_loss_kernel(self: Any, target: Any, reduction: int, delta: float) -> Any:
    """Compute a squared difference where it is at most `delta`, and a scaled absolute difference elsewhere, reduced."""
    check(delta > 0, lambda: "huber_loss does not support non-positive values for delta.")
    _check_float("huber", self)
    a, b, kind = pair(self, target)
    size = ltorch.abs(a - b)
    loss = ltorch.where(size <= delta, size * size * 0.5, (size - 0.5 * delta) * delta)
    return reduced(loss, REDUCTIONS[reduction], kind)


@torchsymbol(id="torch.huber_loss_backward")
def huber_loss_backward(grad: Any, self: Any, target: Any, reduction: int, delta: float) -> Any:
    """Return the gradient of the first tensor of huber_loss. The gradient of the second one is its negative."""

    def slope(difference: Any) -> Any:
        return ltorch.where(ltorch.abs(difference) < delta, difference, ltorch.sign(difference) * delta)

    return _backward("huber", slope, grad, self, target, reduction)


@huber_loss_kernel.vjp
def _(g: Any, out: Any, self: Any, target: Any, reduction: int, delta: float) -> Any:
    return _both(huber_loss_backward(g, self, target, reduction, delta), self, target)


for _sym, _options in (
    (mse_loss_kernel, ()),
    (l1_loss_kernel, ()),
    (smooth_l1_loss_kernel, (3.0,)),
    (huber_loss_kernel, (3.0,)),
):
    _sym.samples(_samples(*_options))
for _sym, _options in ((mse_loss_backward, ()), (smooth_l1_loss_backward, (3.0,)), (huber_loss_backward, (3.0,))):
    _sym.samples(_backward_samples(*_options))
