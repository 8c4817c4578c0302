# SPDX-License-Identifier: Apache-2.0
"""Run a program twice, each time from its source in a fresh module: with eager and with thunder, and compare."""

from __future__ import annotations

import contextlib
import dataclasses
import decimal
import io
import linecache
import logging
import os
import random
import re
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import thunder
from soak.freeze import difference, freeze
from soak.program import PRELUDE, Program, Source

_FILE = "/soak/program_{}.py"
_PRELUDE = PRELUDE.read_text()
_PRELUDE_CODE = compile(_PRELUDE, str(PRELUDE), "exec")
_counter = 0


@dataclasses.dataclass
class Call:
    """What one call did, as plain data."""

    result: Any
    output: str
    state: Any
    before: Any = None
    hits: int = 0
    misses: int = 0
    text: str = ""

    @property
    def raised(self) -> bool:
        """Whether the call raised an exception."""
        return isinstance(self.result, tuple) and self.result[:1] == ("raised",)


@dataclasses.dataclass
class Verdict:
    """What running a program showed. `kind` is "" where thunder agrees with eager."""

    kind: str = ""
    step: int = -1
    eager: str = ""
    thunder: str = ""
    detail: str = ""
    repeats: int = 0
    hits: int = 0
    ran_eagerly: int = 0
    warned: int = 0
    not_cached: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields, for the parent process."""
        return dataclasses.asdict(self)


@contextlib.contextmanager
def process_state() -> Iterator[None]:
    """Restore what a program may change of the process, and start from the same random numbers."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    environment, directory, path = dict(os.environ), os.getcwd(), list(sys.path)
    dtype, grad, threads = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    level, context, recursion = logging.root.level, decimal.getcontext().copy(), sys.getrecursionlimit()
    disabled, handlers = logging.root.manager.disable, list(logging.root.handlers)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        sys.path[:] = path
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.set_num_threads(threads)
        if torch.are_deterministic_algorithms_enabled():  # the setter imports torch's compiler
            torch.use_deterministic_algorithms(False)
        logging.root.setLevel(level)
        logging.disable(disabled)
        logging.root.handlers[:] = handlers
        decimal.setcontext(context)
        sys.setrecursionlimit(recursion)


@contextlib.contextmanager
def fresh_module(text: str) -> Iterator[dict[str, Any]]:
    """Execute the text as a module named `program`, whose lines `inspect` and thunder can read."""
    global _counter
    _counter += 1
    filename = _FILE.format(_counter)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    module = types.ModuleType("program")
    module.__file__ = filename
    sys.modules["program"] = module
    try:
        exec(_PRELUDE_CODE, module.__dict__)
        exec(compile(text, filename, "exec"), module.__dict__)
        yield module.__dict__
    finally:
        sys.modules.pop("program", None)
        linecache.cache.pop(filename, None)


def execute(
    program: Program,
    compiled: Callable[[Any], Any] = lambda target: target,
    measured: Callable[[Any], tuple[int, int]] = lambda target: (0, 0),
) -> list[Call]:
    """Run the steps; `compiled` compiles the target, `measured` returns its cache hits and misses so far."""
    source, calls = Source(program), []
    stdout = io.TextIOWrapper(io.BytesIO(), write_through=True)
    with process_state(), contextlib.redirect_stdout(stdout) as out, fresh_module(source.module) as names:
        try:
            run = compiled(eval(source.target, names))
            names["run__"] = run
            for step in program.steps:
                if step[0] == "call":
                    calls.append(_call(source, step[1], names, out, lambda: measured(run)))
                else:
                    with contextlib.suppress(Exception):  # a second `del` of one name
                        exec(source.step(step), names)
        finally:
            for feature in source.features:
                exec(feature.undo, names)
    return calls


def _call(source: Source, which: int, names: dict[str, Any], out: Any, measured: Callable[[], tuple[int, int]]) -> Call:
    before, start = measured(), len(out.buffer.getvalue())
    names["x__"] = names["X"][which].detach().clone().requires_grad_(names["X"][which].requires_grad)
    text, state = "", _state(source, names)
    try:
        result = eval(f"run__(x__{source.arguments})", names)
        result = _with_gradient(result, names["x__"])
    except Exception as error:
        result = ("raised", type(error).__name__)
        text = "".join(traceback.format_exception(error))
    printed = out.buffer.getvalue()[start:].decode()
    hits, misses = (after - earlier for earlier, after in zip(before, measured()))
    return Call(result, printed, _state(source, names), state, hits, misses, text)


