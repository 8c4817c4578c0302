# SPDX-License-Identifier: Apache-2.0
"""Symbolic indices into tensors, as expressions of Triton's language.

An index is a list of groups. Each group is an expression that counts, in row-major order, through some adjacent
dimensions. A reshape needs no arithmetic if groups can be joined. If an operation needs one dimension of a group with
several dimensions, the group is split by division and remainder.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from thunder_ex_triton.fusion.errors import Unfit
from thunder_ex_triton.fusion.sizes import hint_of

__all__ = ["Group", "Index", "address", "flipped", "plus", "times"]


class Part(NamedTuple):
    """The dimensions from `first` to before `end` of an expression that counts through `dims` in row-major order."""

    expression: str
    dims: tuple[int, ...]
    first: int
    end: int
    rolled: tuple[int, Any] | None = None  # that of the group that has this expression

    @property
    def size(self) -> int:
        """The number of elements that the part counts through."""
        return math.prod(self.dims[self.first : self.end])

    @property
    def text(self) -> str:
        """The expression that counts through the part."""
        rest = math.prod(self.dims[self.end :])
        e = "0" if self.size == 1 else self.expression
        if e != "0" and rest != 1:
            e = f"({e} // {rest})"
        if e != "0" and any(d != 1 for d in self.dims[: self.first]):
            e = f"({e} % {self.size})"
        return e

    def group(self, dims: tuple[int, ...] = ()) -> Group:
        """Return the group that counts through the part."""
        return Group(self.text, dims, self, rolled=self.rolled if self.size == math.prod(self.dims) else None)

    def then(self, inner: Part) -> Part | None:
        """Return both parts as one; None if `inner` is not the part right behind this one."""
        if (self.expression, self.dims) != (inner.expression, inner.dims) or self.end > inner.first:
            return None
        between = self.dims[self.end : inner.first]
        return self._replace(end=inner.end) if all(d == 1 for d in between) else None


class Group(NamedTuple):
    """An expression that counts through these dimensions in row-major order.

    `part` says which part of another expression it is, if it was split from one. `joined` are the groups that it was
    joined from.
    `rolled` is the cyclic shift that was added, and the group before it.
    """

    expression: str
    dims: tuple[int, ...] = ()
    part: Part | None = None
    joined: tuple[Group, ...] = ()
    rolled: tuple[int, Any] | None = None

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


def flipped(expression: str, size: int) -> str:
    """Return the position from the end, for a position from the beginning of a dimension, or the other way round."""
    start = f"({size - 1} - "
    if expression.startswith(start):
        return expression[len(start) : -1]
    return f"{start}{expression})"


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
        """The identity of an index.

        Two indices are equal if they differ only in dimensions of size 1, or if one is the other in adjacent parts.
        """
        found: list[tuple[Part, tuple[int, ...]]] = []
        for g in self.groups:
            if g.size == 1:
                continue
            part = g.part or Part(g.expression, g.dims, 0, len(g.dims))
            dims = tuple(d for d in g.dims if d != 1)
            whole = found[-1][0].then(part) if found else None
            if whole is not None:
                found[-1] = whole, (*found[-1][1], *dims)
            else:
                found.append((part, dims))
        return tuple((part.text, dims) for part, dims in found)

    def is_permutation(self, sizes: Mapping[str, int]) -> bool:
        """Check whether variables that count to these sizes visit each element once, by parts of the variables."""
        found: dict[str, list[Part]] = {name: [] for name in sizes}
        for g in self.groups:
            if g.size == 1:
                continue
            part = g.part or Part(g.expression, (g.size,), 0, 1)
            if part.expression not in found:
                return False
            found[part.expression].append(part)
        for name, parts in found.items():
            parts.sort(key=lambda part: part.first)
            if math.prod(part.size for part in parts) != sizes[name] or any(p.dims != parts[0].dims for p in parts):
                return False
            if any(a.end > b.first for a, b in itertools.pairwise(parts)):
                return False
        return True

    def dims(self) -> list[Group]:
        """Return one group per dimension."""
        out = []
        for group in self.groups:
            if len(group.dims) == 1:
                out.append(group._replace(expression="0") if group.size == 1 else group)
                continue
            for i, d in enumerate(group.dims):
                part = Part(group.expression, group.dims, i, i + 1, group.rolled)
                out.append(part.group((d,)))
        return out

    def split(self, count: int) -> tuple[Index, Index]:
        """Return two indices: the first `count` dimensions, and the remaining dimensions."""
        first: list[Group] = []
        last: list[Group] = []
        for group in self.groups:
            expression, dims = group.expression, group.dims
            here = min(len(dims), count)
            count -= here
            ahead, behind = dims[:here], dims[here:]
            inner = math.prod(behind)
            if not behind:
                first.append(group)
            elif not ahead:
                last.append(group)
            else:
                first.append(Group(f"({expression} // {inner})" if expression != "0" else "0", ahead))
                last.append(Group(f"({expression} % {inner})" if expression != "0" else "0", behind))
        return Index(first), Index(last)

    def reshaped(self, shape: Sequence[int]) -> Index:
        """Return the index of the same elements in the tensor of `shape`, before its reshape."""
        wanted = [d for d in shape if d != 1]
        own = [part for g in self.groups for part in g.joined or (g,)]
        groups = [g._replace(dims=tuple(d for d in g.dims if d != 1)) for g in own if g.size != 1]
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
                kept.append(group._replace(dims=tuple(by_dimension[d] for d in present)))
        if whole:
            return _with_ones(kept, full)
        single = self.dims()
        return Index(
            [Group("0", (n,)) if hint_of(n) == 1 else single[d]._replace(dims=(n,)) for n, d in zip(full, dimensions)]
        )

    def rolled(self, dim: int, start: int) -> Index:
        """Return the index into a tensor whose element at `start` is the first one here, along one dimension."""
        out = self.dims()
        size = out[dim].size
        shift, base = out[dim].rolled or (0, out[dim])
        shift = (shift + start) % size
        if shift:
            out[dim] = Group(f"(({base.expression} + {shift}) % {size})", (size,), rolled=(shift, base))
        else:
            out[dim] = base._replace(dims=(size,))
        return Index(out)

    def mapped(self, change: Callable[[int, str], str], shape: Sequence[int]) -> Index:
        """Return the index into a tensor of `shape` whose dimension `i` is `change(i, expression)`."""

        def group(old: Group, expression: str, size: int) -> Group:
            # A part counts through its own sizes. That of the first dimension is no factor of any position.
            part = old.part if expression == old.expression else None
            if part is not None and size != old.size and any(d != 1 for d in part.dims[: part.first]):
                part = None
            return Group(expression, (size,), part)

        return Index([group(g, change(i, g.expression), n) for i, (g, n) in enumerate(zip(self.dims(), shape))])


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
        out.append(_joined(groups[first_g:g])._replace(dims=tuple(wanted[first_w:w])))
    return out


def _joined(groups: Sequence[Group]) -> Group:
    """Return one group that counts through several groups. Its dimensions are the caller's to set."""
    if len(groups) == 1:
        return groups[0]
    part = groups[0].part
    for g in groups[1:]:
        part = part.then(g.part) if part is not None and g.part is not None else None
    if part is not None:
        return part.group()
    out = "0"
    for i, g in enumerate(groups):
        out = plus(out, times(g.expression, math.prod(following.size for following in groups[i + 1 :])))
    return Group(out, joined=tuple(groups))


