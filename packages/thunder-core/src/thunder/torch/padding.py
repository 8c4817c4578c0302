# SPDX-License-Identifier: Apache-2.0
"""`torch.nn.functional.pad` in all its modes.

`pad` is `(before, after)` for the last dimension, then for the second to last one, and so on. Negative numbers remove
elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes, prims
from thunder.core.errors import check
from thunder.core.proxies import TensorProxy, number_type, number_value
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.core.symint.numbers import converted, index, is_unbacked
from thunder.torch.base import for_dims, torchsymbol
from thunder.torch.shape import own_memory

_SHAPE = (OpTags.SHAPE_OP,)
_TAGS = (*_SHAPE, OpTags.LAYOUT_OF_KERNEL)


def _widths(a: TensorProxy, pad: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Return `(dimension, before, after)` for each padded dimension, from the last one to the first one."""
    pad = [index(number_value(n)) for n in pad]
    check(len(pad) % 2 == 0, lambda: "Padding length must be divisible by 2")
    check(
        len(pad) <= 2 * a.ndim,
        lambda: (
            "Padding length should be less than or equal to two times the input dimension but got padding length "
            f"{len(pad)} and input of dimension {a.ndim}"
        ),
    )
    return [(a.ndim - 1 - i, pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)]


def _value(value: Any, dtype: dtypes.dtype) -> Any:
    """Return `value` as a number of `dtype`."""
    value = 0 if value is None else value
    check(
        dtypes.category(number_type(value)) < dtypes.COMPLEX or dtype.category == dtypes.COMPLEX,
        lambda: f"value cannot be converted to type {dtype} without overflow",
    )
    return converted(number_value(value), dtypes.dtype_to_numbertype(dtype))


def _constant(a: TensorProxy, pad: Sequence[Any], value: Any) -> TensorProxy:
    config = [(0, 0, 0)] * a.ndim
    for d, before, after in _widths(a, pad):
        new = a.shape[d] + before + after
        for n in (before, after):
            if is_unbacked(n):
                clang.base.demand(
                    n,
                    ">=",
                    0,
                    lambda: f"the padding {n} of dimension {d} is data-dependent and negative. Pass a constant instead",
                )
        clang.base.demand(
            new,
            ">=",
            0,
            lambda: (
                f"The input size {a.shape[d]}, plus negative padding {before} and {after} resulted in a negative "
                f"output size, which is invalid. Check dimension {d} of your input."
            ),
        )
        config[d] = (before, after, 0)
    filler = _value(value, a.dtype)
    if all(type(n) is int and n == 0 for widths in config for n in widths):
        return prims.clone(a)  # as torch does. Executors fuse copies with more operations than padding
    return prims.pad(a, filler, tuple(config))


# -- what is in the margin, in the other modes ------------------------------------------------------------------------
def _part(a: TensorProxy, d: int, start: int, stop: int) -> TensorProxy:
    return clang.slice_in_dim(a, start, stop, dim=d)


def _spread(edge: TensorProxy, d: int, n: int) -> TensorProxy:
    return clang.base.expand(edge, (*edge.shape[:d], n, *edge.shape[d + 1 :]))


def _reflected(a: TensorProxy, d: int, before: int, after: int) -> list[TensorProxy]:
    n = a.shape[d]
    check(
        before < n and after < n,
        lambda: (
            "Padding size should be less than the corresponding input dimension, but got: padding "
            f"({before}, {after}) at dimension {d} of input {list(a.shape)}"
        ),
    )
    left = [clang.flip(_part(a, d, 1, before + 1), d)] if before > 0 else []
    right = [clang.flip(_part(a, d, n - 1 - after, n - 1), d)] if after > 0 else []
    return [*left, a, *right]


def _replicated(a: TensorProxy, d: int, before: int, after: int) -> list[TensorProxy]:
    n = a.shape[d]
    left = [_spread(_part(a, d, 0, 1), d, before)] if before > 0 else []
    right = [_spread(_part(a, d, n - 1, n), d, after)] if after > 0 else []
    return [*left, a, *right]


def _wrapped(a: TensorProxy, d: int, before: int, after: int) -> list[TensorProxy]:
    n = a.shape[d]
    check(max(before, after) <= n, lambda: "Padding value causes wrapping around more than once.")
    # Unlike other modes, this one first removes elements and then repeats the remaining ones.
    a = _part(a, d, max(-before, 0), n - max(-after, 0))
    n = a.shape[d]
    check(n > 0, lambda: "Negative padding value is resulting in an empty dimension.")
    out = [a]
    while before > 0:
        out.insert(0, _part(a, d, max(n - before, 0), n))
        before -= n
    while after > 0:
        out.append(_part(a, d, 0, min(after, n)))
        after -= n
    return out


_MODES = {"reflect": _reflected, "replicate": _replicated, "circular": _wrapped}


def _by_mode(a: TensorProxy, pad: Sequence[Any], mode: str) -> TensorProxy:
    widths = _widths(a, pad)
    if not (1 <= len(widths) <= 3 and a.ndim in (len(widths) + 1, len(widths) + 2)):
        raise NotImplementedError(
            f"Padding size {len(pad)} is not supported for {a.ndim}D input tensor.\n"
            "Supported combinations for non-constant padding:\n"
            "  - 2D or 3D input: padding size = 2 (pads last dimension)\n"
            "  - 3D or 4D input: padding size = 4 (pads last 2 dimensions)\n"
            "  - 4D or 5D input: padding size = 6 (pads last 3 dimensions)"
        )
    batch = a.ndim - len(widths) - 1
    check(
        all(a.shape[batch:]),
        lambda: (
            f"Expected a tensor with possibly 0 batch size and other non-zero dimensions for input, but got: {a.shape}"
        ),
    )
    for d, before, after in widths:
        if before == 0 and after == 0:
            continue
        pieces = _MODES[mode](a, d, before, after)
        a = prims.cat(pieces, d) if len(pieces) > 1 else pieces[0]
        if mode != "circular":
            size = a.shape[d] + min(before, 0) + min(after, 0)
            if size <= 0:
                raise RuntimeError(f"{mode} padding removes all elements of dimension {d} of the input")
            a = _part(a, d, max(-before, 0), a.shape[d] - max(-after, 0))
    return a


