# SPDX-License-Identifier: Apache-2.0
"""A region as a callable of its inputs. nvFuser compiles it at the first call with each layout of the inputs.

If the trace has symbolic sizes, one definition supports all sizes. nvFuser's extents are symbolic, and sizes that the
program computes are inputs.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.extend import (
    BoundSymbol,
    Executor,
    NumberProxy,
    SymbolicNumber,
    TensorProxy,
    to_torch_device,
    to_torch_dtype,
)
from thunder.toolkit.fusion import Region, rounded_results, torch_program, without_data
from thunder_ex_nvfuser.definition import Tensor, by_place, definition, order_of, program, seeds_of
from thunder_ex_nvfuser.probe import library

__all__ = ["FusedRegion", "compiled", "contiguous"]

_strides = torch.Tensor.stride
Run = Callable[[Sequence[Any]], Sequence[torch.Tensor]]  # a function from the inputs of a call to the results

# Equal definitions share their compiled form, in an LRU cache by source.
MOST_DEFINITIONS = 1024
# The maximal number of combinations of sizes that a region caches.
MOST_CALLS = 1024
_defining = threading.Lock()  # nvFuser supports only one definition under construction at a time
# Strides of results, by the numbers of a call and the definition with contiguous results.
_layouts: dict[Any, list[tuple[int, ...]]] = {}


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return _dense(shape, range(len(shape))[::-1])


def _dense(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return dense strides for dimensions in the given order."""
    strides, step = [0] * len(shape), 1
    for d in sorted(range(len(shape)), key=order.__getitem__):
        strides[d] = step
        step *= max(int(shape[d]), 1)
    return tuple(strides)


