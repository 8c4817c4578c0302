# SPDX-License-Identifier: Apache-2.0
"""Primitives for matmul. They accept every shape that torch's functions accept, including 1-D and batched tensors."""

from __future__ import annotations

import math
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
from thunder.core.symint.numbers import same_shape

_TAGS = (OpTags.MATMUL_OP,)


def check_factors(name: str, *factors: Any) -> None:
    """Check that the factors have one dtype, which is not bool, and are on one device."""
    for x in factors:
        check(isinstance(x, TensorProxy), lambda: f"{name} expects tensors, not {type(x).__name__}: {x!r}", TypeError)
    first, *others = factors
    for x in others:
        check(
            x.dtype is first.dtype,
            lambda: f"expected m1 and m2 to have the same dtype, but got: {first.dtype} != {x.dtype} (in {name})",
        )
    if dtypes.is_boolean_dtype(first.dtype):
        raise NotImplementedError(f'"{name}" not implemented for bool: convert the tensors first')
    # Unlike in elementwise operations, a 0-d CPU tensor must also be on the device of the other tensors.
    check_same_device(name, *factors)


def matmul_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the product of tensors of shapes `a` and `b`; raise torch's error if they do not match."""
    check(
        len(a) > 0 and len(b) > 0,
        lambda: f"both arguments to matmul need to be at least 1D, but they are {len(a)}D and {len(b)}D",
    )
    inner = b[-2] if len(b) > 1 else b[0]
    check(a[-1] == inner, lambda: _mismatch(tuple(a), tuple(b)))
    batch = _broadcast(tuple(a[:-2]), tuple(b[:-2]))
    rows = (a[-2],) if len(a) > 1 else ()
    columns = (b[-1],) if len(b) > 1 else ()
    return (*batch, *rows, *columns)


