# SPDX-License-Identifier: Apache-2.0
"""The primitive for grouped matrix products: one matmul for each group, where the ends of groups are a tensor.

No other operations can express it with static shapes, because the sizes of groups are data. It never fails because of
these values: ranges outside of a tensor are cut off on the CPU, and a GPU reports them late.
"""

from __future__ import annotations

from typing import Any

from thunder.core import dtypes
from thunder.core.errors import UnsupportedError, check
from thunder.core.prims.base import prim
from thunder.core.prims.creation import iota
from thunder.core.prims.matmul import check_factors
from thunder.core.prims.metas import check_same_device
from thunder.core.prims.shape import cat, reshape, transpose
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags

_KINDS = (dtypes.float32, dtypes.bfloat16, dtypes.float16)


def _check(a: Any, b: Any, offs: Any) -> None:
    """Check what torch checks, in its order, except for strides, which torch checks when the program runs."""
    for name, x in (("mat_a", a), ("mat_b", b)):
        check(
            isinstance(x, TensorProxy),
            lambda: f"_grouped_mm(): {name} must be a tensor, not {type(x).__name__}: {x!r}",
            TypeError,
        )
    for name, x in (("mat_a", a), ("mat_b", b)):
        check(x.dtype in _KINDS, lambda: f"Expected {name} to be Float32, BFloat16 or Float16 matrix, got {x.dtype}")
    for name, x in (("mat_a", a), ("mat_b", b)):
        check(x.ndim in (2, 3), lambda: f"{name} has to be 2 or 3d")
    flat = a.ndim == 2 or b.ndim == 2
    check(
        a.shape[-1] == b.shape[-2],
        lambda: "contraction dimension of mat_a and mat_b must match",
        # torch multiplies the groups of two matrices if these are within both. It has no gradient then.
        UnsupportedError if a.ndim == b.ndim == 2 else RuntimeError,
    )
    check(
        (offs is not None) == flat,
        lambda: "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d",
    )
    if offs is not None:
        check(offs.ndim == 1, lambda: "offs has to be 1D")
        check(offs.dtype is dtypes.int32, lambda: "Offsets have to be int32")
    check_factors("grouped_mm", a, b)
    check_same_device("grouped_mm", *(x for x in (a, b, offs) if x is not None))


@prim(torch="torch._grouped_mm", tags=(OpTags.MATMUL_OP,))
def grouped_mm(a: TensorProxy, b: TensorProxy, offs: TensorProxy | None = None, /) -> TensorProxy:
    """Multiply groups of matrices.

    A factor with three dimensions has one matrix for each group. A factor with two dimensions is split into groups,
    along its rows or columns: `offs[i]` is the end of group i. Elements of the result that are in no group are
    undefined.
    """
    _check(a, b, offs)
    if a.ndim == b.ndim == 3:
        check(a.shape[0] == b.shape[0], lambda: "batched dimension has to match")
        return TensorProxy(like=a, shape=(a.shape[0], a.shape[1], b.shape[2]))
    assert offs is not None
    groups = offs.shape[0]
    if a.ndim == b.ndim:
        return TensorProxy(like=a, shape=(groups, a.shape[0], b.shape[1]))
    each = b if a.ndim == 2 else a
    check(groups == each.shape[0], lambda: "matrix batch sizes have to match")
    return TensorProxy(like=a, shape=(a.shape[-2], b.shape[-1]))


@grouped_mm.vjp
def _(g: Any, out: Any, a: Any, b: Any, offs: Any = None) -> Any:
    # Each of the four forms has gradients that are products of another form, with the same groups.
    return grouped_mm(g, b.mT, offs), grouped_mm(a.mT, g, offs), None


@grouped_mm.jvp
def _(t: Any, out: Any, a: Any, b: Any, offs: Any = None) -> Any:
    moved = [grouped_mm(x, y, offs) for x, y in ((t[0], b), (a, t[1])) if x is not None and y is not None]
    return moved[0] if len(moved) == 1 else moved[0] + moved[1]


# -- batches -----------------------------------------------------------------------------------------------------------
@grouped_mm.batch
def _(b: Any, left: Any, right: Any, offs: Any = None) -> Any:
    if offs is None:
        groups = b.shape(left)[0]
        return b.split(grouped_mm(b.merge(left), b.merge(right)), groups)
    forms = b.ndim(left), b.ndim(right)
    if forms == (2, 3):
        return _rows(b, left, right, offs)
    if forms == (3, 2):
        return _rows(b, _flipped(b, right), _flipped(b, left), offs).mT
    return _inner(b, left, right, offs)


def _flipped(b: Any, x: Any) -> Any:
    return b.add(x.mT) if x in b else x.mT


def _starts(b: Any, offs: Any, length: Any) -> Any:
    """Return where each example starts if they follow one another, as a column."""
    starts = iota(b.size, start=0, step=length, device=offs.device, dtype=offs.dtype)
    return reshape(starts, (b.size, 1))


