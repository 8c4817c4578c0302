# SPDX-License-Identifier: Apache-2.0
"""Traces: straight-line programs that print as Python and run.

A trace has a name, inputs, a list of bound symbols, and a provenance (the pass that created the trace). During
recording, a trace also has a stack of scopes. Operations are appended to the innermost scope, so that decompositions
nest.
"""

from __future__ import annotations

import ast
import copy
import importlib
import itertools
import keyword
import linecache
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

from thunder.core.errors import TraceVerificationError
from thunder.core.events import current_log
from thunder.core.faults import source_with_faults
from thunder.core.printer import RESERVED_NAMES, PrintContext, bound_symbol_lines, trace_text
from thunder.core.profiling import add_program
from thunder.core.proxies import Proxy
from thunder.core.state import SourceLine
from thunder.core.summary import html_of, summary_of
from thunder.core.symbol import BoundSymbol, proxies_in
from thunder.core.tracebacks import PROGRAM_PREFIX, sources

__all__ = ["ProgramLines", "Provenance", "Trace", "construct", "imported", "verification_level"]

_counter = itertools.count()
# The values of names that programs import, instead of the modules themselves (`executors/torchex/base.py`).
imported: dict[str, Any] = {}


def verification_level() -> int:
    """Return the value of the environment variable `THUNDER_VERIFY`, which is 0 if it is not set."""
    value = os.environ.get("THUNDER_VERIFY", "0")
    return int(value) if value.isdigit() else int(value != "")


class Provenance:
    """The pass that created a trace, and the time that the pass took."""

    __slots__ = ("name", "nanoseconds")

    def __init__(self, name: str, nanoseconds: int | None = None):
        self.name = name
        self.nanoseconds = nanoseconds

    def __str__(self) -> str:
        took = "" if self.nanoseconds is None else f" (took {self.nanoseconds // 1_000_000} milliseconds)"
        return f"{self.name}{took}"


class _Scope:
    """The context manager of `Trace.scope`: a class, because it is faster than a generator, and scopes are frequent."""

    __slots__ = ("scopes",)

    def __init__(self, scopes: list[list[BoundSymbol]]):
        self.scopes = scopes

    def __enter__(self) -> list[BoundSymbol]:
        operations: list[BoundSymbol] = []
        self.scopes.append(operations)
        return operations

    def __exit__(self, *error: object) -> None:
        self.scopes.pop()


