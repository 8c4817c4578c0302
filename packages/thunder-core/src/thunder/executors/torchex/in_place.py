# SPDX-License-Identifier: Apache-2.0
"""What the torch executor knows of the memory of its results, and how it writes a result to memory that exists.

The answers are conservative. An operation that is not known to compute new memory may return an argument. Strides that
are not known are not exchanged for others, because torch's kernels may round differently for other strides.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import get_testing_overrides

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.dtypes import is_complex_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.strides import Strides, contiguous_strides, dense_strides, ordered_strides
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.executors.torchex.base import ex, qualified_name
from thunder.executors.torchex.foreach import foreach_in_place, is_foreach, strides_of_foreach, updates_foreach
from thunder.executors.torchex.fused_updates import is_fused_update, may_update_in_place, operands, updated_in_place
from thunder.executors.torchex.join_counters import adds_to_counters, written_counters
from thunder.executors.torchex.part_updates import is_part_update, part_in_place, strides_of_part_update, writes_part
from thunder.extend.memory import ResultMemory
from thunder.passes.postponing import innermost
from thunder.runtime.autograd.leaf_gradients import new_gradient
from thunder.torch.base import torch_function_map

__all__ = ["TorchMemory", "keeps_layout"]

_COMPUTES = frozenset({OpTags.ELEMENTWISE_OP, OpTags.REDUCTION_OP, OpTags.MATMUL_OP})
_UNKNOWN = frozenset({OpTags.OPAQUE_OP, OpTags.IN_PLACE_OP})
_CREATE = frozenset({
    prims.cat, prims.clone, prims.clone_in_order, prims.embedding, prims.empty, prims.full, prims.gather, prims.sort,
    prims.resize_backward, prims.take, prims.topk,
})  # fmt: skip
_DETACH = frozenset({prims.detach, ltorch.detach})
_CONTIGUOUS = frozenset({ltorch.zeros, ltorch.ones, ltorch.full, prims.full})
_LIKE = frozenset({ltorch.zeros_like, ltorch.ones_like, ltorch.full_like})


class TorchMemory(ResultMemory):
    """The memory of the results of torch's functions."""

    def may_share(self, op: BoundSymbol) -> Sequence[str] | None:
        if not _UNKNOWN.isdisjoint(op.sym.tags) or op.sym.fn is None or adds_to_counters(op):
            return None
        if op.sym.fn is new_gradient:
            return op.arg_names[:1]
        if is_part_update(op):
            return ()
        if _orders(op, prims.stride_order):
            return op.arg_names[:1]
        made = {name: part for part in innermost(op) for name in part.out_names}
        if OpTags.VIEW_OP not in op.sym.tags:
            bases = {_base(name, made) for name in op.out_names}
            if len(bases) == len(op.out_names) and all(base in made and _is_new(made[base]) for base in bases):
                return ()
        if len(op.subsymbols) == 1 and OpTags.VIEW_OP in op.subsymbols[0].sym.tags:
            return [p.name for p in op.flat_args if isinstance(p, TensorProxy)]
        return None

    def written(self, op: BoundSymbol) -> Sequence[str] | None:
        if "out" in op.kwargs:
            return [op.kwargs["out"].name]
        if op.sym is _copy():
            return [op.args[1].name]
        if updates_foreach(op):
            return [x.name for x in op.args[0]]
        if writes_part(op):
            return [op.args[0].name]
        return written_counters(op) or None

    def strides(self, op: BoundSymbol, known: Mapping[str, Strides]) -> Mapping[str, Strides]:
        if is_fused_update(op):
            return {result: known[old.name] for result, old in operands(op).items() if old.name in known}
        if is_foreach(op):
            return strides_of_foreach(op, known)
        out = op.output
        if not isinstance(out, TensorProxy) or any(type(n) is not int for n in out.shape):
            return {}
        found = self._strides(op, out, known)
        return {} if found is None else {out.name: found}

    def _strides(self, op: BoundSymbol, out: TensorProxy, known: Mapping[str, Strides]) -> Strides | None:
        shape = tuple(out.shape)
        contiguous = contiguous_strides(shape)
        if op.sym.fn is new_gradient:  # a gradient has the strides of its leaf
            return known.get(op.args[1].name)
        if is_part_update(op):
            return strides_of_part_update(op, known)
        whole = op.subsymbols[0].sym if len(op.subsymbols) == 1 else op.sym
        if whole in _DETACH or _is_clone(op):
            return known.get(op.arg_names[0])
        if _orders(op, prims.clone_in_order):
            return dense_strides(shape, ordered_strides(shape, op.args[1]))
        if whole in _LIKE and not op.kwargs:
            x, strides = op.args[0], known.get(op.arg_names[0])
            return strides if strides is not None and dense_strides(x.shape, strides) == strides else None
        if (whole.facts.layout == "contiguous" or whole in _CONTIGUOUS) and "memory_format" not in op.kwargs:
            return contiguous
        if op.sym.fn is torch.matmul and all(a.ndim == 2 for a in op.args):
            return contiguous
        if not _is_elementwise(op) or self.may_share(op) != ():
            return None
        operands = [x for x in op.flat_args if isinstance(x, TensorProxy)]
        layouts = {known.get(x.name) for x in operands if tuple(x.shape) == shape}
        if len(layouts) != 1 or None in layouts:
            return None
        (strides,) = layouts
        expanded = [x for x in operands if tuple(x.shape) != shape and x.ndim]
        if strides == contiguous and all(known.get(x.name) == contiguous_strides(x.shape) for x in expanded):
            return contiguous
        return strides if keeps_layout(op) and not expanded else None

    def may_write(self, op: BoundSymbol) -> Callable[[str, TensorProxy, frozenset[str]], bool]:
        return may_update_in_place(op) if is_fused_update(op) else super().may_write(op)

    def written_to(
        self, op: BoundSymbol, targets: Mapping[str, tuple[TensorProxy, frozenset[str]]]
    ) -> BoundSymbol | None:
        if is_fused_update(op):
            return updated_in_place(op, targets)
        if is_foreach(op):
            return foreach_in_place(op, *next(iter(targets.values())))
        fn = op.sym.fn
        if not isinstance(op.output, TensorProxy) or [*targets] != [op.output.name] or "out" in op.kwargs:
            return None
        ((target, whole),) = targets.values()
        if is_part_update(op):
            return part_in_place(op, target, whole)
        if _is_clone(op) or _orders(op, prims.clone_in_order):
            return op.replace(sym=_copy(), args=(op.args[0], target), kwargs={})
        if not _accepts_out(fn) or not _is_elementwise(op) or self.may_share(op) != ():
            return None
        if not isinstance(op.args[0], TensorProxy):  # torch has few functions of a number and a tensor with `out=`
            return None
        if not all(_is_exact(x, op.output) for x in op.flat_args if isinstance(x, TensorProxy)):
            return None
        sym = _writing(fn, op.sym.name, op.sym.tags)
        return op.replace(sym=sym, kwargs={**op.kwargs, "out": target})


