# SPDX-License-Identifier: Apache-2.0
"""Convolution with any number of spatial dimensions, and its two gradients, which are separate primitives.

Each of the three primitives is linear in two tensors, so its gradients are calls of the other two primitives. The shape
of `a` is `(batch, channels, *spatial)`. stride, padding, dilation and output_padding contain a number for each spatial
dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.prims.metas import check_same_device
from thunder.core.prims.shape import reshape, transpose
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags

_TAGS = (OpTags.MATMUL_OP, OpTags.LAYOUT_OF_KERNEL)


def _check_numbers(
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    spatial: int,
) -> None:
    named = {"stride": stride, "padding": padding, "dilation": dilation, "output_padding": output_padding}
    for name, values in named.items():
        check(
            len(values) == spatial,
            lambda: (
                f"expected {name} to be a single integer value or a list of {spatial} values to match the convolution "
                f"dimensions, but got {name}={list(values)}"
            ),
        )
    for name in ("padding", "output_padding"):
        check(min(named[name]) >= 0, lambda: f"negative {name} is not supported")
    for name in ("stride", "dilation"):
        check(min(named[name]) > 0, lambda: f"non-positive {name} is not supported")
    check(groups > 0, lambda: "non-positive groups is not supported")


def _check_channels(a: TensorProxy, weight: TensorProxy, bias: Any, transposed: bool, groups: int) -> None:
    shape, given = list(weight.shape), list(a.shape)
    which = f"Given transposed={int(transposed)}" if transposed else f"Given groups={groups}"
    # The weight has the shape (in, out / groups, …) if transposed, otherwise (out, in / groups, …).
    expected = shape[0] if transposed else shape[1] * groups
    check(
        shape[0] >= groups,
        lambda: (
            f"Given groups={groups}, expected weight to be at least {groups} at dimension 0, but got weight of size "
            f"{shape} "
            "instead"
        ),
    )
    check(
        shape[0] % groups == 0,
        lambda: (
            f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, but got weight of "
            "size "
            f"{shape} instead"
        ),
    )
    check(
        given[1] == expected,
        lambda: (
            f"{which}, weight of size {shape}, expected input{given} to have {expected} channels, but got {given[1]} "
            "channels instead"
        ),
    )
    out = shape[1] * groups if transposed else shape[0]
    check(
        bias is None or bias.shape == (out,),
        lambda: (
            f"Given {'transposed=1, ' if transposed else ''}weight of size {shape}, expected bias to be 1-dimensional "
            "with "
            f"{out} elements, but got bias of size {list(bias.shape)} instead"
        ),
    )


def _ordinary_size(a: Any, weight: Any, stride: Any, padding: Any, dilation: Any) -> list[int]:
    padded = [n + 2 * p for n, p in zip(a.shape[2:], padding)]
    kernel = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], dilation)]
    check(
        all(k <= n for k, n in zip(kernel, padded)),
        lambda: (
            f"Calculated padded input size per channel: ({' x '.join(map(str, padded))}). Kernel size: "
            f"({' x '.join(map(str, kernel))}). Kernel size can't be greater than actual input size"
        ),
    )
    return [(n - k) // s + 1 for n, k, s in zip(padded, kernel, stride)]


def _transposed_size(a: Any, weight: Any, stride: Any, padding: Any, dilation: Any, output_padding: Any) -> list[int]:
    for extra, s, d in zip(output_padding, stride, dilation):
        check(
            extra < s or extra < d,
            lambda: (
                f"output padding must be smaller than either stride or dilation, but got output_padding: "
                f"{tuple(output_padding)} stride: {tuple(stride)} dilation: {tuple(dilation)}"
            ),
        )
    size = [
        (n - 1) * s - 2 * p + d * (k - 1) + extra + 1
        for n, k, s, p, d, extra in zip(a.shape[2:], weight.shape[2:], stride, padding, dilation, output_padding)
    ]
    check(
        min(size) > 0,
        lambda: (
            f"Given input size per channel: {list(a.shape[2:])}. Calculated output size per channel: {size}. Output "
            "size is "
            "too small"
        ),
    )
    return size


@prim(torch="torch.convolution", tags=_TAGS)
def convolution(
    a: TensorProxy,
    weight: TensorProxy,
    bias: TensorProxy | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    /,
) -> TensorProxy:
    """Return the convolution of `a` with `weight`, plus `bias` for each output channel.

    `transposed` selects the transposed convolution.
    """
    spatial = weight.ndim - 2
    if dtypes.is_complex_dtype(a.dtype):
        raise NotImplementedError(f'"convolution" not implemented for {a.dtype}: convolve real and imaginary parts')
    check(spatial > 0, lambda: "weight should have at least three dimensions")
    _check_numbers(stride, padding, dilation, output_padding, groups, spatial)
    check(
        a.ndim == weight.ndim,
        lambda: (
            f"Expected {weight.ndim}-dimensional input for {weight.ndim}-dimensional weight {list(weight.shape)}, but "
            "got "
            f"{a.ndim}-dimensional input of size {list(a.shape)} instead"
        ),
    )
    _check_channels(a, weight, bias, transposed, groups)
    for name, x in {"weight": weight, **({} if bias is None else {"bias": bias})}.items():
        check(x.dtype is a.dtype, lambda: f"Input type ({a.dtype}) and {name} type ({x.dtype}) should be the same")
    check_same_device("convolution", *(x for x in (a, weight, bias) if x is not None))
    if transposed:
        size = _transposed_size(a, weight, stride, padding, dilation, output_padding)
        channels = weight.shape[1] * groups
    else:
        size = _ordinary_size(a, weight, stride, padding, dilation)
        channels = weight.shape[0]
    return TensorProxy(like=a, shape=(a.shape[0], channels, *size))


@prim(tags=_TAGS)
def convolution_input_grad(g: TensorProxy, a: TensorProxy, weight: TensorProxy, /, *how: Any) -> TensorProxy:
    """Return the gradient of a convolution's input; only the shape and layout of `a` are read."""
    return TensorProxy(like=a)


