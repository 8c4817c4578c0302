# SPDX-License-Identifier: Apache-2.0
"""The executor "triton": decide which operations can be fused, and which operations form one kernel."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from thunder import prims
from thunder.extend import (
    BoundSymbol,
    FusionExecutor,
    OpTags,
    Proxy,
    TensorProxy,
    Trace,
    bytes_of,
    construct,
    dtypes,
    to_torch_device,
)
from thunder.toolkit.fusion import (
    Region,
    by_device,
    partition,
    reject_values,
    replace_regions,
    rounded_results,
    without_views,
)
from thunder.toolkit.layouts import eager_strides
from thunder_ex_triton.fusion import autotune
from thunder_ex_triton.fusion.codegen import GATHERS, UNIFORM
from thunder_ex_triton.fusion.copies import maybe_uncopied
from thunder_ex_triton.fusion.errors import Unfit
from thunder_ex_triton.fusion.iteration_space import Space, after_columns, is_reduction, reduces, space_of
from thunder_ex_triton.fusion.layout import declared
from thunder_ex_triton.fusion.memory import FusionMemory
from thunder_ex_triton.fusion.multi_tensor import MultiTensorUpdate, numbers_on
from thunder_ex_triton.fusion.op_table import MATVEC, POINTWISE, operands_of, storage_type
from thunder_ex_triton.fusion.region import FusedRegion
from thunder_ex_triton.fusion.scans import is_scan, unfit_scan
from thunder_ex_triton.fusion.sizes import Size, Sizes, hint_of, is_symbolic
from thunder_ex_triton.fusion.symbolic import SymbolicRegion
from thunder_ex_triton.fusion.updates import Update, with_groups, with_numbers
from thunder_ex_triton.probe import interpreting, unusable_device

__all__ = ["TritonFusion"]

# The longest chain of operations in a kernel. Code is generated recursively, three Python frames for each of them.
_DEEPEST = 100
_MOST_TENSORS = 256  # of a kernel, whose parameters are at most 4 KB with some drivers
_SHAPES = {
    prims.broadcast_in_dim,
    prims.reshape,
    prims.view,
    prims.squeeze,
    prims.transpose,
    prims.slice,
    prims.flip,
    prims.cat,
    prims.pad,
    prims.stride_order,
}
_CONSTANTS = {prims.full, prims.iota}
_FROM_FLOAT8 = (dtypes.float32, dtypes.float16, dtypes.bfloat16)
_FLOAT8_GPU = (8, 9)  # the oldest compute capability with instructions for float8


class TritonFusion(FusionExecutor):
    """Fuses chains of pointwise operations, reductions over rows or columns, and shape operations into kernels."""

    def __init__(self, name: str, *, version: str | None = None):
        super().__init__(name, version=version)
        self.memory = FusionMemory(self)

    def why_not_fusible(self, bsym: BoundSymbol) -> str | None:
        return _unfit(with_numbers(bsym))  # groups of updates have data-dependent numbers, regions do not

    def fusion_pass(self, trace: Trace) -> Trace:
        count = 0
        sizes = Sizes()
        measurements = autotune.measurements()
        of_device = by_device(self)

        def fusible(bsym: BoundSymbol) -> Any:
            return None if with_numbers(bsym) is not bsym else of_device(bsym)

        def key(bsym: BoundSymbol) -> Any:
            return None if not unsure.isdisjoint(bsym.out_names) else fusible(bsym)

        def run(region: Region) -> Sequence[BoundSymbol] | None:
            nonlocal count
            if not region.outputs or not any(_computes(op) for op in region.operations):
                return None  # without results, if a pass has left unused operations
            if _concatenates(region, views()):
                return None
            if not self.get_fuel():
                return None
            before, inner, after = without_views(region)
            operations = [op for part in inner.operations for op in _primitives(part)]
            if _depth(operations) > _DEEPEST or len(inner.inputs) + len(inner.outputs) > _MOST_TENSORS:
                return in_halves(region)
            name = f"Triton{count}"
            try:
                if any(map(is_symbolic, operations)):
                    fn: FusedRegion = SymbolicRegion(name, operations, inner, sizes, self)
                else:
                    given = inner.inputs, inner.outputs, declared(inner.operations)
                    rounded = rounded_results(inner.operations, operations)
                    fn = FusedRegion(name, operations, *given, rounded=rounded, measurements=measurements)
            except Unfit:
                return in_halves(region)
            count += 1
            fn.prepare(strides())
            whole = self.register_temporary_operation(
                fn.name, fn, inputs=inner.inputs, outputs=inner.outputs, bsyms=inner.operations
            )
            return [*before, whole, *after]

        def in_halves(region: Region) -> Sequence[BoundSymbol] | None:
            """Split a region that does not fit into one kernel, and try each half."""
            if len(region) == 1:
                return None
            middle = len(region) // 2
            parts = region.operations[:middle], region.operations[middle:]
            return [op for part in parts for op in run(Region(part, region.key, read)) or part]

        @functools.cache
        def strides() -> Mapping[str, tuple[int, ...]]:
            """Return the strides that values will probably have. This takes time, which other programs do not need."""
            values = [p for op in own.bound_symbols for p in op.tensors()]
            return {} if interpreting() else eager_strides(own, values, claimed=True)

        @functools.cache
        def views() -> set[str]:
            found = [op for op in own.bound_symbols if OpTags.VIEW_OP in op.sym.tags and not _reshapes(op)]
            return {name for op in found for name in op.out_names}

        def update(updates: Sequence[Update]) -> list[BoundSymbol]:
            nonlocal count
            name, found = f"TritonUpdate{count}", []
            count += 1
            args: list[Any] = [p for u in updates for p in u.inputs]
            values = [x for u in updates for x in u.numbers]
            if values:
                device, dtype = updates[0].outputs[0].device, dtypes.float32
                p = TensorProxy(trace.make_name(), shape=(len(values),), device=device, dtype=dtype)
                found.append(
                    self.register_temporary_operation(
                        f"{name}_numbers", numbers_on(to_torch_device(device)), inputs=values, outputs=p, bsyms=(),
                        tags=(OpTags.SHAPE_OP,),
                    )
                )  # fmt: skip
                args.append(p)
            results = tuple([p for u in updates for p in u.outputs])
            operations = [op for u in updates for op in u.operations]
            fn = MultiTensorUpdate(name, updates)
            found.append(self.register_temporary_operation(name, fn, inputs=args, outputs=results, bsyms=operations))
            return found

        grouped = with_groups(trace, _unfit, update) if self.get_fuel() else trace
        own = _with_own_expansions(grouped, lambda bsym: fusible(bsym) is not None)
        unsure = maybe_uncopied(own, lambda bsym: _primitives(bsym) if fusible(bsym) is not None else [])
        read = Counter(name for op in own.bound_symbols for name in set(op.arg_names))
        parts = partition(own, key, may_join=_joining(own, sizes), horizontal=True, max_size=400)
        out = replace_regions(own, parts, run, "Fusion by triton")
        _forget_answers()
        return out


def _depth(operations: Sequence[BoundSymbol]) -> int:
    """Return the number of operations of the longest chain."""
    depths: dict[str, int] = {}
    for op in operations:
        depths.update(dict.fromkeys(op.out_names, 1 + max((depths.get(name, 0) for name in op.arg_names), default=0)))
    return max(depths.values(), default=0)


# Answers for one program: passes ask about an operation repeatedly, and layers contain the same operations.
_ASKED: dict[int, tuple[BoundSymbol, str | None]] = {}  # by id; the stored operation keeps its id unique
_ANSWERS: dict[Any, str | None] = {}  # by signature
_UNKNOWN = "not asked yet"
_MOST_ASKED = 100_000
_ATOMS = frozenset({int, float, bool, complex, str, type(None), dtypes.dtype})


def _unfit(bsym: BoundSymbol) -> str | None:
    """Return why an operation cannot be fused, or None. A composite cannot be fused, but its parts may be."""
    found = _ASKED.get(id(bsym))
    if found is None or found[0] is not bsym:
        if len(_ASKED) >= _MOST_ASKED:
            _forget_answers()
        try:
            signature = bsym.sym, *map(_signature, (bsym.args, bsym.kwargs, bsym.output))
        except LookupError:
            answer = _found_unfit(bsym)
        else:
            answer = _ANSWERS.get(signature, _UNKNOWN)
            if answer is _UNKNOWN:
                answer = _ANSWERS[signature] = _found_unfit(bsym)
        found = _ASKED[id(bsym)] = bsym, answer
    return found[1]


def _signature(x: Any) -> Any:
    """Return what is equal for values that differ in their names only. Symbolic numbers and others have none."""
    kind = type(x)
    if kind in _ATOMS:
        return (kind, x)
    if kind is TensorProxy:
        return (x.dtype, x.device, _signature(x.shape))
    if kind is tuple or kind is list:
        return (kind, *map(_signature, x))
    if kind is dict:
        return _signature([*x.items()])
    raise LookupError


def _forget_answers() -> None:
    _ASKED.clear()
    _ANSWERS.clear()


def _found_unfit(bsym: BoundSymbol) -> str | None:
    sym = bsym.sym
    results: list[Any] = bsym.flat_outs
    values: list[Any] = [*bsym.flat_args, *results]
    reason = reject_values(values, "Triton", storage_type, unusable_device)
    if reason is not None:
        return reason
    if any(isinstance(p, TensorProxy) and p.dtype is dtypes.float8_e4m3fn for p in values):
        reason = _unfit_float8(bsym)
        if reason is not None:
            return reason
    if not all(isinstance(p, TensorProxy) for p in results):
        return "has results that are not tensors"
    if any(type(d) is int and d == 0 for p in results for d in p.shape):
        return "has results without elements"
    if is_symbolic(bsym):
        bsym = Sizes().operation(bsym)
    if sym.id == UNIFORM:
        return None
    if sym.id == MATVEC:
        return "has symbolic sizes" if is_symbolic(bsym) else None
    if is_scan(bsym):
        return unfit_scan(bsym, _unfit)
    if not sym.is_prim or sym.executor is not None:
        return "is not a primitive"
    doubles = any(p.dtype is dtypes.float64 for p in (*bsym.tensors(), *results))
    if doubles and any(isinstance(a, Size) and type(a.hint) is float for a in bsym.args):
        return "has a float64 value and a number, which kernels receive in single precision"
    if sym.id in POINTWISE:
        if any(type(a) is complex for a in bsym.args) or not bsym.flat_args:
            return "computes with complex numbers"
        numbers = [a for a in bsym.args if type(hint_of(a)) is int]
        if not all(_holds(p.dtype, a) for p in bsym.tensors() for a in numbers):
            return "has a number that may be outside the range of its dtype"
        names = [a.name if isinstance(a, Proxy) else "1" for a in operands_of(bsym)]
        return None if POINTWISE[sym.id](bsym, *names) is not None else f"has no code for {bsym.output.dtype}"
    if is_reduction(bsym):
        return _unfit_reduction(bsym)
    if sym is prims.pad and (isinstance(bsym.args[1], Proxy) or (_has_interior(bsym) and is_symbolic(bsym))):
        return "has interior padding of symbolic sizes, or a tensor for the padding value"
    if sym is prims.take and (not bsym.args[0].ndim or bsym.args[1] % bsym.args[0].ndim):
        return "gathers along a dimension other than the first"
    if sym in _CONSTANTS or sym in _SHAPES or sym in GATHERS:
        return None
    return "has no code in Triton's language"


def _has_interior(pad: BoundSymbol) -> bool:
    return any(between != 0 for _, _, between in pad.args[2])


def _unfit_float8(bsym: BoundSymbol) -> str | None:
    """Return why an operation on float8 cannot be fused. Kernels only dequantize: torch rounds, and saturates."""
    if bsym.sym.id == MATVEC:
        return None
    if bsym.sym is not prims.convert_element_type or bsym.output.dtype not in _FROM_FLOAT8:
        return "computes in float8"
    device = to_torch_device(bsym.output.device)
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _FLOAT8_GPU:
        return "reads float8 on a GPU that does not convert it"
    return None


def _holds(dtype: Any, number: Any) -> bool:
    """Check whether a number is in the range of a dtype. Only integer dtypes have limits here.

    A symbolic number may have any value in later calls, and kernels receive it as an integer of 32 or 64 bits.
    """
    if dtype is dtypes.bool8 or not dtypes.is_exact_dtype(dtype):
        return True
    if isinstance(number, Size):
        return dtype is dtypes.int64
    limits = torch.iinfo(dtypes.to_torch_dtype(dtype))
    return limits.min <= number <= limits.max


def _unfit_reduction(bsym: BoundSymbol) -> str | None:
    a = bsym.args[0]
    space = reduces(bsym)
    counts = bsym.sym is prims.sum and a.dtype in (dtypes.int64, dtypes.int32) and space is not None and space.by_row
    if not dtypes.is_float_dtype(a.dtype) and not counts:
        return f"reduces {a.dtype}"
    if space is None:
        return "reduces dimensions that are not adjacent, or that are in the middle of a small tensor"
    if not space.by_row and bsym.sym is not prims.sum:
        return "reduces dimensions that are not the last by an operation other than a sum"
    try:
        space_of([bsym])
    except Unfit as reason:
        return str(reason)
    return None


def _primitives(bsym: BoundSymbol) -> list[BoundSymbol]:
    """Return the primitives of an operation. Kernels are generated from these."""
    if _unfit(bsym) is None:
        return [bsym]
    return [op for sub in bsym.subsymbols for op in _primitives(sub)]


def _computes(bsym: BoundSymbol) -> bool:
    """Check whether an operation does more than create a view or a constant, gather rows or copy."""
    return OpTags.VIEW_OP not in bsym.sym.tags and any(
        op.sym not in _CONSTANTS and op.sym not in GATHERS and op.sym is not prims.stride_order
        for op in _primitives(bsym)
    )


def _concatenates(region: Region, views: set[str]) -> bool:
    """Check whether a region is one concatenation of tensors as they are, which torch's kernel copies faster."""
    parts = [part for op in region.operations for part in _primitives(op)]
    if [part.sym for part in parts if part.sym not in (prims.reshape, prims.stride_order)] != [prims.cat]:
        return False
    return views.isdisjoint(p.name for p in region.inputs)


