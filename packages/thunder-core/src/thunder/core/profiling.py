# SPDX-License-Identifier: Apache-2.0
"""Profiler ranges of compiled programs: they name the program, the module and the line of user code.

Ranges cost nothing while no profiler runs. Each compiled program has a second version of its code with ranges. When a
profiler starts, the code of all programs is exchanged, and when it stops, it is exchanged back. The second version is
compiled at the program's first call under a profiler.
"""

from __future__ import annotations

import ast
import importlib
import os
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from thunder.core.state import SourceLine

__all__ = ["add_program", "label_of", "profiler_started", "profiler_stopped"]

_RANGE, _RANGED = "__profiler_range", "__ranged"


def _run_ranged(*args):  # type: ignore[no-untyped-def]
    return __ranged(*args)  # type: ignore[name-defined]  # noqa: F821  (a global of the program)


class _Program:
    """A compiled program with two versions of its code."""

    def __init__(self, function: types.FunctionType, title: str, tree: Callable[[], ast.Module], source_at: Any):
        self.function = weakref.ref(function)
        self.title = title
        self.tree = tree
        self.source_at = source_at
        self.plain = function.__code__
        function.__globals__[_RANGED] = _Ranged(self)

    def use_ranges(self, on: bool) -> None:
        """Exchange the code of the program."""
        function = self.function()
        if function is not None:
            function.__code__ = _run_ranged.__code__ if on else self.plain

    def ranged(self) -> Any:
        """Compile the version with ranges."""
        function = self.function()
        assert function is not None
        tree = self.tree()
        definition = tree.body[-1]
        assert isinstance(definition, ast.FunctionDef)
        definition.decorator_list = []
        definition.body = _in_ranges(definition.body, self.label)
        namespace = function.__globals__
        # torch is imported by name at run time, because this layer does not depend on it.
        namespace[_RANGE] = importlib.import_module("torch.profiler").record_function
        found: dict[str, Any] = {}
        exec(compile(ast.fix_missing_locations(tree), self.plain.co_filename, "exec"), namespace, found)
        return found[definition.name]

    def label(self, line: int) -> str | None:
        """Return the label of a line of the program. None if the line belongs to no line of user code."""
        source = self.source_at(line)
        return None if source is None else label_of(self.title, source)


class _Ranged:
    """Calls the version of a program with ranges, and compiles it at the first call."""

    def __init__(self, program: _Program):
        self.program = program
        self.run: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if self.run is None:  # two threads may compile the same code
            self.run = self.program.ranged()
        return self.run(*args)


# Without a lock, because another thread may fork. Each step is atomic, and the flag is set before programs are visited.
_programs: dict[int, _Program] = {}
_profiling = [False]


def add_program(function: Any, title: str, tree: Callable[[], ast.Module], source_at: Any) -> None:
    """Add a compiled program. `source_at` returns the line of user code for a line of the program."""
    while hasattr(function, "__wrapped__"):  # under decorators such as `no_grad`
        function = function.__wrapped__
    key = id(function)
    program = _programs[key] = _Program(function, title, tree, source_at)
    weakref.finalize(function, _programs.pop, key, None).atexit = False
    if _profiling[0]:
        program.use_ranges(True)
        if not _profiling[0]:  # the profiler has stopped meanwhile
            program.use_ranges(False)


def profiler_started() -> None:
    """Run all programs with ranges."""
    _exchange(True)


def profiler_stopped() -> None:
    """Run all programs without ranges."""
    _exchange(False)


def _exchange(on: bool) -> None:
    _profiling[0] = on
    for program in list(_programs.values()):
        program.use_ranges(on)


def label_of(title: str, source: SourceLine) -> str:
    """Return the label of a range, e.g. `thunder.jit(Net) | layers.2 (Linear) | model.py:12`."""
    parts = [title, source.module, f"{os.path.basename(source.filename)}:{source.line}"]
    return " | ".join(filter(None, parts))


def _in_ranges(body: Sequence[ast.stmt], label: Callable[[int], str | None]) -> list[ast.stmt]:
    """Put statements in a row with equal labels into a `with` statement. Statements without a label stay in the row."""
    if len(body) == 1 and isinstance(body[0], ast.Try):  # see `core/faults.py`
        body[0].body = _in_ranges(body[0].body, label)
        return [body[0]]
    found: list[ast.stmt] = []
    open_label: str | None = None
    for statement in body:
        leaves = isinstance(statement, ast.Return) or _yields(statement)
        own = None if leaves else label(statement.lineno)
        if leaves or (own is None and open_label is None):
            found.append(statement)
            open_label = None
        elif own is None or own == open_label:
            block = found[-1]
            assert isinstance(block, ast.With)
            block.body.append(statement)
        else:
            load = ast.Load()
            call = ast.Call(ast.Name(_RANGE, load), [ast.Constant(own)], [])
            block = ast.With([ast.withitem(call)], [statement])
            found.append(ast.copy_location(block, statement))
            open_label = own
    return found


def _yields(statement: ast.stmt) -> bool:
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(statement))
