# SPDX-License-Identifier: Apache-2.0
"""Startup time and the cost of a warm call, against eager and `torch.compile(backend="eager")`.

    python packages/thunder-core/benchmarks/acquisition.py [--markdown FILE] [--json FILE] [--peer-python PYTHON]

Every row has a target, a ratio of numbers of the same run; the exit status says whether all are met. `--peer-python` is
the interpreter of an environment with lightning-thunder (which has the same import name): this script
also runs there, and the results are shown without a target. That takes minutes; `--peer-results` is a file with the
output of `PYTHON acquisition.py --as-peer` from there.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measuring
import torch
from llama import Llama, batch
from measuring import Bar, Report, Row, alternate, best, microseconds, milliseconds, once, per_call, ratio
from torch import nn

LAYERS = 16
CAPTURE, PEER = 'torch.compile(backend="eager")', "lightning-thunder"
Jit = Callable[[Any], Callable[..., Any]]


def jit(fn: Any) -> Any:
    """Compile with thunder."""
    import thunder

    return thunder.jit(fn)


def capture(fn: Any) -> Any:
    """Capture with torch.compile, which then runs eager's kernels."""
    torch._dynamo.reset()
    return torch.compile(fn, backend="eager")


# --- measurements -----------------------------------------------------------------------------------------------


def forward(model: Any, idx: torch.Tensor) -> None:
    with torch.no_grad():
        model(idx)


def training(model: Any, idx: torch.Tensor) -> None:
    model(idx).sum().backward()


def first_call(wrap: Jit, run: Callable[..., None], layers: int = LAYERS) -> Callable[[], float]:
    """Measure the first call of a new model, in seconds."""

    def measure() -> float:
        model, idx = Llama(layers), batch()
        return once(lambda: run(wrap(model), idx))

    return measure


def warm_model(wrap: Jit, run: Callable[..., None]) -> Callable[[], float]:
    """Measure a later call, in seconds."""
    model, idx = wrap(Llama(LAYERS)), batch()
    run(model, idx)
    return lambda: per_call(lambda: run(model, idx), 0.1)


