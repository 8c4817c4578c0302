# SPDX-License-Identifier: Apache-2.0
"""Regions with symbolic sizes: one kernel for all sizes of the same rank, dtype and layout.

Kernels receive the sizes as parameters. The grid and the parameters are computed once for each combination of sizes.
The source is generated and compiled once for each layout. (Triton specializes it further: for numbers that are
multiples of 16, and for rows that need a wider tile.)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from thunder.extend import BoundSymbol, Executor, NumberProxy, TensorProxy, known_shape, to_torch_device
from thunder.toolkit.fusion import Region, rounded_results, torch_program
from thunder_ex_triton.fusion.dump import program
from thunder_ex_triton.fusion.errors import Unfit
from thunder_ex_triton.fusion.iteration_space import Space, check_grid, is_long
from thunder_ex_triton.fusion.kernel_modules import load
from thunder_ex_triton.fusion.layout import contiguous, declared
from thunder_ex_triton.fusion.region import FusedRegion, Launch, Program, launches_of, program_of
from thunder_ex_triton.fusion.sizes import Sizes, UnknownSize
from thunder_ex_triton.fusion.templates import KernelSource, module_text
from thunder_ex_triton.fusion.tiles import gpu_of
from thunder_ex_triton.probe import interpreting

__all__ = ["SymbolicRegion"]

_MOST = 1024  # the maximal number of cached combinations of sizes


class SymbolicRegion(FusedRegion):
    """Operations on tensors of symbolic sizes, compiled to kernels. Inputs may also be numbers."""

    def __init__(
        self,
        name: str,
        operations: Sequence[BoundSymbol],
        region: Region,
        sizes: Sizes,
        executor: Executor,
    ):
        self.sizes = sizes
        self.region = region
        self.executor = executor
        self.given: list[Any] = list(region.inputs)
        self._texts: dict[Any, tuple[list[KernelSource], ModuleType]] = {}
        tensors = [sizes.tensor(p) for p in region.inputs if isinstance(p, TensorProxy)]
        results = [sizes.tensor(p) for p in region.outputs]
        written = [sizes.operation(op) for op in operations]
        rounded = rounded_results(region.operations, operations)
        super().__init__(name, written, tensors, results, declared(region.operations), rounded=rounded)
        self.original = list(operations)
        try:
            self._traced = self._launched(self._as_traced())
        except UnknownSize:
            raise Unfit("has a size that cannot be computed from its inputs") from None

    def __call__(self, *inputs: Any) -> Any:
        key = tuple([(x.shape, x.stride()) if isinstance(x, torch.Tensor) else x for x in inputs])
        found = self._programs.get(key)
        if found is None:
            if len(self._programs) >= _MOST:
                self._programs.clear()
            try:
                found = self._programs[key] = self._compile(key)
            except (Unfit, UnknownSize):  # no kernel supports these sizes and strides
                return self._by_torch()(*inputs)
        return found(*[x for x in inputs if isinstance(x, torch.Tensor)])

    @functools.cache  # noqa: B019  (one for each region, which lives as long)
    def _by_torch(self) -> Any:
        """Return the operations as a program that torch runs."""
        return torch_program(self.name, self.region, self.executor).python_callable()

    def prepare(self, strides: Mapping[str, tuple[int, ...]]) -> None:
        """Start to compile the kernels in another thread, for the sizes of the traced call and contiguous inputs."""
        if not interpreting():
            self._begin(self._as_traced(), functools.partial(self._program, *self._traced))

    @property
    def source(self) -> str:
        """The kernels as a program, for the sizes of the traced call."""
        launches, partial, value, strides = self._traced
        inputs = [self._concrete(p, value) for p in self.inputs]
        outputs = [(self._concrete(p, value), s) for p, s in zip(self.outputs, strides)]
        space = self._concrete_space(value)
        numbers = sorted({n for k in launches for n in k.source.sizes})
        size = f"{space.text}, for any sizes" + "".join(
            f"\n#   {self.sizes.known[n]}: {self.sizes.known[n].number}" for n in numbers
        )
        return program(self.name, size, self.original, inputs, outputs, launches, (partial, space.sums))

    def _as_traced(self) -> tuple[Any, ...]:
        """Return the key of the traced call, with contiguous inputs."""
        key: list[Any] = []
        for p in self.given:
            if isinstance(p, NumberProxy):
                key.append(p.symbol.hint)
            else:
                shape = known_shape(p)
                key.append((shape, contiguous(shape)))
        return tuple(key)

    def _concrete(self, p: TensorProxy, value: Any) -> TensorProxy:
        return TensorProxy(p.name, like=p, shape=tuple(map(value, p.shape)))

    def _concrete_space(self, value: Any) -> Space:
        batch, rows, columns = map(value, (self.space.batch, self.space.rows, self.space.columns))
        return self.space._replace(batch=batch, rows=rows, columns=columns)

    def _compiled_for(self, key: Sequence[Any]) -> Program:
        return self._program(*self._launched(key))

    def _program(self, launches: list[Launch], partial: int, value: Any, strides: Sequence[tuple[int, ...]]) -> Program:
        """Return the program for concrete sizes. `value` evaluates a size."""
        there: Any = SimpleNamespace(
            name=self.name,
            inputs=[self._concrete(p, value) for p in self.inputs],
            outputs=[self._concrete(p, value) for p in self.outputs],
            operations=self.operations,
            space=self._concrete_space(value),
        )
        return program_of(there, to_torch_device(self.outputs[0].device), launches, partial, strides)

    def _launched(self, key: Sequence[Any]) -> tuple[list[Launch], int, Any, list[tuple[int, ...]]]:
        """Return the launches for inputs of these sizes and strides.

        Also return the number of programs that write partial sums of columns, the function that evaluates sizes, and
        the strides of the outputs.
        """
        tensors = [(i, x) for i, x in enumerate(key) if isinstance(x, tuple)]
        layouts, free = [], {}
        for p, (i, (shape, strides)) in zip(self.inputs, tensors):
            layout, unknown = self._layout(i, p.shape, shape, strides)
            layouts.append(layout)
            free.update(unknown)
        found = [x[0] if isinstance(x, tuple) else x for x in key]
        value = self.sizes.values(self.given, found, free)
        placed = [tuple(map(value, s)) for s in self.output_strides(layouts)]
        everything = [x for _, x in tensors] + [(tuple(map(value, p.shape)), s) for p, s in zip(self.outputs, placed)]
        wide = any(sum((d - 1) * s for d, s in zip(shape, strides)) >= 1 << 31 for shape, strides in everything)
        space = self._concrete_space(value)
        check_grid(space)
        text = (*layouts, wide, is_long(space))
        if text not in self._texts:
            sources = self._sources(layouts, wide, is_long(space))
            self._texts[text] = sources, load(module_text([k.text for k in sources]))
        sources, module = self._texts[text]
        given = {p.name for p in self.outputs}
        launches, partial = launches_of(module, sources, space, given, gpu_of(self.outputs[0].device))
        launches = [
            k._replace(numbers=(*(value(self.sizes.known[n]) for n in k.source.sizes), *k.numbers)) for k in launches
        ]
        return launches, partial, value, placed

    def _layout(
        self, position: int, shape: Sequence[Any], sizes: Sequence[int], strides: Sequence[int]
    ) -> tuple[tuple[Any, ...], dict[int, int]]:
        """Return strides as expressions of sizes where possible, and the values of the other strides."""
        if tuple(strides) == contiguous(sizes):
            return contiguous(shape), {}
        out: list[Any] = [0] * len(shape)
        expected: Any = 1
        now = 1
        for i in sorted((i for i, d in enumerate(sizes) if d != 1), key=lambda i: (strides[i], -i)):
            if strides[i] in (0, 1):
                out[i] = strides[i]
            elif strides[i] == now:
                out[i] = expected
            else:
                out[i] = self.sizes.free((self.name, position, i), strides[i])
            expected, now = out[i] * shape[i], strides[i] * sizes[i]
        unknown = {s.index: strides[i] for i, s in enumerate(out) if self.sizes.is_free(s)}
        return tuple(out), unknown
