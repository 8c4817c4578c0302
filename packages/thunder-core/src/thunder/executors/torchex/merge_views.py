# SPDX-License-Identifier: Apache-2.0
"""Views of views: replace a chain of views by one `torch.as_strided`.

The base of a chain of views may be known to be contiguous, because of the operation that created it. Then
`torch.as_strided` creates the last view directly from the base. Running the chain on the meta device determines the
sizes, strides and offset.

Contract: values and aliasing are unchanged. `passes/dce.py` removes the operations that become unused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

import thunder.torch as ltorch
from thunder.core.dtypes import to_torch_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, OpTags, map_proxies
from thunder.core.trace import Trace, construct
from thunder.executors.torchex.base import ex, torch_operator
from thunder.torch.private import DisableTorchFunction, without_modes

__all__ = ["merge_views"]


def merge_views(trace: Trace) -> Trace:
    """Return the trace with each chain of views merged into one view of the first tensor."""
    views: dict[str, BoundSymbol] = {}  # by the name of the result
    dense: dict[str, TensorProxy] = {}
    needed: set[str] = set()  # the values that operations other than views read
    for op in trace.bound_symbols:
        if _is_view(op):
            views.update(dict.fromkeys(op.out_names, op))
            continue
        needed.update(op.arg_names)
        if _is_dense(op):
            dense[op.output.name] = op.output
    # The ends of chains. Other operations read these views. Nothing else reads the views in the middle of a chain.
    ends = {name: op for name, op in views.items() if name in needed and _only_leads_on(op.arg_names[0], views, needed)}
    if not ends:
        return trace
    chains = _Chains(views, dense)
    with _unseen():
        for name, op in ends.items():
            if name not in chains.known:
                chains.follow(op)
    found = {name for name in ends if chains.known[name] is not None and type(ends[name].output) is TensorProxy}
    if not found:
        return trace
    with construct(trace, "Views of views") as out:
        for op in trace.bound_symbols:
            out.bound_symbols.append(_at_once(op, chains, out) if not found.isdisjoint(op.out_names) else op)
    return out


def _only_leads_on(name: str, views: dict[str, BoundSymbol], needed: set[str]) -> bool:
    return name in views and name not in needed


def _is_view(op: BoundSymbol) -> bool:
    """Check whether torch runs an operation as a view of its first argument."""
    if not op.args or not _by_torch(op) or len(set(op.arg_names)) != 1 or not isinstance(op.args[0], TensorProxy):
        return False
    # The operator of an executor may have different tags, but the operation is among its subsymbols.
    return OpTags.VIEW_OP in op.sym.tags or any(OpTags.VIEW_OP in part.sym.tags for part in op.subsymbols)


def _by_torch(op: BoundSymbol) -> bool:
    return op.sym.executor is ex and op.sym.fn is not None


def _is_dense(op: BoundSymbol) -> bool:
    p = op.output
    if not _by_torch(op) or not isinstance(p, TensorProxy) or any(type(d) is not int for d in p.shape):
        return False
    if op.sym.fn is torch.matmul:
        return all(a.ndim == 2 for a in op.args)
    # The subsymbols of an executor's operator contain the operation.
    return len(op.subsymbols) == 1 and op.subsymbols[0].sym.facts.layout == "contiguous"


@contextmanager
def _unseen() -> Iterator[None]:
    """Hide operations on the meta device from the user's active modes."""
    with torch.no_grad(), DisableTorchFunction(), without_modes():
        yield


class _Chains:
    """The views whose layout is known, as tensors on the meta device, and the bases of these views."""

    def __init__(self, views: dict[str, BoundSymbol], dense: dict[str, TensorProxy]) -> None:
        self.views = views
        self.dense = dense
        self.known: dict[str, torch.Tensor | None] = {}
        self.first: dict[str, TensorProxy] = {}

    def follow(self, end: BoundSymbol) -> None:
        """Compute the layouts of a chain of views, from a contiguous new tensor to the end of the chain."""
        chain = [end]
        while (base := chain[-1].arg_names[0]) not in self.known and base in self.views:
            chain.append(self.views[base])
        if base not in self.known:
            p = self.dense.get(base)
            self.known[base] = None
            if p is not None:
                self.known[base] = torch.empty(p.shape, dtype=to_torch_dtype(p.dtype), device="meta")
                self.first[base] = p
        for op in reversed(chain):
            self._look(op)

    def _look(self, op: BoundSymbol) -> None:
        """Record the layout of a view of a tensor with a known layout, unless torch must copy."""
        base = op.arg_names[0]
        self.known.update(dict.fromkeys(op.out_names))
        whole = self.known[base]
        if whole is None:
            return
        args, kwargs = map_proxies((op.args, op.kwargs), lambda p: whole)
        try:
            found = op.sym.fn(*args, **kwargs)  # type: ignore[misc]
        except Exception:  # operations without a meta kernel stay unchanged
            return
        results = [found] if isinstance(found, torch.Tensor) else list(found)
        outputs = [op.output] if isinstance(op.output, TensorProxy) else list(op.output)
        for p, x in zip(outputs, results):
            if isinstance(p, TensorProxy) and _reads_as_it_is(x, whole):
                self.known[p.name], self.first[p.name] = x, self.first[base]


def _reads_as_it_is(x: torch.Tensor, whole: torch.Tensor) -> bool:
    """Check whether strides describe a view fully: same memory and dtype, not conjugated, and not negated."""
    same = x.untyped_storage()._cdata == whole.untyped_storage()._cdata and x.dtype is whole.dtype
    return same and not x.is_conj() and not x.is_neg()


def _at_once(op: BoundSymbol, chains: _Chains, out: Trace) -> BoundSymbol:
    """Return the last view of a chain as one view of the chain's base."""
    p = op.output
    x, first = chains.known[p.name], chains.first[p.name]
    assert x is not None
    args = (first, tuple(x.shape), x.stride(), x.storage_offset())
    with tracectx(out), out.scope() as recorded:
        result = ltorch.as_strided(*args)
    (call,) = recorded
    return call.substitute({result.name: p}).run_by(torch_operator(torch.as_strided), args, {})
