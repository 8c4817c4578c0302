# SPDX-License-Identifier: Apache-2.0
"""What is done with whole programs in fp8.

A recipe that cannot be followed is an error before anything is compiled. Of a claimed program, quantizations give what
is read of them and nothing else; and where a step uses scales that move on, the program ends with that.
"""

from __future__ import annotations

from typing import Any

from thunder.core import prims
from thunder.core.errors import ThunderError
from thunder.core.prims.structure import Saved
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace, construct
from thunder_ex_te.linear import RECIPE
from thunder_ex_te.recipes import scheme_of

__all__ = ["register"]


def register(registry: Any, executor: str, operators: dict[str, Any]) -> None:
    """Brings the passes."""

    def checked(trace: Trace, context: Any) -> Trace:
        """A recipe that was asked for is followed, or is an error."""
        recipe = context.options.get(RECIPE)
        if recipe is None:
            return trace
        scheme_of(recipe)
        if all(ex.name != executor for ex in context.executors):
            asked = ", ".join(ex.name for ex in context.executors)
            raise ThunderError(
                f"{RECIPE}={type(recipe).__name__}() is for the executor {executor!r}, which is not among those asked "
                f"({asked}): add it to executors=[…], or leave out {RECIPE}"
            )
        return trace

    def tidied(trace: Trace, context: Any) -> Trace:
        """Nothing is computed that is not read, and scales move on."""
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
    registry.register_transform("te_quantize_what_is_read", tidied, phase="after_execution")


def _quantizes(op: BoundSymbol) -> bool:
    return op.sym.name in ("te_quantize", "te_quantize_scaled")


def _as_read(trace: Trace) -> list[BoundSymbol]:
    """The operations, quantizations with the parts of their results that somebody reads."""
    backward = any(op.sym is prims.unpack_saved for op in trace.bound_symbols[:1])
    # A program may also compute its own gradients (`thunder.grad`), and is forward and backward in one.
    differentiated = backward or _is_forward(trace) or any(_is_of_gradient(op) for op in trace.bound_symbols)
    read: set[str] = set()
    found = []
    for op in reversed(trace.bound_symbols):
        if _quantizes(op):
            there = [isinstance(p, Proxy) and p.name in read for p in op.output]
            rows, columns = any(there[:2]), any(there[2:])
            if not rows and not columns:
                continue
            output = tuple(p if wanted else None for p, wanted in zip(op.output, (rows, rows, columns, columns)))
            kwargs = {**op.kwargs, "rows": rows, "columns": columns}
            if op.sym.name == "te_quantize_scaled":
                again = backward and not _is_of_gradient(op)
                kwargs.update(note=differentiated and not again, again=again)
            op = op.replace(kwargs=kwargs, output=output)
        read.update(op.arg_names)
        found.append(op)
    return found[::-1]


def _is_of_gradient(op: BoundSymbol) -> bool:
    """Whether it quantizes a gradient, by a scale that moves on."""
    return op.sym.name == "te_quantize_scaled" and op.args[2].name.endswith(".grad")


def _is_forward(trace: Trace) -> bool:
    """Whether a backward program belongs to it."""
    output = trace.output
    return isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], Saved)


def _slots(program: list[BoundSymbol]) -> list[Any]:
    """The scales that this program gives new values for, each once."""
    found = {id(op.args[2].tensors): op.args[2] for op in program if op.kwargs.get("note")}
    return list(found.values())