def _mismatch(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    if len(a) == len(b) == 1:
        return (
            f"inconsistent tensor size, expected tensor [{a[0]}] and src [{b[0]}] to have the same number of "
            "elements, but "
            f"got {a[0]} and {b[0]} elements respectively"
        )
    if len(b) == 1:
        rows = math.prod(a[:-1])
        return f"size mismatch, got input ({rows}), mat ({rows}x{a[-1]}), vec ({b[0]})"
    if len(a) > 2 and len(b) > 2:
        return (
            f"Expected size for first two dimensions of batch2 tensor to be: [{math.prod(a[:-2])}, {a[-1]}] but got: "
            f"[{math.prod(b[:-2])}, {b[-2]}]."
        )
    rows = math.prod(a[:-1])
    return f"mat1 and mat2 shapes cannot be multiplied ({rows}x{a[-1]} and {b[-2]}x{b[-1]})"


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    padded = [(1,) * (rank - len(s)) + s for s in (a, b)]
    out = []
    for i, (m, n) in enumerate(zip(*padded)):
        check(
            m == n or m == 1 or n == 1,
            lambda: f"The size of tensor a ({m}) must match the size of tensor b ({n}) at non-singleton dimension {i}",
        )
        out.append(n if m == 1 else m)
    return tuple(out)


def _adjoint(x: Any) -> Any:
    return x.mT.conj() if dtypes.is_complex_dtype(x.dtype) else x.mT


def _conj(x: Any) -> Any:
    return x.conj() if dtypes.is_complex_dtype(x.dtype) else x


def _summed_to(x: Any, shape: tuple[int, ...]) -> Any:
    """Sum `x` over the dimensions along which a tensor of `shape` was broadcast."""
    extra = x.ndim - len(shape)
    dims = tuple(range(extra)) + tuple(d + extra for d, n in enumerate(shape) if n == 1 and x.shape[d + extra] != 1)
    return x.sum(dims).reshape(shape) if dims else x


def matmul_grads(g: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """Return the gradients of both factors of `a @ b`."""
    if a.ndim == 1 and b.ndim == 1:
        return g * _conj(b), g * _conj(a)
    if a.ndim == 1:
        ga, gb = matmul_grads(g.unsqueeze(-2), a.unsqueeze(0), b)
        return ga.squeeze(0), gb
    if b.ndim == 1:
        ga, gb = matmul_grads(g.unsqueeze(-1), a, b.unsqueeze(-1))
        return ga, gb.squeeze(-1)
    if min(a.ndim, b.ndim) > 2 and max(a.ndim, b.ndim) > 3 and not _is_empty(g) and not _is_empty(a):
        # torch multiplies three-dimensional tensors. Which of its kernels runs, and how that rounds, depends on their
        # strides, so the factors are made three-dimensional before they are transposed.
        lead = g.shape[:-2]
        left, right = (_folded(x, lead) for x in (g, b))
        of_a = (left @ _adjoint(right)).reshape((*lead, *a.shape[-2:]))
        of_b = (_adjoint(_folded(a, lead)) @ left).reshape((*lead, *b.shape[-2:]))
        return _summed_to(of_a, a.shape), _summed_to(of_b, b.shape)
    return _grad_of_left(g, a, b), _grad_of_right(g, a, b)


def _folded(x: Any, lead: Any) -> Any:
    """Return the batch `lead` of matrices as a three-dimensional tensor."""
    matrix = x.shape[-2:]
    return (x if same_shape(x.shape[:-2], lead) else x.expand((*lead, *matrix))).reshape((-1, *matrix))


def _grad_of_left(g: Any, a: Any, b: Any) -> Any:
    if a.ndim == 2 and b.ndim > 2 and not _is_empty(a):
        # One matmul over batch and columns, instead of a matmul for each batch followed by a sum.
        order = (g.ndim - 2, *range(g.ndim - 2), g.ndim - 1)
        return g.permute(order).reshape((a.shape[0], -1)) @ _conj(b.mT).reshape((-1, a.shape[1]))
    return _summed_to(g @ _adjoint(b), a.shape)


def _grad_of_right(g: Any, a: Any, b: Any) -> Any:
    if b.ndim == 2 and a.ndim > 2 and not _is_empty(b):
        return _adjoint(a.reshape((-1, a.shape[-1]))) @ g.reshape((-1, g.shape[-1]))
    return _summed_to(_adjoint(a) @ g, b.shape)


def _is_empty(x: Any) -> bool:
    """Check whether a matrix has no elements, so that -1 in a shape with one of its sizes would be ambiguous."""
    return any(type(n) is int and n == 0 for n in x.shape)


@prim(torch="torch.matmul", tags=_TAGS)
def matmul(a: TensorProxy, b: TensorProxy, /) -> TensorProxy:
    """Return the matrix product, as `torch.matmul` defines it for every number of dimensions."""
    check_factors("matmul", a, b)
    return TensorProxy(like=a, shape=matmul_shape(a.shape, b.shape))


@matmul.vjp
def _(g: Any, out: Any, a: Any, b: Any) -> Any:
    return matmul_grads(g, a, b)


# Pairs of shapes, the simplest first.
MATMUL_SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((3, 4), (4,)),
    ((4,), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
    ((2, 0, 4), (2, 4, 3)),
    ((2, 3, 0), (0, 4)),
    ((0, 0), (2, 0, 3)),
)


@matmul.batch
def _(b: Any, left: Any, right: Any) -> Any:
    one, other = b.ndim(left), b.ndim(right)
    if right not in b and other <= 2 and one > 0:
        return matmul(left, right)
    ndim = max(one, other, 2)
    a = _as_matrices(b, left, -2, ndim)
    c = _as_matrices(b, right, -1, ndim)
    out = matmul(a, c)
    # A vector was expanded to a matrix with one row or column: remove that dimension from the result.
    rows = out.shape[-2:-1] if one > 1 else ()
    columns = out.shape[-1:] if other > 1 else ()
    return reshape(out, (*out.shape[:-2], *rows, *columns))


def _as_matrices(b: Any, x: Any, new: int, ndim: int) -> Any:
    """Return a factor as a batch of matrices that broadcasts with factors of `ndim` dimensions per example."""
    if b.ndim(x) > 1:
        return b.line_up(x, ndim)
    matrix = reshape(x, (*x.shape[:-1], 1, x.shape[-1]) if new == -2 else (*x.shape, 1))
    return b.line_up(b.add(matrix), ndim) if x in b else matrix


@matmul.jvp
def _(t: Any, out: Any, a: Any, b: Any) -> Any:
    moved = [matmul(x, y) for x, y in ((t[0], b), (a, t[1])) if x is not None and y is not None]
    return moved[0] if len(moved) == 1 else moved[0] + moved[1]


@matmul.samples
def _(make: MakeTensor) -> Any:
    for a, b in MATMUL_SHAPES:
        yield SampleInput(make(a), make(b))
    yield SampleInput(make((4, 3)).mT, make((5, 4)).mT)
    yield SampleInput(make((1, 3, 4)).expand(2, 3, 4), make((2, 4, 5)))


@matmul.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), make((2, 3))), RuntimeError, r"shapes cannot be multiplied \(2x3 and 2x3\)"
    yield SampleInput(make((2, 3)), make((2,))), RuntimeError, "size mismatch"
    yield SampleInput(make(()), make((2,))), RuntimeError, "need to be at least 1D, but they are 0D and 1D"
    yield SampleInput(make((2, 3)), make((3, 2), dtype=dtypes.float64)), RuntimeError, "to have the same dtype"
    yield SampleInput(make((2, 3, 4)), make((3, 4, 5))), RuntimeError, "at non-singleton dimension 0"


