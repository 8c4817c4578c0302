# SPDX-License-Identifier: Apache-2.0
"""Dropout of elements or whole channels, and alpha dropout, which preserves mean and variance.

Without gradients, torch runs dropout as one operation. With gradients, the mask is a separate operation that draws the
same random numbers as torch: with torch's fused kernel on a GPU, and elsewhere as noise with the dtype and layout of
the input.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch

from thunder.core import prims
from thunder.core.errors import check
from thunder.core.prims import get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.torch.base import for_dims, torchsymbol
from thunder.torch.base import operations as ltorch

# The scale of SELU times its slope below zero. Alpha dropout sets dropped elements to minus this value.
_ALPHA = 1.7580993408473766


def _check(p: float, kind: type[Exception] = ValueError) -> None:
    check(0.0 <= p <= 1.0, lambda: f"dropout probability has to be between 0 and 1, but got {p}", kind)


def scaled_noise(a: Any, p: float, feature: bool = False) -> Any:
    """Return the factor of `a` in dropout: 0 for dropped elements, and 1 / (1 - p) for the others."""
    return prims.dropout_noise(a, p, feature) / (1 - p)


@torchsymbol(id="torch.dropout_backward")
def dropout_backward(grad: Any, mask: Any, scale: float) -> Any:
    """Return the gradient of the input of dropout. `mask` is true for elements that were kept."""
    return grad * mask * scale


@dropout_backward.samples
def _(make: MakeTensor) -> Any:
    for shape in ((3, 4), (2, 3, 4)):
        yield SampleInput(make(shape), make(shape, dtype=torch.bool), 2.0)


@torchsymbol(torch.native_dropout, is_method=False)
def native_dropout(input: Any, p: float, train: bool | None) -> Any:
    """Run torch's fused dropout. Return the result and the mask of elements that were kept."""
    if train is False or 0 in input.shape:
        return ltorch.clone(input), ltorch.ones_like(input, dtype=torch.bool)
    return prims.native_dropout(input, p)


@native_dropout.grad
def _(input: Any, p: float, train: bool | None) -> Any:
    out, mask = native_dropout(input, p, train)
    scale = 1.0 if train is False else 0.0 if p == 1 else 1.0 / (1.0 - p)
    put_grad(input, dropout_backward(get_grad(out), mask, scale))
    return out, mask


@native_dropout.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 4)), 0.3, True)
    yield SampleInput(make((3, 4)), 0.3, False)
    yield SampleInput(make((2, 3, 4)), 1.0, True)


def dropped(a: Any, p: float) -> tuple[Any, Any]:
    """Return `a` after dropout, and the factor of `a`."""
    if a.device.type == "cuda":
        out, mask = native_dropout(a, p, True)
        return out, mask * (1.0 / (1.0 - p))
    noise = scaled_noise(a, p)
    return a * noise, noise


def _dropout(input: Any, p: float, training: bool, feature: bool, alpha: bool) -> Any:
    check(
        isinstance(input, TensorProxy),
        lambda: f"dropout(): argument 'input' (position 1) must be Tensor, not {type(input).__name__}",
        TypeError,
    )
    if feature and training:
        check(input.ndim >= 2, lambda: "Feature dropout requires at least 2 dimensions in the input")
    if p == 0 or not training or 0 in input.shape:
        return input
    if p == 1:
        return input * ltorch.zeros((), dtype=input.dtype, device=input.device)
    if not alpha:
        return input * scaled_noise(input, p, feature) if feature else dropped(input, p)[0]
    noise = prims.dropout_noise(input, p, feature)
    a = 1.0 / math.sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
    return input * (noise * a) + ((noise - 1) * (_ALPHA * a) + _ALPHA * a * p)


