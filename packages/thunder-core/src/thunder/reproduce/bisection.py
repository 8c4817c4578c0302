# SPDX-License-Identifier: Apache-2.0
"""The search for what makes a compiled program differ from eager mode: executors, operations and passes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

import thunder.executors.built_in  # noqa: F401  (registers the built-in executors)
from thunder.capture.base.fallback import RunsEagerly
from thunder.capture.capture import capture
from thunder.core.prims import python_return
from thunder.core.proxies import Proxy
from thunder.core.pytree import tree_leaves
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace
from thunder.extend import Executor
from thunder.frontend.jit import JitFunction, jitted_of
from thunder.frontend.options import Options
from thunder.passes.dce import dce
from thunder.reproduce.outcome import Outcome, cloned, difference, outcome_of

__all__ = ["Finding", "find_cause"]


class Finding:
    """What the search has found. `program` is the smallest program that fails, with inputs that make it fail."""

    def __init__(self, fn: Any, options: Options):
        self.fn = fn
        self.options = options
        self.failure: str | None = None
        self.executors: list[str] | None = None
        self.operation: str | None = None
        self.pass_name: str | None = None
        self.notes: list[str] = []
        self.program: Trace | None = None
        self.inputs: list[Any] = []
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] = (), {}


def find_cause(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tolerance: float | None) -> Finding:
    """Compare a call with eager mode and, if it differs, search the cause."""
    jitted = jitted_of(fn)
    if not isinstance(jitted, JitFunction):
        jitted = JitFunction(fn, Options())
    found = Finding(jitted._fn, jitted._options)
    found.arguments = args, kwargs
    expected = _call(found.fn, lambda f: f, args, kwargs)
    compiled = _call(found.fn, lambda f: _jit(f, jitted, jitted._transforms), args, kwargs)
    found.failure = difference(compiled, expected, tolerance)
    if expected.error is not None:
        found.notes.append(f"eager mode raises {type(expected.error).__name__}: {expected.error}")
    if found.failure is None:
        return found
    if compiled.error is not None:
        found.notes.append(f"raised in {_innermost(compiled.error)}")
    if jitted._transforms:
        plain = _call(found.fn, lambda f: _jit(f, jitted, ()), args, kwargs)
        if difference(plain, expected, tolerance) is None:
            found.notes.append(f"transforms: it agrees without {', '.join(t.name for t in jitted._transforms)}")
            return found
    _Search(found, jitted, tolerance).run()
    return found


def _jit(fn: Any, jitted: JitFunction[..., Any], transforms: Sequence[Any]) -> JitFunction[..., Any]:
    return JitFunction(fn, jitted._options, transforms=transforms, autograd=jitted._autograd)


def _call(fn: Any, prepare: Callable[[Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
    """Run a call on copies of the function, if it is a module, and of the arguments."""
    fn = cloned(fn) if isinstance(fn, torch.nn.Module) else fn
    args, kwargs = cloned(args), cloned(kwargs)
    leaves = [*tree_leaves((args, kwargs)), *(fn.parameters() if isinstance(fn, torch.nn.Module) else ())]
    run = prepare(fn)
    return outcome_of(lambda: run(*args, **kwargs), leaves)


def _innermost(error: BaseException) -> str:
    """Return the file, line and function where an error was raised."""
    entry = error.__traceback__
    if entry is None:
        return "unknown code"
    while entry.tb_next is not None:
        entry = entry.tb_next
    code = entry.tb_frame.f_code
    return f"{code.co_filename}:{entry.tb_lineno}, in {code.co_name}"


class _Search:
    """Searches in the traced program, which is a program on tensors by itself."""

    def __init__(self, found: Finding, jitted: JitFunction[..., Any], tolerance: float | None):
        self.found = found
        self.jitted = jitted
        self.tolerance = tolerance
        self.executors = [e for e in jitted._options.resolved_executors() if not e.is_fallback]

    def run(self) -> None:
        """Search for executors, then for operations, and then for a pass."""
        found = self.found
        try:
            trace, inputs = self._traced()
        except (RunsEagerly, Exception) as error:
            found.notes.append(f"the program cannot be traced ({type(error).__name__}: {str(error).splitlines()[0]})")
            return
        if not self._fails(trace, inputs, self.executors):
            found.notes.append("the traced program agrees with eager mode: guards, side effects or tracing are wrong")
            return
        self.executors = self._fewest_executors(trace, inputs)
        found.executors = [e.name for e in self.executors]
        found.program, found.inputs = self._smallest(trace, inputs)
        found.pass_name = self._first_wrong_pass()

    def _traced(self) -> tuple[Trace, list[Any]]:
        args, kwargs = self.found.arguments
        fn = self.found.fn
        fn = cloned(fn) if isinstance(fn, torch.nn.Module) else fn
        captured = capture(
            fn, cloned(args), cloned(kwargs), name="computation", executors=self.jitted._options.resolved_executors()
        )
        return dce(captured.computation), [cloned(x) for x in captured.inputs]

    def _options(self, executors: Sequence[Executor]) -> Options:
        return Options(executors=list(executors), extra=self.jitted._options.extra, remat=self.jitted._options.remat)

    def _compiled(self, trace: Trace, executors: Sequence[Executor]) -> JitFunction[..., Any]:
        return JitFunction(trace.python_callable(decorators=False), self._options(executors))

    def _fails(self, trace: Trace, inputs: Sequence[Any], executors: Sequence[Executor]) -> bool:
        """Check whether a program, compiled with some executors, differs from its run with torch."""
        plain = trace.python_callable(decorators=False)
        outcomes = []
        for run in (self._compiled(trace, executors), plain):
            copies = [cloned(x) for x in inputs]
            outcomes.append(outcome_of(functools.partial(run, *copies), copies))
        return difference(outcomes[0], outcomes[1], self.tolerance) is not None

    def _fewest_executors(self, trace: Trace, inputs: Sequence[Any]) -> list[Executor]:
        """Return no executor if the program fails with torch alone, else one executor, or those that fail together."""
        for few in ([], *[[executor] for executor in self.executors]):
            if self._fails(trace, inputs, few):
                return few
        return self.executors

    # -- operations ---------------------------------------------------------------------------------------------------
    def _smallest(self, trace: Trace, inputs: list[Any]) -> tuple[Trace, list[Any]]:
        """Return the failing operation as a program, or else the shortest beginning of the program that fails."""
        operations = [
            op for op in trace.bound_symbols if op.flat_outs and not op.sym.is_return and op.sym.name[:6] != "unpack"
        ]
        low, high = 0, len(operations)  # the first `high` operations fail; the first `low` do not
        whole = not operations or not self._fails(_program(trace.args, operations), inputs, self.executors)
        if whole:
            return trace, inputs
        while high - low > 1:
            middle = (low + high) // 2
            if self._fails(_program(trace.args, operations[:middle]), inputs, self.executors):
                high = middle
            else:
                low = middle
        last = operations[high - 1]
        self.found.operation = f"{last.sym.name}{'' if last.source is None else f', at {last.source}'}"
        before = _program(trace.args, operations[: high - 1], _distinct(last.flat_args))
        alone = _program(_distinct(last.flat_args), [last])
        values = list(before.python_callable(decorators=False)(*[cloned(x) for x in inputs]))
        given = [x.detach().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in values]
        if self._fails(alone, given, self.executors):
            return alone, given
        return _program(trace.args, operations[:high]), inputs

    # -- passes -------------------------------------------------------------------------------------------------------
    def _first_wrong_pass(self) -> str | None:
        """Return the name of the pass after which the results are wrong, or None if only gradients are wrong."""
        program, inputs = self.found.program, [cloned(x) for x in self.found.inputs]
        assert program is not None
        with torch.no_grad():
            compiled = self._compiled(program, self.executors)
            if outcome_of(lambda: compiled(*inputs), inputs).error is not None and compiled._stats.last is None:
                return None
            traces = compiled._stats.last_traces
            expected: Outcome | None = None
            for trace in traces:
                copies = [cloned(x) for x in self.found.inputs]
                run = trace.python_callable(decorators=False)
                now = outcome_of(functools.partial(run, *copies), copies)
                if expected is None:
                    expected = now
                elif difference(now, expected, self.tolerance) is not None:
                    return None if trace.provenance is None else trace.provenance.name
        return None


def _distinct(values: Sequence[Any]) -> list[Proxy]:
    return list({p.name: p for p in values if isinstance(p, Proxy)}.values())


def _program(args: Sequence[Proxy], operations: Sequence[BoundSymbol], output: Sequence[Proxy] | None = None) -> Trace:
    """Return the program of some operations of a trace. It returns the results of the last operation by default."""
    trace = Trace("computation", args=args)
    trace.names.update(p.name for op in operations for p in (*op.flat_args, *op.flat_outs) if isinstance(p, Proxy))
    trace.bound_symbols[:] = operations
    with tracectx(trace):
        python_return(tuple(_distinct(operations[-1].flat_outs) if output is None else output))
    return trace if output is not None else dce(trace)