class Trace:
    """A program of the IR.

    `args` are its inputs in order. `signature` is the text between the parentheses of its `def`, or None if that text
    consists only of the names of the inputs.
    """

    def __init__(
        self,
        name: str = "computation",
        *,
        args: Iterable[Proxy] = (),
        signature: str | None = None,
        provenance: Provenance | None = None,
    ):
        self.name = name
        self.args: list[Proxy] = list(args)
        self.signature = signature
        # The output until a return is recorded: either the assigned output, or the output of the trace from which this
        # trace was derived.
        self._output: Any = None
        self._output_assigned = False
        self.decorated = True  # True if it runs under no_grad and no_autocast; False for a prologue, which guards both
        self.bound_symbols: list[BoundSymbol] = []
        self.scopes: list[list[BoundSymbol]] = [self.bound_symbols]
        self.provenance = provenance
        self.names: set[str] = {p.name for p in self.args}
        self._counters: dict[str, int] = {}
        # Objects without a literal to which the source refers, by name.
        self.objects: dict[str, Any] = {}
        # Information for later passes, e.g. the structure of the outputs. Derived traces inherit it.
        self.info: dict[str, Any] = {}
        self._function: weakref.ref[Any] | None = None  # what `python_callable` has returned

    # -- output -------------------------------------------------------------------------------------------------------
    @property
    def output(self) -> Any:
        """The output of the program: the argument of its final `python_return`.

        Assigning to this property changes that argument. Before a return is recorded, the assigned value is only
        stored. A return of other values that is recorded later is an error (`check_output`).
        """
        last = self.bound_symbols[-1] if self.bound_symbols else None
        if last is None or not last.sym.is_return:
            return self._output
        return last.args[0] if last.args else None

    @output.setter
    def output(self, output: Any) -> None:
        last = self.bound_symbols[-1] if self.bound_symbols else None
        if last is not None and last.sym.is_return:
            # Creates a new operation, because other traces may contain the old one.
            self.bound_symbols[-1] = last.replace(args=(output,))
            self._output_assigned = False
        else:
            self._output, self._output_assigned = output, True

    def check_output(self) -> None:
        """Raise an error if an output was assigned and a return of other values was recorded later."""
        if not self._output_assigned or self.output is self._output:
            return
        assigned, returned = ([p.name for p in proxies_in(x)] for x in (self._output, self.output))
        if assigned != returned:
            raise TraceVerificationError(
                f"the output of {self.name} was set to ({', '.join(assigned)}), but the return that was recorded "
                f"afterwards returns ({', '.join(returned)}). Record the return first, or a return of the new output"
            )

    # -- names --------------------------------------------------------------------------------------------------------
    def make_name(self, prefix: str = "t") -> str:
        """Return an unused name that begins with `prefix`."""
        names, counters = self.names, self._counters
        n = counters.get(prefix, 0)
        while (name := f"{prefix}{n}") in names:
            n += 1
        counters[prefix] = n + 1
        names.add(name)
        return name

    def make_names(self, count: int) -> list[str]:
        """Return `count` names for tensors: the names that `count` calls of `make_name` would return."""
        first = self._counters.get("t", 0)
        names = [f"t{i}" for i in range(first, first + count)]
        if not self.names.isdisjoint(names):
            return [self.make_name("t") for _ in names]
        self._counters["t"] = first + count
        self.names.update(names)
        return names

    def add_name(self, name: str) -> str:
        """Reserve and return `name`, or a name derived from `name` if it is already used or not allowed in a trace."""
        if not name.isidentifier():
            name = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
            name = name if name.isidentifier() else f"_{name}"
        candidate, n = f"{name}_" if keyword.iskeyword(name) or name in RESERVED_NAMES else name, 0
        while candidate in self.names:
            candidate, n = f"{name}_{n}", n + 1
        self.names.add(candidate)
        return candidate

    # -- writing ------------------------------------------------------------------------------------------------------
    def record(self, bsym: BoundSymbol) -> None:
        """Add an operation to the innermost scope."""
        self.scopes[-1].append(bsym)

    def scope(self) -> _Scope:
        """Return a context manager; operations are recorded into the list that entering it returns."""
        return _Scope(self.scopes)

    def derive(self, provenance: str | None = None) -> Trace:
        """Return an empty trace with the same name, inputs and used names, into which a pass records its result."""
        out = Trace(self.name, args=self.args, signature=self.signature)
        out.names = set(self.names)
        out._counters = dict(self._counters)
        out._output = self.output
        out.decorated = self.decorated
        out.info = dict(self.info)
        out.provenance = Provenance(provenance) if provenance else None
        return out

    # -- reading ------------------------------------------------------------------------------------------------------
    def python(self, *, depth: int | None = None, kernels: bool = False, decorators: bool = True) -> str:
        """Return the trace's source. `depth` is the number of levels of decomposition to show as comments (None: all).

        The decomposition of an executor's kernel is shown only with `kernels`.
        """
        return trace_text(self, depth=depth, kernels=kernels, decorators=decorators)

    def summary(self) -> str:
        """Return a short form of the program: its operations by name and executor, and its first and last lines."""
        return summary_of(self)

    def _repr_html_(self) -> str:
        return html_of(self)

    def python_callable(self, *, decorators: bool = True) -> Callable[..., Any]:
        """Return the function that the trace's source defines."""
        trace, level = self, verification_level()
        if level:
            # Imported by name at run time: the module belongs to a higher layer.
            trace = importlib.import_module("thunder.execution.verify_results").with_checks(self, level)
        context = PrintContext()
        text = trace_text(trace, depth=0, decorators=decorators, context=context)
        namespace = dict(context.objects)
        filename = f"{PROGRAM_PREFIX}{self.name} {next(_counter)}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        source = source_with_faults(trace, text, namespace)
        exec(compile(source, filename, "exec"), namespace)
        namespace.update({name: module for name, module in imported.items() if name in namespace})
        function = namespace[self.name]
        if trace is self:
            function.printed = filename, context.objects
            self._function = weakref.ref(function)
        # Tracebacks can show the source until the function is deleted.
        weakref.finalize(function, _forget, filename).atexit = False
        if self.decorated:  # prologues and epilogues have no lines of user code, and refer to objects of the user
            sources[filename] = ProgramLines(trace, text)
            title = current_log().program + ("" if self.name == "computation" else f" {self.name}")
            add_program(function, title, lambda: _parsed(source), sources[filename])
        return function  # type: ignore[no-any-return]

    @property
    def function(self) -> Any:
        """The function that the trace's source defines, if it has been compiled and still exists, or None."""
        return None if self._function is None else self._function()

    def printed(self) -> tuple[str, dict[str, Any]] | None:
        """Return the text of the function that runs, and its objects by their names; None if there is no function.

        Printing takes a tenth of the time of a compilation. Programs are therefore saved with this text.
        """
        function = self.function
        if function is None:
            return None
        filename, objects = function.printed
        found = linecache.cache.get(filename)
        return None if found is None or len(found) != 4 else ("".join(found[2]), objects)

    def python_ctx(self) -> dict[str, Any]:
        """Return the namespace in which the source runs: `exec(str(trace), trace.python_ctx())`.

        The namespace contains the operators of executors as symbols, so that the source can also be traced again.
        """
        context = PrintContext(symbols=True)
        trace_text(self, depth=None, context=context)
        return context.objects

    def __str__(self) -> str:
        return self.python()

    def __repr__(self) -> str:
        return self.python()


def _forget(filename: str) -> None:
    linecache.cache.pop(filename, None)
    sources.pop(filename, None)


def _parsed(source: Any) -> ast.Module:
    """Return a new syntax tree of a program's text or tree."""
    return ast.parse(source) if isinstance(source, str) else copy.deepcopy(source)


class ProgramLines:
    """The operations of a compiled program by the lines of its `text`, which has no decompositions.

    Called with a line, it returns the line of user code.
    """

    def __init__(self, trace: Trace, text: str):
        self._trace = trace
        self._text = text

    def until(self, line: int) -> list[BoundSymbol]:
        """Return the operations up to a line. The last one is at this line."""
        at = next(i for i, content in enumerate(self._text.split("\n"), start=1) if content.startswith("def "))
        found = []
        for op in self._trace.bound_symbols:
            at += len(bound_symbol_lines(op, depth=0))
            found.append(op)
            if at >= line:
                return found
        return []

    def __call__(self, line: int) -> SourceLine | None:
        found = self.until(line)
        return _source_of(found[-1]) if found else None


def _source_of(op: BoundSymbol) -> SourceLine | None:
    """Return the line of user code of an operation, or of the first operation in it that has one, e.g. in a fusion."""
    if op.source is not None:
        return op.source
    return next(filter(None, map(_source_of, op.subsymbols)), None)


@contextmanager
def construct(source: Trace, name: str) -> Iterator[Trace]:
    """Derive a new trace from `source` in the pass `name`; its provenance records the pass and the time it took."""
    start = perf_counter_ns()
    out = source.derive()
    yield out
    out.check_output()
    out.provenance = Provenance(name, perf_counter_ns() - start)
