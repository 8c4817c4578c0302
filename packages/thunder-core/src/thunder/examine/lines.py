# SPDX-License-Identifier: Apache-2.0
"""Run a program line by line: each operation is a function of its own, and its results are stored by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from thunder.core import prims
from thunder.core.proxies import Proxy
from thunder.core.state import SourceLine
from thunder.core.symbol import BoundSymbol, proxies_in
from thunder.core.trace import Trace
from thunder.execution.claim import is_structural
from thunder.execution.excerpt import all_levels, distinct, excerpt

__all__ = ["Line", "bind_inputs", "lines_of", "output_proxies", "source_of", "where_of"]


def source_of(op: BoundSymbol) -> SourceLine | None:
    """Return the line of user code of an operation, or of the first operation in it that has one, e.g. in a fusion."""
    return next((part.source for part in all_levels([op]) if part.source is not None), None)


def where_of(source: SourceLine | None) -> dict[str, Any] | None:
    """Return a line of user code as JSON types."""
    return source and {
        "file": source.filename, "line": source.line, "module": source.module, "text": source.text(),
    }  # fmt: skip


class Line:
    """An operation of a claimed program, as a function of the values that it reads."""

    def __init__(self, program: str, number: int, op: BoundSymbol):
        self.program = program  # "forward" or "backward"
        self.number = number  # of the operation in the program, from 1
        self.op = op
        self.args = distinct(op.flat_args)
        self.outs = [p for p in distinct(op.flat_outs) if p.name in op.out_names]

    @property
    def text(self) -> str:
        """The line of the program."""
        return str(self.op).splitlines()[0]

    @property
    def executor(self) -> str:
        """The name of the executor that runs the operation; empty if Python runs it."""
        owner = self.op.sym.executor
        return "" if owner is None else owner.name

    @property
    def computes(self) -> list[str]:
        """The names of the operations that a kernel or fusion replaces, else the name of the operation."""
        return list(dict.fromkeys(part.sym.name for part in self.op.subsymbols)) or [self.op.sym.name]

    def where(self) -> dict[str, Any] | None:
        """Return the line of user code as JSON types."""
        return where_of(source_of(self.op))

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        """The function of `args` that returns a tuple of `outs`."""
        return excerpt(self.args, [self.op], self.outs).python_callable()

    def run(self, values: dict[str, Any]) -> list[Any]:
        """Run the operation on stored values, and return its results. They are not stored."""
        return list(self.function(*[values[p.name] for p in self.args]))

    def store(self, values: dict[str, Any], results: Sequence[Any]) -> None:
        """Store results by name."""
        values.update(zip([p.name for p in self.outs], results))


def lines_of(program: str, trace: Trace, *stores: dict[str, Any]) -> Iterator[Line]:
    """Yield the operations of a claimed program in order.

    The caller runs each line before it asks for the next. Values that the program deletes are removed from `stores`,
    and sizes and numbers that it computes are stored there.
    """
    number = 0
    for op in trace.bound_symbols:
        if op.sym is prims.python_del:
            for name in op.arg_names:
                for values in stores:
                    values.pop(name, None)
        elif not is_structural(op):
            number += 1
            yield Line(program, number, op)
        elif op.out_names and not op.sym.name.startswith("unpack"):
            line = Line(program, number, op)
            for values in stores:
                line.store(values, line.run(values))


def bind_inputs(trace: Trace, inputs: Sequence[Any]) -> dict[str, Any]:
    """Return the inputs of a program by name."""
    if len(trace.args) != len(inputs):
        raise ValueError(f"{trace.name} has {len(trace.args)} inputs, not {len(inputs)}")
    return {p.name: x for p, x in zip(trace.args, inputs)}


def output_proxies(output: Any) -> list[Proxy]:
    """Return the values of a program's output, each once."""
    return distinct(proxies_in(output))