# Functions of their own because autocast casts their input, and not that of the other modes.
@for_dims(1, 2, 3, name="reflection_pad{}d", torch="torch._C._nn.reflection_pad{}d", tags=_TAGS)
def _reflection_pad(spatial: int, input: TensorProxy, padding: Sequence[int]) -> TensorProxy:
    """Pad the dimensions {sizes} with their reflected elements."""
    return own_memory(_by_mode(input, padding, "reflect"), input)


@for_dims(
    1,
    2,
    3,
    name="replication_pad{}d",
    torch="torch._C._nn.replication_pad{}d",
    tags=_TAGS,
    autocast={"cpu": "float32"},
)
def _replication_pad(spatial: int, input: TensorProxy, padding: Sequence[int]) -> TensorProxy:
    """Pad the dimensions {sizes} with their first and last elements."""
    return own_memory(_by_mode(input, padding, "replicate"), input)


reflection_pad1d, reflection_pad2d, reflection_pad3d = _reflection_pad
reflection_pad1d.declare(autocast={"cpu": "float32"})
reflection_pad2d.declare(autocast={"cpu": "float32"})
replication_pad1d, replication_pad2d, replication_pad3d = _replication_pad

_KERNELS: dict[str, Any] = {"reflect": tuple(_reflection_pad), "replicate": tuple(_replication_pad)}


@_reflection_pad.samples
@_replication_pad.samples
def _(spatial: int, make: MakeTensor) -> Any:
    size = (5, 4, 3)[:spatial]
    yield SampleInput(make((2, *size)), (1, 2) * spatial)
    yield SampleInput(make((2, 3, *size)), (1, -1) * spatial)


@torchsymbol(torch.nn.functional.pad, is_method=False, tags=_TAGS)
def pad(input: TensorProxy, pad: Sequence[int], mode: str = "constant", value: Any = None) -> TensorProxy:
    """Pad `input` with a constant, or with its own elements: reflected, replicated or from the opposite end."""
    if mode == "constant":
        return own_memory(_constant(input, pad, value), input)
    check(
        value is None or value == 0,
        lambda: f'Padding mode "{mode}" doesn\'t take in value argument',
    )
    check(mode in _MODES, lambda: f"Unrecognised padding mode {mode}", NotImplementedError)
    kernels = _KERNELS.get(mode)
    if kernels is not None and len(pad) in (2, 4, 6):
        return kernels[len(pad) // 2 - 1](input, pad)  # type: ignore[no-any-return]
    return own_memory(_by_mode(input, pad, mode), input)


@torchsymbol(torch.constant_pad_nd, is_method=False, tags=_SHAPE)
def constant_pad_nd(input: TensorProxy, pad: Sequence[int], value: Any = 0) -> TensorProxy:
    """Pad `input` with a constant."""
    return own_memory(_constant(input, pad, value), input)


def _constant_samples(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (1, 2))
    yield SampleInput(make((2, 3)), (1, 0, 0, 2))
    yield SampleInput(make((2, 3, 4)), (-1, 2, 0, 0, 3, -1))
    yield SampleInput(make((0, 2)), (1, 1))
    yield SampleInput(make((2, 3)), (0, 0))
    yield SampleInput(make((3, 2)).mT, (2, 0))


@constant_pad_nd.samples
def _(make: MakeTensor) -> Any:
    yield from _constant_samples(make)
    yield SampleInput(make((2, 3)), (1, 1), 1)


@pad.samples
def _(make: MakeTensor) -> Any:
    yield from _constant_samples(make)
    yield SampleInput(make((2, 3)), (1, 1), "constant", 1)
    for mode in _MODES:
        yield SampleInput(make((2, 5)), (1, 2), mode)
        yield SampleInput(make((2, 3, 5)), (4, 0), mode)
        yield SampleInput(make((3, 4, 5)), (-1, 2, 0, 1), mode)
        yield SampleInput(make((1, 2, 3, 4)), (1, 1, 2, 1), mode)
        yield SampleInput(make((1, 2, 2, 3, 3)), (1, 1, 0, 2, 1, 0), mode)
        yield SampleInput(make((0, 2, 3)), (1, 1), mode)
        yield SampleInput(make((2, 5)), (0, 0), mode)
        yield SampleInput(make((5, 2)).mT, (-1, 3), mode)


@pad.errors
def _(make: MakeTensor) -> Any:
    a = make((2, 3))
    yield SampleInput(a, (1,)), RuntimeError, "Padding length must be divisible by 2"
    yield SampleInput(a, (1,) * 6), RuntimeError, "Padding length should be less than or equal to two times"
    yield SampleInput(a, (3, 0), "reflect"), RuntimeError, "Padding size should be less than the corresponding input"
    yield SampleInput(a, (4, 0), "circular"), RuntimeError, "Padding value causes wrapping around more than once"
    yield SampleInput(a, (1, 1), "mirror"), NotImplementedError, "Unrecognised padding mode mirror"
    yield SampleInput(a, (1, 1, 1, 1), "reflect"), NotImplementedError, "Padding size 4 is not supported for 2D input"
    yield SampleInput(a, (-2, -2)), RuntimeError, "negative"


@constant_pad_nd.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (1,)), RuntimeError, "[Ll]ength"