def _reshapes(bsym: BoundSymbol) -> bool:
    return all(part.sym is prims.reshape for part in _primitives(bsym))


def _with_own_expansions(trace: Trace, fusible: Callable[[BoundSymbol], bool]) -> Trace:
    """Return a trace in which each fusible operation has its own copy of the expanded tensors that it reads.

    Layers expand the same small tensors (e.g. angles, masks, weights). If layers shared an expanded tensor, the region
    that computes it would have to return it to the other regions, as a view with unusual strides.
    """
    readers: dict[str, int] = {}
    for op in trace.bound_symbols:
        for name in op.arg_names:
            readers[name] = readers.get(name, 0) + 1
    expanding: dict[str, BoundSymbol] = {}
    with construct(trace, "Expansions for each") as out:
        for op in trace.bound_symbols:
            if _expands(op) and readers.get(op.out_names[0], 0) > 1:
                expanding[op.out_names[0]] = op
            shared = [name for name in op.arg_names if name in expanding] if expanding and fusible(op) else []
            for name in shared:
                old = expanding[name].output
                new = old.replace_name(out.make_name(old.prefix))
                out.record(expanding[name].substitute({name: new}))
                op = op.substitute({name: new})
            out.record(op)
    return out


def _expands(bsym: BoundSymbol) -> bool:
    """Check whether an operation is a view that broadcasts its input."""
    if OpTags.VIEW_OP not in bsym.sym.tags or len(bsym.out_names) != 1 or not isinstance(bsym.output, TensorProxy):
        return False
    a = bsym.args[0]
    return isinstance(a, TensorProxy) and bytes_of(bsym.output) > bytes_of(a)


