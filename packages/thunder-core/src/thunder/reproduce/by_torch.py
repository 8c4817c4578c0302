# SPDX-License-Identifier: Apache-2.0
"""The search for the line of a compiled program that makes a call wrong: a fusion, or a kernel of an executor.

`LinesByTorch(n)` compiles a program in which the first `n` lines of executors stay, and torch runs the operations of
the others. The call is right with `n = 0` and wrong with all lines, so that some line makes it wrong.
"""

from __future__ import annotations

from collections.abc import Callable

from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace, construct
from thunder.execution.claim import transform_for_execution
from thunder.execution.excerpt import all_levels, distinct, excerpt
from thunder.extend import get_always_executors
from thunder.transforms.base import PassContext, Transform

__all__ = ["LinesByTorch", "describe_line", "first_wrong_line"]


class LinesByTorch(Transform):
    """Let torch run the operations of all lines of executors but the first ones. `lines` are those that could stay."""

    changes_results = False

    def __init__(self, kept: int | None):
        self.kept = kept  # None: all lines
        self.lines: list[tuple[str, BoundSymbol]] = []  # with the name of the program, in the order of compilation

    def transform_claimed(self, trace: Trace, context: PassContext) -> Trace:
        """Replace lines."""
        with construct(trace, "Lines by torch") as out:
            for op in trace.bound_symbols:
                owner = op.sym.executor
                if owner is None or owner.is_fallback or not op.subsymbols:
                    out.bound_symbols.append(op)
                    continue
                self.lines.append((trace.name, op))
                keep = self.kept is None or len(self.lines) <= self.kept
                out.bound_symbols += [op] if keep else _by_torch(op)
            out.names.update(p.name for op in out.bound_symbols for p in distinct(op.flat_outs))
        return out


def _by_torch(op: BoundSymbol) -> list[BoundSymbol]:
    """Return the operations of a line, claimed by torch."""
    made = [p for p in distinct(op.flat_outs) if p.name in op.out_names]
    program = transform_for_execution(excerpt(distinct(op.flat_args), op.subsymbols, made), get_always_executors())[-1]
    return [part for part in program.bound_symbols if not part.sym.is_return]


def first_wrong_line(is_wrong: Callable[[LinesByTorch], bool]) -> tuple[str, BoundSymbol] | None:
    """Return the line without which a call is right. `is_wrong` runs the call with a transform.

    None if the call is wrong without any line of an executor, or right with all of them.
    """
    every = LinesByTorch(None)
    if not is_wrong(every) or is_wrong(LinesByTorch(0)):
        return None
    low, high = 0, len(every.lines)  # wrong with the first `high` lines, right with the first `low`
    while high - low > 1:
        middle = (low + high) // 2
        if is_wrong(LinesByTorch(middle)):
            high = middle
        else:
            low = middle
    return every.lines[high - 1] if high else None


def describe_line(program: str, op: BoundSymbol) -> str:
    """Return what a line is and computes, and the line of user code."""
    parts = list(dict.fromkeys(part.sym.name for part in op.subsymbols))
    source = next((part.source for part in all_levels([op]) if part.source is not None), None)
    where = "" if source is None else f", at {source}"
    owner = op.sym.executor
    name = "" if owner is None else f" of executor {owner.name!r}"
    return (
        f"{op.sym.name}{name} in the {_NAMES.get(program, program)} program, which computes {', '.join(parts)}{where}"
    )


_NAMES = {"computation": "forward"}