def linear_grads(g: Any, a: Any, w: Any, bias: Any) -> tuple[Any, Any, Any]:
    """Return the gradients of input, weight and bias of a linear layer, computed by matmuls."""
    if w.ndim == 1:
        return (*matmul_grads(g, a, w), None)
    rows = _as_rows(g)
    ga = (rows @ _conj(w)).reshape(a.shape)
    gw = rows.mT @ _conj(_as_rows(a))
    if bias is None:
        return ga, gw, None
    # torch sums the rows of a matrix. Another order of the sum would round differently.
    return ga, gw, _summed_to(g if bias.ndim > 1 else rows, bias.shape)


def _as_rows(x: Any) -> Any:
    """Merge the leading dimensions. Their size cannot be inferred if rows have no elements."""
    empty = type(x.shape[-1]) is int and x.shape[-1] == 0
    return x.reshape((math.prod(x.shape[:-1]) if empty else -1, x.shape[-1]))


@prim(torch="torch.nn.functional.linear", tags=_TAGS, layout="contiguous")
def linear(a: TensorProxy, w: TensorProxy, bias: TensorProxy | None = None, /) -> TensorProxy:
    """Compute `a @ w.mT + bias`."""
    factors = (a, w) if bias is None else (a, w, bias)
    check_factors("linear", *factors)
    check(
        a.ndim > 0 and w.ndim > 0,
        lambda: f"both arguments to linear need to be at least 1D, but they are {a.ndim}D and {w.ndim}D",
    )
    check(w.ndim <= 2, lambda: f"t() expects a tensor with <= 2 dimensions, but self is {w.ndim}D")
    shape = matmul_shape(a.shape, w.shape[::-1])
    if bias is not None:
        check(w.ndim == 2, lambda: f"mat2 must be a matrix, got {w.ndim}-D tensor")
        # torch merges the input's leading dimensions into rows, and a bias must broadcast to these rows.
        rows = (math.prod(shape[:-1]), shape[-1])
        target = shape if bias.ndim > 1 and len(shape) != 2 else rows
        check(
            bias.ndim <= len(target) and all(m in (1, n) for m, n in zip(bias.shape[::-1], target[::-1])),
            lambda: (
                f"The expanded size of the tensor ({shape[-1]}) must match the existing size "
                f"({bias.shape[-1] if bias.ndim else 1}) at non-singleton dimension 1.  Target sizes: {list(rows)}.  "
                "Tensor "
                f"sizes: {list(bias.shape)}"
            ),
        )
    return TensorProxy(like=a, shape=shape)


@linear.vjp
def _(g: Any, out: Any, a: Any, w: Any, bias: Any = None) -> Any:
    return linear_grads(g, a, w, bias)


@linear.jvp
def _(t: Any, out: Any, a: Any, w: Any, bias: Any = None) -> Any:
    of_a, of_w, of_bias = (*t, None)[:3]
    if of_bias is not None and (of_a is None or of_bias.ndim != 1):
        moved = of_bias.expand(out.shape)
        of_bias = None
    else:
        moved = None
    for x, y in ((of_a, w), (a, of_w)):
        if x is not None and y is not None:
            one = linear(x, y, of_bias if y is w else None) if of_bias is not None and y is w else linear(x, y)
            moved = one if moved is None else moved + one
    return moved


@linear.batch
def _(b: Any, a: Any, w: Any, bias: Any = None) -> Any:
    if w not in b and bias not in b and (bias is None or bias.ndim < 2):
        return linear(a, w, bias)
    out = b.apply(matmul, a, b.apply(transpose, w, (1, 0)) if b.ndim(w) == 2 else w)
    if bias is None:
        return out
    return b.expand(out) + (b.line_up(bias, out.ndim - 1) if bias in b else bias)


def linear_samples(make: MakeTensor) -> Any:
    """Yield samples of a linear layer; the torch language uses them too."""
    for rows in ((3,), (), (2, 3), (0,), (2, 0)):
        yield SampleInput(make((*rows, 4)), make((5, 4)), make((5,)))
        yield SampleInput(make((*rows, 4)), make((5, 4)))
    yield SampleInput(make((3, 4)), make((4,)))
    yield SampleInput(make((3, 4)), make((5, 4)), make((1,)))
    yield SampleInput(make((3, 4)), make((5, 4)), make((3, 5)))
    yield SampleInput(make((4, 3)).mT, make((4, 5)).mT, make((5,)))


linear.samples(linear_samples)


@linear.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), make((4, 4))), RuntimeError, r"shapes cannot be multiplied \(2x3 and 4x4\)"
    yield SampleInput(make((2, 3)), make((4, 3)), make((3,))), RuntimeError, r"The expanded size of the tensor \(4\)"
    yield SampleInput(make((2, 3)), make((4, 3), dtype=dtypes.float64)), RuntimeError, "to have the same dtype"
    yield SampleInput(make(()), make((4, 3))), RuntimeError, "both arguments to linear need to be at least 1D"
