# SPDX-License-Identifier: Apache-2.0
"""Tensors whose elements are functions of their indices. They are derived from `arange`, to compare rows and columns.

transformers also checks whether the positions of tokens jump. A jump means that several sequences are packed in one row
of a batch. If the program creates the positions by `arange`, they do not jump, and values computed from the check are
constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from thunder.extend import BoundSymbol, Proxy, dtypes

__all__ = ["CASTS", "VIEWS", "Made", "Number", "filled", "number_of", "takes_all"]

VIEWS = ("torch.getitem", "torch.unsqueeze", "torch.reshape", "torch.view", "torch.expand", "torch.contiguous")
CASTS = (
    "torch.detach",
    "torch.to",
    "torch.bool",
    "torch.long",
    "torch.type_as",
    "torch.float",
    "torch.bfloat16",
    "torch.half",
    "torch.type",
)
# Dtypes that represent indices exactly. The values that networks compute have other dtypes, and are not analyzed.
_EXACT = (dtypes.bool8, dtypes.int64, dtypes.int32)

Made = Mapping[str, BoundSymbol]


class Number(NamedTuple):
    """Elements that equal their index in a dimension (negative) plus an offset.

    Without a dimension, they equal the offset.
    """

    dim: int | None
    offset: int


def filled(x: Any, made: Made) -> Any:
    """Return a number, or the fill value of a tensor; None for other values."""
    if type(x) in (bool, int, float):
        return x
    op = made.get(x.name) if isinstance(x, Proxy) else None
    if op is None:
        return None
    id = op.sym.id
    if id in ("torch.ones", "torch.ones_like", "torch.new_ones"):
        return 1
    if id in ("torch.zeros", "torch.zeros_like", "torch.new_zeros"):
        return 0
    if id in ("torch.full", "torch.full_like"):
        return filled(op.args[1], made)
    if id in CASTS:
        return filled(op.args[0], made)
    return None


def number_of(x: Any, made: Made) -> Number | None:
    """Return the index expression of the elements of `x`; None if there is none."""
    full = filled(x, made)
    if full is not None:
        return Number(None, int(full)) if full in (0, 1) or type(full) is int else None
    op = made.get(x.name) if isinstance(x, Proxy) else None
    if op is None or not hasattr(x, "shape") or x.dtype not in _EXACT:
        return None
    found = _made_by(op, made)
    if found is not None and found.dim is not None and x.shape[found.dim] == 1:
        found = Number(None, found.offset)
    if found is not None and x.dtype is dtypes.bool8:
        return Number(None, int(found.offset != 0)) if found.dim is None else None
    return found


def _made_by(op: BoundSymbol, made: Made) -> Number | None:
    id, args = op.sym.id, op.args
    if id == "torch.arange":
        ends = [n for n in (*args, *(op.kwargs.get(k) for k in ("start", "end", "step"))) if n is not None]
        first = ends[0] if len(ends) == 2 else 0
        return Number(-1, first) if len(ends) in (1, 2) and type(first) is int else None
    if id in CASTS or id == "torch.contiguous":
        return number_of(args[0], made)
    if id in ("torch.add", "torch.sub", "torch.eq", "torch.ne") and len(args) == 2 and not op.kwargs:
        return _of_two(id, number_of(args[0], made), number_of(args[1], made))
    if id == "torch.cumsum":
        found = number_of(args[0], made)
        return Number(None, 0) if found == (None, 0) else None
    if id == "torch.diff":
        return _differences(op, made)
    if id == "torch.getitem" and not takes_all(args[1], slices=True):
        return _picked(args[0], args[1], made)
    source = number_of(args[0], made) if id in VIEWS else None
    if source is None or source.dim is None:
        return source
    dim = _moved(op, source.dim)
    return None if dim is None else Number(dim[0], source.offset + dim[1])


def _of_two(id: str, a: Number | None, b: Number | None) -> Number | None:
    if a is None or b is None or (b.dim is not None and (a.dim is not None or id != "torch.add")):
        return None
    if id in ("torch.add", "torch.sub"):
        dim = b.dim if a.dim is None else a.dim
        return Number(dim, a.offset + (b.offset if id == "torch.add" else -b.offset))
    return Number(None, int((a.offset == b.offset) == (id == "torch.eq"))) if a.dim is None else None


def _differences(op: BoundSymbol, made: Made) -> Number | None:
    """Return the differences of consecutive indices in the last dimension. All differences are 1."""
    how = dict(zip(("input", "n", "dim", "prepend", "append"), op.args))
    how.update(op.kwargs)
    if how.get("n", 1) != 1 or how.get("dim", -1) not in (-1, op.output.ndim - 1) or how.get("append") is not None:
        return None
    counted, before = number_of(how["input"], made), how.get("prepend")
    if counted is None or counted.dim != -1:
        return None
    if before is not None and (before.shape[-1] != 1 or number_of(before, made) != (None, counted.offset - 1)):
        return None
    return Number(None, 1)


def _picked(x: Any, key: Any, made: Made) -> Number | None:
    """Return the index expression of advanced indexing with one tensor per dimension."""
    source = number_of(x, made)
    if source is None or not isinstance(key, tuple) or len(key) != x.ndim:
        return None
    if not all(isinstance(part, Proxy) and getattr(part, "ndim", 0) > 0 for part in key):
        return None
    if source.dim is None:
        return source
    place = number_of(key[source.dim], made)
    return None if place is None or place.offset < 0 else Number(place.dim, place.offset + source.offset)


def takes_all(key: Any, *, slices: bool = False) -> bool:
    """Check whether an index only adds dimensions. With `slices`, slices without a step are also allowed."""
    parts = key if isinstance(key, tuple) else (key,)
    return all(
        part is None or part is ... or (isinstance(part, slice) and part.step in (None, 1) and (slices or _whole(part)))
        for part in parts
    )


def _whole(part: slice) -> bool:
    return part.start in (None, 0)


def _moved(op: BoundSymbol, dim: int) -> tuple[int, int] | None:
    """Return the dimension of a view that corresponds to a dimension of its source, and its first index there."""
    source, result, id = op.args[0], op.output, op.sym.id
    at = source.ndim + dim
    if id == "torch.expand":
        return dim, 0
    if id == "torch.unsqueeze":
        new = op.args[1] % result.ndim
        return at + (new <= at) - result.ndim, 0
    if id == "torch.getitem":
        return _sliced(op.args[1], source.ndim, at)
    long = [[d for d in range(-y.ndim, 0) if y.shape[d] != 1] for y in (source, result)]
    return (long[1][0], 0) if len(long[0]) == len(long[1]) == 1 else None


def _sliced(key: Any, ndim: int, at: int) -> tuple[int, int] | None:
    parts = list(key) if isinstance(key, tuple) else [key]
    taken = sum(isinstance(part, slice) for part in parts)
    rest = [slice(None)] * (ndim - taken)
    if ... in parts:
        i = parts.index(...)
        parts[i : i + 1] = rest
    else:
        parts += rest
    behind, passed = 0, 0
    first = 0
    for part in parts:
        if passed > at:
            behind += 1
        elif part is not None:
            if passed == at:
                first = part.start or 0
            passed += 1
    return (-1 - behind, first) if type(first) is int and first >= 0 else None