def keeps_layout(op: BoundSymbol) -> bool:
    """Check whether an elementwise operation is certain to keep the layout of its first operand: only functions with
    `out=` and a method that runs in place are.
    """
    fn = op.sym.fn or op.sym.reference
    return _accepts_out(fn) and hasattr(torch.Tensor, f"{op.sym.name}_")


def _copy() -> Symbol:
    """Return the operator that writes a value to a tensor."""
    found = ex.implmap[prims.copy_.id].op
    assert found is not None
    return found


def _is_clone(op: BoundSymbol) -> bool:
    """Check whether an operation copies its argument, with its strides."""
    whole = op.subsymbols[0].sym if len(op.subsymbols) == 1 else op.sym
    return whole in (prims.clone, ltorch.clone) and not op.kwargs


def _orders(op: BoundSymbol, sym: Symbol) -> bool:
    """Check whether an operation is one of the primitives that give their argument's memory an order of strides."""
    return [part.sym for part in innermost(op)] == [sym]


def _is_exact(x: TensorProxy, out: TensorProxy) -> bool:
    """Check whether an operand lets torch round alike in all memory. Loops over complex numbers differ, and the order
    of loops over expanded operands may.
    """
    return not is_complex_dtype(x.dtype) and (x.ndim == 0 or tuple(x.shape) == tuple(out.shape))


def _base(name: str, made: Mapping[str, BoundSymbol]) -> str:
    """Return the value that a value is a view of, among those that an operation makes."""
    while name in made and OpTags.VIEW_OP in made[name].sym.tags:
        name = made[name].arg_names[0]
    return name


def _is_new(op: BoundSymbol) -> bool:
    """Check whether a primitive computes a new tensor in all implementations."""
    sym = op.sym
    if sym is prims.convert_element_type:
        return op.args[0].dtype is not op.output.dtype
    if OpTags.VIEW_OP in sym.tags or not _UNKNOWN.isdisjoint(sym.tags):
        return False
    return sym in _CREATE or not _COMPUTES.isdisjoint(sym.tags)


def _is_elementwise(op: BoundSymbol) -> bool:
    """Check whether each element of the result is computed from the elements of the operands at one place."""
    return all(OpTags.ELEMENTWISE_OP in part.sym.tags or part.sym is prims.broadcast_in_dim for part in innermost(op))


@functools.cache
def _accepts_out(fn: Any) -> bool:
    if not isinstance(fn, types.BuiltinFunctionType) or fn not in torch_function_map():
        return False
    described = get_testing_overrides().get(fn)
    return described is not None and "out" in inspect.signature(described).parameters


@functools.cache
def _writing(fn: Any, name: str, tags: frozenset[OpTags]) -> Symbol:
    """Return the operator that runs a function of torch with `out=`."""

    def meta(*args: Any, out: Any, **kwargs: Any) -> Any:
        return prims.copy_(torch_function_map()[fn](*args, **kwargs), out)

    module, found = qualified_name(fn)
    return Symbol(
        found if module else name, meta, id=("torchex", fn, "out"), module=module, executor=ex, fn=fn,
        tags=(*tags, OpTags.IN_PLACE_OP),
    )  # fmt: skip


ex.memory = TorchMemory()
