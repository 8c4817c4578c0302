# SPDX-License-Identifier: Apache-2.0
"""Samples for the conformance tests of this plugin's operators.

The reference of an operator is its decomposition, run by torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from thunder.extend import dtypes
from thunder.toolkit.conformance import OperatorSamples, TensorMaker, operator_opinfos, philox_words, seeded_opinfos
from thunder_ex_triton import (
    argmax,
    cached_attention,
    decode_attention,
    embedding,
    indexed_rows,
    max_pooling,
    pooling,
    resize,
    resized_images,
)
from thunder_ex_triton.convolutions import operators as convolutions
from thunder_ex_triton.convolutions.family import Family
from thunder_ex_triton.cross_entropy import linear, operators
from thunder_ex_triton.depthwise import rule as depthwise
from thunder_ex_triton.fusion.random import drawn_seeds
from thunder_ex_triton.grouped import rule as grouped
from thunder_ex_triton.matmul import batched, batched_kernels, matvec, padding, skinny
from thunder_ex_triton.matmul.skinny_kernels import TILES
from thunder_ex_triton.routing import counting_sort

__all__ = ["fusion_opinfos", "loss_opinfos"]

# (shape of the logits, shape of the labels): contiguous rows, one row, strided classes, few and many classes.
SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((4, 5), (4,)), ((7,), ()), ((2, 5, 3), (2, 3)), ((2, 4, 3, 2), (2, 3, 2)), ((3, 1030), (3,)), ((5, 2), (5,)),
)  # fmt: skip
HOW = (("mean", 0.0), ("sum", 0.1), ("none", 0.3))


def _logits(make: TensorMaker, shape: tuple[int, ...]) -> torch.Tensor:
    return make(shape, low=-3, high=3)


def _labels(make: TensorMaker, shape: tuple[int, ...], classes: int) -> torch.Tensor:
    """Return class indices."""
    made = torch.arange(max(torch.Size(shape).numel(), 1), device=make.device) * 3 % classes
    return made.reshape(shape)


def _numbers(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    """Yield logits, labels, weight, ignore_index, reduction, smoothing."""
    for shape, rows in SHAPES:
        classes = shape[0] if len(shape) == 1 else shape[1]
        for reduction, smoothing in HOW:
            labels = _labels(make, rows, classes)
            yield _logits(make, shape), labels, None, -100, reduction, smoothing
            weight = make.constant((classes,), low=0.1, high=2)
            yield _logits(make, shape), labels, weight, 1 if classes > 2 else -100, reduction, smoothing


def _probabilities(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    """Yield logits, probabilities, weight, reduction, smoothing."""
    for shape, _ in SHAPES:
        classes = shape[0] if len(shape) == 1 else shape[1]
        for reduction, smoothing in HOW:
            for weight in (None, make.constant((classes,), low=0.1, high=2)):
                yield _logits(make, shape), make.constant(shape, low=0, high=1), weight, reduction, smoothing


def _loss(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for logits, labels, weight, ignore_index, reduction, smoothing in _numbers(make):
        yield logits, labels, weight, None, ignore_index, None, reduction, smoothing
    yield _logits(make, (4, 5)), _labels(make, (4,), 5), None, None, -100, None, "mean", 0.0, "float32"
    for logits, target, weight, reduction, smoothing in _probabilities(make):
        yield logits, target, weight, None, -100, None, reduction, smoothing


def _shape_of_rows(x: torch.Tensor) -> tuple[int, ...]:
    return tuple(x.shape[:1] + x.shape[2:]) if x.ndim > 1 else ()


def _backward(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for logits, labels, weight, ignore_index, reduction, smoothing in _numbers(make):
        rows = _shape_of_rows(logits)
        lse, total = make.saved(rows, low=3, high=5), make.saved((), low=1, high=4)
        if reduction == "mean":  # the loss was divided by the sum of weights
            total = _sum_of_weights(labels, weight, ignore_index, total)
        g = _logits(make, rows if reduction == "none" else ())
        yield g, logits, labels, lse, total, weight, ignore_index, reduction, smoothing


def _sum_of_weights(labels: torch.Tensor, weight: Any, ignore_index: int, like: torch.Tensor) -> torch.Tensor:
    counts = labels != ignore_index
    chosen = counts.to(like.dtype) if weight is None else weight.to(like.dtype)[labels] * counts
    return chosen.sum()


def _soft_backward(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for logits, target, weight, reduction, smoothing in _probabilities(make):
        rows = _shape_of_rows(logits)
        lse, mass = make.saved(rows, low=3, high=5), make.saved(rows, low=0, high=2)
        g = _logits(make, rows if reduction == "none" else ())
        yield g, logits, target, lse, mass, weight, reduction, smoothing


def _linear(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    """Yield input, weight, bias, labels, class weights, ignore_index, reduction, smoothing, dtype of the loss."""
    tensor = partial(_logits, make)
    for rows, features, classes, reduction, smoothing in ((5, 8, 7, "mean", 0.0), (3, 4, 9, "sum", 0.1)):
        labels = _labels(make, (rows,), classes)
        yield (
            tensor((rows, features)),
            tensor((classes, features)),
            None,
            labels,
            None,
            -100,
            reduction,
            smoothing,
            None,
        )
        weight, bias = make.constant((classes,), low=0.1, high=2), tensor((classes,))
        yield (
            tensor((rows, features)),
            tensor((classes, features)),
            bias,
            labels,
            weight,
            0,
            reduction,
            smoothing,
            None,
        )


def _linear_forward(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for args in _linear(make):
        yield *args, (True, True, args[2] is not None)
        yield *args, (False, True, False)


def loss_opinfos() -> list[Any]:
    """Return an OpInfo for each operator of the cross-entropy executor."""
    table: dict[str, tuple[Any, Any]] = {
        "triton_crossentropy": (_loss, operators.Loss),
        "triton_crossentropy_forward": (_numbers, operators.LossForward),
        "triton_crossentropy_backward": (_backward, operators.LossBackward),
        "triton_crossentropy_soft_forward": (_probabilities, operators.SoftForward),
        "triton_crossentropy_soft_backward": (_soft_backward, operators.SoftBackward),
        "triton_linear_crossentropy": (_linear, linear.LinearLoss),
        "triton_linear_crossentropy_forward": (_linear_forward, linear.LinearLossForward),
    }
    entries = {name: OperatorSamples(samples, of.like) for name, (samples, of) in table.items()}
    return operator_opinfos("triton_crossentropy", entries, family="loss")


# -- random numbers ----------------------------------------------------------------------------------------------------
def _uniform(seed: torch.Tensor, shape: tuple[int, ...], device: Any) -> torch.Tensor:
    """Return the numbers that a kernel draws from a seed, in row-major order."""
    words = philox_words(seed, shape, lambda block, offset: (block, offset, offset >> 32, 0))
    signed = torch.where(words >= 1 << 31, words - (1 << 32), words)
    folded = torch.where(signed < 0, -signed - 1, signed).to(torch.float32) * 4.6566127342e-10
    return folded.to(seed.device)


# -- images ------------------------------------------------------------------------------------------------------------
# (shape, output size, mode, align_corners, scale factors)
RESIZED: tuple[tuple[Any, ...], ...] = (
    ((2, 3, 4, 5), (8, 15), "bilinear", False, (None, None)), ((2, 3, 4, 5), (3, 9), "bilinear", True, (None, None)),
    ((2, 3, 4, 5), (6, 7), "bilinear", False, (1.5, 1.4)), ((2, 3, 4, 5), (7, 3), "nearest", False, (None, None)),
    ((2, 3, 5), (8,), "linear", False, (None,)), ((2, 3, 5), (8,), "nearest-exact", False, (None,)),
    ((1, 2, 3, 1, 2), (4, 2, 5), "trilinear", False, (None, None, None)),
)  # fmt: skip


def _resized(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for shape, size, *how in RESIZED:
        yield make(shape), size, *how, False


def _resized_cat(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for mode, align in (("bilinear", False), ("bilinear", True), ("nearest", False)):
        yield [make((2, 3, 2, 3)), make((2, 4, 4, 6)), make((2, 2, 3, 2))], (4, 6), mode, align, [(None, None)] * 3


def _resized_backward(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for shape, size, *how in RESIZED:
        yield make((*shape[:2], *size)), shape, *how, False


# (shape, windows, strides, paddings, whether a last window may be incomplete, whether paddings count, divisor)
POOLED: tuple[tuple[Any, ...], ...] = (
    ((2, 3, 4, 6), (2, 3), (2, 3), (0, 0), False, True, None),
    ((1, 17, 5, 5), (3, 2), (1, 2), (1, 1), True, False, None),
    ((1, 1, 4, 4), (2, 2), (3, 1), (0, 0), False, True, 3),
)


def _pooled(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for shape, *how in POOLED:
        yield make(shape), *how


def _pooled_backward(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for shape, *how in POOLED:
        size = torch.nn.functional.avg_pool2d(torch.ones(shape, device="cpu"), *how).shape
        yield make(size), make(shape), *how


# (shape, kernel, stride, padding, dilation, ceil mode)
LARGEST: tuple[tuple[Any, ...], ...] = (
    ((2, 3, 6, 5), (2, 2), (2, 2), (0, 0), (1, 1), False), ((1, 5, 7, 6), (3, 3), (2, 2), (1, 1), (1, 1), False),
    ((1, 3, 5, 7), (3, 2), (1, 2), (1, 0), (1, 2), True),
)  # fmt: skip


def _largest(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for shape, *how in LARGEST:
        # All elements differ: of equal ones, only one has a gradient.
        values = (
            torch.randperm(math.prod(shape), device="cpu", generator=torch.Generator().manual_seed(0)).view(shape) / 16
        )
        yield make(shape).detach().copy_(values).requires_grad_(make(()).requires_grad), *how


def _largest_backward(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for a, *how in _largest(make):
        out, indices = torch.nn.functional.max_pool2d_with_indices(a.detach().float(), *how)
        yield make(out.shape), a, indices, *how


# (shape, filters, groups, kernel, stride, padding)
DEPTHWISE: tuple[tuple[Any, ...], ...] = (
    ((2, 3, 5, 6), 3, 3, (3, 3), (1, 1), (1, 1)), ((1, 5, 6, 5), 5, 5, (5, 3), (2, 2), (2, 0)),
    ((2, 3, 9), 3, 3, (4,), (1,), (3,)),
)  # fmt: skip
GROUPED: tuple[tuple[Any, ...], ...] = (
    ((2, 6, 5, 6), 4, 2, (3, 3), (1, 1), (1, 1)), ((1, 6, 6, 5), 9, 3, (5, 3), (2, 2), (2, 0)),
    ((2, 8, 9), 6, 2, (4,), (1,), (3,)),
)  # fmt: skip
NARROW: tuple[tuple[Any, ...], ...] = (
    ((2, 3, 5, 6), 4, 1, (3, 3), (1, 1), (1, 1)), ((1, 1, 6, 5), 9, 1, (5, 3), (2, 2), (2, 0)),
    ((2, 5, 17), 6, 1, (10,), (5,), (0,)),
)  # fmt: skip


def _convolved(family: Family, cases: Any, make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for shape, filters, groups, size, *how in cases:
        for bias in (None, make((filters,))):
            weight = make((filters, shape[1] // groups, *size))
            yield make(shape), weight, bias, *how, next(iter(family.tiles("forward", False)))


def _convolved_input(family: Family, cases: Any, make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for a, weight, bias, *how, tile in _convolved(family, cases, make):
        if bias is None:
            yield make(_size_of(a, weight, *how)), a, weight, *how, tile


def _convolved_weight(family: Family, cases: Any, make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for a, weight, bias, *how, _ in _convolved(family, cases, make):
        tile = next(iter(family.tiles("weight", False)))
        yield make(_size_of(a, weight, *how)), a, weight, *how, bias is not None, tile


def _size_of(a: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any) -> tuple[int, ...]:
    sizes = zip(a.shape[2:], weight.shape[2:], stride, padding)
    return (a.shape[0], weight.shape[0], *[(n + 2 * p - k) // s + 1 for n, k, s, p in sizes])


def _convolutions() -> dict[str, OperatorSamples]:
    """Return the samples of the operators of each family of convolutions."""
    return {
        f"triton_{family.name}_{name}": OperatorSamples(partial(samples, family, cases), reference, taken)
        for family, cases, taken in (
            (depthwise.DEPTHWISE, DEPTHWISE, depthwise.TAKEN),
            (grouped.GROUPED, GROUPED, grouped.TAKEN),
            (grouped.NARROW, NARROW, grouped.TAKEN),
        )
        for name, samples, reference in (
            ("convolution", _convolved, convolutions.like),
            ("input_grad", _convolved_input, convolutions.like_input),
            ("weight_grad", _convolved_weight, convolutions.like_weight),
        )
    }


# -- matrix multiplications of padded operands -------------------------------------------------------------------------
def _padded(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    """Yield operands, a bias or None, and the rows and columns to return: all of them, a part, and of batches."""
    bounds = {"low": -2, "high": 2}
    yield make((4, 8), **bounds), make((8, 8), **bounds), None, 3, 5, False
    yield make((4, 8), **bounds), make((8, 8), **bounds), make((8,), **bounds), 4, 7, False
    yield make((2, 3, 8), **bounds), make((2, 8, 16), **bounds), None, 3, 16, False


# -- sums of rows ------------------------------------------------------------------------------------------------------
def _indexed(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    """Yield values, their indices (also negative, repeated, of two dimensions, none), and the number of rows."""
    for index, tail, rows in (
        ([0, 2, -1, 2, 1], (3,), 4),
        ([[1, 1], [-3, 1]], (2, 3), 3),
        ([0, 3, 0], (), 5),
        ([], (2,), 3),
    ):
        where = torch.tensor(index, dtype=torch.int64, device=make.device)
        yield make((*where.shape, *tail)), where, rows


# -- routing -----------------------------------------------------------------------------------------------------------
def _routed(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    """Yield ids and the number of experts: experts without tokens, a single token, none, and several blocks."""
    for ids, experts in (([2, 0, 2, 5, 0], 7), ([1], 2), ([], 3), ([i * i % 11 for i in range(1100)], 64)):
        yield torch.tensor(ids, dtype=torch.int64, device=make.device), experts


# -- single rows and few queries ---------------------------------------------------------------------------------------
def _matvec(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for rows, columns, shape in ((5, 272, (1,)), (1, 256, (1, 1)), (64, 300, ())):
        yield make((rows, columns), low=-1, high=1), make((*shape, columns), low=-1, high=1)


def _skinny(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for shape, columns, inner in (((2,), 5, 70), ((16,), 40, 300), ((2, 3), 1, 64)):
        x, weight = make((*shape, inner), low=-1, high=1), make((columns, inner), low=-1, high=1)
        bias, residual = make((columns,)), make((*shape, columns))
        for terms in ((None, None, None), (None, bias, None), (None, bias, residual)):
            yield x, weight, *terms, next(iter(TILES))


def _batched(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    """Yield batches of one to three dimensions: transposed, broadcast, of odd sizes, of a step and of several."""
    bounds = {"low": -1, "high": 1}
    for a, b, tile in (
        ((3, 17, 33), (3, 33, 49), "32x32x32"),
        ((2, 3, 1, 70), (1, 3, 70, 5), "16x64x64"),
        ((2, 1, 2, 5, 16), (2, 2, 16, 64), "64x64x32"),
    ):
        yield make(a, **bounds), make(b, **bounds), tile
    yield make((4, 7, 9), **bounds).mT, make((4, 7, 3), **bounds), next(iter(batched_kernels.TILES))
    yield make((4, 7, 9), **bounds).mT, make((3, 7), **bounds).mT.expand(4, 7, 3), next(iter(batched_kernels.TILES))


# (batch, heads, heads of the cache, queries, keys, size, shape of the mask)
ATTENDED: tuple[tuple[Any, ...], ...] = (
    (1, 4, 1, 1, 70, 16, None), (2, 2, 2, 3, 64, 16, (3, 64)), (1, 8, 2, 1, 200, 32, (1, 1, 1, 200)),
)  # fmt: skip


def _attended(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for batch, heads, kv_heads, queries, keys, size, shape in ATTENDED:
        cache = (batch, kv_heads, keys, size)
        tensors = make((batch, heads, queries, size)), make(cache), make(cache)
        if shape is None:
            yield *tensors, None, 0.25
        else:
            mask = make.constant(shape, low=-2, high=2)
            yield *tensors, mask, 0.25
            yield *tensors, mask > 0, 0.25


def _cached(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    """Yield attention to caches: positions in the first and the last part of the keys, with and without rotation."""
    for batch, heads, kv_heads, keys, size, at in ((1, 4, 1, 70, 16, 3), (2, 2, 2, 130, 32, 129)):
        new, cache = (batch, kv_heads, 1, size), (batch, kv_heads, keys, size)
        tensors = make((batch, heads, 1, size)), make(new), make(new), make(cache), make(cache)
        position = torch.tensor([at], dtype=torch.int64, device=make.device)
        mask = torch.arange(keys, device=make.device)[None] <= at
        angles = [make.constant((1, size), low=-1, high=1) for _ in range(2)]
        yield *tensors, position, mask, None, None, 0.25, (False, False)
        yield *tensors, position, None, *angles, 0.25, (False, False)


def _long_rows(make: TensorMaker) -> Iterator[tuple[Any, ...]]:
    for shape in ((1, 5000), (3, 1024), (2, 1, 1300)):
        yield make(shape), -1


def fusion_opinfos() -> list[Any]:
    """Return an OpInfo for each operator of the fusion executor."""
    images = {
        "triton_avg_pool": OperatorSamples(_pooled, pooling.like, pooling.TAKEN),
        "triton_avg_pool_backward": OperatorSamples(_pooled_backward, pooling.like_backward, pooling.TAKEN),
        **_convolutions(),
        "triton_max_pool": OperatorSamples(_largest, max_pooling.like, max_pooling.TAKEN),
        "triton_max_pool_backward": OperatorSamples(_largest_backward, max_pooling.like_backward, max_pooling.TAKEN),
        "triton_resize": OperatorSamples(_resized, resize.like, resize.TAKEN),
        "triton_resized_cat": OperatorSamples(_resized_cat, resized_images.like, resized_images.TAKEN),
        "triton_resize_backward": OperatorSamples(_resized_backward, resize.like_backward, resize.TAKEN),
    }
    rows = {
        "triton_matvec": OperatorSamples(_matvec, matvec.like, matvec.DTYPES),
        "triton_padded_matmul": OperatorSamples(_padded, padding.PaddedMatmul.like, skinny.DTYPES),
        "triton_skinny_linear": OperatorSamples(_skinny, skinny.like, skinny.DTYPES),
        "triton_batched_matmul": OperatorSamples(_batched, batched.like, batched.DTYPES),
        "triton_decode_attention": OperatorSamples(_attended, decode_attention.like, decode_attention.TAKEN),
        "triton_cached_attention": OperatorSamples(_cached, cached_attention.like, decode_attention.TAKEN),
        "triton_argmax": OperatorSamples(_long_rows, argmax.like, argmax.TAKEN),
    }
    indexed = {
        "triton_add_rows": OperatorSamples(_indexed, indexed_rows.like, embedding.TAKEN),
        "triton_route": OperatorSamples(_routed, counting_sort.like, (dtypes.float32,)),
    }
    return [
        *seeded_opinfos("triton", _uniform, drawn_seeds, ((123456789012, -7), (-1, 1 << 40))),
        *operator_opinfos("triton", images, family="images"),
        *operator_opinfos("triton", indexed, family="indexing"),
        *operator_opinfos("triton", rows, family="matmul"),
    ]
