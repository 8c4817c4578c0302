# SPDX-License-Identifier: Apache-2.0
"""Masks that are triangles: what a program builds of `tril`, `triu` and ones to say that nobody sees what comes later.

cuDNN's kernels leave out what lies outside of a triangle; a mask that says the same they have to read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from thunder.core import dtypes
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol

__all__ = ["filled", "side_of"]

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

Made = Mapping[str, BoundSymbol]


def _keeps_last(source: Any, result: Any) -> bool:
    """Whether a view has the elements of its source, and the last two dimensions in their place."""
    return source.ndim >= 2 and tuple(source.shape[-2:]) == tuple(result.shape[-2:])


def side_of(mask: Any, rows: int, columns: int, made: Made, *, negated: bool = False) -> str | None:
    """The side at which a mask is a causal triangle of that size, if it is one: "top-left" or "bottom-right".

    A mask of truth values says what is seen (`negated`: what is not); one of zeros and -inf is added to scores.
    """
    if mask.ndim < 2 or tuple(mask.shape[-2:]) != (rows, columns):
        return None
    shift = _seen(mask, made, negated) if mask.dtype is dtypes.bool8 else _added(mask, made)
    if shift == 0:
        return "top-left"
    return "bottom-right" if shift == columns - rows and rows <= columns else None


def _through(x: Any, made: Made, how: Callable[[Any, Made], int | None]) -> int | None:
    """The answer for what a view or a cast is of."""
    op = made.get(x.name)
    assert op is not None
    source = op.args[0]
    if op.sym.id in _VIEWS and not _keeps_last(source, x):
        return None
    if op.sym.id in _VIEWS and math.prod(source.shape) != math.prod(source.shape[-2:]):
        return None  # several masks
    return how(source, made)


def _seen(x: Any, made: Made, negated: bool = False) -> int | None:
    """The number of the last diagonal in which `x` is true, where below all is true and above nothing."""
    op = made.get(x.name) if isinstance(x, Proxy) else None
    if op is None:
        return None
    id = op.sym.id
    if id in _NOT:
        return _seen(op.args[0], made, not negated)
    if id in _VIEWS or id in _CASTS:
        return _through(x, made, lambda y, made: _seen(y, made, negated))
    if id in ("torch.eq", "torch.ne", "torch.gt") and type(op.args[1]) in (bool, int, float):
        against = op.args[1]
        if (id, against) == ("torch.eq", 0):
            return _seen(op.args[0], made, not negated)
        if (id, against) in (("torch.ne", 0), ("torch.gt", 0), ("torch.eq", 1)):
            return _seen(op.args[0], made, negated)
        return None
    if id in ("torch.tril", "torch.triu") and filled(op.args[0], made) == 1:
        diagonal = op.args[1] if len(op.args) > 1 else op.kwargs.get("diagonal", 0)
        if not isinstance(diagonal, int) or (id == "torch.triu") != negated:
            return None
        return diagonal if id == "torch.tril" else diagonal - 1
    return None


def _added(x: Any, made: Made) -> int | None:
    """The same for what is added to scores: zero where something is seen, -inf elsewhere."""
    op = made.get(x.name) if isinstance(x, Proxy) else None
    if op is None:
        return None
    id = op.sym.id
    if id in _VIEWS or id in _CASTS:
        return _through(x, made, _added)
    if id == "torch.triu" and filled(op.args[0], made) == -math.inf:
        diagonal = op.args[1] if len(op.args) > 1 else op.kwargs.get("diagonal", 0)
        return diagonal - 1 if isinstance(diagonal, int) else None
    numbers = tuple(filled(x, made) for x in op.args)
    if id == "torch.where" and numbers[1:] == (0, -math.inf):
        return _seen(op.args[0], made)
    if id == "torch.where" and numbers[1:] == (-math.inf, 0):
        return _seen(op.args[0], made, True)
    if id == "torch.masked_fill" and (numbers[0], numbers[2]) == (0, -math.inf):
        return _seen(op.args[1], made, True)
    return None


def filled(x: Any, made: Made) -> Any:
    """A number, or that which a tensor is full of."""
    if type(x) in (bool, int, float):
        return x
    op = made.get(x.name) if isinstance(x, Proxy) else None
    if op is None:
        return None
    id = op.sym.id
    if id in ("torch.ones", "torch.ones_like"):
        return 1
    if id in ("torch.zeros", "torch.zeros_like"):
        return 0
    if id in ("torch.full", "torch.full_like"):
        return filled(op.args[1], made)
    if id in _CASTS:
        return filled(op.args[0], made)
    return None
