# SPDX-License-Identifier: Apache-2.0
"""The two matmuls of attention, `query @ key.T` and `weights @ value`, written with matmul, bmm or einsum."""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
from thunder.extend import BoundSymbol, TensorProxy

__all__ = ["as_scores", "as_weighted", "is_product", "ordered"]

_MATMULS = ("torch.matmul", "torch.bmm")


def is_product(op: BoundSymbol) -> bool:
    """Check whether an operation may be one of the two matmuls."""
    return op.sym.id in _MATMULS or op.sym.id == "torch.einsum"


def as_scores(op: BoundSymbol) -> tuple[Any, Any, bool] | None:
    """Match `query @ key.T`.

    Return query and key, with their widths last, and whether the key is already transposed.
    """
    if op.sym.id in _MATMULS:
        return op.args[0], op.args[1], True
    letters = _letters(op)
    if letters is None:
        return None
    left, right, out = letters
    batch, rows, columns = out[:-2], out[-2], out[-1]
    shared = [c for c in left if c in right and c not in out]
    if len(shared) != 1 or not _are(left, batch, rows, shared[0]) or not _are(right, batch, columns, shared[0]):
        return None
    query = _permuted(op.args[1], left, [*batch, rows, shared[0]])
    return query, _permuted(op.args[2], right, [*batch, columns, shared[0]]), False


def as_weighted(op: BoundSymbol) -> tuple[Any, Any, tuple[int, ...] | None] | None:
    """Match `weights @ value`. Return weights and value, and the order of the result's dimensions."""
    if op.sym.id in _MATMULS:
        weights, value = op.args[:2]
        return (weights, value, None) if weights.ndim == value.ndim else None
    letters = _letters(op)
    if letters is None:
        return None
    left, right, out = letters
    batch, rows, columns = left[:-2], left[-2], left[-1]
    width = [c for c in right if c in out and c not in left]
    if len(width) != 1 or not _are(right, batch, columns, width[0]) or not _are(out, batch, rows, width[0]):
        return None
    natural = [*batch, rows, width[0]]
    order = None if natural == list(out) else tuple(natural.index(c) for c in out)
    return op.args[1], _permuted(op.args[2], right, [*batch, columns, width[0]]), order


def ordered(x: Any, dims: tuple[int, ...] | None) -> Any:
    """Permute the dimensions of `x`. None leaves them in order."""
    return x if dims is None else ltorch.permute(x, dims)


def _permuted(x: Any, letters: str, wanted: list[str]) -> Any:
    return ordered(x, None if list(letters) == wanted else tuple(letters.index(c) for c in wanted))


def _are(letters: str, *parts: str) -> bool:
    return sorted(letters) == sorted("".join(parts))


def _letters(op: BoundSymbol) -> tuple[str, str, str] | None:
    """Return the subscripts of the two operands and the result of an einsum."""
    if op.sym.id != "torch.einsum" or len(op.args) != 3 or not isinstance(op.args[0], str):
        return None
    sides = op.args[0].replace(" ", "").split("->")
    operands = sides[0].split(",")
    if len(sides) != 2 or len(operands) != 2 or not all(isinstance(x, TensorProxy) for x in op.args[1:]):
        return None
    found = (*operands, sides[1])
    plain = all(word.isalpha() and len(set(word)) == len(word) and len(word) in (3, 4) for word in found)
    return found if plain else None  # type: ignore[return-value]
