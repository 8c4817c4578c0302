# SPDX-License-Identifier: Apache-2.0
"""`debug(callback)`: call a function after each line of the program, with the values of that line.

Contract: `callback(operation, values)` is called directly after each operation of the forward and backward programs.
`operation` is the bound symbol: `str(operation)` is its text, and `operation.source` is the line of user code. `values`
contains its arguments and results, by name. The results of the program stay the same. Values are deleted one line later
than without the transform.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.transforms.rewrite import RewritePass

__all__ = ["DebugTransform", "debug"]

Callback = Callable[[BoundSymbol, dict[str, Any]], Any]


class DebugTransform(RewritePass):
    """Call a function after each line of the program."""

    pass_name = "Debug"
    phases = ("after_execution",)
    changes_results = False
    drops_dead_code = False

    def __init__(self, callback: Callback, only: Callable[[BoundSymbol], bool] | None = None):
        if not callable(callback):
            raise TypeError(f"debug requires a function (operation, values), not {callback!r}")
        if only is not None and not callable(only):
            raise TypeError(f"debug(only=…) requires a function that selects operations, not {only!r}")
        self.callback = callback
        self.only = only

    def rewrite(self, op: BoundSymbol) -> Any:
        if not runs(op) or not (self.only is None or self.only(op)):
            return None
        output = self.record(op)
        self.record(self._line(op))
        return output

    def _line(self, bsym: BoundSymbol) -> BoundSymbol:
        values = {p.name: p for p in (*bsym.flat_args, *bsym.flat_outs)}

        def call(*found: Any) -> None:
            self.callback(bsym, dict(zip(values, found)))

        def meta(*found: Any) -> None:
            return None

        sym = Symbol("debug", meta, id=("debug", id(bsym)), is_prim=True, fn=call, tags=(OpTags.SIDE_EFFECT,))
        return BoundSymbol(sym, tuple(values.values()), {}, None, (), bsym.source)


def runs(bsym: BoundSymbol) -> bool:
    """Check whether a line of a claimed program calls a function."""
    return bsym.sym.printer is None and (bsym.sym.fn is not None or bsym.sym.module is not None)


def debug(callback: Callback, *, only: Callable[[BoundSymbol], bool] | None = None) -> DebugTransform:
    """Return a transform that calls `callback(operation, values)` after each operation for which `only` is true."""
    return DebugTransform(callback, only)
