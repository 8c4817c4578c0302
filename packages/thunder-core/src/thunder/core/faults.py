# SPDX-License-Identifier: Apache-2.0
"""Errors in kernels of plugins: their messages name the plugin, the operation and the user's line.

A compiled program with kernels of plugins runs in a `try` statement, which costs nothing if no error is raised. Other
programs are compiled from their text as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, Protocol

from thunder.core.errors import ResultVerificationError, name_source
from thunder.core.symbol import BoundSymbol

__all__ = ["source_with_faults"]

_HANDLER, _ERROR, _CLASS = "__name_kernel", "__error", "__exception_class"


class _Program(Protocol):
    """The part of a trace that this file needs."""

    bound_symbols: list[BoundSymbol]


def source_with_faults(trace: _Program, text: str, namespace: dict[str, Any]) -> Any:
    """Return what to compile for a trace with this `text`: the text, or a syntax tree that names failing kernels."""
    kernels = [op for op in trace.bound_symbols if getattr(op.sym.executor, "plugin", None) is not None]
    if not kernels:
        return text
    namespace.update({_HANDLER: _Faults(kernels, text.splitlines()), _CLASS: Exception})
    tree = ast.parse(text)
    function = tree.body[-1]
    assert isinstance(function, ast.FunctionDef)
    load = ast.Load()
    named = ast.Call(ast.Name(_HANDLER, load), [ast.Name(_ERROR, load)], [])
    handler = ast.ExceptHandler(ast.Name(_CLASS, load), _ERROR, [ast.Expr(named), ast.Raise()])
    function.body = [ast.Try(function.body, [handler], [], [])]
    return ast.fix_missing_locations(tree)


class _Faults:
    """Names the kernel that raised an error in a program with these lines."""

    def __init__(self, kernels: Sequence[BoundSymbol], lines: list[str]):
        self.by_result = {name: op for op in kernels for name in op.out_names}
        self.without_result = [op for op in kernels if not op.out_names]
        self.lines = lines

    def __call__(self, error: Exception) -> None:
        if isinstance(error, ResultVerificationError):
            return  # it names the kernel
        assert error.__traceback__ is not None
        line = self.lines[error.__traceback__.tb_lineno - 1]
        results = "".join(c if c.isalnum() or c == "_" else " " for c in line.partition(" = ")[0]).split()
        op = next((self.by_result[name] for name in results if name in self.by_result), None)
        if op is None:
            op = next((op for op in self.without_result if f"{op.sym.name}(" in line), None)
        if op is not None:
            executor: Any = op.sym.executor
            at = op.source or next((part.source for part in op.subsymbols if part.source), None)
            where = f", which is called at {at}" if at else ""
            name_source(error, f"the kernel {op.sym.name} of the executor {executor.name!r}{where}", executor)
