# SPDX-License-Identifier: Apache-2.0
"""The search for what makes a compiled call wrong: a transform, executors, an operation, a line or a pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.capture.base.fallback import RunsEagerly
from thunder.capture.capture import capture
from thunder.core.events import Event
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace
from thunder.execution.excerpt import distinct, excerpt
from thunder.extend import Executor
from thunder.frontend.jit import JitFunction
from thunder.frontend.progress import progress
from thunder.passes.dce import dce
from thunder.reproduce.by_torch import LinesByTorch, describe_line, first_wrong_line
from thunder.reproduce.outcome import Outcome, call_outcome, cloned, difference, outcome_of
from thunder.reproduce.passes import first_wrong_pass, first_wrong_pass_of_call, raising_pass
from thunder.reproduce.variants import changes_other_objects, compile_once, jit_function, variant
from thunder.transforms.base import Transform

__all__ = ["Bisection", "bisect"]

Check = Callable[[Any], Any]


class Bisection:
    """What `bisect` has found. All attributes are None if the call is right.

    `failure` says how the call is wrong. `executors` are those with which it is wrong (empty: torch alone), `operation`
    is the first operation of the program that makes it wrong, `region` is the fusion or kernel, `pass_name` is the pass
    whose trace is the first wrong one, and `pass_program` is "forward" or "backward". `program` is the smallest program
    that is wrong, for the tensors `inputs`.
    """

    def __init__(self, jitted: JitFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.fn = jitted._fn
        self.options = jitted._options
        self.arguments = args, kwargs
        self.failure: str | None = None
        self.executors: list[str] | None = None
        self.operation: str | None = None
        self.region: str | None = None
        self.pass_name: str | None = None
        self.pass_program: str | None = None
        self.notes: list[str] = []
        self.program: Trace | None = None
        self.inputs: list[Any] = []
        self.right = "the compiled program and eager mode agree"

    def __str__(self) -> str:
        if self.failure is None:
            return "\n".join([self.right, *self.notes])
        lines = [self.failure]
        if self.executors is not None:
            names = ", ".join(map(repr, self.executors))
            lines.append(f"executors: it fails with {names}" if names else "executors: it fails with torch alone")
        if self.operation is not None:
            lines.append(f"operation: {self.operation}")
        if self.region is not None:
            lines.append(f"region: {self.region}")
        if self.pass_name is not None:
            of = " of the backward program" if self.pass_program == "backward" else ""
            lines.append(f"pass: the first wrong trace{of} is that of {self.pass_name}")
        return "\n".join([*lines, *self.notes])

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes that say what was found, as JSON types."""
        names = ("failure", "executors", "operation", "region", "pass_name", "pass_program", "notes")
        return {name: getattr(self, name) for name in names}


def bisect(
    fn: Callable[..., Any],
    *args: Any,
    check: Check | None = None,
    tolerance: float | None = None,
    **kwargs: Any,
) -> Bisection:
    """Find the transform, executor, operation, fused region or pass that makes a call of `fn` wrong.

    `fn` is a function or module, jitted or not. A call is wrong if it differs from eager mode, in results or gradients,
    or raises an error that eager mode does not raise. `tolerance` is the largest difference that is allowed, relative
    to the largest value of a result; by default it depends on the dtype. With `check`, a call is wrong if
    `check(result)` returns False or raises an error, e.g. `check=lambda loss: loss.isfinite().all()`. The call runs
    many times, on copies of the arguments and, for a module, of the module.
    """
    jitted = jit_function(fn)
    found = Bisection(jitted, args, kwargs)
    with progress("thunder.bisect", "searching", "searched"):
        _find_cause(found, jitted, _Judge(found, tolerance, check))
    return found


class _Judge:
    """Decides whether an outcome of the call is wrong."""

    def __init__(self, found: Bisection, tolerance: float | None, check: Check | None):
        self.tolerance = tolerance
        self.check = check
        self.expected = call_outcome(found.fn, lambda f: f, *found.arguments)

    def problem(self, outcome: Outcome) -> str | None:
        """Return how an outcome is wrong, or None."""
        if self.check is None or outcome.error is not None or self.expected.error is not None:
            return difference(outcome, self.expected, self.tolerance)
        return self.failed_check(outcome)

    def failed_check(self, outcome: Outcome) -> str | None:
        """Return how the user's check fails for the result of a call, or None."""
        assert self.check is not None
        try:
            verdict = self.check(outcome.result)
        except Exception as error:
            return f"the check raises {type(error).__name__}: {error}"
        return None if verdict is None or bool(verdict) else "the check of the result fails"