def _joining(trace: Trace, sizes: Sizes) -> Callable[[Sequence[BoundSymbol], Sequence[BoundSymbol]], bool]:
    """Return a function that checks whether two groups share an iteration space in which all their results fit."""
    readers: dict[str, set[int]] = {}
    for op in trace.bound_symbols:
        for name in op.arg_names:
            readers.setdefault(name, set()).add(id(op))

    parts: dict[int, list[BoundSymbol]] = {id(op): [] for op in trace.bound_symbols}

    def primitives(op: BoundSymbol) -> list[BoundSymbol]:
        found = parts.get(id(op))
        if not found:
            found = parts[id(op)] = [sizes.operation(part) for part in _primitives(op)]
        return found

    before_products = _before_products(trace)
    only_summed = _only_summed(trace, primitives)

    def may_join(first: Sequence[BoundSymbol], second: Sequence[BoundSymbol]) -> bool:
        both = (*first, *second)
        if before_products and _repeats(both, before_products):
            return False
        inner = [op for part in both for op in primitives(part)]
        try:
            space = space_of(inner)
        except Unfit:
            return False
        if (space.by_column or space.by_ends) and _spreads_sums(inner, space):
            return False
        if space.direction and any(only_summed.issuperset(op.out_names) for op in both if op.out_names):
            return False
        fitting = {space.size}
        if space.reduces and not space.direction:
            fitting |= {space.sums} if space.by_ends else {space.all_rows, space.sums}
        inside = {id(op) for op in both}
        made: dict[str, Any] = {p.name: sizes.tensor(p) for op in both for p in op.flat_outs}
        base = {n: op.arg_names[0] for op in both if OpTags.VIEW_OP in op.sym.tags for n in op.out_names}
        for name in made:
            if readers.get(name, inside) <= inside:
                continue
            while name in base:  # a view is returned as its base, which may be an input
                name = base[name]
            if name in made and math.prod(made[name].shape) not in fitting:
                return False
        return True

    return may_join


