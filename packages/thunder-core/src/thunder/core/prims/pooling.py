# SPDX-License-Identifier: Apache-2.0
"""Pooling over windows, and its gradients, which are separate primitives.

The last `len(kernel_size)` dimensions of `a` (one to three) are pooled. The dimensions before them are the channels and
an optional batch. Window arguments contain a number for each pooled dimension. Indices are positions in the flattened
pooled dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import Symbol


def _check_input(a: TensorProxy, spatial: int) -> None:
    names = {1: "2D or 3D", 2: "3D or 4D", 3: "4D or 5D"}
    check(
        a.ndim in (spatial + 1, spatial + 2),
        lambda: f"non-empty {names[spatial]} (batch mode) tensor expected for input, but got: {list(a.shape)}",
    )
    checked = a.shape[-spatial - 1 :]
    check(
        all(checked),
        lambda: (
            f"Expected {names[spatial]} (batch mode) tensor with optional 0 dim batch size for input, but "
            f"got:{list(a.shape)}"
        ),
    )


def _out_length(n: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    span = n + 2 * padding - dilation * (kernel - 1) - 1
    out = (span + (stride - 1 if ceil_mode else 0)) // stride + 1
    # The last window must start in the input or in its left padding.
    return out - 1 if ceil_mode and (out - 1) * stride >= n + padding else out


def _pooled(
    a: TensorProxy, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], ceil_mode: bool,
) -> tuple[int, ...]:  # fmt: skip
    spatial = len(kernel_size)
    _check_input(a, spatial)
    check(min(kernel_size) > 0, lambda: f"kernel size should be greater than zero, but got kernel size: {kernel_size}")
    check(min(stride) > 0, lambda: "stride should not be zero")
    check(min(dilation) > 0, lambda: f"dilation should be greater than zero, but got dilation: {dilation}")
    check(min(padding) >= 0, lambda: f"pad must be non-negative, but got pad: {min(padding)}")
    for p, k, d in zip(padding, kernel_size, dilation):
        check(
            p <= ((k - 1) * d + 1) // 2,
            lambda: (
                f"pad should be at most half of effective kernel size, but got pad={p}, kernel_size={k} and "
                f"dilation={d}"
            ),
        )
    sizes = a.shape[-spatial:]
    out = tuple(
        _out_length(n, k, s, p, d, ceil_mode) for n, k, s, p, d in zip(sizes, kernel_size, stride, padding, dilation)
    )
    given, computed = (("x".join(map(str, (a.shape[-spatial - 1], *x)))) for x in (sizes, (max(n, 0) for n in out)))
    check(
        min(out) > 0,
        lambda: f"Given input size: ({given}). Calculated output size: ({computed}). Output size is too small",
    )
    return (*a.shape[:-spatial], *out)


def _flat(x: Any, spatial: int) -> Any:
    return x.reshape((*x.shape[:-spatial], math.prod(x.shape[-spatial:])))


def _over_batch(pool: Symbol, *, tensors: int) -> Any:
    """Return the batching rule of a pooling with `tensors` tensor arguments; it merges the examples into the batch."""

    def rule(b: Any, *args: Any) -> Any:
        given, how = args[:tensors], args[tensors:]
        if b.ndim(given[0]) == len(how[0]) + 1:
            return pool(*[b.expand(x) for x in given], *how)
        rows = b.shape(given[0])[0]
        found = pool(*[b.merge(x) for x in given], *how)
        return tuple([b.split(x, rows) for x in found]) if isinstance(found, tuple) else b.split(found, rows)

    return rule


# -- maximum -----------------------------------------------------------------------------------------------------------
@prim()
def max_pool(
    a: TensorProxy,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    /,
) -> tuple[TensorProxy, TensorProxy]:
    """Return the largest element of each window, and its index."""
    out = TensorProxy(like=a, shape=_pooled(a, kernel_size, stride, padding, dilation, ceil_mode))
    return out, TensorProxy(like=out, dtype=dtypes.int64)


@max_pool.vjp
def _(g: Any, out: Any, a: Any, *how: Any) -> Any:
    return max_pool_backward(g[0], a, out[1], *how)


@prim()
def max_pool_backward(g: TensorProxy, a: TensorProxy, indices: TensorProxy, /, *how: Any) -> TensorProxy:
    """Return the gradient of `max_pool`: elements of `g` are added at `indices`, which are those of `max_pool`.

    Kernels may look for an element in its window only. The values of `a` are not read.
    """
    return TensorProxy(like=a)


def _max_pool_backward_vjp(v: Any, out: Any, g: Any, a: Any, indices: Any, kernel_size: Any, *how: Any) -> Any:
    spatial = len(kernel_size)
    return _flat(v, spatial).gather(-1, _flat(indices, spatial)).reshape(g.shape), None


max_pool_backward.vjp(_max_pool_backward_vjp)


# (shape, kernel_size, stride, padding, dilation, ceil_mode)
_WINDOWS: tuple[Any, ...] = (
    ((2, 3, 6, 5), (2, 2), (2, 2), (0, 0), (1, 1), False),
    ((2, 3, 7), (3,), (2,), (1,), (1,), True),
    ((3, 5, 5), (3, 2), (1, 2), (1, 0), (1, 2), False),
    ((1, 2, 4, 4, 4), (2, 2, 2), (2, 1, 2), (1, 0, 0), (1, 1, 1), True),
    ((0, 3, 4, 4), (2, 2), (2, 2), (0, 0), (1, 1), False),
)


def _all_different(make: MakeTensor, shape: tuple[int, ...]) -> Any:
    """Return a sample without equal elements: of equal elements, it is not defined which one gets the gradient."""
    x = make((math.prod(shape),), dtype=dtypes.float32, requires_grad=False).argsort().reshape(shape)
    like = make(())
    return (x.to(like.dtype) / 7 if like.dtype.is_floating_point else x.to(like.dtype)).requires_grad_(
        like.requires_grad
    )


max_pool.batch(_over_batch(max_pool, tensors=1))


@max_pool.samples
def _(make: MakeTensor) -> Any:
    for shape, *how in _WINDOWS:
        yield SampleInput(_all_different(make, shape), *how)


@max_pool.errors
def _(make: MakeTensor) -> Any:
    how = ((1, 1), (0, 0), (1, 1), False)
    too_small = r"Given input size: \(3x4x4\)\. Calculated output size"
    yield SampleInput(make((3, 4, 4)), (5, 5), *how), RuntimeError, too_small
    yield SampleInput(make((4, 4)), (2, 2), *how), RuntimeError, "tensor expected for input"
    yield SampleInput(make((3, 4, 4)), (2, 2), (1, 1), (2, 2), (1, 1), False), RuntimeError, "at most half of effective"


max_pool_backward.batch(_over_batch(max_pool_backward, tensors=3))


@max_pool_backward.samples
def _(make: MakeTensor) -> Any:
    a = _all_different(make, (2, 3, 4, 4))
    down, along = (make((2, 3, 2, 2), low=0, high=2, dtype=dtypes.int64) for _ in range(2))
    indices = down.new_tensor([[0, 2], [8, 10]]) + 4 * down + along  # in the window of 2 x 2 that begins there
    yield SampleInput(make((2, 3, 2, 2)), a, indices, (2, 2), (2, 2), (0, 0), (1, 1), False)


# -- mean --------------------------------------------------------------------------------------------------------------
@prim()
def avg_pool(
    a: TensorProxy,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    /,
) -> TensorProxy:
    """Return the mean of each window. `divisor_override` replaces the window's size as the divisor."""
    check(divisor_override != 0, lambda: "divisor must be not zero")
    return TensorProxy(like=a, shape=_pooled(a, kernel_size, stride, padding, (1,) * len(kernel_size), ceil_mode))


