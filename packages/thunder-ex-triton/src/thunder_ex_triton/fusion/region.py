# SPDX-License-Identifier: Apache-2.0
"""A compiled region: a callable of the region's inputs.

The first call generates the kernels, because it provides the strides of the inputs. Calls with other strides generate
them again. The source is written to a file. Users can read it, profilers can show it, and Triton finds the kernels that
it compiled in an earlier process.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any, NamedTuple

import torch

from thunder.extend import BoundSymbol, TensorProxy, ThunderError, to_torch_device, to_torch_dtype
from thunder.toolkit.measuring import Candidate, Measurements, example_tensor, measured_choice
from thunder_ex_triton.disk_cache import remember_triton
from thunder_ex_triton.fusion import autotune
from thunder_ex_triton.fusion.dump import program
from thunder_ex_triton.fusion.iteration_space import Space, is_long, space_of
from thunder_ex_triton.fusion.kernel_modules import load
from thunder_ex_triton.fusion.launcher_codegen import Made
from thunder_ex_triton.fusion.layout import Declared, contiguous, dense, layouts
from thunder_ex_triton.fusion.program import KernelStep, Program
from thunder_ex_triton.fusion.templates import KernelSource, kernels_of, module_text
from thunder_ex_triton.fusion.tiles import Gpu, gpu_of, tilings
from thunder_ex_triton.launch import Kernel, blocks, increment_versions
from thunder_ex_triton.probe import interpreting

__all__ = ["FusedRegion", "Launch", "Program", "launches_of", "program_of"]


class Launch(NamedTuple):
    """A kernel and its launch parameters."""

    kernel: Kernel
    source: KernelSource
    grid: tuple[int, int]
    numbers: tuple[Any, ...]
    warps: int


class FusedRegion:
    """Operations compiled to kernels. `source` is a runnable program of these kernels for contiguous inputs."""

    def __init__(
        self,
        name: str,
        operations: Sequence[BoundSymbol],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        declared: Declared | None = None,
        *,
        rounded: frozenset[str] = frozenset(),
        measurements: Measurements | None = None,
    ):
        self.name = self.__name__ = name
        self.measurements = measurements  # what decides the tiling; None: the rules
        self.declared = declared or {}  # the strides that operations declare
        self.operations = list(operations)
        self.inputs: list[TensorProxy] = list(inputs)
        self.outputs: list[TensorProxy] = list(outputs)
        # For outputs in memory that exists: the positions of the output, and of the tensor in a call.
        self.into: dict[int, int] = {}
        self.space = space_of(self.operations)._replace(rounded=rounded)
        self._usual = [contiguous(p.shape) for p in self.inputs]
        self._written = self._sources(self._usual)  # raises Unfit here, not at the first call
        self._programs: dict[Any, Program] = {}
        self._begun: dict[Any, Future[Program]] = {}
        self._run: Callable[..., Any] = self._general

    def __call__(self, *inputs: torch.Tensor) -> Any:
        results = self._run(*inputs)
        if self.into:
            increment_versions([inputs[i] for i in self.into.values()])
        return results

    def _general(self, *inputs: torch.Tensor) -> Any:
        """Run with inputs of any strides."""
        key = tuple([x.stride() for x in inputs])
        program = self._programs.get(key)
        if program is None:
            self._check_targets(key)
            program = self._compile(key)
            if self.measurements is not None:
                program = self._measured(key, program)
            self._programs[key] = program
        elif program.compiled and self._run == self._general:
            usual = [None if s == c else s for c, s in zip(self._usual, key)]
            self._run = program.warm(usual, self._general)
            return self._run(*inputs)
        return program(*inputs)

    def _check_targets(self, strides: Sequence[Sequence[int]]) -> None:
        """Raise an error if memory to write to has other strides than the output."""
        found = self.output_strides(strides) if self.into else []
        for k, i in self.into.items():
            shape = self.outputs[k].shape
            if any(n > 1 and a != b for n, a, b in zip(shape, found[k], strides[i])):
                raise ThunderError(f"{self.name} writes a result of strides {found[k]} to a tensor of {strides[i]}")

    def writing(self, results: Mapping[str, TensorProxy]) -> FusedRegion:
        """Return the region that writes results to memory that exists, which it gets after its inputs."""
        new = copy.copy(self)
        places = {name: i for i, name in enumerate(results, len(self.inputs))}
        new.into = {k: places[p.name] for k, p in enumerate(self.outputs) if p.name in places}
        new._usual = [*self._usual, *[contiguous(p.shape) for p in results.values()]]
        new._programs, new._begun, new._run = {}, {}, new._general
        return new

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def template(self) -> str:
        """The names of the templates of the kernels."""
        return ", ".join(k.template for k in self._written)

    @property
    def source(self) -> str:
        """The kernels for contiguous inputs as a readable, runnable program, with the operations that they replace."""
        launches, partial = self._launches(self._usual)
        outputs = list(zip(self.outputs, self.output_strides(self._usual)))
        size = self.space.text
        parts = (partial, self.space.sums)
        return program(self.name, size, self.operations, self.inputs, outputs, launches, parts)

    def output_strides(self, strides: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """Return the strides of the outputs. They are the same as in eager mode."""
        found = layouts(self.operations, {p.name: s for p, s in zip(self.inputs, strides)}, self.declared)
        return [dense(p.shape, found[p.name]) for p in self.outputs]

    def _sources(
        self, strides: Sequence[Sequence[int]], wide: bool | None = None, long: bool | None = None
    ) -> list[KernelSource]:
        """Return the source of the kernels. Set `wide` if offsets need 64 bits, and `long` if a row exceeds a tile."""
        known = {p.name: s for p, s in zip(self.inputs, strides)}
        known.update({p.name: s for p, s in zip(self.outputs, self.output_strides(strides))})
        if wide is None:
            tensors = (*self.inputs, *self.outputs)
            wide = any(sum((d - 1) * s for d, s in zip(p.shape, known[p.name])) >= 1 << 31 for p in tensors)
        long = is_long(self.space) if long is None else long
        return kernels_of(self.operations, known, self.outputs, self.space, wide, long)

    def prepare(self, strides: Mapping[str, tuple[int, ...]]) -> None:
        """Start to compile the kernels in another thread, for the strides that inputs will probably have.

        Inputs that `strides` lacks are expected to be contiguous.
        """
        expected = tuple([strides.get(p.name, s) for p, s in zip(self.inputs, self._usual)])
        if not interpreting():
            self._begin(expected, lambda: self._compiled_for(expected))

    def _begin(self, key: Any, write: Callable[[], Program]) -> None:
        """Start to compile the program that `write` returns in another thread. `_compile` waits for it."""
        dtypes = [to_torch_dtype(p.dtype) for p in self.inputs]
        self._begun[key] = _compilers().submit(lambda: write().compiled_ahead(dtypes))

    def _compile(self, key: Any) -> Program:
        """Return the program for these strides. Use the program that was started ahead if its strides are the same."""
        begun = self._begun.pop(key, None)
        for other in self._begun.values():
            other.cancel()  # the inputs' layout differs from the assumed layout
        self._begun.clear()
        return self._compiled_for(key) if begun is None else begun.result()

    def _launches(self, strides: Sequence[Sequence[int]]) -> tuple[list[Launch], int]:
        """Return the kernels, their launches, and the number of programs that write partial sums of columns."""
        return self._candidates(strides)[0]

    def _candidates(self, strides: Sequence[Sequence[int]]) -> list[tuple[list[Launch], int]]:
        """Return the launches for each tiling. The default tiling is the first."""
        sources = self._written if [*strides] == self._usual else self._sources(strides)
        given = {p.name for p in self.outputs}
        module = load(module_text([k.text for k in sources]))
        gpu = gpu_of(self.outputs[0].device)
        ways = len(tilings(sources[0], sources[0].space or self.space, gpu, 0)) if self.measurements is not None else 1
        return [launches_of(module, sources, self.space, given, gpu, way) for way in range(ways)]

    def _compiled_for(self, key: Any) -> Program:
        tilings = self._candidates(key)
        if self.measurements is None:
            return self._program_of(key, tilings)
        candidates = self._measurable(key, tilings)
        expected = self.measurements.expect(*self._question, candidates, self.outputs[0].device)
        return self._program_of(key, tilings, _index(expected, candidates))

    def _program_of(self, key: Any, tilings: Sequence[tuple[list[Launch], int]], i: int = 0) -> Program:
        device = to_torch_device(self.outputs[0].device)
        return program_of(self, device, *tilings[i], self.output_strides(key), tiling=i)

    @property
    def _question(self) -> tuple[str, str]:
        """The operation and the shape class of the choice of a tiling. Candidates contain the kernels' text."""
        return f"tiles of fusions ({self.template})", self.space.text

    def _measured(self, key: Any, program: Program) -> Program:
        """Return the program of the tiling that was measured, or is measured now. `program` has the expected one."""
        tilings = self._candidates(key)
        candidates = self._measurable(key, tilings)
        chosen = measured_choice(*self._question, candidates, self.outputs[0].device, measurements=self.measurements)
        i = _index(chosen, candidates)
        return program if program.tiling == i else self._program_of(key, tilings, i)

    def _measurable(self, key: Any, tilings: Sequence[tuple[list[Launch], int]]) -> list[Candidate]:
        """Return the tilings as candidates, which run on inputs of their own with the strides of a call."""
        # A region that writes to memory that exists gets this memory after its inputs.
        targets = {i: self.outputs[k] for k, i in self.into.items()}
        proxies = [*self.inputs, *[targets[i] for i in sorted(targets)]]

        @functools.cache
        def inputs() -> list[torch.Tensor]:
            return [example_tensor(p, strides=strides) for p, strides in zip(proxies, key)]

        @functools.cache
        def programs() -> list[tuple[Program, Future[Program] | None]]:
            made = [self._program_of(key, tilings, i) for i in range(len(tilings))]
            dtypes = [to_torch_dtype(p.dtype) for p in proxies]
            if interpreting():
                return [(program, None) for program in made]
            return [(program, _compilers().submit(program.compiled_ahead, dtypes)) for program in made]

        def prepare(i: int) -> Callable[[], Any]:
            program, begun = programs()[i]
            if begun is not None:
                begun.exception()  # only wait here; the call raises any compilation error again
            return lambda: program(*inputs())

        return autotune.candidates_of([launches for launches, _ in tilings], prepare)


