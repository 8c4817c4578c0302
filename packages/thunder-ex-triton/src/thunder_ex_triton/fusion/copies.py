# SPDX-License-Identifier: Apache-2.0
"""Operations that copy a tensor to memory of another order, or return it if it has this order: e.g. `contiguous()`.

A fusion may contain a copy: the kernel that computes the tensor stores it in another order, or the kernel that reads
the copy reads the tensor. If there is nothing to copy, torch returns the tensor; a kernel would store it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from thunder import prims
from thunder.extend import BoundSymbol, Strides, Trace, dense_strides
from thunder.toolkit.layouts import eager_strides, ordered_strides

__all__ = ["maybe_uncopied"]


def maybe_uncopied(trace: Trace, primitives: Callable[[BoundSymbol], Sequence[BoundSymbol]]) -> set[str]:
    """Return the results of operations on the order of memory that are not known to be copies.

    `primitives` returns the primitives of a fusible operation, and none for other operations.
    """
    found = [(op, parts) for op in trace.bound_symbols if _orders(parts := primitives(op))]
    if not found:
        return set()
    strides = eager_strides(trace, [p for op, _ in found for p in op.tensors()], claimed=True, certain=True)
    return {name for op, parts in found if not _copies(parts, strides) for name in op.out_names}


def _orders(parts: Sequence[BoundSymbol]) -> bool:
    return any(part.sym is prims.stride_order for part in parts)


def _copies(parts: Sequence[BoundSymbol], known: Mapping[str, Strides]) -> bool:
    """Check whether an operation only orders memory, and its tensor is known to have another order."""
    if len(parts) > 1:
        return False
    a, order = parts[0].args
    if a.name not in known or any(type(n) is not int for n in a.shape):
        return False
    return dense_strides(a.shape, known[a.name]) != dense_strides(a.shape, ordered_strides(a.shape, order))