@avg_pool.vjp
def _(g: Any, out: Any, a: Any, *how: Any) -> Any:
    return avg_pool_backward(g, a, *how)


@prim()
def avg_pool_backward(g: TensorProxy, a: TensorProxy, /, *how: Any) -> TensorProxy:
    """Return the gradient of `avg_pool`. Only the shape and layout of `a` are read."""
    return TensorProxy(like=a)


@avg_pool_backward.vjp
def _(v: Any, out: Any, g: Any, a: Any, *how: Any) -> Any:
    return avg_pool(v, *how), None


avg_pool.batch(_over_batch(avg_pool, tensors=1))


@avg_pool.samples
def _(make: MakeTensor) -> Any:
    for shape, kernel, stride, padding, _, ceil_mode in _WINDOWS:
        yield SampleInput(make(shape), kernel, stride, padding, ceil_mode, True, None)
        yield SampleInput(make(shape), kernel, stride, padding, ceil_mode, False, None)
    yield SampleInput(make((2, 3, 4, 4)), (2, 2), (2, 2), (0, 0), False, True, 3)


@avg_pool.errors
def _(make: MakeTensor) -> Any:
    how = ((1, 1), (0, 0), False, True)
    yield SampleInput(make((3, 4, 4)), (5, 5), *how, None), RuntimeError, "Output size is too small"
    yield SampleInput(make((3, 4, 4)), (2, 2), *how, 0), RuntimeError, "divisor must be not zero"


avg_pool_backward.batch(_over_batch(avg_pool_backward, tensors=2))


@avg_pool_backward.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3, 2, 2)), make((2, 3, 4, 4)), (2, 2), (2, 2), (0, 0), False, True, None)
    yield SampleInput(make((2, 3, 4)), make((2, 3, 7)), (3,), (2,), (1,), False, False, None)


