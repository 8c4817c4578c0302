# SPDX-License-Identifier: Apache-2.0
"""Runs one program under `thunder.jit` beside eager PyTorch, and finds its verdict."""

from __future__ import annotations

import contextlib
import random
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

import thunder
from programs.counting import Counter, compilations
from programs.program import Built, Program
from programs.results import Result
from programs.timing import best_times
from programs.values import Difference, compare, tensors_of

__all__ = ["examine"]

_FRESH = 10  # calls on fresh data
_MORE = 20  # further calls, if more than a tenth of this number of calls were traced
_ROUNDS = 3  # at most so many times
_INSIDE = 0.95


class _Side:
    """A copy of the program, run eagerly or compiled."""

    def __init__(self, program: Program, compiler: Callable[[Any], Any] | None):
        seed(0)
        self.built: Built = program.built()
        self.trains = program.trains
        self.seconds = 0.0  # of the last call
        self.fn = self.built.fn if compiler is None else compiler(self.built.fn)
        parts = [self.built.fn, *self.built.modules]
        self.modules = [part for part in parts if isinstance(part, torch.nn.Module)]

    def call(self, inputs: Any, counter: Counter | None = None) -> tuple[Any, list[Any]]:
        """Return the result of a call, and the gradients of parameters and inputs. `counter` sees the call only."""
        leaves = [p for m in self.modules for p in m.parameters()] + tensors_of(inputs)
        with contextlib.nullcontext() if counter is None else counter:
            start = time.process_time()
            out = self.built.call(self.fn, inputs)
            self.seconds = time.process_time() - start
        backward(out)
        found = []
        for leaf in leaves:
            if leaf.is_leaf and leaf.requires_grad:
                found.append(leaf.grad)
                leaf.grad = None
        return out, found

    def timed(self, inputs: Any) -> Callable[[], object]:
        """Return the function to time."""
        call, fn = self.built.call, self.fn
        if not self.trains:
            return lambda: call(fn, inputs)
        return lambda: backward(call(fn, inputs))


def seed(number: int) -> None:
    """Seed the random states."""
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def backward(out: Any) -> None:
    """Differentiate a weighted sum of all differentiable tensors of a result.

    The gradients of a plain sum would vanish in many programs, e.g. behind a layer norm or a softmax.
    """
    total = None
    for each in tensors_of(out):
        if each.requires_grad and each.grad_fn is not None:
            values = (each.abs() if each.is_complex() else each).flatten()
            values = values.to_dense() if values.layout != torch.strided else values
            value = (values * torch.linspace(0.5, 1.5, len(values), dtype=values.dtype)).sum()
            total = value if total is None else total + value
    if total is not None:
        total.backward()


def examine(program: Program, result: Result, *, how: str, save: Callable[[Result], None]) -> None:
    """Fill in the result of a program, and `save` it when a part is complete.

    `how` is "eager" to run the example without thunder, "thunder", or "dynamo" to time torch.compile, too.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    result.verdict, result.reason = "eager fails", ""
    try:
        eager = _Side(program, None)
        for number in range(2):
            seed(number + 1)
            eager.call(eager.built.inputs())
        eager = _Side(program, None)
    except Exception as error:
        result.reason = f"{type(error).__name__}: {error}"
        return
    if how == "eager":
        result.verdict = "eager"
        return
    try:
        ours = _Side(program, thunder.jit)
        _compare_calls(eager, ours, result)
        result.reason = _why(ours.fn) if result.verdict != "compiled" else ""
    except Difference as difference:
        result.verdict, result.reason = "wrong", str(difference)
    except Exception as error:
        result.verdict, result.reason = "refused", f"{type(error).__name__}: {error} | {_last_lines(error)}"
        return
    save(result)
    _time(program, eager, ours, result, dynamo=how == "dynamo")


def _compare_calls(eager: _Side, ours: _Side, result: Result) -> None:
    """Compare calls with eager: results, gradients and state. Find out what was compiled."""
    calls = 0

    def step(counter: Counter | None = None) -> None:
        nonlocal calls
        calls += 1
        found = []
        for side in (eager, ours):
            seed(calls)
            inputs = side.built.inputs()
            seed(1000 + calls)
            found.append(side.call(inputs, counter if side is ours else None))
        compare(found[1][0], found[0][0], f"call {calls}: result")
        compare(found[1][1], found[0][1], f"call {calls}: gradients")
        states = [[m.state_dict() for m in side.modules] for side in (eager, ours)]
        compare(states[1], states[0], f"call {calls}: state")

    def fresh(count: int) -> int:
        """Call with fresh data, and return the number of traces."""
        before = compilations(ours.fn)
        for _ in range(count):
            step()
        result.calls += count
        return compilations(ours.fn) - before

    step()
    result.first = ours.seconds
    step()
    result.traces = compilations(ours.fn)
    result.share = _share(step)
    again = result.retraces = fresh(_FRESH)
    for _ in range(_ROUNDS):
        if again <= _MORE // 10:
            break
        again = fresh(_MORE)
        result.retraces += again
    if result.retraces:
        result.share = _share(step)
    inside = 1.0 if result.share is None else result.share
    if again > _MORE // 10:
        result.verdict = "traced"
    elif inside >= _INSIDE:
        result.verdict = "paths" if result.retraces else "compiled"
    else:
        result.verdict = "pieces" if inside > 0 else "eager"


def _share(step: Callable[[Counter], None]) -> float | None:
    """Return the share of operators inside of programs in a call. The first calls under the counter may be traced."""
    shares = []
    for _ in range(3):
        counter = Counter()
        try:
            step(counter)
        except NotImplementedError:  # functions of torch.jit do not run under a dispatch mode
            return 0.0
        shares.append(counter.share)
    return None if None in shares else max(filter(None, shares), default=0.0)


def _last_lines(error: Exception) -> str:
    """Return the innermost lines of a traceback."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)


def _why(fn: Any) -> str:
    """Return what `thunder.explain` says, on one line."""
    return " | ".join(line.strip() for line in str(thunder.explain(fn)).splitlines())[:1500]


def _time(program: Program, eager: _Side, ours: _Side, result: Result, *, dynamo: bool) -> None:
    """Time warm calls, and the first call of torch.compile."""
    sides = {"eager": eager, "warm": ours}
    if dynamo:
        try:
            theirs = _Side(program, lambda fn: torch.compile(fn, backend="aot_eager"))
            for number in range(1, 6):
                seed(number)
                theirs.call(theirs.built.inputs())
                result.dynamo_first = result.dynamo_first or theirs.seconds
            sides["dynamo"] = theirs
        except Exception as error:
            result.dynamo_error = f"{type(error).__name__}: {error}"[:300]
    calls = {}
    for name, side in sides.items():
        seed(1)
        inputs = side.built.inputs()
        calls[name] = side.timed(inputs)
        calls[name]()
    best = best_times(calls)
    result.eager, result.warm, result.dynamo = best["eager"], best["warm"], best.get("dynamo")