def _only_summed(trace: Trace, primitives: Callable[[BoundSymbol], Sequence[BoundSymbol]]) -> set[str]:
    """Return the values of traces with scans that only sums need, except for results of scans.

    The kernels of the sums compute them. The kernel of a scan would have to store the terms of each sum.
    """
    scans = {n for op in trace.bound_symbols if any(map(is_scan, primitives(op))) for n in op.out_names}
    if not scans:
        return set()
    found: set[str] = set()
    others: set[str] = set()  # the values that other operations need
    for op in reversed(trace.bound_symbols):
        parts = primitives(op)
        in_sums = {name for name in op.out_names if name in found and name not in others}
        found -= others
        if any(map(is_reduction, parts)) or (
            parts and not any(map(is_scan, parts)) and len(in_sums) == len(op.out_names)
        ):
            found.update(op.arg_names)
        else:
            others.update(op.arg_names)
    return found - others - scans


def _before_products(trace: Trace) -> set[str]:
    """Return the values of norms that only products of one single row read. The products' kernels compute them.

    Each program of such a kernel computes them again. Operations that no norm contains, or that read another product,
    are therefore not among them: the kernel before does them.
    """
    if not any(op.sym.id == MATVEC for op in trace.bound_symbols):
        return set()
    readers: dict[str, list[BoundSymbol]] = {}
    for op in trace.bound_symbols:
        for name in op.arg_names:
            readers.setdefault(name, []).append(op)
    products = {name for op in trace.bound_symbols if op.sym.id == MATVEC for name in op.out_names}
    row_of: dict[str, str] = {}  # for values that only the products of one row read: the row
    in_norm: set[str] = set()  # those that a reduction is computed from, or that are computed from such values
    for op in reversed(trace.bound_symbols):
        found = [reader for name in op.out_names for reader in readers.get(name, ())]
        rows = {row_of.get(r.out_names[0]) if r.sym.id != MATVEC else r.args[1].name for r in found if r.out_names}
        row = rows.pop() if len(rows) == 1 and all(r.out_names for r in found) else None
        if row is None or op.sym.id == MATVEC or not products.isdisjoint(op.arg_names):
            continue
        row_of.update(dict.fromkeys(op.out_names, row))
        if any(map(is_reduction, _primitives(op))) or any(not in_norm.isdisjoint(r.out_names) for r in found):
            in_norm.update(op.out_names)
    for op in trace.bound_symbols:
        if any(name in row_of for name in op.out_names) and not in_norm.isdisjoint(op.arg_names):
            in_norm.update(op.out_names)
    return in_norm


def _repeats(operations: Sequence[BoundSymbol], before_products: set[str]) -> bool:
    """Check whether an operation before products reads a product of the same kernel."""
    late: set[str] = set()
    for op in operations:
        if op.sym.id == MATVEC or not late.isdisjoint(op.arg_names):
            if op.sym.id != MATVEC and not before_products.isdisjoint(op.out_names):
                return True
            late.update(op.out_names)
    return False


def _spreads_sums(operations: Sequence[BoundSymbol], space: Space) -> bool:
    """Check whether whole rows are computed from sums over columns, which takes another kernel."""
    late = after_columns(operations)
    made: list[Any] = [p for op in operations for p in op.flat_outs]
    return any(p.name in late and math.prod(p.shape) > space.sums for p in made)