@prim(tags=_TAGS)
def convolution_weight_grad(g: TensorProxy, a: TensorProxy, weight: TensorProxy, /, *how: Any) -> TensorProxy:
    """Return the gradient of a convolution's weight; only the shape and layout of `weight` are read."""
    return TensorProxy(like=weight)


@convolution.vjp
def _(g: Any, out: Any, a: Any, weight: Any, bias: Any, *how: Any) -> Any:
    of_bias = None if bias is None else g.sum((0, *range(2, g.ndim)))
    return convolution_input_grad(g, a, weight, *how), convolution_weight_grad(g, a, weight, *how), of_bias


@convolution_input_grad.vjp
def _(v: Any, out: Any, g: Any, a: Any, weight: Any, *how: Any) -> Any:
    return convolution(v, weight, None, *how), None, convolution_weight_grad(g, v, weight, *how)


@convolution_weight_grad.vjp
def _(v: Any, out: Any, g: Any, a: Any, weight: Any, *how: Any) -> Any:
    return convolution(a, v, None, *how), convolution_input_grad(g, a, v, *how), None


# -- batching: if all examples share the weight, they become rows of the input; otherwise, groups of channels ----------
def _as_groups(b: Any, x: Any) -> Any:
    """Merge the examples into the channels: (examples, batch, channels, …) becomes (batch, examples * channels, …)."""
    x = b.expand(x)
    x = transpose(x, (1, 0, *range(2, x.ndim)))
    return reshape(x, (x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:]))


