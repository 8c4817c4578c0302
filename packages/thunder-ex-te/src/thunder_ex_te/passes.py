# SPDX-License-Identifier: Apache-2.0
"""Passes that check the recipe of a trace, merge and fuse its layers, and finish its quantizations.

Before compilation, a pass raises if the recipe is not supported. After claiming, another pass limits each quantization
to the results that are used. It also appends the update of delayed scales to a trace that uses them.
"""

from __future__ import annotations

from typing import Any

from thunder import prims
from thunder.extend import (
    BoundSymbol,
    Compilation,
    FusionExecutor,
    Saved,
    ThunderError,
    Trace,
    compiling,
    construct,
    proxies_in,
)
from thunder_ex_te.groups import GROUP_LAYERS, grouped
from thunder_ex_te.linear import RECIPE
from thunder_ex_te.norms import FUSE, fused
from thunder_ex_te.recipes import scheme_of
from thunder_ex_te.scales import Slot

__all__ = ["register"]


def register(registry: Any, executor: str, operators: dict[str, Any], layer: Any, groups: Any) -> None:
    """Register the passes. `layer` lowers a linear layer to fp8. `groups` is the operator of grouped linear layers."""

    def checked(trace: Trace, context: Any) -> Trace:
        """Raise if the recipe is not supported, or if its executor is not enabled."""
        recipe = context.options.get(RECIPE)
        if recipe is None:
            return trace
        scheme_of(recipe)
        if all(ex.name != executor for ex in context.executors):
            asked = ", ".join(ex.name for ex in context.executors)
            raise ThunderError(
                f"{RECIPE}={type(recipe).__name__}() needs the executor {executor!r}, which is not among the "
                f"enabled executors ({asked}): add it to executors=[…], or leave out {RECIPE}"
            )
        return trace

    def with_groups(trace: Trace, context: Any) -> Trace:
        """Merge the linear layers of row groups into one operator."""
        asked = context.options.get(RECIPE) is not None and context.options.get(GROUP_LAYERS, True)
        if not asked or all(ex.name != executor for ex in context.executors):
            return trace
        with compiling(Compilation(options=context.options)):
            return grouped(trace, context.executors, groups)

    def with_norms(trace: Trace, context: Any) -> Trace:
        """Fuse norms with the quantization of their results, if the option requests it or if it is profitable."""
        asked = context.options.get(FUSE)
        if asked is None:  # Measured: fusing gains nothing if a fusion executor is used or if there is a backward
            fuses = any(isinstance(ex, FusionExecutor) for ex in context.executors)
            asked = not fuses and not _is_differentiated(trace)
        if not asked or context.options.get(RECIPE) is None or all(ex.name != executor for ex in context.executors):
            return trace
        return fused(trace, context, executor, operators, layer)

    def tidied(trace: Trace, context: Any) -> Trace:
        """Limit quantizations to their used results, and append the update of delayed scales."""
        if not any(_quantizes(op) for op in trace.bound_symbols):
            return trace
        with construct(trace, "Quantize what is read") as out:
            out.bound_symbols[:] = _as_read(trace)
            slots = _slots(out.bound_symbols)
            if slots:
                *body, last = out.bound_symbols
                step = operators["te_update_scales"]
                out.bound_symbols[:] = [*body, BoundSymbol(step, (tuple(slots),), {}, None), last]
        return out

    registry.register_transform("te_recipe", checked, phase="before_grad")
    registry.register_transform("te_group_layers", with_groups, phase="before_grad", after="te_recipe")
    registry.register_transform("te_fuse_norms", with_norms, phase="before_execution")
    registry.register_transform("te_quantize_what_is_read", tidied, phase="after_execution")


def _quantizes(op: BoundSymbol) -> bool:
    return op.sym.name.startswith("te_quantize")


def _slots_of(op: BoundSymbol) -> list[Slot]:
    """Return the slots that hold the delayed scales of a quantization."""
    found = []
    for each in (*op.args, *op.kwargs.values()):
        found += [slot for slot in (each if isinstance(each, (list, tuple)) else (each,)) if isinstance(slot, Slot)]
    return found


def _as_read(trace: Trace) -> list[BoundSymbol]:
    """Return the operations of the trace. Each quantization computes only the parts of its result that are used."""
    backward, differentiated = _is_backward(trace), _is_differentiated(trace)
    read: set[str] = set()
    found = []
    for op in reversed(trace.bound_symbols):
        if _quantizes(op):
            there = [any(p.name in read for p in proxies_in(part)) for part in op.output]
            if not any(there):
                continue
            columns = any(there[2:4])
            rows = any(there[:2]) or not columns  # only the statistics of a norm may be used
            parts = [p if wanted else None for p, wanted in zip(op.output, (rows, rows, columns, columns))]
            output = (*parts, *op.output[4:])
            kwargs = {**op.kwargs, "rows": rows, "columns": columns}
            if _slots_of(op):
                again = backward and not _is_of_gradient(op)
                kwargs.update(note=differentiated and not again, again=again)
            op = op.replace(kwargs=kwargs, output=output)
        read.update(op.arg_names)
        found.append(op)
    return found[::-1]


def _is_of_gradient(op: BoundSymbol) -> bool:
    """Check whether an operation quantizes a gradient with a delayed scale."""
    return any(slot.name.endswith(".grad") for slot in _slots_of(op))


def _is_differentiated(trace: Trace) -> bool:
    """Check whether a trace is a forward trace, a backward trace, or a joint trace (`thunder.grad`)."""
    return _is_backward(trace) or _is_forward(trace) or any(_is_of_gradient(op) for op in trace.bound_symbols)


def _is_backward(trace: Trace) -> bool:
    return any(op.sym is prims.unpack_saved for op in trace.bound_symbols[:1])


def _is_forward(trace: Trace) -> bool:
    """Check whether a trace is a forward trace that has a backward trace."""
    output = trace.output
    return isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], Saved)


def _slots(program: list[BoundSymbol]) -> list[Any]:
    """Return the slots whose amax this trace records, without duplicates."""
    noted = [slot for op in program if op.kwargs.get("note") for slot in _slots_of(op)]
    return list({id(slot.tensors): slot for slot in noted}.values())
