# SPDX-License-Identifier: Apache-2.0
"""Detection of band masks: causal masks and sliding windows that a program builds as tensors.

cuDNN's kernels skip the elements outside of a band, but they must read an equivalent mask tensor. Bands are detected in
`tril` and `triu` of ones, and in comparisons of row and column indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from thunder.extend import BoundSymbol, Proxy, dtypes
from thunder_ex_cudnn.attention.graphs import Causal
from thunder_ex_cudnn.attention.index_expressions import CASTS, VIEWS, Made, Number, filled, number_of, takes_all

__all__ = ["is_least", "side_of"]

_NOT = ("torch.logical_not", "torch.bitwise_not")
_AND = ("torch.logical_and", "torch.bitwise_and")
_MIRRORED = {"torch.le": "torch.ge", "torch.lt": "torch.gt", "torch.ge": "torch.le", "torch.gt": "torch.lt"}
_LEAST = -1e9


class _Band(NamedTuple):
    """The visible diagonals, as column index minus row index. A bound of None means unbounded."""

    first: Any = None
    last: Any = None

    def within(self, other: _Band | None) -> _Band | None:
        """Return the intersection of two bands."""
        if other is None:
            return None
        firsts = [n for n in (self.first, other.first) if n is not None]
        lasts = [n for n in (self.last, other.last) if n is not None]
        return _Band(max(firsts, default=None), min(lasts, default=None))

    def outside(self) -> _Band | None:
        """Return the complement if it is a band; None otherwise."""
        if self.first is None and self.last is not None:
            return _Band(self.last + 1, None)
        if self.first is not None and self.last is None:
            return _Band(None, self.first - 1)
        return None


def side_of(mask: Any, rows: int, columns: int, made: Made, *, negated: bool = False) -> Causal:
    """Return the corner that a causal mask is aligned to, with the window size, if any. Return None for other masks.

    A boolean mask selects the visible keys (with `negated`: the hidden keys). A mask of zeros and -inf is additive.
    """
    if mask.ndim < 2 or tuple(mask.shape[-2:]) != (rows, columns):
        return None
    band = _seen(mask, made) if mask.dtype is dtypes.bool8 else _added(mask, made)
    if band is not None and negated:
        band = band.outside()
    if band is None or band.last is None:
        return None
    side = "top-left" if band.last == 0 else "bottom-right" if band.last == columns - rows else None
    if band.first is None or (type(rows) is int and band.first <= 1 - rows):  # the window hides no key
        return side if side == "top-left" or rows <= columns else None
    window = band.last - band.first + 1
    return (side, window) if side is not None and type(window) is int and window > 0 and rows <= columns else None


def _through(op: BoundSymbol, made: Made, how: Callable[[Any, Made], _Band | None]) -> _Band | None:
    """Return the band of the source of a view or cast, if the operation keeps rows and columns."""
    source, result = op.args[0], op.output
    if op.sym.id == "torch.getitem" and not takes_all(op.args[1]):
        return None
    if source.ndim < 2 or tuple(source.shape[-2:]) != tuple(result.shape[-2:]):
        return None
    return how(source, made)


def _seen(x: Any, made: Made) -> _Band | None:
    """Return the band inside which `x` is true or one, and outside of which `x` is false or zero."""
    op = made.get(x.name) if isinstance(x, Proxy) else None
    if op is None:
        return None
    id = op.sym.id
    number = number_of(x, made)
    if number is not None and number.dim is None:
        return _Band() if number.offset == 1 else None
    if id in _NOT:
        return _opposite(_seen(op.args[0], made))
    if id in VIEWS or id in CASTS:
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
        return _compared(id, number_of(op.args[0], made), number_of(op.args[1], made))
    if id in ("torch.tril", "torch.triu"):
        diagonal = _diagonal(op)
        whole = _seen(op.args[0], made)
        if whole is None or diagonal is None:
            return None
        return whole.within(_Band(None, diagonal) if id == "torch.tril" else _Band(diagonal, None))
    return None


def _opposite(band: _Band | None) -> _Band | None:
    return None if band is None else band.outside()


def _diagonal(op: BoundSymbol) -> Any:
    diagonal = op.args[1] if len(op.args) > 1 else op.kwargs.get("diagonal", 0)
    return diagonal if isinstance(diagonal, int) else None


def _compared(id: str, left: Number | None, right: Number | None) -> _Band | None:
    """Return the band in which a comparison of row and column indices is true."""
    if left is None or right is None or {left.dim, right.dim} != {-1, -2}:
        return None
    if left.dim == -2:
        id, left, right = _MIRRORED[id], right, left
    equal = right.offset - left.offset
    if id in ("torch.le", "torch.lt"):
        return _Band(None, equal if id == "torch.le" else equal - 1)
    return _Band(equal if id == "torch.ge" else equal + 1, None)


def _added(x: Any, made: Made) -> _Band | None:
    """Return the band of an additive mask, which is zero for visible keys and -inf elsewhere."""
    op = made.get(x.name) if isinstance(x, Proxy) else None
    if op is None:
        return None
    id = op.sym.id
    if id in VIEWS or id in CASTS:
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
    """Check whether a number masks out scores when it is filled in or added."""
    return type(x) in (int, float) and x <= _LEAST