def program_of(
    region: Any,
    device: torch.device,
    launches: Sequence[Launch],
    partial: int,
    strides: Sequence[tuple[int, ...]],
    tiling: int = 0,
) -> Program:
    """Return the program of these launches. `strides` are those of the outputs."""
    into: dict[int, int] = getattr(region, "into", {})
    count = len(region.inputs) + len(into)
    new = [(k, p, s) for k, (p, s) in enumerate(zip(region.outputs, strides)) if k not in into]
    places = {**into, **{k: i for i, (k, _, _) in enumerate(new, count)}}
    order = [p.name for p in (*region.inputs, *region.outputs)]
    by_name: dict[str, Any] = {p.name: p for op in region.operations for p in op.flat_outs}
    names = sorted({n for launch in launches for n in launch.source.writes}.difference(order))
    scratch: list[Made] = []
    for name in names:
        wide = torch.float64 if by_name[name.removesuffix("_part")].dtype.bytes == 8 else torch.float32
        shape = (partial, region.space.sums)
        scratch.append((shape, contiguous(shape), wide))
    place = {p.name: i for i, p in enumerate(region.inputs)}
    place.update({p.name: places[k] for k, p in enumerate(region.outputs)})
    place.update({n: i for i, n in enumerate(names, count + len(new))})
    return Program(
        region.name,
        count,
        [(tuple(p.shape), s, to_torch_dtype(p.dtype)) for _, p, s in new],
        scratch,
        [places[k] for k in range(len(region.outputs))],
        [
            KernelStep(
                k.kernel, k.grid, tuple(place[n] for n in (*k.source.reads, *k.source.writes)), k.numbers, k.warps
            )
            for k in launches
        ],
        device,
        tiling,
    )