def _rows(b: Any, left: Any, right: Any, offs: Any) -> Any:
    """Multiply groups of rows of `left` by the matrices of `right`."""
    rows, inner = b.shape(left)
    if right not in b and offs not in b:  # a row of all examples is in one group
        interleaved = reshape(transpose(left, (1, 0, 2)), (rows * b.size, inner))
        out = grouped_mm(interleaved, right, offs * b.size)
        return transpose(reshape(out, (rows, b.size, right.shape[-1])), (1, 0, 2))
    # The groups of all examples follow one another. Rows that are in no group get into the next example's first one,
    # and are undefined all the same.
    ends = b.expand(offs) + _starts(b, offs, rows)
    ends = reshape(ends, (b.size * ends.shape[1],))
    return b.split(grouped_mm(b.merge(left), b.merge(right), ends), rows)


def _inner(b: Any, left: Any, right: Any, offs: Any) -> Any:
    """Multiply groups of columns of `left` by groups of rows of `right`."""
    (m, k), n, groups = b.shape(left), b.shape(right)[1], b.shape(offs)[0]
    if right not in b and offs not in b:
        out = grouped_mm(b.merge(left), right, offs)
        return transpose(reshape(out, (groups, b.size, m, n)), (1, 0, 2, 3))
    if left not in b and offs not in b:
        out = grouped_mm(left, reshape(transpose(right, (1, 0, 2)), (k, b.size * n)), offs)
        return transpose(reshape(out, (groups, m, b.size, n)), (2, 0, 1, 3))
    # What is in no group must not get into the next example's first group, so it is a group itself.
    starts = _starts(b, offs, k)
    ends = reshape(cat([starts, b.expand(offs) + starts], 1), (b.size * (groups + 1),))
    columns = reshape(transpose(b.expand(left), (1, 0, 2)), (m, b.size * k))
    out = grouped_mm(columns, b.merge(right), ends)
    return reshape(out, (b.size, groups + 1, m, n))[:, 1:]


# -- samples -----------------------------------------------------------------------------------------------------------
def ends_of_groups(make: MakeTensor, *sizes: int) -> Any:
    """Return the offsets of groups of these sizes."""
    ones = make((max(len(sizes), 1),), low=1, high=2, dtype=dtypes.int32, requires_grad=False)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    for i, end in enumerate(ends):
        ones[i] = end
    return ones[: len(sizes)]


def grouped_mm_samples(make: MakeTensor) -> Any:
    """Yield samples of all forms, with sizes that kernels of all devices accept; the torch language uses them too."""
    ends = ends_of_groups(make, 8, 0, 16, 8)
    yield SampleInput(make((32, 16)), make((4, 16, 24)), ends)
    yield SampleInput(make((32, 16)), make((4, 24, 16)).mT, ends)
    yield SampleInput(make((4, 16, 24)), make((24, 32)), ends)
    yield SampleInput(make((16, 32)), make((32, 24)), ends)
    yield SampleInput(make((32, 16)).mT, make((24, 32)).mT, ends)
    yield SampleInput(make((4, 16, 24)), make((4, 24, 8)))
    yield SampleInput(make((32, 16)), make((4, 16, 24)), ends_of_groups(make, 3, 5, 17, 7))
    yield SampleInput(make((8, 16)), make((1, 16, 8)), ends_of_groups(make, 8))


def grouped_mm_errors(make: MakeTensor) -> Any:
    """Yield calls that torch rejects, too."""
    ends = ends_of_groups(make, 8, 8)
    rows, matrices = make((16, 8)), make((2, 8, 8))
    yield SampleInput(make((8,)), matrices, ends), RuntimeError, "mat_a has to be 2 or 3d"
    yield SampleInput(rows, make((8,)), ends), RuntimeError, "mat_b has to be 2 or 3d"
    yield SampleInput(rows, make((2, 16, 8)), ends), RuntimeError, "contraction dimension of mat_a and mat_b must match"
    yield SampleInput(rows, matrices), RuntimeError, "Have to provide offsets if there is a 2d matrix"
    yield SampleInput(matrices, matrices, ends), RuntimeError, "no offset if both matrices are 3d"
    yield SampleInput(rows, matrices, ends.reshape(1, 2)), RuntimeError, "offs has to be 1D"
    yield SampleInput(rows, matrices, ends.long()), RuntimeError, "Offsets have to be int32"
    yield SampleInput(rows, matrices, ends_of_groups(make, 8, 4, 4)), RuntimeError, "matrix batch sizes have to match"
    yield SampleInput(make((3, 8, 8)), matrices), RuntimeError, "batched dimension has to match"
    wide = make((16, 8), dtype=dtypes.float64)
    yield SampleInput(wide, matrices, ends), RuntimeError, "Expected mat_a to be Float32, BFloat16 or Float16 matrix"


grouped_mm.samples(grouped_mm_samples)
grouped_mm.errors(grouped_mm_errors)