def _find_cause(found: Bisection, jitted: JitFunction[..., Any], judge: _Judge) -> None:
    expected = judge.expected
    if judge.check is not None:
        found.right = "the compiled program passes the check"
    if expected.error is not None:
        found.notes.append(f"eager mode raises {type(expected.error).__name__}: {expected.error}")
    elif judge.check is not None and judge.failed_check(expected) is not None:
        found.failure = f"{judge.failed_check(expected)}, in eager mode, too"
        return
    compiled: list[JitFunction[..., Any]] = []

    def prepare(fn: Any) -> Any:
        compiled.append(variant(jitted, fn))
        return compiled[0]

    outcome = call_outcome(found.fn, prepare, *found.arguments)
    found.failure = judge.problem(outcome)
    stats = compiled[0]._stats
    if stats.last is None and outcome.error is None:
        why = stats.events.of("fallback")
        how = "partly eager" if stats.partly_eager_calls else "eager"
        found.notes.append(f"thunder compiles no program of this call, which is {how}{_reason(why)}")
    if found.failure is None:
        return
    if outcome.error is not None:
        found.notes.append(f"raised in {_innermost(outcome.error)}")
    _warn_of_changes(found, jitted)
    search = _Search(found, jitted, judge)
    if not search.transforms():
        search.run()


def _warn_of_changes(found: Bisection, jitted: JitFunction[..., Any]) -> None:
    """Add a note if runs of the call see each other's changes, so that they differ although all of them are right."""
    args, kwargs = found.arguments
    try:
        captured, _ = compile_once(variant(jitted), args, kwargs)
    except (RunsEagerly, Exception):  # the search reports it
        return
    if changes_other_objects(captured, found.fn, found.arguments):
        found.notes.append(
            "the function changes objects that are not its arguments, and the runs of this search change them again: "
            "make these objects in the function, or pass them as arguments"
        )