def _index(name: str, candidates: Sequence[Candidate]) -> int:
    return [candidate.name for candidate in candidates].index(name)


def launches_of(
    module: ModuleType,
    sources: Sequence[KernelSource],
    space: Space,
    given: set[str],
    gpu: Gpu,
    way: int = 0,
) -> tuple[list[Launch], int]:
    """Return the launch of each kernel, and the number of programs that write partial sums of a column or row.

    `way` is the index of the first kernel's tiling. The finishing kernel uses its default tiling.
    """
    out, partial = [], 0
    for source in sources:
        sums = len(source.writes) - len({*source.writes} & given)
        found = tilings(source, source.space or space, gpu, partial)
        programs, numbers, warps = found[way if source is sources[0] else 0]
        kernel = Kernel(getattr(module, source.name), checks=source.checks, early=source.early)
        out.append(Launch(kernel, source, programs, numbers, warps))
        if sums:  # those of a column: programs of a batch entry; those of a row: programs of all columns and entries
            partial = programs[0] // (blocks(space.rows, numbers[0]) if space.by_ends else space.batch)
    return out, partial


@functools.cache
def _compilers() -> ThreadPoolExecutor:
    """Return the thread pool that compiles kernels. Triton's compiler and ptxas can run in parallel."""
    remember_triton()
    return ThreadPoolExecutor(min(os.cpu_count() or 1, 16), thread_name_prefix="thunder-triton")
