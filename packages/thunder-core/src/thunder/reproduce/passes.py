# SPDX-License-Identifier: Apache-2.0
"""The search for the first pass whose trace is wrong: each trace of a compilation is a program that runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.capture.base.fallback import RunsEagerly
from thunder.core import prims
from thunder.core.pytree import tree_leaves
from thunder.core.trace import Trace
from thunder.frontend.differentiable import DifferentiableProgram
from thunder.frontend.jit import JitFunction
from thunder.reproduce.outcome import Outcome, cloned, difference, outcome_of
from thunder.reproduce.variants import compile_once

__all__ = ["CAPTURE", "first_wrong_pass", "first_wrong_pass_of_call", "raising_pass"]

#: The name of the step that makes the first trace.
CAPTURE = "capture"


def name_of(trace: Trace) -> str:
    """Return the name of the pass that made a trace."""
    return CAPTURE if trace.provenance is None else trace.provenance.name


def raising_pass(jitted: JitFunction[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
    """Return the name of the function of a pass that raises an error while a call is compiled, or None."""
    try:
        compile_once(jitted, tuple(args), kwargs)
    except RunsEagerly:
        return None
    except Exception as error:
        entry, found, inside = error.__traceback__, CAPTURE, False
        while entry is not None:
            code = entry.tb_frame.f_code
            if code.co_filename.replace("\\", "/").endswith("frontend/pipeline.py"):
                inside = True
            elif inside:
                found, inside = code.co_name, False
            entry = entry.tb_next
        return found
    return None


def first_wrong_pass(
    jitted: JitFunction[..., Any], inputs: Sequence[Any], tolerance: float | None
) -> tuple[str, str] | None:
    """Return the program ("forward" or "backward") and the pass whose trace is the first that computes other results.

    `jitted` is a function of `inputs` only, without side effects on other objects. The results of the first trace are
    right: torch runs it.
    """
    with torch.no_grad():
        compiled = compile_once(jitted, tuple(map(cloned, inputs)), {})[1]
        expected: Outcome | None = None
        for trace in compiled.traces:
            copies = [cloned(x) for x in inputs]
            found = outcome_of(functools.partial(trace.python_callable(decorators=False), *copies), copies)
            if expected is None:
                expected = found
            elif difference(found, expected, tolerance) is not None:
                return "forward", name_of(trace)
    with torch.enable_grad():
        captured, compiled = compile_once(jitted, tuple(map(cloned, inputs)), {})
    program = compiled.differentiable
    if not isinstance(program, DifferentiableProgram):
        return None
    return _first_wrong_backward(captured.computation, program, inputs, tolerance)


def _first_wrong_backward(
    captured: Trace, program: DifferentiableProgram, inputs: Sequence[Any], tolerance: float | None
) -> tuple[str, str] | None:
    """Compare the gradients of each trace of the backward program with those that torch computes."""
    split = program.split
    forward = program.traces[-1].python_callable(decorators=False)
    leaves = [cloned(x) for x in inputs]
    results = tree_leaves(captured.python_callable(decorators=False)(*leaves))
    ends = [x for x in results if isinstance(x, torch.Tensor) and x.grad_fn is not None]
    names = [p.name for p in captured.args]
    if len(ends) != split.returned or any(p.name not in names for p in split.wrt):
        return None
    torch.manual_seed(1)
    cotangents = [torch.randn_like(x) for x in ends]
    wrt = [leaves[names.index(p.name)] for p in split.wrt]
    gradients = torch.autograd.grad(ends, wrt, cotangents, allow_unused=True)
    expected = {f"gradient {i}": g for i, g in enumerate(gradients) if g is not None}
    for trace in program.unrecorded_traces:
        if any(op.sym is prims.hand_over for op in trace.bound_symbols):
            continue  # it only returns the gradients in stages
        with torch.no_grad():
            saved = list(forward(*[cloned(x) for x in inputs])[1])
            copies = [x.clone() for x in cotangents]
            found = outcome_of(functools.partial(_by_name, trace, saved, copies), ())
        given = {} if found.error is not None else {name: found.result[name] for name in expected}
        if found.error is not None or difference(Outcome(given), Outcome(expected), tolerance) is not None:
            return "backward", name_of(trace)
    return None


def _by_name(trace: Trace, saved: list[Any], cotangents: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Run a backward program, and return its gradients."""
    return {f"gradient {i}": g for i, g in enumerate(trace.python_callable(decorators=False)(saved, *cotangents))}


def first_wrong_pass_of_call(
    jitted: JitFunction[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    is_wrong: Callable[[Outcome], bool],
) -> tuple[str, str] | None:
    """Return the program and the pass whose trace is the first that makes a call without gradients wrong."""
    with torch.no_grad():
        captured, compiled = compile_once(jitted, args, kwargs)
        inputs = [*captured.inputs, *[number.value for number in captured.numbers]]
        for trace in compiled.traces:
            copies = [cloned(x) for x in inputs]
            program = trace.python_callable(decorators=False)
            run = functools.partial(_with_epilogue, program, copies, compiled.epilogue, captured)
            if is_wrong(outcome_of(run, copies)):
                return "forward", name_of(trace)
    return None


def _with_epilogue(program: Callable[..., Any], inputs: Sequence[Any], epilogue: Any, captured: Any) -> Any:
    values = program(*inputs)
    return values if epilogue is None else epilogue(values, captured.targets)
