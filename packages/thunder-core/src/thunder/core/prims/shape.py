# SPDX-License-Identifier: Apache-2.0
"""Primitives that change a tensor's shape or strides, or select, pad and concatenate its elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.prims.metas import canonicalize_dim, canonicalize_dims, check_same_device, check_same_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.core.symint.numbers import greater, is_unbacked, same_number, same_shape

_SHAPE = (OpTags.SHAPE_OP,)
VIEW = (OpTags.SHAPE_OP, OpTags.VIEW_OP)


def product(shape: Sequence[int]) -> int:
    n = 1
    for s in shape:
        n *= s
    return n


# -- operations that change dimensions --------------------------------------------------------------------------------
@prim(tags=VIEW)
def broadcast_in_dim(a: TensorProxy, shape: Sequence[int], broadcast_dimensions: Sequence[int], /) -> TensorProxy:
    """Broadcast `a` to `shape`: its dimension i becomes `broadcast_dimensions[i]`, and the other dimensions are new."""
    check(
        len(broadcast_dimensions) == a.ndim,
        lambda: f"broadcast_in_dim: {a.ndim} dimensions, but broadcast_dimensions is {tuple(broadcast_dimensions)}",
    )
    before = -1
    for n, d in zip(a.shape, broadcast_dimensions):
        check(
            before < d < len(shape) and n in (1, shape[d]),
            lambda: (
                f"broadcast_in_dim: the shape {a.shape} cannot be broadcast to {tuple(shape)} "
                f"with its dimensions at {tuple(broadcast_dimensions)}"
            ),
        )
        before = d
    return TensorProxy(like=a, shape=tuple(shape))


@broadcast_in_dim.vjp
def _(g: Any, out: Any, a: Any, shape: Any, dims: Any) -> Any:
    # Sum over the dimensions that were broadcast. New dimensions of one element are only removed.
    def is_spread(d: int) -> bool:
        if d not in dims:
            return not same_number(shape[d], 1)
        size = a.shape[dims.index(d)]
        return not same_number(size, shape[d]) and bool(size == 1)

    spread = [d for d in range(len(shape)) if is_spread(d)]
    if spread:
        g = g.sum(tuple(spread))
    return g if same_shape(g.shape, a.shape) else reshape(g, a.shape)


@broadcast_in_dim.batch
def _(b: Any, a: Any, shape: Any, dims: Any) -> Any:
    return broadcast_in_dim(a, (b.size, *shape), (0, *[d + 1 for d in dims]))


@broadcast_in_dim.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 1)), [2, 3], (0, 1))
    yield SampleInput(make(()), [2, 2], ())
    yield SampleInput(make((3,)), [2, 3, 1], (1,))
    yield SampleInput(make((0, 1)), [0, 4], (0, 1))
    yield SampleInput(make((1, 3)).mT, [2, 3, 1], (1, 2))


@broadcast_in_dim.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), [2, 4], (0, 1)), RuntimeError, "cannot be broadcast"
    yield SampleInput(make((2, 3)), [2, 3], (0,)), RuntimeError, "broadcast_dimensions"


@prim(torch="torch.reshape", tags=VIEW, view="maybe", keeps_order=True)
def reshape(a: TensorProxy, shape: Sequence[int], /) -> TensorProxy:
    """Return the elements of `a` in the same order with another shape."""
    return _reshaped(a, tuple(shape))


def _reshaped(a: TensorProxy, shape: tuple[int, ...]) -> TensorProxy:
    check(
        is_unbacked(*shape, *a.shape) or (product(shape) == product(a.shape) and all(n >= 0 for n in shape)),
        lambda: f"shape '{list(shape)}' is invalid for input of size {product(a.shape)}",
    )
    return TensorProxy(like=a, shape=shape)


def _reshape_vjp(g: Any, out: Any, a: Any, shape: Any) -> Any:
    return reshape(g, a.shape)


@reshape.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 6)), (3, 8))
    yield SampleInput(make(()), (1, 1))
    yield SampleInput(make((0, 3)), (2, 0, 5))
    yield SampleInput(make((5, 3)).mT, (15,))
    yield SampleInput(make((1,)), ())


@reshape.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (4, 2)), RuntimeError, r"shape '\[4, 2\]' is invalid for input of size 6"


@prim(torch="torch.Tensor.view", tags=VIEW, keeps_order=True)
def view(a: TensorProxy, shape: Sequence[int], /) -> TensorProxy:
    """Return a reshaped view of `a`; running it raises an error if the strides of `a` do not allow a view."""
    return _reshaped(a, tuple(shape))


@view.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 6)), (3, 8))
    yield SampleInput(make(()), (1, 1))
    yield SampleInput(make((0, 3)), (2, 0, 5))


for _op in (reshape, view):
    _op.vjp(_reshape_vjp)
    _op.batch(lambda b, a, shape: reshape(a, (b.size, *shape)))


@prim(torch="torch.permute", tags=VIEW)
def transpose(a: TensorProxy, permutation: Sequence[int], /) -> TensorProxy:
    """Permute the dimensions of `a`: dimension i of the result is dimension `permutation[i]` of `a`."""
    check(
        sorted(permutation) == list(range(a.ndim)),
        lambda: f"transpose: {tuple(permutation)} is not a permutation of the {a.ndim} dimensions of {a.name}",
    )
    return TensorProxy(like=a, shape=tuple([a.shape[d] for d in permutation]))


def _inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(permutation)), key=permutation.__getitem__))


@transpose.vjp
def _(g: Any, out: Any, a: Any, permutation: Any) -> Any:
    return transpose(g, _inverse(permutation))


@transpose.batch
def _(b: Any, a: Any, permutation: Any) -> Any:
    return transpose(a, (0, *[d + 1 for d in permutation]))


@transpose.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (1, 0))
    yield SampleInput(make((2, 3, 4)), (2, 0, 1))
    yield SampleInput(make(()), ())
    yield SampleInput(make((0, 3, 2)).mT, (1, 2, 0))


@transpose.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (0, 0)), RuntimeError, "is not a permutation of the 2 dimensions"


@prim(torch="torch.squeeze", tags=VIEW, keeps_order=True)
def squeeze(a: TensorProxy, dims: Sequence[int], /) -> TensorProxy:
    """Remove the dimensions `dims` of `a`, which must have one element each."""
    for d in dims:
        if not (0 <= d < a.ndim and a.shape[d] == 1):
            raise RuntimeError(f"squeeze: dimension {d} of the shape {a.shape} does not have one element")
    return TensorProxy(like=a, shape=tuple([n for d, n in enumerate(a.shape) if d not in dims]))


squeeze.vjp(_reshape_vjp)


@squeeze.batch
def _(b: Any, a: Any, dims: Any) -> Any:
    return squeeze(a, tuple([d + 1 for d in dims]))


@squeeze.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 1, 3)), (1,))
    yield SampleInput(make((1, 1)), (0, 1))
    yield SampleInput(make((1, 0)), (0,))
    yield SampleInput(make((3, 1, 2)).mT, (2,))


@squeeze.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (0,)), RuntimeError, "does not have one element"


# -- operations that select, reorder or add elements ------------------------------------------------------------------
@prim(torch="torch.flip", tags=_SHAPE, cost="cheap")
def flip(a: TensorProxy, dims: Sequence[int], /) -> TensorProxy:
    """Reverse the order of the elements of `a` along `dims`."""
    canonicalize_dims(a.ndim, dims)
    return TensorProxy(like=a)


@flip.vjp
def _(g: Any, out: Any, a: Any, dims: Any) -> Any:
    return flip(g, dims)


@flip.batch
def _(b: Any, a: Any, dims: Any) -> Any:
    return flip(a, tuple([b.dim(a, d) for d in dims]))


@flip.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), (0,))
    yield SampleInput(make((2, 3, 4)), (0, 2))
    yield SampleInput(make((5, 3)).mT, (1,))
    yield SampleInput(make((0, 3)), (0, 1))


@prim(tags=VIEW)
def slice(
    a: TensorProxy, start_indices: Sequence[int], end_indices: Sequence[int], strides: Sequence[int] | None = None, /
) -> TensorProxy:
    """Return the elements of `a` from `start_indices` (inclusive) to `end_indices` (exclusive), in steps of `strides`.

    The bounds must be within the shape of `a`.
    """
    shape = sliced_shape("slice", a, start_indices, end_indices, strides)
    return TensorProxy(like=a, shape=shape)


def sliced_shape(
    name: str, a: TensorProxy, starts: Sequence[int], ends: Sequence[int], strides: Sequence[int] | None
) -> tuple[int, ...]:
    """Check the bounds of a slice of `a`, and return the shape of the slice."""
    steps = strides if strides is not None else (1,) * a.ndim
    if not len(starts) == len(ends) == len(steps) == a.ndim:
        raise RuntimeError(f"{name}: pass a start, end and stride for each of the {a.ndim} dimensions")
    sizes = []
    for n, start, end, step in zip(a.shape, starts, ends, steps):
        if not is_unbacked(n, start, end) and not (0 <= start <= end <= n and step > 0):
            raise RuntimeError(
                f"{name}: from {tuple(starts)} to {tuple(ends)} in steps of {tuple(steps)} is outside the shape "
                f"{a.shape}"
            )
        sizes.append(end - start if step == 1 else -(-(end - start) // step))
    return tuple(sizes)


@slice.vjp
def _(g: Any, out: Any, a: Any, starts: Any, ends: Any, strides: Any = None) -> Any:
    # The gradient is zero before, between and after the selected elements.
    config = []
    for d, n in enumerate(a.shape):
        step = strides[d] if strides is not None else 1
        reach = g.shape[d] if step == 1 else max(0, (g.shape[d] - 1) * step + 1)
        config.append((starts[d], n - starts[d] - reach, step - 1))
    return pad(g, 0, tuple(config))


@slice.batch
def _(b: Any, a: Any, starts: Any, ends: Any, strides: Any = None) -> Any:
    return slice(a, (0, *starts), (b.size, *ends), None if strides is None else (1, *strides))


@slice.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 6)), (1, 2), (3, 6))
    yield SampleInput(make((7,)), (1,), (7,), (3,))
    yield SampleInput(make((5, 4)), (2, 0), (2, 4))
    yield SampleInput(make(()), (), ())
    yield SampleInput(make((6, 5)).mT, (0, 1), (5, 6), (2, 2))


@slice.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4,)), (1,), (5,)), RuntimeError, "is outside the shape"
    yield SampleInput(make((4,)), (1, 0), (3, 2)), RuntimeError, "for each of the 1 dimensions"


@prim(tags=_SHAPE, cost="cheap")
def pad(a: TensorProxy, padding_value: Any, padding_config: Sequence[tuple[int, int, int]], /) -> TensorProxy:
    """Pad `a` with `padding_value` before, after and between its elements.

    `padding_config` contains `(low, high, between)` for each dimension. A negative low or high removes elements.
    """
    check(
        len(padding_config) == a.ndim,
        lambda: f"pad: got {len(padding_config)} triples for the {a.ndim} dimensions of {a.name}",
    )
    between = [0 if same_number(mid, 0) else greater(n - 1, 0) * mid for n, (_, _, mid) in zip(a.shape, padding_config)]
    shape = tuple([low + n + more + high for n, more, (low, high, _) in zip(a.shape, between, padding_config)])
    check(
        all(n >= 0 for n in shape) and all(between >= 0 for _, _, between in padding_config),
        lambda: f"pad: {tuple(padding_config)} removes more elements than the shape {a.shape} has",
    )
    return TensorProxy(like=a, shape=shape)


@pad.vjp
def _(g: Any, out: Any, a: Any, value: Any, config: Any) -> Any:
    # Removed elements get zeros. Of the other elements of `g`, every (between + 1)-th is selected.
    cropped = [(greater(-low, 0), greater(-high, 0), 0) for low, high, _ in config]
    if not all(same_number(low, 0) and same_number(high, 0) for low, high, _ in cropped):
        g = pad(g, 0, tuple(cropped))
    starts = tuple([greater(low, 0) for low, _, _ in config])
    ends = tuple([n - greater(high, 0) for n, (_, high, _) in zip(g.shape, config)])
    return slice(g, starts, ends, tuple([between + 1 for _, _, between in config]))


@pad.batch
def _(b: Any, a: Any, value: Any, config: Any) -> Any:
    return pad(a, value, ((0, 0, 0), *config))


@pad.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 0, ((1, 2, 0), (0, 1, 0)))
    yield SampleInput(make((3,)), 1, ((0, 2, 2),))
    yield SampleInput(make((4, 5)), 0, ((-1, 0, 0), (2, -2, 1)))
    yield SampleInput(make((0, 2)), 1, ((1, 1, 3), (0, 0, 0)))
    yield SampleInput(make(()), 0, ())


@pad.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,)), 0, ((-2, -2, 0),)), RuntimeError, "removes more elements"
    yield SampleInput(make((3,)), 0, ()), RuntimeError, "0 triples for the 1 dimensions"


@prim(torch="torch.cat", tags=_SHAPE, cost="cheap")
def cat(tensors: Sequence[TensorProxy], dim: int, /) -> TensorProxy:
    """Concatenate `tensors` along `dim`."""
    check(len(tensors) > 0, lambda: "torch.cat(): expected a non-empty list of Tensors", ValueError)
    first = tensors[0]
    check(first.ndim > 0, lambda: "zero-dimensional tensor (at position 0) cannot be concatenated")
    dim = canonicalize_dim(first.ndim, dim)
    total = 0
    for i, t in enumerate(tensors):
        if t.ndim != first.ndim:
            raise RuntimeError(f"Tensors must have same number of dimensions: got {first.ndim} and {t.ndim}")
        for d, (n, expected) in enumerate(zip(t.shape, first.shape)):
            if d != dim and n != expected:
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {dim}. Expected size {expected} but got size {n} "
                    f"for tensor number {i} in the list."
                )
        total += t.shape[dim]
    check_same_dtype("cat", *tensors)
    device = check_same_device("cat", *tensors)
    return TensorProxy(like=first, device=device, shape=(*first.shape[:dim], total, *first.shape[dim + 1 :]))


@cat.vjp
def _(g: Any, out: Any, tensors: Any, dim: Any) -> Any:
    dim = canonicalize_dim(g.ndim, dim)
    grads, start = [], 0
    for t in tensors:
        end = start + t.shape[dim]
        starts, ends = [0] * g.ndim, list(g.shape)
        starts[dim], ends[dim] = start, end
        grads.append(slice(g, tuple(starts), tuple(ends)))
        start = end
    return (tuple(grads), None)


@cat.batch
def _(b: Any, tensors: Any, dim: Any) -> Any:
    tensors = [b.expand(a) for a in tensors]
    return cat(tensors, b.dim(max(tensors, key=lambda a: a.ndim), dim))


@cat.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput([make((2, 3)), make((4, 3))], 0)
    yield SampleInput((make((2, 3)), make((2, 0)), make((2, 1))), 1)
    yield SampleInput([make((3,))], 0)
    yield SampleInput([make((2, 3)).mT, make((3, 2))], -1)


@cat.errors
def _(make: MakeTensor) -> Any:
    longer = [make((2, 3)), make((2, 4))]
    yield SampleInput(longer, 0), RuntimeError, "Sizes of tensors must match except in dimension 0"
    yield SampleInput([make((2, 3)), make((2,))], 0), RuntimeError, "same number of dimensions"
    yield SampleInput([make((2, 3)), make((2, 3))], 2), IndexError, "Dimension out of range"