def _reason(events: Sequence[Event]) -> str:
    return f": {events[-1].reason}" if events else ""


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
    """Searches with runs of the whole call and, without a check of the user, with parts of the traced program."""

    def __init__(self, found: Bisection, jitted: JitFunction[..., Any], judge: _Judge):
        self.found = found
        self.jitted = jitted
        self.judge = judge
        self.executors = [e for e in jitted._options.resolved_executors() if not e.is_fallback]

    def transforms(self) -> bool:
        """Search for a transform of the user. Return whether one makes the call wrong."""
        given = self.jitted._transforms
        if not given or self._call_fails(transforms=()):
            return False
        alone = [t for t in given if self._call_fails(transforms=[t])] if len(given) > 1 else []
        self.found.notes.append(f"transforms: it agrees without {', '.join(t.name for t in alone[:1] or given)}")
        return True

    def run(self) -> None:
        """Search for executors, an operation, a region and a pass."""
        if self.judge.check is None:
            self._search_in_trace()
        else:
            self.executors = self._fewest(lambda few: self._call_fails(executors=few))
            self.found.executors = [e.name for e in self.executors]
        if self.found.executors:
            self._search_region()
        if self.judge.check is not None:
            self._search_pass_of_call()

    def _call_fails(
        self, executors: Sequence[Executor] | None = None, transforms: Sequence[Transform] | None = None
    ) -> bool:
        """Check whether the call is wrong with other executors or transforms."""

        def prepare(fn: Any) -> Any:
            return variant(self.jitted, fn, executors=executors, transforms=transforms)

        return self.judge.problem(call_outcome(self.found.fn, prepare, *self.found.arguments)) is not None

    def _fewest(self, fails: Callable[[list[Executor]], bool]) -> list[Executor]:
        """Return no executor if it fails with torch alone, else one executor, or those that fail together."""
        for few in ([], *[[executor] for executor in self.executors]):
            if fails(few):
                return few
        return self.executors

    def _search_region(self) -> None:
        def is_wrong(lines: LinesByTorch) -> bool:
            return self._call_fails(executors=self.executors, transforms=[*self.jitted._transforms, lines])

        line = first_wrong_line(is_wrong)
        if line is not None:
            self.found.region = describe_line(*line)

    def _search_pass_of_call(self) -> None:
        args, kwargs = map(cloned, self.found.arguments)
        fn = cloned(self.found.fn) if isinstance(self.found.fn, torch.nn.Module) else None
        jitted = variant(self.jitted, fn, executors=self.executors, cuda_graphs="never")
        raising = raising_pass(jitted, args, kwargs)
        if raising is not None:
            self.found.pass_program, self.found.pass_name = "forward", raising
            return
        self._found_pass(
            lambda: first_wrong_pass_of_call(jitted, args, kwargs, lambda x: self.judge.problem(x) is not None)
        )

    def _found_pass(self, search: Callable[[], tuple[str, str] | None]) -> None:
        try:
            wrong = search()
        except Exception as error:
            self.found.notes.append(f"passes were not compared ({type(error).__name__}: {error})")
            return
        if wrong is not None:
            self.found.pass_program, self.found.pass_name = wrong

    # -- the traced program, which is a program on tensors by itself ---------------------------------------------------
    def _search_in_trace(self) -> None:
        found = self.found
        try:
            trace, inputs = self._traced()
        except (RunsEagerly, Exception) as error:
            found.notes.append(f"the program cannot be traced ({type(error).__name__}: {str(error).splitlines()[0]})")
            return
        if not self._fails(trace, inputs, self.executors):
            found.notes.append("the traced program agrees with eager mode: guards, side effects or tracing are wrong")
            return
        self.executors = self._fewest(lambda few: self._fails(trace, inputs, few))
        found.executors = [e.name for e in self.executors]
        found.program, found.inputs = self._smallest(trace, inputs)
        self._search_pass()

    def _traced(self) -> tuple[Trace, list[Any]]:
        args, kwargs = map(cloned, self.found.arguments)
        fn = cloned(self.found.fn) if isinstance(self.found.fn, torch.nn.Module) else self.found.fn
        captured = capture(fn, args, kwargs, name="computation", executors=self.jitted._options.resolved_executors())
        return dce(captured.computation), [cloned(x) for x in captured.inputs]

    def _compiled(self, trace: Trace, executors: Sequence[Executor]) -> JitFunction[..., Any]:
        return variant(self.jitted, trace.python_callable(decorators=False), executors=executors, transforms=())

    def _fails(self, trace: Trace, inputs: Sequence[Any], executors: Sequence[Executor]) -> bool:
        """Check whether a program, compiled with some executors, differs from its run with torch."""
        plain = trace.python_callable(decorators=False)
        outcomes = []
        for run in (self._compiled(trace, executors), plain):
            copies = [cloned(x) for x in inputs]
            outcomes.append(outcome_of(functools.partial(run, *copies), copies))
        return difference(outcomes[0], outcomes[1], self.judge.tolerance) is not None

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
        before = _program(trace.args, operations[: high - 1], distinct(last.flat_args))
        alone = _program(distinct(last.flat_args), [last])
        values = list(before.python_callable(decorators=False)(*[cloned(x) for x in inputs]))
        given = [x.detach().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in values]
        if self._fails(alone, given, self.executors):
            return alone, given
        return _program(trace.args, operations[:high]), inputs

    def _search_pass(self) -> None:
        found = self.found
        assert found.program is not None
        compiled = self._compiled(found.program, self.executors)
        raising = raising_pass(compiled, [cloned(x) for x in found.inputs], {})
        if raising is not None:
            found.pass_program, found.pass_name = "forward", raising
            return
        self._found_pass(lambda: first_wrong_pass(compiled, found.inputs, self.judge.tolerance))


def _program(args: Sequence[Proxy], operations: Sequence[BoundSymbol], output: Sequence[Proxy] | None = None) -> Trace:
    """Return the program of some operations of a trace. It returns the results of the last operation by default."""
    if output is not None:
        return excerpt(args, operations, output)
    return dce(excerpt(args, operations, distinct(operations[-1].flat_outs)))