@torchsymbol(torch.nn.functional.dropout, is_method=False)
def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Set each element of `input` to zero with probability `p`, and multiply the others by 1 / (1 - p)."""
    _check(p)
    check(
        not training or p in (0, 1) or input.dtype.is_floating_point or input.dtype.is_complex,
        lambda: f"result type Float can't be cast to the desired output type {input.dtype}",
    )
    return _dropout(input, p, training, False, False)


@torchsymbol(torch.nn.functional.dropout1d, is_method=False)
def dropout1d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Set each channel of `input` to zero with probability `p`, for dimensions `(batch, channels, length)`."""
    _check(p)
    check(
        input.ndim in (2, 3),
        lambda: (
            f"dropout1d: Expected 2D or 3D input, but received a {input.ndim}D input. Note that dropout1d exists to "
            "provide "
            "channel-wise dropout on inputs with 1 spatial dimension, a channel dimension, and an optional batch "
            "dimension (i.e. 2D "
            "or 3D inputs)."
        ),
    )
    if input.ndim == 3:
        return _dropout(input, p, training, True, False)
    return ltorch.squeeze(_dropout(ltorch.unsqueeze(input, 0), p, training, True, False), 0)


@for_dims(2, 3, name="dropout{}d", torch="torch.nn.functional.dropout{}d")
def _dropout_of_channels(spatial: int, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Set each channel of `input` to zero with probability `p`, for dimensions `(batch, channels, {sizes})`."""
    _check(p)
    if input.ndim not in (spatial + 1, spatial + 2):
        warnings.warn(
            f"dropout{spatial}d: Received a {input.ndim}-D input to dropout{spatial}d, which is deprecated and will "
            "result in an error in a future release.",
            stacklevel=5,
        )
    if spatial == 3 and input.ndim != 5:  # as torch does, for three dimensions only
        return ltorch.squeeze(_dropout(ltorch.unsqueeze(input, 0), p, training, True, False), 0)
    return _dropout(input, p, training, True, False)


dropout2d, dropout3d = _dropout_of_channels


@torchsymbol(torch.nn.functional.alpha_dropout, is_method=False)
def alpha_dropout(input: Any, p: float = 0.5, training: bool = False, inplace: bool = False) -> Any:
    """Apply dropout that preserves the mean and variance of the outputs of SELU."""
    _check(p)
    return _dropout(input, p, training, False, True)


@torchsymbol(torch.nn.functional.feature_alpha_dropout, is_method=False)
def feature_alpha_dropout(input: Any, p: float = 0.5, training: bool = False, inplace: bool = False) -> Any:
    """Apply alpha dropout to whole channels."""
    _check(p)
    return _dropout(input, p, training, True, True)


# torch's native functions, where the probability and `train` have no defaults.
@torchsymbol(torch.dropout, is_method=False, id="torch.dropout_kernel")
def dropout_kernel(input: Any, p: float, train: bool) -> Any:
    """Compute torch.dropout."""
    _check(p, RuntimeError)
    return _dropout(input, p, train, False, False)


@torchsymbol(torch.feature_dropout, is_method=False)
def feature_dropout(input: Any, p: float, train: bool) -> Any:
    """Apply dropout to whole channels."""
    _check(p, RuntimeError)
    return _dropout(input, p, train, True, False)


def _samples_of(shape: tuple[int, ...]) -> Any:
    def samples(make: MakeTensor) -> Any:
        # Disable dropout, so that results can be compared.
        yield SampleInput(make(shape), 0.5, False)
        yield SampleInput(make(shape), 0.0, True)
        yield SampleInput(make(shape), 1.0, True)

    return samples


def _errors_of(shape: tuple[int, ...], kind: type[Exception]) -> Any:
    def errors(make: MakeTensor) -> Any:
        yield SampleInput(make(shape), 1.5, True), kind, "dropout probability has to be between 0 and 1, but got 1.5"

    return errors


for _sym, _shape, _kind in (
    (dropout, (3, 4), ValueError),
    (dropout1d, (2, 3, 4), ValueError),
    (dropout2d, (2, 3, 4, 4), ValueError),
    (dropout3d, (2, 3, 2, 2, 2), ValueError),
    (alpha_dropout, (3, 4), ValueError),
    (feature_alpha_dropout, (2, 3, 4), ValueError),
    (dropout_kernel, (3, 4), RuntimeError),
    (feature_dropout, (2, 3, 4), RuntimeError),
):
    _sym.samples(_samples_of(_shape))
    _sym.errors(_errors_of(_shape, _kind))
