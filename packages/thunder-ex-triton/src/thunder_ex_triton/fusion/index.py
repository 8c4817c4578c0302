# SPDX-License-Identifier: Apache-2.0
"""Symbolic indices into tensors, as expressions of Triton's language.

An index is a list of groups. Each group is an expression that counts, in row-major order, through some adjacent
dimensions. A reshape needs no arithmetic if groups can be joined. If an operation needs one dimension of a group with
several dimensions, the group is split by division and remainder.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from thunder_ex_triton.fusion.iteration_space import Unfit
from thunder_ex_triton.fusion.sizes import hint_of

__all__ = ["Group", "Index", "address", "plus", "times"]


class Group(NamedTuple):
    """An expression that counts through these dimensions in row-major order."""

    expression: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements that the group counts through."""
        return math.prod(self.dims)


def times(expression: str, factor: int) -> str:
    """Return a product."""
    if factor == 0 or expression == "0":
        return "0"
    return expression if factor == 1 else f"{expression} * {factor}"


def plus(*terms: str) -> str:
    """Return a sum."""
    kept = [t for t in terms if t != "0"]
    return f"({' + '.join(kept)})" if len(kept) > 1 else (kept or ["0"])[0]


class Index:
    """A list of groups that count through all dimensions of a tensor, from the first dimension to the last."""

    def __init__(self, groups: Sequence[Group]):
        self.groups = tuple(groups)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return tuple(d for g in self.groups for d in g.dims)

    @property
    def key(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The identity of an index. Two indices are equal if they differ only in dimensions of size 1."""
        return tuple((g.expression, tuple(d for d in g.dims if d != 1)) for g in self.groups if g.size != 1)

    def dims(self) -> list[Group]:
        """Return one group per dimension."""
        out = []
        for expression, dims in self.groups:
            for i, d in enumerate(dims):
                rest = math.prod(dims[i + 1 :])
                e = "0" if d == 1 else expression
                if e != "0" and rest != 1:
                    e = f"({e} // {rest})"
                if e != "0" and any(x != 1 for x in dims[:i]):
                    e = f"({e} % {d})"
                out.append(Group(e, (d,)))
        return out

    def split(self, count: int) -> tuple[Index, Index]:
        """Return two indices: the first `count` dimensions, and the remaining dimensions."""
        first: list[Group] = []
        last: list[Group] = []
        for expression, dims in self.groups:
            here = min(len(dims), count)
            count -= here
            ahead, behind = dims[:here], dims[here:]
            inner = math.prod(behind)
            if not behind:
                first.append(Group(expression, dims))
            elif not ahead:
                last.append(Group(expression, dims))
            else:
                first.append(Group(f"({expression} // {inner})" if expression != "0" else "0", ahead))
                last.append(Group(f"({expression} % {inner})" if expression != "0" else "0", behind))
        return Index(first), Index(last)

    def reshaped(self, shape: Sequence[int]) -> Index:
        """Return the index of the same elements in the tensor of `shape`, before its reshape."""
        wanted = [d for d in shape if d != 1]
        groups = [Group(g.expression, tuple(d for d in g.dims if d != 1)) for g in self.groups if g.size != 1]
        try:
            return _with_ones(_regrouped(groups, wanted), shape)
        except IndexError:  # symbolic sizes that are equal in the traced call, but may differ in other calls
            raise Unfit("has a reshape whose symbolic sizes may differ") from None

    def transposed(self, permutation: Sequence[int]) -> Index:
        """Return the index into `a`. This index is an index into `a.permute(permutation)`."""
        mine = self.dims()
        out = [mine[0]] * len(mine) if mine else []
        for i, p in enumerate(permutation):
            out[p] = mine[i]
        return Index(out)

    def of_broadcast(self, shape: Sequence[int], dimensions: Sequence[int]) -> Index:
        """Return the index into a tensor of `shape` that is broadcast to this shape.

        Its dimension `i` becomes `dimensions[i]`.

        A dimension whose size is not 1 has the same size in both shapes. If sizes are symbolic, constraints guard this.
        """
        mine, full = self.shape, tuple(shape)
        # If each group is broadcast as a whole or not at all, no group has to be split.
        kept, position = [], 0
        by_dimension = dict(zip(dimensions, full))
        whole = True
        for group in self.groups:
            here = range(position, position + len(group.dims))
            position += len(group.dims)
            present = [d for d in here if d in by_dimension and hint_of(by_dimension[d]) != 1]
            missing = [d for d in here if mine[d] != 1 and d not in present]
            if present and missing:
                whole = False
                break
            if present:
                kept.append(Group(group.expression, tuple(by_dimension[d] for d in present)))
        if whole:
            return _with_ones(kept, full)
        single = self.dims()
        return Index([Group("0" if hint_of(n) == 1 else single[d].expression, (n,)) for n, d in zip(full, dimensions)])

    def mapped(self, change: Callable[[int, str], str], shape: Sequence[int]) -> Index:
        """Return the index into a tensor of `shape` whose dimension `i` is `change(i, expression)`."""
        return Index([Group(change(i, g.expression), (shape[i],)) for i, g in enumerate(self.dims())])


def _regrouped(groups: Sequence[Group], wanted: Sequence[int]) -> list[Group]:
    """Return groups that count through the requested dimensions. Each group is as small as possible."""
    out: list[Group] = []
    w = g = 0
    while w < len(wanted) or g < len(groups):
        first_w, first_g = w, g
        have, need = groups[g].size, wanted[w]
        g, w = g + 1, w + 1
        while have != need:
            if have < need:
                have, g = have * groups[g].size, g + 1
            else:
                need, w = need * wanted[w], w + 1
        out.append(Group(_joined(groups[first_g:g]), tuple(wanted[first_w:w])))
    return out


def _joined(groups: Sequence[Group]) -> str:
    """Return one expression that counts through several groups."""
    out = "0"
    for i, g in enumerate(groups):
        out = plus(out, times(g.expression, math.prod(following.size for following in groups[i + 1 :])))
    return out


def _with_ones(groups: Sequence[Group], shape: Sequence[int]) -> Index:
    """Insert the dimensions of size 1 that `shape` has and the groups lack."""
    out: list[Group] = []
    dims: list[int] = []
    left = iter(groups)
    current = next(left, None)
    for d in shape:
        dims.append(d)
        if current is not None and math.prod(dims) == current.size:
            out.append(Group(current.expression, tuple(dims)))
            dims, current = [], next(left, None)
    if dims:
        out.append(Group("0", tuple(dims)))
    if current is not None:
        raise Unfit("has symbolic sizes that may differ")
    return Index(out)


def address(index: Index, strides: Sequence[int]) -> str:
    """Return the offset of an element in a tensor with these strides."""
    terms, position = [], 0
    for group in index.groups:
        own = strides[position : position + len(group.dims)]
        position += len(group.dims)
        if group.expression == "0" or group.size == 1:
            continue
        run = _even(group.dims, own)
        if run is not None:
            terms.append(times(group.expression, run))
        else:
            single = Index([group]).dims()
            terms += [times(g.expression, s) for g, s in zip(single, own) if g.dims[0] != 1]
    return plus(*terms)


def _even(dims: Sequence[int], strides: Sequence[int]) -> int | None:
    """Return the stride of the innermost dimension if all dimensions collapse into one; None otherwise."""
    pairs = [(d, s) for d, s in zip(dims, strides) if d != 1]
    for (_, outer), (d, inner) in itertools.pairwise(pairs):
        if outer != d * inner:
            return None
    return pairs[-1][1] if pairs else 0
