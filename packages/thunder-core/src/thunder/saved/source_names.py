# SPDX-License-Identifier: Apache-2.0
"""The names in the source of a saved program, from which it is compiled anew: its operations are recorded.

Only programs for which gradients arrive that no process before has seen are compiled anew, so only they load this file.
"""

from __future__ import annotations

import importlib
import math
import types
from typing import Any, NoReturn

from thunder.core.printer import PrintContext, call_line
from thunder.core.state import state
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.symint.expressions import number_of
from thunder.core.symint.functions import FUNCTIONS, SymbolicBool
from thunder.core.symint.numbers import OPPOSITE, Constraint, SymbolicNumber
from thunder.runtime.torch_originals import namespaces, original_torch
from thunder.saved.constants import opaque_symbol

__all__ = ["SourceLines", "names_of_source"]

_LANGUAGES = {"ltorch": "thunder.torch", "clang": "thunder.clang", "lnp": "thunder.numpy",
              "dtypes": "thunder.core.dtypes", "devices": "thunder.core.devices"}  # fmt: skip


def names_of_source(text: str) -> dict[str, Any]:
    """Return the modules and functions that the source of a program calls."""
    # Imported by name at run time, and only for programs that use them: most belong to higher layers.
    languages = {name: importlib.import_module(module) for name, module in _LANGUAGES.items() if f"{name}." in text}
    return {
        **languages,
        "torch": Opaque(original_torch),
        "Tensor": Opaque(namespaces["torch.Tensor"]),
        "prims": Primitives(),
        "math": types.SimpleNamespace(**vars(math) | FUNCTIONS["math"]),
        **FUNCTIONS["builtins"],
    }


class Opaque:
    """The namespace `torch` of a source: its functions are operations that a trace records."""

    def __init__(self, owner: Any):
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._owner, name)
        if isinstance(found, types.ModuleType):
            return Opaque(found)
        return opaque_symbol(found) if callable(found) and not isinstance(found, type) else found


class Primitives:
    """The namespace `prims` of a source. Numbers that the data determines are symbolic, with what is known of them."""

    def __init__(self) -> None:
        # Imported by name at run time: primitives belong to a higher layer.
        self._module = importlib.import_module("thunder.core.prims")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def item(self, x: Any) -> Any:
        return number_of(self._module.item(x))

    def items(self, x: Any) -> Any:
        return tuple([number_of(p) for p in self._module.items(x)])

    def size(self, x: Any, dim: int) -> Any:
        size = x.shape[dim]
        return size if size.hint is not None else number_of(self._module.size(x, dim))  # those of inputs are recorded

    def check_number(self, left: Any, relation: str, right: Any, *rest: Any) -> None:
        self._module.check_number(left, relation, right, *rest)
        _assume(left, relation, right)

    def decide(self, found: Any, answer: Any, index: int) -> None:
        self._module.decide(found, answer, index)
        lines: Any = state.frontend
        lines.answer(found, answer)
        if isinstance(found, SymbolicBool):
            left, relation, right = found.constraint
            _assume(left, relation if answer else OPPOSITE[relation], right)
        elif type(answer) is int:
            _assume(found, "==", answer)


def _assume(left: Any, relation: str, right: Any) -> None:
    """Assume what a line of the program has checked, in the rest of the program."""
    known = left if isinstance(left, SymbolicNumber) else right
    whole = all(issubclass(x.__class__, int) for x in (left, right))
    if isinstance(known, SymbolicNumber) and whole and relation != "!=":
        known.symbols.assume(left, relation, right)  # type: ignore[attr-defined]


class SourceLines:
    """Runs the lines of a source: comparisons of numbers that the data determines are values, like in user code.

    In the functions of operations, which decide by them, they are as in all functions of operations. What these
    functions check when the program runs are lines of the source, so it is recorded once.
    """

    def __init__(self) -> None:
        self._checks: set[str] = set()
        self._answers: dict[str, Any] = {}

    def __enter__(self) -> None:
        self._before, state.frontend = state.frontend, self  # type: ignore[assignment]

    def __exit__(self, *error: object) -> None:
        state.frontend = self._before

    def call_symbol(self, symbol: Symbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operation."""
        assert state.trace is not None
        lines, state.frontend = state.trace.scopes[-1], None
        before = len(lines)
        try:
            found = symbol.record(args, kwargs)
        finally:
            state.frontend = self  # type: ignore[assignment]
        if symbol.name == _CHECK:
            self._checks.add(_text_of(lines[-1]))
        else:
            lines[before:] = [op for op in lines[before:] if op.sym.name != _CHECK or _text_of(op) not in self._checks]
        return found

    # -- decisions of the program, which the functions of operations ask for -----------------------------------------
    def answer(self, asked: Any, answer: Any) -> None:
        """Note the answer of a decision."""
        self._answers[asked.text()] = answer
        asked.symbols.decisions = self

    def known(self, constraint: Constraint) -> bool | None:
        """Return the answer to a condition that has been decided before, else None."""
        left, relation, right = constraint
        asked = left if relation == "==" and right is True else left.symbols.deferred(*constraint)
        return self._answers.get(asked.text())

    def condition(self, constraint: Constraint) -> NoReturn:
        """Raise: all conditions on which the program branched are decisions."""
        raise constraint.left.symbols.data_dependent_error(constraint)

    def value(self, x: Any) -> NoReturn:
        """Raise: all numbers whose values the program needed are decisions."""
        raise x.symbols.data_dependent_error(None, x)


_CHECK = "check_number"


def _text_of(op: BoundSymbol) -> str:
    return call_line(op, PrintContext(symbols=True))
