# SPDX-License-Identifier: Apache-2.0
"""Traces: straight-line programs that print as Python and run.

A trace has a name, inputs, a list of bound symbols and where it came from (provenance). While it is being written it
also has a stack of scopes: the innermost list receives what is recorded, which is how decompositions nest.
"""

from __future__ import annotations

import itertools
import keyword
import linecache
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

from thunder.core.errors import TraceVerificationError
from thunder.core.printer import RESERVED_NAMES, PrintContext, trace_text
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol, proxies_in

__all__ = ["Provenance", "Trace", "construct"]

_counter = itertools.count()


class Provenance:
    """Which pass made a trace, and how long that took."""

    __slots__ = ("name", "nanoseconds")

    def __init__(self, name: str, nanoseconds: int | None = None):
        self.name = name
        self.nanoseconds = nanoseconds

    def __str__(self) -> str:
        took = "" if self.nanoseconds is None else f" (took {self.nanoseconds // 1_000_000} milliseconds)"
        return f"{self.name}{took}"


class _Scope:
    """What `Trace.scope` gives: passes enter one for each operation, and a generator would take them longer."""

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

    `args` are its inputs in order; `signature` is the text between the parentheses of its `def` where that is not
    simply their names.
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
        # The output while no return is recorded: that of the trace this one derives from, or what was assigned.
        self._output: Any = None
        self._output_assigned = False
        self.decorated = True  # whether it runs without gradients and autocast; a prologue looks at whether they are on
        self.bound_symbols: list[BoundSymbol] = []
        self.scopes: list[list[BoundSymbol]] = [self.bound_symbols]
        self.provenance = provenance
        self.names: set[str] = {p.name for p in self.args}
        self._counters: dict[str, int] = {}
        # Objects that the text refers to and that cannot be written as Python, by the names that they have in it.
        self.objects: dict[str, Any] = {}
        # What passes tell later passes, such as how the outputs are put together. Derived traces inherit it.
        self.info: dict[str, Any] = {}

    # -- output -------------------------------------------------------------------------------------------------------
    @property
    def output(self) -> Any:
        """What the program returns: the argument of its closing `python_return`.

        Assigning changes that argument. Before a return is recorded the value is kept for the code that records it; a
        return of something else is then an error (`check_output`).
        """
        last = self.bound_symbols[-1] if self.bound_symbols else None
        if last is None or not last.sym.is_return:
            return self._output
        return last.args[0] if last.args else None

    @output.setter
    def output(self, output: Any) -> None:
        last = self.bound_symbols[-1] if self.bound_symbols else None
        if last is not None and last.sym.is_return:
            # A new call: other traces may hold the old one.
            self.bound_symbols[-1] = last.replace(args=(output,))
            self._output_assigned = False
        else:
            self._output, self._output_assigned = output, True

    def check_output(self) -> None:
        """Raise an error if an output was assigned and the return that was recorded later returns something else."""
        if not self._output_assigned or self.output is self._output:
            return
        assigned, returned = ([p.name for p in proxies_in(x)] for x in (self._output, self.output))
        if assigned != returned:
            raise TraceVerificationError(
                f"the output of {self.name} was set to ({', '.join(assigned)}), but its return, which was recorded "
                f"afterwards, returns ({', '.join(returned)}): record the return first, or a return of the new output"
            )

    # -- names --------------------------------------------------------------------------------------------------------
    def make_name(self, prefix: str = "t") -> str:
        """Return a name that no value of this trace has."""
        names, counters = self.names, self._counters
        n = counters.get(prefix, 0)
        while (name := f"{prefix}{n}") in names:
            n += 1
        counters[prefix] = n + 1
        names.add(name)
        return name

    def make_names(self, count: int) -> list[str]:
        """Return `count` names for tensors, the same as `count` calls of `make_name` would."""
        first = self._counters.get("t", 0)
        names = [f"t{i}" for i in range(first, first + count)]
        if not self.names.isdisjoint(names):
            return [self.make_name("t") for _ in names]
        self._counters["t"] = first + count
        self.names.update(names)
        return names

    def add_name(self, name: str) -> str:
        """Reserve `name`, or a name derived from it if it is taken or cannot stand in the trace's text; return it."""
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
        """Return a context manager that gives a list; within it, what is recorded goes to that list."""
        return _Scope(self.scopes)

    def derive(self, provenance: str | None = None) -> Trace:
        """Return an empty trace with the same name, inputs and used names, for a pass to write its result into."""
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
        """Return its text. `depth` is how many levels of decomposition to show as comments (None: all).

        The line of an executor's kernel stands alone; with `kernels` its decomposition is shown, too.
        """
        return trace_text(self, depth=depth, kernels=kernels, decorators=decorators)

    def python_callable(self, *, decorators: bool = True) -> Callable[..., Any]:
        """Return the function that its text defines."""
        context = PrintContext()
        text = trace_text(self, depth=0, decorators=decorators, context=context)
        namespace = dict(context.objects)
        filename = f"<thunder.{self.name} {next(_counter)}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        exec(compile(text, filename, "exec"), namespace)
        function = namespace[self.name]
        # Its text is there for tracebacks, for as long as it is.
        weakref.finalize(function, linecache.cache.pop, filename, None).atexit = False
        return function  # type: ignore[no-any-return]

    def python_ctx(self) -> dict[str, Any]:
        """Return the objects that its text needs beyond what it imports: `exec(str(trace), trace.python_ctx())` works.

        The operators of executors are in it as symbols, so that the text can also be traced again.
        """
        context = PrintContext(symbols=True)
        trace_text(self, depth=None, context=context)
        return context.objects

    def __str__(self) -> str:
        return self.python()

    def __repr__(self) -> str:
        return self.python()


@contextmanager
def construct(source: Trace, name: str) -> Iterator[Trace]:
    """Derive a new trace from `source`; its provenance says that the pass `name` made it and how long that took."""
    start = perf_counter_ns()
    out = source.derive()
    yield out
    out.check_output()
    out.provenance = Provenance(name, perf_counter_ns() - start)
