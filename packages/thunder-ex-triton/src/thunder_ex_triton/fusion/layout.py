# SPDX-License-Identifier: Apache-2.0
"""The strides of a region's results: the same as if torch ran the operations one by one.

Later operations (e.g. a matmul, attention or a view) therefore get operands in the same layout as in eager mode. They
need no copy that eager mode does not need.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy
from thunder.toolkit.layouts import ordered_strides
from thunder_ex_triton.fusion.op_table import POINTWISE
from thunder_ex_triton.fusion.scans import ASSOCIATIVE
from thunder_ex_triton.fusion.sizes import hint_of

__all__ = ["Declared", "contiguous", "declared", "dense", "layouts"]

Strides = Sequence[Any]
# For results: the value whose strides give the order of their dimensions, or STACKED; None: they are contiguous.
Declared = Mapping[str, str | None]
STACKED = "torch.stack"  # torch stacks by a concatenation, whose result it views


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    out, rest = [], 1
    for d in reversed(shape):
        out.append(rest)
        rest *= max(d, 1)
    return tuple(reversed(out))


def declared(operations: Iterable[BoundSymbol]) -> Declared:
    """Return the results whose strides the operations declare, whatever primitives they consist of."""
    found: dict[str, str | None] = {}
    for op in operations:
        layout = op.sym.facts.layout
        if layout == "as input":
            if op.kwargs.get("memory_format") in (None, torch.preserve_format):
                found.update(dict.fromkeys(op.out_names, op.arg_names[0]))
        elif layout != "unknown" and op.sym.facts.view == "never":
            found.update(dict.fromkeys(op.out_names))
        elif op.sym.id == STACKED:
            found.update(dict.fromkeys(op.out_names, STACKED))
        elif op.subsymbols:
            found |= declared(op.subsymbols)
    return found


def layouts(
    operations: Sequence[BoundSymbol], known: Mapping[str, Strides], declared: Declared
) -> dict[str, tuple[Any, ...]]:
    """Propagate strides from the inputs to all values, except for `declared` ones."""
    found: dict[str, tuple[Any, ...]] = {name: tuple(s) for name, s in known.items()}
    for op in operations:
        for p in op.flat_outs:
            if isinstance(p, TensorProxy):
                found[p.name] = _declared_layout(op, p, declared, found) or _layout(op, p, found)
    return found


def _declared_layout(
    op: BoundSymbol, p: TensorProxy, declared: Declared, found: Mapping[str, tuple[Any, ...]]
) -> tuple[Any, ...] | None:
    if p.name not in declared:
        return None
    if declared[p.name] == STACKED:
        return _stacked(op, p, found) if op.sym is prims.cat else None
    strides = found.get(declared[p.name] or "")  # unknown if the region does not read the value
    return contiguous(p.shape) if strides is None else dense(p.shape, strides)


def _stacked(op: BoundSymbol, p: TensorProxy, found: Mapping[str, tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """Return the strides of a stack of images; None if torch does not concatenate them along an own dimension."""
    dim = op.args[1] % p.ndim
    if dim == p.ndim - 1:
        return None
    images = [(_without(x.shape, dim), _without(found[x.name], dim)) for x in op.tensors()]
    if not all(_is_channels_last(shape, strides) for shape, strides in images):
        return contiguous(p.shape)
    size = p.shape[dim + 1]
    joined = list(_without(p.shape, dim))
    joined[dim] = size * p.shape[dim]
    strides = _channels_last(joined)
    return (*strides[:dim], strides[dim] * size, *strides[dim:])


def _without(x: Sequence[Any], dim: int) -> tuple[Any, ...]:
    return (*x[:dim], *x[dim + 1 :])


def _layout(op: BoundSymbol, p: TensorProxy, found: Mapping[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    sym, a = op.sym, op.args[0] if op.args else None
    if sym.id in POINTWISE:
        return _together(p.shape, [found[x.name] for x in op.args if isinstance(x, TensorProxy) and x.ndim == p.ndim])
    if sym is prims.cat and all(_is_channels_last(x.shape, found[x.name]) for x in op.tensors()):
        return _channels_last(p.shape)
    if sym.id == ASSOCIATIVE:  # the decomposition makes results whose scanned dimension is the first one in memory
        first = op.args[2] % p.ndim
        rest = contiguous([n for d, n in enumerate(p.shape) if d != first])
        return (*rest[:first], math.prod(p.shape) // max(p.shape[first], 1), *rest[first:])
    if not isinstance(a, TensorProxy):
        return contiguous(p.shape)
    strides = found[a.name]
    spaced = sym is prims.pad and any(between for _, _, between in op.args[2])  # torch's executor fills new memory
    if sym is prims.pad and not spaced and _is_channels_last(a.shape, strides):
        return _channels_last(p.shape)
    if sym is prims.flip:
        return _together(p.shape, [strides])
    if sym is prims.transpose:
        return tuple([strides[i] for i in op.args[1]])
    if sym is prims.broadcast_in_dim:
        out = [0] * p.ndim
        for i, d in enumerate(op.args[2]):
            out[d] = strides[i] if hint_of(a.shape[i]) == hint_of(p.shape[d]) else 0
        return tuple(out)
    if sym is prims.slice:
        steps = op.args[3] if len(op.args) > 3 and op.args[3] is not None else [1] * p.ndim
        return tuple([s * step for s, step in zip(strides, steps)])
    if sym is prims.stride_order:
        return ordered_strides(p.shape, op.args[1])
    if sym.facts.keeps_order:
        return _as_view(a.shape, strides, p.shape) or contiguous(p.shape)
    return contiguous(p.shape)


def _channels_last(shape: Sequence[int]) -> tuple[Any, ...]:
    n, c, *places = contiguous((shape[0], *shape[2:], shape[1]))
    return n, places[-1], c, *places[:-1]


def _is_channels_last(shape: Sequence[int], strides: Strides) -> bool:
    """Check whether torch takes an image for channels-last: contiguous images of one channel or one place are not."""
    if len(shape) not in (4, 5) or hint_of(strides[1]) == 0:
        return False
    least = 0
    for d in (1, *reversed(range(2, len(shape))), 0):
        size, stride = hint_of(shape[d]), hint_of(strides[d])
        if size == 0 or stride < least or (d == 0 and least == hint_of(strides[1])):
            return False
        least = stride * size if size > 1 else stride
    return True


def _together(shape: Sequence[int], operands: Sequence[Strides]) -> tuple[Any, ...]:
    """Return the strides of a pointwise result.

    It is dense, and its dimensions have the order of the operands' strides.
    """

    def compared(a: int, b: int) -> int:
        for strides in operands:
            x, y = strides[a], strides[b]
            if x == 0 or y == 0:
                continue  # the stride of a broadcast dimension does not determine the order
            if x < y:
                return -1
            if x > y or shape[a] > shape[b]:
                return 1
        return 0

    order = list(reversed(range(len(shape))))  # the innermost dimension first
    for i in range(1, len(order)):
        at = i
        for j in range(i - 1, -1, -1):
            sign = compared(order[j], order[at])
            if sign > 0:
                order[j], order[at] = order[at], order[j]
                at = j
            elif sign < 0:
                break
    out: list[Any] = [0] * len(shape)
    expected: Any = 1
    for d in order:
        out[d] = expected
        expected = expected * shape[d]
    return tuple(out)


def _as_view(shape: Sequence[int], strides: Strides, wanted: Sequence[int]) -> tuple[Any, ...] | None:
    """Return the strides of a view with another shape; None if the reshape needs a copy."""
    runs: list[list[Any]] = []  # adjacent dimensions that collapse into one: the size and the innermost stride
    for d, s in zip(shape, strides):
        if d == 1:
            continue
        if runs and runs[-1][1] == d * s:
            runs[-1] = [runs[-1][0] * d, s]
        else:
            runs.append([d, s])
    out: list[Any] = []
    rest = list(wanted)
    for size, stride in reversed(runs):
        numel: Any = 1
        while numel != size or (rest and rest[-1] == 1):
            if not rest or (numel > size and rest[-1] != 1):
                return None
            out.append(stride * numel)
            numel = numel * rest.pop()
    if any(d != 1 for d in rest):
        return None
    out += [1] * len(rest)
    return tuple(reversed(out))


def dense(shape: Sequence[int], strides: Strides) -> tuple[Any, ...]:
    """Return dense strides for dimensions in the order of the given strides."""
    return tuple(strides) if _is_dense(shape, strides) else _together(shape, [strides])


def _is_dense(shape: Sequence[int], strides: Strides) -> bool:
    """Check whether a tensor is dense (without gaps or overlaps) in some order of its dimensions."""
    expected: Any = 1
    for stride, size in sorted((s, d) for s, d in zip(strides, shape) if d != 1):
        if stride != expected:
            return False
        expected = expected * size
    return True
