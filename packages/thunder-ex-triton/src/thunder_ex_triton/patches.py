# SPDX-License-Identifier: Apache-2.0
"""Convolutions of patches as products: those whose windows cover an image without overlap, as in vision transformers.

Such a convolution of an image with a few channels is a linear layer of its patches. cuDNN pads the channels to a
multiple of eight for its fast kernels, which then mostly multiply zeros. The result is channels-last.
"""

from __future__ import annotations

import math

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy

__all__ = ["convolve", "is_of_patches", "weight_gradient"]

_FEW = 8  # cuDNN does not pad this many channels
_VECTOR = 8  # elements of 16 bytes, at whose multiples the rows begin that cuBLAS' fast kernels read


def is_of_patches(convolution: BoundSymbol) -> bool:
    """Check whether a 2-D convolution in half precision, or the gradient of its weight, is a product of patches."""
    if convolution.sym is prims.convolution:
        _, weight, _, stride, padding, dilation, transposed, _, groups = convolution.args
    elif convolution.sym is prims.convolution_weight_grad:
        _, _, weight, stride, padding, dilation, transposed, _, groups = convolution.args
    else:
        return False
    filters, channels, *size = weight.shape
    if transposed or groups != 1 or any(padding) or any(d != 1 for d in dilation) or tuple(stride) != tuple(size):
        return False
    taps = math.prod(size)
    return taps > 1 and channels < _FEW and filters % _VECTOR == 0 and channels * taps % _VECTOR == 0


def _patches(a: TensorProxy, weight: TensorProxy) -> TensorProxy:
    """Return the patches of images, each as a row."""
    n, c, height, width = a.shape
    p, q = weight.shape[2:]
    h, w = height // p, width // q
    if (height, width) != (h * p, w * q):
        a = a[:, :, : h * p, : w * q]
    a = ltorch.permute(ltorch.reshape(a, (n, c, h, p, w, q)), (0, 2, 4, 1, 3, 5))
    return ltorch.reshape(a, (n * h * w, c * p * q))


def convolve(a: TensorProxy, weight: TensorProxy, bias: TensorProxy | None) -> TensorProxy:
    """Return the convolution."""
    rows = ltorch.linear(_patches(a, weight), ltorch.reshape(weight, (weight.shape[0], -1)), bias)
    h, w = (n // k for n, k in zip(a.shape[2:], weight.shape[2:]))
    return ltorch.permute(ltorch.reshape(rows, (a.shape[0], h, w, weight.shape[0])), (0, 3, 1, 2))


def weight_gradient(g: TensorProxy, a: TensorProxy, weight: TensorProxy) -> TensorProxy:
    """Return the gradient of the weight."""
    rows = ltorch.reshape(ltorch.permute(g, (0, 2, 3, 1)), (-1, g.shape[1]))
    return ltorch.reshape(ltorch.matmul(ltorch.mT(rows), _patches(a, weight)), weight.shape)