def _with_ones(groups: Sequence[Group], shape: Sequence[int]) -> Index:
    """Insert the dimensions of size 1 that `shape` has and the groups lack."""
    out: list[Group] = []
    dims: list[int] = []
    left = iter(groups)
    current = next(left, None)
    for d in shape:
        dims.append(d)
        if current is not None and math.prod(dims) == current.size:
            out.append(current._replace(dims=tuple(dims)))
            dims, current = [], next(left, None)
    if dims:
        out.append(Group("0", tuple(dims)))
    if current is not None:
        raise Unfit("has symbolic sizes that may differ")
    return Index(out)


def address(index: Index, strides: Sequence[int]) -> str:
    """Return the offset of an element in a tensor with these strides."""
    steps: list[tuple[Group, int]] = []  # groups with the stride of their innermost dimension
    position = 0
    for group in index.groups:
        own = strides[position : position + len(group.dims)]
        position += len(group.dims)
        if group.expression == "0" or group.size == 1:
            continue
        run = _even(group.dims, own)
        if run is not None:
            steps.append((group, run))
        else:
            steps += [(g, s) for g, s in zip(Index([group]).dims(), own) if g.dims[0] != 1]
    return plus(*[times(group.expression, step) for group, step in _merged(steps)])


def _merged(steps: Sequence[tuple[Group, int]]) -> list[tuple[Group, int]]:
    """Merge parts of one expression that are adjacent both in the expression and in memory.

    For example, a kernel that iterates over a channels-last tensor in the order of its memory needs no division.
    """
    out: list[tuple[Group, int]] = []
    for group, step in sorted(steps, key=_place):
        outer = out[-1] if out else None
        if outer is not None and outer[0].part is not None and group.part is not None:
            whole = outer[0].part.then(group.part)
            if whole is not None and outer[1] == step * group.part.size:
                out[-1] = Group(whole.text, part=whole), step
                continue
        out.append((group, step))
    return out if len(out) < len(steps) else list(steps)


def _place(step: tuple[Group, int]) -> tuple[str, int]:
    """Return a key that sorts the parts of an expression from the outermost to the innermost."""
    part = step[0].part
    return ("", 0) if part is None else (part.expression, part.first)


def _even(dims: Sequence[int], strides: Sequence[int]) -> int | None:
    """Return the stride of the innermost dimension if all dimensions collapse into one; None otherwise."""
    pairs = [(d, s) for d, s in zip(dims, strides) if d != 1]
    for (_, outer), (d, inner) in itertools.pairwise(pairs):
        if outer != d * inner:
            return None
    return pairs[-1][1] if pairs else 0