class FusedRegion:
    """Operations compiled as one definition. `source` is a runnable program of the definition for contiguous inputs."""

    template = "nvFuser's"

    def __init__(self, name: str, region: Region, operations: Sequence[BoundSymbol], executor: Executor):
        self.name = self.__name__ = name
        self.region = region
        self.operations = list(operations)
        self.rounded = rounded_results(region.operations, self.operations)
        self.executor = executor
        seeds = {p.name for p in seeds_of(self.operations)}
        self.seeds = [i for i, p in enumerate(region.inputs) if p.name in seeds]
        self.numbers = [i for i, p in enumerate(region.inputs) if isinstance(p, NumberProxy)]
        self.places = sorted({*range(len(region.inputs))}.difference(self.seeds, self.numbers))
        self.tensors: list[TensorProxy] = [region.inputs[i] for i in self.places]  # type: ignore[misc]
        self.outputs: list[TensorProxy] = list(region.outputs)  # type: ignore[arg-type]
        self.symbolic = bool(self.numbers) or any(
            type(n) is not int for op in self.operations for p in op.tensors() for n in p.shape
        )
        self._calls: dict[Any, Run] = {}
        self._programs: dict[Any, _Program | None] = {}

    def __call__(self, *inputs: Any) -> Any:
        if self.symbolic:
            key = tuple([(x.shape, x.stride()) if isinstance(x, torch.Tensor) else x for x in inputs])
        else:
            key = tuple(map(_strides, inputs))
        run = self._calls.get(key)
        return self._first_call(key, inputs) if run is None else run(inputs)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def source(self) -> str:
        """The definition as a readable, runnable program."""

        def hint(x: Any) -> Any:
            return x.hint if isinstance(x, SymbolicNumber) else x

        inputs = [Tensor(p, shape := tuple(map(hint, p.shape)), contiguous(shape)) for p in self.tensors]
        numbers = [self.region.inputs[i].symbol.hint for i in self.numbers]  # type: ignore[attr-defined]
        outputs, fixed = self._laid_out(inputs, numbers, hint), not self.symbolic
        return program(self.name, self.operations, inputs, outputs, rounded=self.rounded, fixed=fixed)

    def _first_call(self, key: Any, inputs: Sequence[Any]) -> Any:
        """Compile and cache the function for these inputs, and run it.

        If nvFuser fails, torch runs the region instead.
        """
        if len(self._calls) >= MOST_CALLS:
            self._calls.clear()
        value = self._values(inputs)
        tensors = [inputs[i] for i in self.places]
        given = [Tensor(p, tuple(x.shape), x.stride()) for p, x in zip(self.tensors, tensors)]
        numbers = [inputs[i] for i in self.numbers]
        kind = tuple(_kind(t) for t in given)
        program = self._programs.get(kind)
        if kind in self._programs or any(0 in t.shape for t in given):
            run = self._calls[key] = self._run_of(program, value)
            return run(inputs)
        program = None
        try:
            outputs = self._laid_out(given, numbers, value)
            program = _Program(self, given, outputs)
            result = program.first(tensors, [*map(value, program.numbers), *self._drawn(inputs)])
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            lines = str(error).strip().splitlines()
            warnings.warn(
                f"nvfuser: {self.name} falls back to torch ({type(error).__name__}: {lines[0] if lines else ''})",
                stacklevel=3,
            )
            program, result = None, self._by_torch(*inputs)
        self._programs[kind] = program
        self._calls[key] = self._run_of(program, value)
        return result

    def _run_of(self, program: _Program | None, value: Callable[[Any], Any]) -> Run:
        """Return the function that computes the results of calls like this one."""
        if program is None:
            return lambda inputs: self._by_torch(*inputs)
        if not self.symbolic and not self.seeds:
            return program.run_of(None)
        numbers = [value(x) for x in program.numbers]
        run = program.run_of([tuple(map(value, p.shape)) for p in self.outputs])
        return lambda inputs: run([*[inputs[i] for i in self.places], *numbers, *self._drawn(inputs)])

    def _drawn(self, inputs: Sequence[Any]) -> list[int]:
        """Return the seeds as numbers."""
        return [n for i in self.seeds for n in inputs[i].tolist()]

    @functools.cached_property
    def _by_torch(self) -> Callable[..., Any]:
        """The operations as a program that torch runs, except for random numbers."""
        return torch_program(self.name, self.region, self.executor).python_callable()

    def _values(self, inputs: Sequence[Any]) -> Callable[[Any], Any]:
        """Return a function that evaluates the trace's symbolic numbers in a call."""
        leaves: dict[str, Any] = {}
        for p, x in zip(self.region.inputs, inputs):
            if isinstance(p, NumberProxy):
                leaves[p.name] = x
                continue
            for d, size in zip(p.shape, x.shape):  # type: ignore[attr-defined]
                if isinstance(d, SymbolicNumber) and len(d.leaves) == 1 and d.same(d.leaves[0].symbol):
                    leaves[d.leaves[0].name] = size

        def value(x: Any) -> Any:
            if isinstance(x, NumberProxy):
                return leaves[x.name]
            return x.substitute(lambda p: leaves[p.name]) if isinstance(x, SymbolicNumber) else x

        return value

    def _laid_out(self, inputs: Sequence[Tensor], numbers: Sequence[Any], value: Callable[[Any], Any]) -> list[Tensor]:
        """Return the outputs with the strides that torch gives them. Running torch on fake tensors determines these."""
        usual = [Tensor(p, shape := tuple(map(value, p.shape)), contiguous(shape)) for p in self.outputs]
        alike = definition(self.operations, inputs, usual, rounded=self.rounded, named=by_place()).text, *numbers
        if alike not in _layouts:
            if len(_layouts) >= MOST_DEFINITIONS:
                _layouts.clear()
            with without_data():
                args: list[Any] = [torch.empty(2, dtype=torch.int64, device="cpu")] * len(
                    self.region.inputs
                )  # the seeds' dtype
                for i, x in zip((*self.places, *self.numbers), (*map(_empty, inputs), *numbers)):
                    args[i] = x
                _layouts[alike] = [tuple(x.stride()) for x in self._by_torch(*args)]
        return [t._replace(strides=strides) for t, strides in zip(usual, _layouts[alike])]


def _empty(t: Tensor) -> torch.Tensor:
    device = to_torch_device(t.proxy.device)
    return torch.empty_strided(t.shape, t.strides, dtype=to_torch_dtype(t.proxy.dtype), device=device)


def _kind(t: Tensor) -> Any:
    """Return the facts that a definition depends on: stride order, dimensions of size 1, and contiguous dimensions."""
    order = order_of(t.strides)
    packed: list[Any] = []
    step = 1
    for d in sorted(range(len(order)), key=order.__getitem__):
        if t.shape[d] == 1:  # the stride of a dimension of size 1 is arbitrary
            packed.append(True)
            continue
        packed.append(t.strides[d] == step or (t.strides[d] == 0 and "expanded"))
        step = t.strides[d] * t.shape[d]
    return order, tuple(n == 1 for n in t.shape), tuple(packed)


