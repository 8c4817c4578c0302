# SPDX-License-Identifier: Apache-2.0
"""Strides of values: for passes that change the layout of values inside of a program, but not of its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from thunder.core import prims
from thunder.core.dtypes import to_torch_dtype
from thunder.core.prims.structure import Saved
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.strides import Strides, order_of, ordered_strides
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import Trace
from thunder.executors import TORCH, meta_tensors
from thunder.runtime.autograd.leaf_gradients import new_gradient

__all__ = [
    "changed_strides", "eager_strides", "gradient_strides", "has_fixed_strides", "order_of", "ordered_strides",
    "reads_strides", "results_of",
]  # fmt: skip

# Views of elements by their indices. Other views (`as_strided`, `bitcast`) depend on memory.
_VIEWS = frozenset({
    prims.alias, prims.broadcast_in_dim, prims.conj, prims.detach, prims.imag, prims.real, prims.reshape, prims.slice,
    prims.squeeze, prims.transpose, prims.unfold, prims.view,
})  # fmt: skip


def reads_strides(op: BoundSymbol) -> bool:
    """Check whether the values of an operation's results may depend on the strides of its arguments."""
    if op.subsymbols:
        return any(reads_strides(part) for part in op.subsymbols)
    if OpTags.VIEW_OP in op.sym.tags and op.sym.is_prim:
        return op.sym not in _VIEWS and op.sym.fn is not new_gradient
    return OpTags.OPAQUE_OP in op.sym.tags


def has_fixed_strides(op: BoundSymbol) -> bool:
    """Check whether an operation's results have the same strides for all strides of its arguments."""
    # `.grad` has the strides of its leaf, which is an input.
    return meta_tensors.is_dense(op.sym, op.kwargs) or op.sym.fn is new_gradient


def changed_strides(
    trace: Trace, origins: Callable[[BoundSymbol], Iterable[Proxy] | None]
) -> dict[str, TensorProxy] | None:
    """Return the values whose strides change if some operations of a program write other strides.

    `origins` returns the results of such an operation whose strides change, and None for operations that write the
    strides that follow from those of their arguments. Return None if a value would depend on the new strides.
    """
    changed: dict[str, TensorProxy] = {}
    for op in trace.bound_symbols:
        if op.sym.is_structural:
            continue
        results = origins(op)
        if results is None:
            if changed.keys().isdisjoint(op.arg_names):
                continue
            if reads_strides(op):
                return None
            results = [] if has_fixed_strides(op) else op.flat_outs
        changed.update((p.name, p) for p in results if isinstance(p, TensorProxy) and p.ndim > 1)
    return changed


def eager_strides(
    trace: Trace, values: Iterable[TensorProxy], *, claimed: bool = False, certain: bool = False
) -> Mapping[str, Strides]:
    """Return the strides that values of a program have in eager mode.

    Values with symbolic sizes are left out, as are those that depend on inputs of which the prologue does not check the
    strides, and on operations whose results' strides torch cannot compute without running them. Set `claimed` for a
    program that executors have claimed. Operators of executors then have the strides of their decompositions, which may
    not be those that their kernels write; if the strides must be `certain`, they are left out.
    """
    of_inputs: Mapping[str, Strides] = trace.info.get("strides", {})
    known: dict[str, torch.Tensor] = {}
    for p in trace.args:
        if isinstance(p, TensorProxy) and _is_static(p) and (p.ndim < 2 or p.name in of_inputs):
            strides = of_inputs.get(p.name, (1,) * p.ndim)
            known[p.name] = torch.empty_strided(p.shape, strides, dtype=to_torch_dtype(p.dtype), device="meta")
    wanted = [p.name for p in values]
    needed, operations = set(wanted), []
    for op in reversed(trace.bound_symbols):
        if not op.sym.is_structural and not needed.isdisjoint(op.out_names):
            operations.append(op)
            if not _is_dense(op):
                needed.update(op.arg_names)
    guessed: set[str] = set()
    for op in reversed(operations):
        outs = [p for p in op.flat_outs if isinstance(p, TensorProxy)]
        if not all(map(_is_static, outs)):
            continue
        if claimed and certain and op.sym.executor not in (None, TORCH):
            continue
        if _is_dense(op):
            known.update((p.name, meta_tensors.contiguous(p)) for p in outs)
        elif all(p.name in known and p.name not in guessed for p in op.tensors()):
            meta_tensors.run(op, known, guessed, claimed=claimed)
    return {name: known[name].stride() for name in wanted if name in known and name not in guessed}


def gradient_strides(trace: Trace) -> dict[str, Strides]:
    """Return the strides of inputs by the names of their gradients, which a backward program returns.

    Autograd copies the gradient of a parameter that has other strides. Inputs of which the prologue does not check the
    strides are left out, and so is a gradient of several inputs with different strides. A program that is no backward
    program has none.
    """
    if "forward" not in trace.info:
        return {}
    known: Mapping[str, Strides] = trace.info["forward"].info.get("strides", {})
    found: dict[str, set[Strides | None]] = {}
    for g, p in zip(results_of(trace), trace.info["wrt"]):
        if isinstance(g, TensorProxy):
            # The gradients of a batch have other shapes.
            found.setdefault(g.name, set()).add(known.get(p.name) if g.shape == p.shape else None)
    return {name: strides for name, (strides, *others) in found.items() if strides is not None and not others}


def results_of(trace: Trace) -> Any:
    """Return the output of a program without the values that a forward program saves."""
    output = trace.output
    return output[0] if isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], Saved) else output


def _is_dense(op: BoundSymbol) -> bool:
    """Check whether the results are contiguous for all strides of the arguments."""
    if op.sym.executor is TORCH and len(op.subsymbols) == 1:  # the operation that torch runs
        op = op.subsymbols[0]
    return meta_tensors.is_dense(op.sym, op.kwargs)


def _is_static(p: TensorProxy) -> bool:
    return all(type(n) is int for n in p.shape)