def _state(source: Source, names: dict[str, Any]) -> list[Any]:
    state = []
    for read in eval(source.state, names):
        try:
            state.append(freeze(read()))
        except Exception as error:
            state.append(("raised", type(error).__name__))
    return state


def _with_gradient(result: Any, x: torch.Tensor) -> Any:
    """Return the frozen result, with the input's gradient if it has one."""
    frozen = freeze(result)
    y = result[0] if isinstance(result, tuple) else result
    if x.requires_grad and isinstance(y, torch.Tensor) and y.requires_grad:
        y.sum().backward()
        return (frozen, freeze(x.grad))
    return frozen


def judge(program: Program) -> Verdict:
    """Run the program with eager and with thunder, and return what differs first."""
    verdict = Verdict()
    try:
        eager = _eagerly(program)
    except Exception as error:
        return _failed(verdict, "invalid", error)
    found: list[Any] = []

    def compiled(target: Any) -> Any:
        options: dict[str, Any] = {"cache": program.cache} if program.cache != "constant values" else {}
        found.append(thunder.jit(target, **options))
        return found[0]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            actual = execute(program, compiled, lambda fn: (thunder.cache_hits(fn), thunder.cache_misses(fn)))
        except Exception as error:
            return _failed(verdict, "error", error)
    verdict.warned = sum("thunder" in str(w.filename) or "thunder" in str(w.message) for w in caught)
    if _first_difference(verdict, eager, actual, "") and _differs_in_eager(program, eager):
        verdict.kind = "invalid"
        return verdict
    _count_hits(verdict, program, eager, actual)
    if verdict.hits < verdict.repeats or verdict.kind:
        text = thunder.explain(found[0])
        reasons = [
            line.strip() for line in text.splitlines() if re.match(r"\s*(not cached|partly eager|falls back)", line)
        ]
        verdict.not_cached = reasons[0] if reasons else ""
    return verdict


def _eagerly(program: Program) -> list[Call]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return execute(program)


def _differs_in_eager(program: Program, eager: list[Call]) -> bool:
    """Check whether eager computes something else when it runs the program again, so that it judges nothing."""
    try:
        return _first_difference(Verdict(), eager, _eagerly(program), "")
    except Exception:
        return True


def _failed(verdict: Verdict, kind: str, error: Exception) -> Verdict:
    verdict.kind = kind
    verdict.thunder = f"{type(error).__name__}: {error}"[:500]
    verdict.detail = "".join(traceback.format_exception(error))[-3000:]
    return verdict


def _first_difference(verdict: Verdict, eager: list[Call], actual: list[Call], kind: str) -> bool:
    for i, (a, b) in enumerate(zip(eager, actual)):
        for name in ("result", "output", "state"):
            found = difference(getattr(a, name), getattr(b, name))
            if found is None:
                continue
            error = name == "result" and b.raised
            raised = " after an exception" if name == "state" and a.raised else ""
            verdict.kind = kind or ("error" if error else name + raised)
            verdict.step, verdict.eager, verdict.thunder = i, _short(found[0]), _short(found[1])
            verdict.detail = (b.text or a.text)[-3000:]
            return True
    return False


def _count_hits(verdict: Verdict, program: Program, eager: list[Call], actual: list[Call]) -> None:
    """Count the calls that repeat the call just before in the same state, and those of them that hit."""
    number, previous = -1, None
    for step in program.steps:
        if step[0] != "call":
            previous = None
            continue
        number += 1
        repeated = previous == step and not eager[number].raised
        if repeated and difference(eager[number - 1].before, eager[number].before) is None:
            verdict.repeats += 1
            verdict.hits += actual[number].hits > 0
            verdict.ran_eagerly += actual[number].hits == actual[number].misses == 0
        previous = step


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 300 else text[:300] + "…"
