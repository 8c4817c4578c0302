# SPDX-License-Identifier: Apache-2.0
"""The fusions of a program: the regions that fusion executors compiled, as readable and executable text.

A fusion is an operation of a trace whose symbol has `is_fusion`. The function that runs it may have two attributes:
`fn.source` (its program as text) and `fn.template` (its code template). Without a source, the text is the trace of the
fused operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from thunder.core import prims
from thunder.core.nbytes import bytes_of, in_bytes
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace

__all__ = ["Fusion", "fusions_of"]


class Fusion:
    """A fusion of a trace. `program` says whether the trace is the "forward" or the "backward" program of a call."""

    def __init__(self, bound_symbol: BoundSymbol, program: str = "forward"):
        self.bound_symbol = bound_symbol
        self.program = program

    @property
    def name(self) -> str:
        """The name of the fusion in the trace."""
        return self.bound_symbol.sym.name

    @property
    def fn(self) -> Any:
        """The function that runs the fusion, as its executor created it."""
        return self.bound_symbol.sym.fn

    @property
    def executor(self) -> str | None:
        """The name of the executor that runs the fusion; None if a transform created it."""
        owner = self.bound_symbol.sym.executor
        return None if owner is None else owner.name

    @property
    def operations(self) -> list[BoundSymbol]:
        """The fused operations."""
        return list(self.bound_symbol.subsymbols)

    @property
    def inputs(self) -> tuple[Proxy, ...]:
        """The values that the fusion reads."""
        return tuple(dict.fromkeys(self.bound_symbol.flat_args))

    @property
    def outputs(self) -> tuple[Proxy, ...]:
        """The values that the fusion computes."""
        return tuple(self.bound_symbol.flat_outs)

    @property
    def bytes(self) -> int:
        """The bytes that the fusion reads and writes. Each tensor counts once."""
        return sum(bytes_of(p) for p in (*self.inputs, *self.outputs))

    @property
    def template(self) -> str | None:
        """How the kernels iterate over elements, in the executor's terms."""
        return getattr(self.fn, "template", None)

    @property
    def source(self) -> str:
        """The program of the fusion as text."""
        found = getattr(self.fn, "source", None)
        return found if isinstance(found, str) else str(_as_trace(self.bound_symbol))

    def __str__(self) -> str:
        template = f" by {self.template}" if self.template else ""
        return f"{self.name}: {len(self.operations)} operations, {in_bytes(self.bytes)}{template} ({self.program})"

    __repr__ = __str__


def fusions_of(trace: Trace, program: str = "forward") -> list[Fusion]:
    """Return the fusions of a trace in execution order, including fusions in captured graphs."""
    return [Fusion(bsym, program) for bsym in _fusions(trace.bound_symbols)]


def _fusions(operations: list[BoundSymbol]) -> Iterator[BoundSymbol]:
    for bsym in operations:
        if not bsym.sym.is_fusion:
            continue
        inner = list(_fusions(list(bsym.subsymbols)))
        if inner:  # a captured graph, or a fusion inside another operation
            yield from inner
        else:
            yield bsym


def _as_trace(bsym: BoundSymbol) -> Trace:
    """Return the operations of a fusion as a trace."""
    trace = Trace(bsym.sym.name, args=tuple(dict.fromkeys(bsym.flat_args)))
    trace.names.update(n for op in bsym.subsymbols for n in (*op.arg_names, *op.out_names))
    trace.bound_symbols += bsym.subsymbols
    trace.bound_symbols.append(BoundSymbol(prims.python_return, (bsym.output,), {}, None))
    return trace
