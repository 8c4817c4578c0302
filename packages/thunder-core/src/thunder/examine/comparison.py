# SPDX-License-Identifier: Apache-2.0
"""`thunder.examine.compare(fn, *args)`: run a program line by line beside torch and float64.

Each line of the compiled program runs on the values that the lines before it computed. On the same inputs, torch runs
the operations that the line stands for, once as they are and once in float64. A line diverges if its result is farther
from both than rounding explains. The inputs are copies, so neither the arguments nor the module change.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import Trace
from thunder.examine.compared import ComparedLine, ComparedResult, Comparison, number, relative
from thunder.examine.lines import Line, bind_inputs, lines_of, output_proxies
from thunder.examine.program import CompiledCall, compile_call
from thunder.execution.excerpt import all_levels, is_repeatable, reference_of
from thunder.execution.float64 import InFloat64, distance, widened
from thunder.execution.verify_results import allowed_difference
from thunder.extend import Executor
from thunder.frontend.progress import progress
from thunder.reproduce.outcome import call_outcome, cloned, difference, seeded
from thunder.reproduce.variants import changes_other_objects, variant

__all__ = ["compare"]

# A kernel may round differently from torch: its error may be this number of times torch's own error.
_TIMES_TORCH = 4.0
_NOT_IN_REFERENCES = frozenset({OpTags.RANDOM_OP, OpTags.GENERATOR_STATE_OP, OpTags.SIDE_EFFECT, OpTags.CHECK_OP})


def compare(
    fn: Callable[..., Any],
    *args: Any,
    executors: Sequence[Executor | str] | None = None,
    tolerance: float | None = None,
    **kwargs: Any,
) -> Comparison:
    """Run a call's program line by line beside torch and float64, and name the first line that diverges.

    `fn` is a function or module, jitted or not. If gradients flow, the backward program follows, with random gradients
    of the results. `tolerance` is the largest difference from torch and from float64 that is allowed, relative to the
    largest value of the result; by default it depends on the dtype. Lines that draw random numbers or have effects
    run once, and all programs receive their results.
    """
    found = Comparison()
    with progress("thunder.examine.compare", "running line by line", "ran line by line"), seeded():
        call = compile_call(fn, args, kwargs, executors)
        run = _Run(call, found, tolerance)
        run.forward()
        run.backward()
        _compare_results(run, found)
        if found.first is None:
            _compare_call(call, found, args, kwargs, tolerance)
    return found


class _Run:
    """Runs the programs of a call. `values` are the values of the program, and `wide` those of float64, by name."""

    def __init__(self, call: CompiledCall, report: Comparison, tolerance: float | None):
        self.call = call
        self.report = report
        self.tolerance = tolerance
        self.programs = dict(call.programs)
        self.values: dict[str, Any] = {}
        self.wide: dict[str, Any] = {}
        self.results: list[Any] = []
        self.cotangents: list[Any] = []
        self.gradients: dict[str, Any] | None = None  # by input; None if there is no backward program
        self.failed = False

    def forward(self) -> None:
        """Run the forward program."""
        program = self.programs["forward"]
        inputs = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in self.call.inputs]
        self.values = bind_inputs(program, inputs)
        self.wide = bind_inputs(program, [widened(x) for x in inputs])
        self._lines("forward", program)
        output = program.output[0] if "backward" in self.programs else program.output
        self.results = [] if self.failed else [self.values[p.name] for p in output_proxies(output)]

    def backward(self) -> None:
        """Run the backward program, on what the forward program saved and on random gradients of its results."""
        differentiable = self.call.differentiable
        if differentiable is None or self.failed:
            return
        split, program = differentiable.split, self.programs["backward"]
        saved = [p.name for p in self.programs["forward"].output[1]]
        torch.manual_seed(1)
        shapes = program.args[len(saved) :]
        made = [self.values[p.name] for p in output_proxies(self.programs["forward"].output[0])]
        made = [x for x in made if isinstance(x, torch.Tensor)]
        self.cotangents = [_random_like(p, made) for p in shapes]
        self.values = bind_inputs(program, [*[self.values[name] for name in saved], *self.cotangents])
        self.wide = bind_inputs(program, [*[self.wide[name] for name in saved], *map(widened, self.cotangents)])
        self._lines("backward", program)
        if not self.failed:
            values = [None if p is None else self.values[p.name] for p in program.output]
            self.gradients = dict(zip([p.name for p in split.wrt], values))

    def _lines(self, name: str, program: Trace) -> None:
        for line in lines_of(name, program, self.values, self.wide):
            compared = ComparedLine(line)
            self.report.lines.append(compared)
            try:
                self._line(line, compared)
            except Exception as error:
                message = str(error).splitlines()
                compared.problem = f"it raises {type(error).__name__}{': ' + message[0] if message else ''}"
                self.report.notes.append("the lines after the error did not run")
                self.failed = True
                return

    def _line(self, line: Line, compared: ComparedLine) -> None:
        reference = _reference(line)
        given = [self.values[p.name] for p in line.args]
        by_torch, by_float64 = _on_same_inputs(line, reference, given)
        results = line.run(self.values)
        line.store(self.values, results)
        for i, (p, x) in enumerate(zip(line.outs, results)):
            if isinstance(p, TensorProxy):
                _judge(compared, x, _item(by_torch, i), _item(by_float64, i), self.tolerance)
        # Lines that write to an input have no reference, and run in the program of float64 as they are.
        in_wide = None if _takes_results(line.op) else reference or line.function
        wide = _in_float64(in_wide, [self.wide[p.name] for p in line.args])
        merged = [_wide_result(x, _item(wide, i)) for i, x in enumerate(results)]
        for x, y in zip(results, merged):
            if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex()):
                compared.accumulated = max(number(compared.accumulated), distance(x, y))
        line.store(self.wide, merged)


def _judge(line: ComparedLine, x: Any, by_torch: Any, by_float64: Any, tolerance: float | None) -> None:
    """Store the errors of a result, and decide whether the line diverges."""
    if by_torch is None:
        if by_float64 is not None and x.dtype.is_floating_point:
            line.error = line.torch_error = max(number(line.error), distance(x, by_float64))
        return
    problem = _metadata_problem(x, by_torch)
    if problem is not None:
        line.problem = line.problem or problem
        return
    apart = distance(x, by_torch)
    line.difference = max(number(line.difference), apart)
    if not (x.is_floating_point() or x.is_complex()):
        sure = x != by_torch
        if by_float64 is not None:  # where torch and float64 agree, rounding is not to blame
            sure = sure & (by_float64 == by_torch)
        if bool(sure.any()):
            line.problem = line.problem or f"{int(sure.sum())} of {x.numel()} elements differ from torch's"
        return
    allowed = allowed_difference(x.dtype) if tolerance is None else tolerance
    if by_float64 is None:
        if apart > allowed:
            line.problem = line.problem or f"its result differs from torch's by {apart:.1e} of the largest value"
        return
    error, of_torch = distance(x, by_float64), distance(by_torch, by_float64)
    line.error, line.torch_error = max(number(line.error), error), max(number(line.torch_error), of_torch)
    explained = error <= max(allowed, _TIMES_TORCH * of_torch) and math.isfinite(error)
    if apart > allowed and not explained:
        line.problem = line.problem or (
            f"its result is {relative(error)} of the largest value away from float64, torch's is {relative(of_torch)}"
        )


def _metadata_problem(x: torch.Tensor, expected: torch.Tensor) -> str | None:
    found, wanted = ((tuple(t.shape), t.dtype, t.device) for t in (x, expected))
    if found == wanted:
        return None
    texts = [
        f"a {device} {str(dtype).removeprefix('torch.')} tensor of shape {shape}"
        for shape, dtype, device in (found, wanted)
    ]
    return f"it returns {texts[0]} instead of {texts[1]}"


# -- references -------------------------------------------------------------------------------------------------------
def _takes_results(op: BoundSymbol) -> bool:
    """Check whether the references receive the results of a line, because it must not run twice."""
    return any(not _NOT_IN_REFERENCES.isdisjoint(part.sym.tags) for part in all_levels([op]))


def _reference(line: Line) -> Callable[..., Any] | None:
    """Return the function by which torch computes a line, or None if there is none or it must not run twice."""
    owner = line.op.sym.executor
    if owner is not None and owner.is_fallback:
        return line.function if is_repeatable(line.op) else None
    found = reference_of(line.op)
    return None if found is None else found.python_callable()


def _on_same_inputs(
    line: Line, reference: Callable[..., Any] | None, given: Sequence[Any]
) -> tuple[list[Any] | None, list[Any] | None]:
    """Return torch's results and those of float64 for the inputs of a line. torch's are None if torch runs the line."""
    if reference is None:
        return None, None
    by_float64 = _in_float64(reference, [widened(x) for x in given])
    if reference is line.function:
        return None, by_float64
    with torch.no_grad():
        return _as_list(reference(*[x.clone() if isinstance(x, torch.Tensor) else x for x in given])), by_float64


def _in_float64(function: Callable[..., Any] | None, given: Sequence[Any]) -> list[Any] | None:
    """Run torch in float64. Return None if an operation has no kernel for it."""
    if function is None:
        return None
    try:
        with torch.no_grad(), InFloat64():
            return _as_list(function(*given))
    except Exception:  # e.g. a kernel for half precision only
        return None


def _as_list(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _item(results: list[Any] | None, i: int) -> Any:
    return None if results is None else results[i]


def _wide_result(x: Any, wide: Any) -> Any:
    """Return a result of float64. Integers and booleans are those of the program, e.g. positions and masks."""
    if not isinstance(x, torch.Tensor) or not isinstance(wide, torch.Tensor) or wide.shape != x.shape:
        return widened(x)
    return wide if wide.is_floating_point() or wide.is_complex() else widened(x)


def _random_like(p: Any, results: Sequence[torch.Tensor]) -> Any:
    """Return a random gradient with the metadata of a proxy, whose symbolic sizes are those of a result."""
    if not isinstance(p, TensorProxy):
        return p.value if isinstance(p, NumberProxy) else p
    like = next((x for x in results if _fits(p, x)), None)
    if like is None:
        raise ValueError(f"no result has the shape of the gradient {p.name}: {p.type_string()}")
    return torch.randn_like(like)


def _fits(p: TensorProxy, x: torch.Tensor) -> bool:
    return len(p.shape) == x.dim() and all(type(n) is not int or n == m for n, m in zip(p.shape, x.shape))


# -- the call as a whole ----------------------------------------------------------------------------------------------
def _compare_results(run: _Run, report: Comparison) -> None:
    """Compare the results and gradients of the program with those of the captured program, run by torch."""
    computation = run.call.captured.computation
    if run.failed:
        return
    if any(OpTags.RANDOM_OP in op.sym.tags for op in all_levels(computation.bound_symbols)):
        report.notes.append("the program draws random numbers, so that only lines are compared, not its results")
        return
    names = [p.name for p in computation.args]
    wanted = [i for i, name in enumerate(names) if run.gradients is not None and name in run.gradients]
    with contextlib.suppress(NotImplementedError):
        expected = _run_captured(run, wanted, cloned)
        exact = _run_captured(run, wanted, _widened_leaf)
        found = [*run.results, *[run.gradients[names[i]] for i in wanted]] if run.gradients is not None else run.results
        labels = [f"result {i}" for i in range(len(run.results))] + [f"gradient of {names[i]}" for i in wanted]
        if not len(found) == len(expected) == len(exact):
            return  # a transform changed the results of the program
        for label, x, by_torch, wide in zip(labels, found, expected, exact):
            if isinstance(x, torch.Tensor) and isinstance(wide, torch.Tensor) and isinstance(by_torch, torch.Tensor):
                report.results.append(ComparedResult(label, distance(x, wide), distance(by_torch, wide)))


def _run_captured(run: _Run, wanted: Sequence[int], convert: Callable[[Any], Any]) -> list[Any]:
    """Return the results and gradients of the captured program on converted inputs, as torch computes them."""
    program = run.call.captured.computation
    inputs = [convert(x) for x in run.call.inputs]
    wide = convert is _widened_leaf
    returned = output_proxies(program.output)
    function = program.python_callable(decorators=False)
    context: Any = InFloat64() if wide else contextlib.nullcontext()
    try:
        with context:
            results = _proxies_of(program.output, function(*inputs), {})
            values = [results[p.name] for p in returned]
            ends = [x for x in values if isinstance(x, torch.Tensor) and x.requires_grad]
            if not wanted or len(ends) != len(run.cotangents):
                return [*values, *[None for _ in wanted]]
            gradients = [widened(g) if wide else g for g in run.cotangents]
            return [*values, *torch.autograd.grad(ends, [inputs[i] for i in wanted], gradients, allow_unused=True)]
    except RuntimeError as error:
        raise NotImplementedError from error  # e.g. a kernel that has no float64


def _proxies_of(output: Any, value: Any, found: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a program's output by name."""
    if hasattr(output, "name"):
        found[output.name] = value
    elif isinstance(output, dict):
        for key, item in output.items():
            _proxies_of(item, value[key], found)
    elif isinstance(output, (tuple, list)):
        for item, x in zip(output, value):
            _proxies_of(item, x, found)
    return found


def _widened_leaf(x: Any) -> Any:
    return widened(x).requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x


def _compare_call(
    call: CompiledCall, report: Comparison, args: tuple[Any, ...], kwargs: dict[str, Any], tolerance: float | None
) -> None:
    """Add a note if the call differs from eager mode although no line does."""
    fn = call.jitted._fn
    if changes_other_objects(call.captured, fn, (args, kwargs)):
        report.notes.append("the function changes objects that are not its arguments, so that only lines are compared")
        return
    expected = call_outcome(fn, lambda f: f, args, kwargs)
    problem = difference(call_outcome(fn, lambda f: variant(call.jitted, f), args, kwargs), expected, tolerance)
    if problem is not None:
        report.notes.append(f"no line diverges, but {problem}: a pass or tracing is wrong. thunder.bisect finds it")