def _from_groups(b: Any, x: Any) -> Any:
    x = reshape(x, (x.shape[0], b.size, x.shape[1] // b.size, *x.shape[2:]))
    return transpose(x, (1, 0, *range(2, x.ndim)))


def _grouped(b: Any, how: Any) -> Any:
    return (*how[:-1], how[-1] * b.size)


@convolution.batch
def _(b: Any, a: Any, weight: Any, bias: Any, *how: Any) -> Any:
    if weight not in b and bias not in b:
        return b.split(convolution(b.merge(a), weight, bias, *how), a.shape[1])
    if weight not in b:
        out = convolution(b.merge(a) if a in b else a, weight, None, *how)
        out = b.split(out, a.shape[1]) if a in b else out
        return out + reshape(bias, (b.size, 1, bias.shape[1], *[1] * (weight.ndim - 2)))
    bias = None if bias is None else b.merge(bias)
    return _from_groups(b, convolution(_as_groups(b, a), b.merge(weight), bias, *_grouped(b, how)))


@convolution_input_grad.batch
def _(b: Any, g: Any, a: Any, weight: Any, *how: Any) -> Any:
    if weight not in b:
        return b.split(convolution_input_grad(b.merge(g), b.merge(a), weight, *how), b.shape(a)[0])
    found = convolution_input_grad(_as_groups(b, g), _as_groups(b, a), b.merge(weight), *_grouped(b, how))
    return _from_groups(b, found)


@convolution_weight_grad.batch
def _(b: Any, g: Any, a: Any, weight: Any, *how: Any) -> Any:
    found = convolution_weight_grad(_as_groups(b, g), _as_groups(b, a), b.merge(weight), *_grouped(b, how))
    return b.split(found, b.shape(weight)[0])


# (shape of a, shape of weight, has a bias, stride, padding, dilation, transposed, output_padding, groups)
_CASES: tuple[Any, ...] = (
    ((2, 3, 6, 5), (4, 3, 3, 2), True, (1, 1), (0, 0), (1, 1), False, (0, 0), 1),
    ((2, 3, 6, 5), (4, 3, 3, 2), False, (2, 1), (1, 0), (1, 2), False, (0, 0), 1),
    ((2, 4, 7), (6, 2, 3), True, (2,), (1,), (1,), False, (0,), 2),
    ((1, 2, 4, 4, 4), (2, 2, 2, 2, 2), True, (1, 1, 1), (0, 0, 0), (1, 1, 1), False, (0, 0, 0), 1),
    ((2, 3, 4, 4), (3, 5, 3, 3), True, (2, 2), (1, 1), (1, 1), True, (1, 0), 1),
    ((2, 4, 5), (4, 3, 3), False, (1,), (0,), (2,), True, (0,), 2),
    ((2, 3, 5, 5), (3, 1, 3, 3), True, (1, 1), (1, 1), (1, 1), False, (0, 0), 3),
)


@convolution.samples
def _(make: MakeTensor) -> Any:
    for a, w, has_bias, *how in _CASES:
        out = w[1] * how[-1] if how[3] else w[0]
        yield SampleInput(make(a), make(w), make((out,)) if has_bias else None, *how)
    yield SampleInput(make((0, 3, 4)), make((2, 3, 2)), None, (1,), (0,), (1,), False, (0,), 1)


@convolution.errors
def _(make: MakeTensor) -> Any:
    how = ((1,), (0,), (1,), False, (0,), 1)
    a, weight = make((2, 3, 4)), make((4, 3, 2))
    yield SampleInput(a, make((4, 2, 2)), None, *how), RuntimeError, "to have 2 channels, but got 3 channels"
    yield SampleInput(a, make((4, 3, 5)), None, *how), RuntimeError, "Kernel size can't be greater"
    yield SampleInput(a, weight, make((3,)), *how), RuntimeError, "expected bias to be 1-dimensional"
    yield SampleInput(a, weight, None, (0,), *how[1:]), RuntimeError, "non-positive stride is not supported"


def _gradient_samples(make: MakeTensor) -> Any:
    for a, w, _, stride, padding, dilation, transposed, extra, groups in _CASES:
        how = (stride, padding, dilation, transposed, extra, groups)
        kernel = [d * (k - 1) + 1 for k, d in zip(w[2:], dilation)]
        if transposed:
            size = [(n - 1) * s - 2 * p + k + e for n, s, p, k, e in zip(a[2:], stride, padding, kernel, extra)]
            shape = (a[0], w[1] * groups, *size)
        else:
            size = [(n + 2 * p - k) // s + 1 for n, s, p, k in zip(a[2:], stride, padding, kernel)]
            shape = (a[0], w[0], *size)
        yield SampleInput(make(shape), make(a), make(w), *how)


convolution_input_grad.samples(_gradient_samples)
convolution_weight_grad.samples(_gradient_samples)
