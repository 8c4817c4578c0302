# SPDX-License-Identifier: Apache-2.0
"""Masks that are bands along the diagonal: what a program builds to say that nobody sees what comes later, or long ago.

cuDNN's kernels leave out what lies outside of a band; a mask that says the same they have to read. Bands are found in
`tril` and `triu` of ones, and in comparisons of the numbers of rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from thunder.core import dtypes
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol
from thunder_ex_cudnn.attention.graphs import Causal

__all__ = ["filled", "is_least", "side_of"]

_VIEWS = ("torch.getitem", "torch.unsqueeze", "torch.reshape", "torch.view", "torch.expand", "torch.contiguous")
_CASTS = (
    "torch.detach",
    "torch.to",
    "torch.bool",
    "torch.type_as",
    "torch.float",
    "torch.bfloat16",
    "torch.half",
    "torch.type",
)
_NOT = ("torch.logical_not", "torch.bitwise_not")
_AND = ("torch.logical_and", "torch.bitwise_and")
_MIRRORED = {"torch.le": "torch.ge", "torch.lt": "torch.gt", "torch.ge": "torch.le", "torch.gt": "torch.lt"}
_LEAST = -1e9

# In which the numbers of places are what they are.
_EXACT = (dtypes.int64, dtypes.int32, dtypes.float32, dtypes.float64)

Made = Mapping[str, BoundSymbol]


class _Band(NamedTuple):
    """The diagonals that are seen, by the number of the column less that of the row; None: there is no end."""

    first: Any = None
    last: Any = None

    def within(self, other: _Band | None) -> _Band | None:
        """What is in both."""
        if other is None:
            return None
        firsts = [n for n in (self.first, other.first) if n is not None]
        lasts = [n for n in (self.last, other.last) if n is not None]
        return _Band(max(firsts, default=None), min(lasts, default=None))

    def outside(self) -> _Band | None:
        """What is not in it, if that is a band."""
        if self.first is None and self.last is not None:
            return _Band(self.last + 1, None)
        if self.first is not None and self.last is None:
            return _Band(None, self.first - 1)
        return None


def side_of(mask: Any, rows: int, columns: int, made: Made, *, negated: bool = False) -> Causal:
    """The side at which a mask is a causal triangle of that size, and how many keys a query sees if not all before it.

    A mask of truth values says what is seen (`negated`: what is not); one of zeros and -inf is added to scores.
    """
    if mask.ndim < 2 or tuple(mask.shape[-2:]) != (rows, columns):
        return None
    band = _seen(mask, made) if mask.dtype is dtypes.bool8 else _added(mask, made)
    if band is not None and negated:
        band = band.outside()
    if band is None or band.last is None:
        return None
    side = "top-left" if band.last == 0 else "bottom-right" if band.last == columns - rows else None
    if band.first is None or (type(rows) is int and band.first <= 1 - rows):  # the first row is as far away as any
        return side if side == "top-left" or rows <= columns else None
    window = band.last - band.first + 1
    return (side, window) if side is not None and type(window) is int and window > 0 and rows <= columns else None


def _only_adds_dimensions(key: Any) -> bool:
    """Whether an index takes all elements, in their order."""
    parts = key if isinstance(key, tuple) else (key,)
    return all(part is None or part is ... or (isinstance(part, slice) and part.step in (None, 1)) for part in parts)


def _source(op: BoundSymbol) -> Any:
    """What a view or a cast is of, where its elements are in their order; None where they are not."""
    if op.sym.id == "torch.getitem" and not _only_adds_dimensions(op.args[1]):
        return None
    return op.args[0]


def _through(op: BoundSymbol, made: Made, how: Callable[[Any, Made], _Band | None]) -> _Band | None:
    """The answer for what a view or a cast is of."""
    source, result = _source(op), op.output
    if source is None or source.ndim < 2 or tuple(source.shape[-2:]) != tuple(result.shape[-2:]):
        return None
    if op.sym.id in _VIEWS and math.prod(source.shape) != math.prod(source.shape[-2:]):
        return None  # several masks
    return how(source, made)


def _seen(x: Any, made: Made) -> _Band | None:
    """The band in which `x` is true, or not zero."""
    op = made.get(x.name) if isinstance(x, Proxy) else None
    if op is None:
        return None
    id = op.sym.id
    if filled(x, made) == 1:
        return _Band()
    if id in _NOT:
        return _opposite(_seen(op.args[0], made))
    if id in _VIEWS or id in _CASTS:
        return _through(op, made, _seen)
    if id in _AND:
        first = _seen(op.args[0], made)
        return first and first.within(_seen(op.args[1], made))
    if id in ("torch.eq", "torch.ne", "torch.gt") and type(op.args[1]) in (bool, int, float):
        against = op.args[1]
        if (id, against) == ("torch.eq", 0):
            return _opposite(_seen(op.args[0], made))
        if (id, against) in (("torch.ne", 0), ("torch.gt", 0), ("torch.eq", 1)):
            return _seen(op.args[0], made)
        return None
    if id in _MIRRORED:
        return _compared(id, _number(op.args[0], made), _number(op.args[1], made))
    if id in ("torch.tril", "torch.triu"):
        diagonal = _diagonal(op)
        whole = _Band() if filled(op.args[0], made) == 1 else _seen(op.args[0], made)
        if whole is None or diagonal is None:
            return None
        return whole.within(_Band(None, diagonal) if id == "torch.tril" else _Band(diagonal, None))
    return None


def _opposite(band: _Band | None) -> _Band | None:
    return None if band is None else band.outside()


def _diagonal(op: BoundSymbol) -> Any:
    diagonal = op.args[1] if len(op.args) > 1 else op.kwargs.get("diagonal", 0)
    return diagonal if isinstance(diagonal, int) else None


def _number(x: Any, made: Made) -> tuple[int, int] | None:
    """The dimension, -1 or -2, of which `x` is the number of each place, and what is added to it."""
    if not isinstance(x, Proxy) or getattr(x, "ndim", 0) < 1:
        return None
    long = [d for d in range(-x.ndim, 0) if x.shape[d] != 1]  # type: ignore[attr-defined]
    if long not in ([-1], [-2]):
        return None
    offset, op = 0, made.get(x.name)
    while op is not None and op.output.dtype in _EXACT:
        id, args = op.sym.id, op.args
        if id == "torch.arange":
            ends = [
                n for n in (*args, *(op.kwargs[k] for k in ("start", "end", "step") if k in op.kwargs)) if n is not None
            ]
            if len(ends) not in (1, 2) or (len(ends) == 2 and type(ends[0]) is not int):
                return None
            return long[0], offset + (ends[0] if len(ends) == 2 else 0)
        if id in ("torch.add", "torch.sub") and len(args) == 2 and not op.kwargs and type(args[1]) is int:
            offset += args[1] if id == "torch.add" else -args[1]
        elif id not in _CASTS and (id not in _VIEWS or _source(op) is None or id == "torch.expand"):
            return None
        op = made.get(args[0].name)
    return None


def _compared(id: str, left: tuple[int, int] | None, right: tuple[int, int] | None) -> _Band | None:
    """Where the number of a column is less, or more, than that of a row."""
    if left is None or right is None or {left[0], right[0]} != {-1, -2}:
        return None
    if left[0] == -2:
        id, left, right = _MIRRORED[id], right, left
    equal = right[1] - left[1]
    if id in ("torch.le", "torch.lt"):
        return _Band(None, equal if id == "torch.le" else equal - 1)
    return _Band(equal if id == "torch.ge" else equal + 1, None)


def _added(x: Any, made: Made) -> _Band | None:
    """The same for what is added to scores: zero where something is seen, -inf elsewhere."""
    op = made.get(x.name) if isinstance(x, Proxy) else None
    if op is None:
        return None
    id = op.sym.id
    if id in _VIEWS or id in _CASTS:
        return _through(op, made, _added)
    if id == "torch.triu" and filled(op.args[0], made) == -math.inf:
        diagonal = _diagonal(op)
        return None if diagonal is None else _Band(None, diagonal - 1)
    numbers = tuple(filled(x, made) for x in op.args)
    if id == "torch.where" and numbers[1] == 0 and is_least(numbers[2]):
        return _seen(op.args[0], made)
    if id == "torch.where" and numbers[2] == 0 and is_least(numbers[1]):
        return _opposite(_seen(op.args[0], made))
    if id == "torch.masked_fill" and numbers[0] == 0 and is_least(numbers[2]):
        return _opposite(_seen(op.args[1], made))
    return None


def is_least(x: Any) -> bool:
    """Whether a number that is filled in or added says that something is not seen."""
    return type(x) in (int, float) and x <= _LEAST


def filled(x: Any, made: Made) -> Any:
    """A number, or that which a tensor is full of."""
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
    if id in _CASTS:
        return filled(op.args[0], made)
    return None