def two_tensors(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


class Sum(nn.Module):
    """A module with many parameters."""

    def __init__(self, count: int):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(4) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = x + weight
        return x


def warm_function(wrap: Jit, grad: bool) -> Callable[[], float]:
    """Measure a later call of a function of two tensors; with `grad`, one of them requires grad."""
    fn = wrap(two_tensors)
    a, b = torch.randn(4, requires_grad=grad), torch.randn(4)
    fn(a, b)
    return lambda: per_call(lambda: fn(a, b))


def torch_calls(layers: int) -> int:
    """Count the torch functions that the model calls, without properties."""
    count = 0

    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal count
            count += getattr(func, "__name__", "") != "__get__"
            return func(*args, **(kwargs or {}))

    model, idx = Llama(layers), batch()
    with torch.no_grad(), Counting():
        model(idx)
    return count


def eager(fn: Any) -> Any:
    return fn


def of_all(measure: Callable[..., Callable[[], float]], *args: Any) -> dict[str, Callable[[], float]]:
    """Return a measurement for each candidate."""
    return {"eager": measure(eager, *args), "thunder": measure(jit, *args), CAPTURE: measure(capture, *args)}


# --- rows --------------------------------------------------------------------------------------------------------


class Benchmark:
    """The rows, one method each; the docstring of a method is the row's name."""

    def __init__(self, repetitions: int, peer: dict[str, list[float]]):
        self.repetitions = repetitions
        self.peer = peer
        self.report = Report("acquisition", __file__, ["thunder", CAPTURE, "eager", PEER])

    def add(self, name: str, times: dict[str, list[float]], bars: tuple[Bar, ...], write: Any) -> None:
        cells = {column: write(best(found)) for column, found in times.items()}
        if name in self.peer:
            cells[PEER] = write(best(self.peer[name]))
        self.report.add(Row(name, cells, bars, dict(times)))

    def first_forward(self) -> None:
        """first call of a 16-layer Llama, forward"""
        times = alternate(of_all(first_call, forward), self.repetitions)
        bars = (ratio(CAPTURE, 0.5, times["thunder"], times[CAPTURE]),)
        self.add(self.first_forward.__doc__, times, bars, milliseconds)

    def first_training(self) -> None:
        """first call of a 16-layer Llama, forward and backward"""
        times = alternate(of_all(first_call, training), self.repetitions)
        bars = (ratio(CAPTURE, 1.0, times["thunder"], times[CAPTURE]),)
        self.add(self.first_training.__doc__, times, bars, milliseconds)

    def tracing(self) -> None:
        """tracing of a 16-layer Llama, per torch call"""
        calls = torch_calls(LAYERS)

        def ours() -> float:
            import thunder

            model, idx = Llama(LAYERS), batch()
            with torch.no_grad():
                return once(lambda: thunder.trace()(model, idx)) / calls

        run_eager, run_capture = first_call(eager, forward), first_call(capture, forward)
        times = alternate({"thunder": ours, CAPTURE: lambda: (run_capture() - run_eager()) / calls}, self.repetitions)
        bars = (ratio(CAPTURE, 0.35, times["thunder"], times[CAPTURE]),)
        self.add(f"{self.tracing.__doc__} ({calls} calls)", times, bars, microseconds)

    def linear(self) -> None:
        """first call, forward and backward, per layer"""
        counts = (4, 8, 16, 32, 64, 128)
        found = alternate({str(n): first_call(jit, training, n) for n in counts}, max(2, self.repetitions // 2))
        theirs = alternate({str(n): first_call(capture, training, n) for n in counts}, 1)
        each = {n: best(found[str(n)]) / n for n in counts}
        for n in counts:
            bars = () if n < 32 else (Bar("the time per layer of 16 layers", each[n] / each[16], 1.15),)
            times = {"thunder": [each[n]], CAPTURE: [best(theirs[str(n)]) / n]}
            self.add(f"{self.linear.__doc__}, of {n} layers", times, bars, milliseconds)

    def function(self) -> None:
        """warm call of a function of two tensors"""
        self._function(grad=False, limit=0.3)

    def function_with_gradients(self) -> None:
        """warm call of a function of two tensors, one of which requires gradients"""
        self._function(grad=True, limit=0.5)

    def _function(self, grad: bool, limit: float) -> None:
        times = alternate(of_all(warm_function, grad), 2 * self.repetitions + 1)
        base = best(times["eager"])
        ours, theirs = ([t - base for t in times[name]] for name in ("thunder", CAPTURE))
        bars = (ratio(f"{CAPTURE}'s cost above eager", limit, ours, theirs),)
        name = (self.function_with_gradients if grad else self.function).__doc__
        self.add(name, times, bars, microseconds)

    def model(self) -> None:
        """warm call of a 16-layer Llama, forward"""
        times = alternate(of_all(warm_model, forward), 2 * self.repetitions + 1)
        bars = (
            ratio("eager", 0.95, times["thunder"], times["eager"]),
            ratio(CAPTURE, 1.03, times["thunder"], times[CAPTURE]),
        )
        self.add(self.model.__doc__, times, bars, milliseconds)

    def model_training(self) -> None:
        """warm call of a 16-layer Llama, forward and backward"""
        times = alternate(of_all(warm_model, training), 2 * self.repetitions + 1)
        bars = (ratio("eager", 1.05, times["thunder"], times["eager"]),)
        self.add(self.model_training.__doc__, times, bars, milliseconds)

    def guards(self) -> None:
        """guards over 300 parameters"""
        self._guards("one module", Sum(300), torch.randn(4))
        layers = nn.Sequential(*[nn.Linear(4, 4) for _ in range(150)])
        self._guards("150 linear layers", layers, torch.randn(2, 4))
        self._guards("a 43-layer Llama", Llama(43, width=16), batch(4))

    def _guards(self, what: str, model: nn.Module, given: torch.Tensor) -> None:
        from torch._C._dynamo.guards import TensorGuards

        jitted = jit(model)
        forward(jitted, given)
        prologue = jitted.stats.last.prologue
        tensors = [*model.parameters()]
        sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
        check = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check

        def ours() -> float:
            with torch.no_grad():
                return per_call(lambda: prologue(given))

        times = alternate({"thunder": ours, "one": lambda: per_call(lambda: check(*tensors))}, 2 * self.repetitions + 1)
        name = "one TensorGuards.check of them"
        bars = (ratio(f"{name} ({microseconds(best(times['one']))})", 2.0, times["thunder"], times.pop("one")),)
        self.add(f"{self.guards.__doc__}: {what}", times, bars, microseconds)

    def memory(self) -> None:
        """objects kept by 1000 calls, and tensors kept by a specialization"""
        model, idx = Llama(2), batch()
        jitted = jit(model)
        for _ in range(3):
            training(jitted, idx)
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(1000):
            training(jitted, idx)
        gc.collect()
        grown = len(gc.get_objects()) - before
        given = torch.randn(4, requires_grad=True)
        small = jit(two_tensors)
        result = small(given, given)
        alive = [weakref.ref(given), weakref.ref(result)]
        del given, result
        gc.collect()
        kept = sum(ref() is not None for ref in alive)
        bars = (Bar("objects after 1000 calls", grown, 5), Bar("argument and result", kept, 0))
        self.report.add(Row(self.memory.__doc__, {"thunder": f"{grown} objects, {kept} tensors"}, bars))


ROWS = ("first_forward", "first_training", "tracing", "linear", "function", "function_with_gradients", "model",
        "model_training", "guards", "memory")  # fmt: skip


# --- the peer ----------------------------------------------------------------------------------------------------


def as_peer() -> dict[str, list[float]]:
    """Measure the peer; runs in the peer's environment."""
    first = {"first_forward": forward, "first_training": training}
    found = {getattr(Benchmark, name).__doc__: [first_call(jit, run)()] for name, run in first.items()}
    for name, grad in (("function", False), ("function_with_gradients", True)):
        found[getattr(Benchmark, name).__doc__] = [warm_function(jit, grad)() for _ in range(5)]
    for name, run in (("model", forward), ("model_training", training)):
        found[getattr(Benchmark, name).__doc__] = [warm_model(jit, run)() for _ in range(3)]
    return found


def ask_peer(python: str) -> dict[str, list[float]]:
    """Measure the peer in a process of its own."""
    done = subprocess.run([python, __file__, "--as-peer"], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{python} could not run the peer:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    options: argparse.ArgumentParser = measuring.parser(__doc__.partition("\n")[0])
    options.add_argument("--peer-python", help="the interpreter of an environment with lightning-thunder")
    options.add_argument("--peer-results", type=Path, help="what it printed with --as-peer")
    options.add_argument("--as-peer", action="store_true", help="measure this environment's thunder as the peer")
    given = options.parse_args()
    torch.set_num_threads(1)
    if given.as_peer:
        print(json.dumps(as_peer()))
        return
    peer: dict[str, list[float]] = {}
    if given.peer_results:
        peer = json.loads(given.peer_results.read_text(encoding="utf-8"))
    elif given.peer_python:
        peer = ask_peer(given.peer_python)
    benchmark = Benchmark(given.repetitions, peer)
    for wrap in (jit, capture):  # excludes one-time costs of the process from the rows
        training(wrap(Llama(1)), batch())
    for name in ROWS:
        if given.rows in name:
            getattr(benchmark, name)()
    benchmark.report.finish(given)


if __name__ == "__main__":
    main()