@functools.lru_cache(maxsize=MOST_DEFINITIONS)
def compiled(text: str) -> Any:
    """Return the executor of a definition. Its first call compiles the kernels."""
    nvfuser = library()
    scope = {"DataType": nvfuser.DataType}
    exec(compile(text, "<nvfuser>", "exec"), scope)
    with _defining:
        fd = nvfuser.FusionDefinition()
        fd.__enter__()
        try:
            scope["define"](fd)
        finally:
            fd.__exit__(None, None, None)  # without the exception, which nvFuser would print
        return nvfuser.FusionExecutorCache(fd.fusion)


def _packed(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return dense strides in the same order. Return contiguous strides for an expanded tensor."""
    expanded = any(n > 1 and step == 0 for n, step in zip(shape, strides))
    return contiguous(shape) if expanded else _dense(shape, order_of(strides))


def _copy(x: torch.Tensor) -> torch.Tensor:
    packed = torch.empty_strided(x.shape, _packed(x.shape, x.stride()), dtype=x.dtype, device=x.device)
    return packed.copy_(x)


class _Program:
    """A region for one layout of the inputs.

    Tensors that are not dense, and expanded tensors, are copied first, because nvFuser computes wrong results for some.
    """

    def __init__(self, region: FusedRegion, inputs: Sequence[Tensor], outputs: Sequence[Tensor]):
        packed = [t._replace(strides=_packed(t.shape, t.strides)) for t in inputs]
        self.copied = [i for i, (t, p) in enumerate(zip(inputs, packed)) if not _alike(t.shape, t.strides, p.strides)]
        inputs = [packed[i] if i in self.copied else t for i, t in enumerate(inputs)]
        how: Any = {"rounded": region.rounded, "named": by_place(), "fixed": not region.symbolic}
        text, self.numbers = definition(region.operations, inputs, outputs, **how)
        self.compiled = compiled(text).execute
        self.device = to_torch_device(region.outputs[0].device)
        self.wanted = outputs
        self.laid_anew: list[int] = []

    def first(self, inputs: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Any:
        """Run the region for the first time. Check dtypes, shapes, strides and aliasing of nvFuser's results."""
        found = self.execute([*inputs, *numbers])
        taken = {x.untyped_storage().data_ptr() for x in inputs}
        for i, (x, (p, shape, strides)) in enumerate(zip(found, self.wanted)):
            if tuple(x.shape) != shape or x.dtype is not to_torch_dtype(p.dtype):
                raise TypeError(f"result {i} is {x.dtype} of {tuple(x.shape)}, not {p.dtype} of {shape}")
            where = x.untyped_storage().data_ptr()
            if where in taken or not _alike(shape, x.stride(), strides):
                self.laid_anew.append(i)
            taken.add(where)
        return self._anew(found, None) if self.laid_anew else found

    def execute(self, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        """Run the compiled definition on tensors and numbers."""
        readable = list(inputs)
        for i in self.copied:
            readable[i] = _copy(readable[i])
        found: Sequence[torch.Tensor] = self.compiled(readable)
        return found

    def run_of(self, shapes: Any) -> Run:
        """Return the function for calls whose results have these `shapes`; None if sizes are fixed."""
        execute: Run = self.execute if self.copied else self.compiled
        return (lambda inputs: self._anew(execute(inputs), shapes)) if self.laid_anew else execute

    def _anew(self, found: Sequence[torch.Tensor], shapes: Any) -> Any:
        """Return the results. Copy results that alias other results, or whose strides differ from eager mode."""
        out = list(found)
        for i in self.laid_anew:
            p, shape, strides = self.wanted[i]
            if shapes is not None:
                strides = _dense(shapes[i], order_of(strides))
                shape = shapes[i]
            laid = torch.empty_strided(shape, strides, dtype=to_torch_dtype(p.dtype), device=self.device)
            out[i] = laid.copy_(out[i])
        return out


def _alike(shape: Sequence[int], strides: Sequence[int], others: Sequence[int]) -> bool:
    """Check whether strides are equal, ignoring dimensions of size 1."""
    return all(a == b for a, b, n in zip(strides, others, shape) if n != 1)