# -- adaptive ----------------------------------------------------------------------------------------------------------
def _adaptive(name: str, a: TensorProxy, output_size: Sequence[int]) -> tuple[int, ...]:
    spatial = len(output_size)
    if dtypes.is_complex_dtype(a.dtype):
        raise NotImplementedError(f'"{name}{spatial}d" not implemented for {a.dtype}')
    check(
        a.ndim in (spatial + 1, spatial + 2),
        lambda: f"{name}{spatial}d(): Expected {spatial + 1}D or {spatial + 2}D tensor, but got {list(a.shape)}",
    )
    for d in range(a.ndim - spatial, a.ndim):
        check(
            a.shape[d] > 0,
            lambda: (
                f"{name}{spatial}d(): Expected input to have non-zero size for non-batch dimensions, but input has "
                "sizes "
                f"{list(a.shape)} with dimension {d} being empty"
            ),
        )
    check(
        min(output_size) >= 0,
        lambda: (
            f"{name}{spatial}d: elements of output_size must be greater than or equal to 0 but received "
            f"{{{', '.join(map(str, output_size))}}}"
        ),
    )
    return (*a.shape[:-spatial], *output_size)


@prim()
def adaptive_avg_pool(a: TensorProxy, output_size: Sequence[int], /) -> TensorProxy:
    """Return the means of windows, whose sizes are chosen so that the result has `output_size` elements."""
    return TensorProxy(like=a, shape=_adaptive("adaptive_avg_pool", a, output_size))


@adaptive_avg_pool.vjp
def _(g: Any, out: Any, a: Any, output_size: Any) -> Any:
    return adaptive_avg_pool_backward(g, a, output_size)


@prim()
def adaptive_avg_pool_backward(g: TensorProxy, a: TensorProxy, output_size: Sequence[int], /) -> TensorProxy:
    """Return the gradient of `adaptive_avg_pool`. Only the shape and layout of `a` are read."""
    return TensorProxy(like=a)


@adaptive_avg_pool_backward.vjp
def _(v: Any, out: Any, g: Any, a: Any, output_size: Any) -> Any:
    return adaptive_avg_pool(v, output_size), None


@prim()
def adaptive_max_pool(a: TensorProxy, output_size: Sequence[int], /) -> tuple[TensorProxy, TensorProxy]:
    """Return the largest elements of windows and their indices; the windows are those of `adaptive_avg_pool`."""
    out = TensorProxy(like=a, shape=_adaptive("adaptive_max_pool", a, output_size))
    return out, TensorProxy(like=out, dtype=dtypes.int64)


@adaptive_max_pool.vjp
def _(g: Any, out: Any, a: Any, output_size: Any) -> Any:
    return adaptive_max_pool_backward(g[0], a, out[1], output_size)


@prim()
def adaptive_max_pool_backward(
    g: TensorProxy, a: TensorProxy, indices: TensorProxy, output_size: Sequence[int], /
) -> TensorProxy:
    """Return the gradient of `adaptive_max_pool`. Only the shape and layout of `a` are read."""
    return TensorProxy(like=a)


adaptive_max_pool_backward.vjp(_max_pool_backward_vjp)

_ADAPTIVE: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((2, 3, 6, 5), (3, 2)),
    ((2, 3, 7), (3,)),
    ((3, 4, 4), (1, 1)),
    ((1, 2, 4, 5, 3), (2, 2, 3)),
    ((2, 3, 3, 3), (5, 4)),
)


adaptive_avg_pool.batch(_over_batch(adaptive_avg_pool, tensors=1))


@adaptive_avg_pool.samples
def _(make: MakeTensor) -> Any:
    for shape, size in _ADAPTIVE:
        yield SampleInput(make(shape), size)


adaptive_max_pool.batch(_over_batch(adaptive_max_pool, tensors=1))


@adaptive_max_pool.samples
def _(make: MakeTensor) -> Any:
    for shape, size in _ADAPTIVE:
        yield SampleInput(_all_different(make, shape), size)


adaptive_avg_pool_backward.batch(_over_batch(adaptive_avg_pool_backward, tensors=2))


@adaptive_avg_pool_backward.samples
def _(make: MakeTensor) -> Any:
    for shape, size in _ADAPTIVE:
        yield SampleInput(make((*shape[: -len(size)], *size)), make(shape), size)


adaptive_max_pool_backward.batch(_over_batch(adaptive_max_pool_backward, tensors=3))


@adaptive_max_pool_backward.samples
def _(make: MakeTensor) -> Any:
    for shape, size in _ADAPTIVE:
        out = (*shape[: -len(size)], *size)
        high = math.prod(shape[-len(size) :])
        yield SampleInput(make(out), make(shape), make(out, low=0, high=high, dtype=dtypes.int64), size)


def _adaptive_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((5, 5)), (2, 2)), RuntimeError, r"Expected 3D or 4D tensor, but got \[5, 5\]"
    yield SampleInput(make((2, 3, 0, 5)), (2, 2)), RuntimeError, "with dimension 2 being empty"


adaptive_avg_pool.errors(_adaptive_errors)
adaptive_max_pool.errors(_adaptive_errors)
