# SPDX-License-Identifier: Apache-2.0
"""The kernels of a region for one layout of its inputs, and their launches. It needs no code that writes kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from thunder_ex_triton.environment import interpreting
from thunder_ex_triton.fusion.launcher_codegen import Made, Step, warm_call

if TYPE_CHECKING:
    from thunder_ex_triton.launch import Kernel

__all__ = ["KernelStep", "Program"]


class KernelStep(NamedTuple):
    """A launch: a kernel, the grid, the positions of the tensors (inputs, outputs, scratch), and other arguments."""

    kernel: Kernel
    grid: tuple[int, int]
    places: tuple[int, ...]
    numbers: tuple[Any, ...]
    warps: int


class Program:
    """The kernels of a region for one layout of the inputs."""

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: Sequence[Made],
        scratch: Sequence[Made],
        results: Sequence[int],
        steps: Sequence[KernelStep],
        device: torch.device,
        tiling: int = 0,
    ):
        self.name = name
        self.inputs = inputs  # their number, with tensors to write to
        self.outputs = list(outputs)  # new tensors
        self.scratch = list(scratch)
        self.results = list(results)  # among the inputs and new outputs
        self.steps = list(steps)
        self.device = device
        self.tiling = tiling  # the index of its tiling
        self.compiled: list[Any] = []  # the kernels compiled for addresses that are multiples of 16
        self.run: Callable[..., Any] = self._first

    def __call__(self, *inputs: torch.Tensor) -> Any:
        return self.run(*inputs)

    def warm(
        self, layouts: Sequence[tuple[int, ...] | None] | None, otherwise: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return the function for warm calls.

        If `layouts` is given, the function checks the strides of its inputs against it.
        """
        steps = [Step(c, k.grid, k.places, k.numbers) for c, k in zip(self.compiled, self.steps)]
        made = self.outputs, self.scratch
        return warm_call(self.name, self.inputs, layouts, *made, self.results, steps, self.device.index, otherwise)

    def _first(self, *inputs: torch.Tensor) -> Any:
        """Launch through Triton until all kernels are compiled for aligned addresses."""
        made = self._launch(*inputs)
        if self.compiled:
            self.run = self._second
        return made

    def _second(self, *inputs: torch.Tensor) -> Any:
        """Generate the function for warm calls.

        This happens at the second call, because many programs run only once.
        """
        self.run = self.warm(None, self._launch)
        return self.run(*inputs)

    def _launch(self, *inputs: torch.Tensor) -> Any:
        """Launch the kernels one by one through Triton."""
        if self.device.type != "cuda":
            return self._launch_there(inputs)
        with torch.cuda.device(self.device):
            return self._launch_there(inputs)

    def _launch_there(self, inputs: Sequence[torch.Tensor]) -> Any:
        made = [torch.empty_strided(*x[:2], dtype=x[2], device=self.device) for x in (*self.outputs, *self.scratch)]
        tensors = [*inputs, *made]
        compiled = []
        for kernel, grid, places, numbers, warps in self.steps:
            compiled.append(kernel.compiled(grid, tuple([tensors[i] for i in places]), numbers, warps))
        if not interpreting() and not any(x.data_ptr() & 15 for x in tensors):
            self.compiled = compiled
        return tuple([tensors[i] for i in self.results])

    def compiled_ahead(self, inputs: Sequence[torch.dtype]) -> Program:
        """Compile the kernels for aligned addresses without launching them. Return the program itself."""
        dtypes = [*inputs, *(dtype for _, _, dtype in (*self.outputs, *self.scratch))]
        with torch.cuda.device(self.device):
            for kernel, grid, places, numbers, warps in self.steps:
                kernel.compile_ahead(grid, tuple([dtypes[i] for i in places]), numbers, warps)
        return self
