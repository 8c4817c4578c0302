# SPDX-License-Identifier: Apache-2.0
"""Kernels that cost little to launch.

Triton looks at every argument of every launch to find the compiled form. Most launches look like an earlier one: then
what is compiled is found with one dictionary lookup and handed to the driver. What is private to Triton is here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton

from thunder_ex_triton.machine import interpreting

__all__ = ["Kernel", "blocks", "kernel", "power_of_two"]

_MOST = 512  # how many kinds of launches a kernel remembers


class Kernel:
    """A Triton kernel whose first parameters are tensors: `kernel(programs, tensors, numbers, warps)` launches it.

    `numbers` are its other arguments, constants among them, in the order of its parameters.
    """

    def __init__(self, function: Callable[..., Any]):
        self.jit = triton.jit(function)
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self._compiled: dict[Any, Any] = {}

    def __call__(
        self, programs: int, tensors: tuple[torch.Tensor | None, ...], numbers: tuple[Any, ...], warps: int
    ) -> None:
        """Runs `programs` programs on the device of the first tensor, in its current stream."""
        assert tensors[0] is not None
        device = tensors[0].device.index
        if interpreting():
            self.jit[(programs,)](*tensors, *numbers, num_warps=warps)
        elif device == torch.cuda.current_device():
            self._launch(device, programs, tensors, numbers, warps)
        else:
            with torch.cuda.device(device):
                self._launch(device, programs, tensors, numbers, warps)

    def _launch(
        self, device: int, programs: int, tensors: tuple[torch.Tensor | None, ...], numbers: tuple[Any, ...], warps: int
    ) -> None:
        addresses = [None if x is None else x.data_ptr() for x in tensors]
        # What Triton compiles for: of a tensor its dtype and whether its address is a multiple of 16, of a number
        # whether it is 1 or a multiple of 16. Numbers are told apart by value, which is finer and cheaper.
        kinds = [None if x is None else (x.dtype, a & 15) for x, a in zip(tensors, addresses)]
        key = (device, warps, numbers, *kinds)
        compiled = self._compiled.get(key)
        if compiled is None or _is_watched():
            compiled = self.jit[(programs,)](*tensors, *numbers, num_warps=warps)
            if len(self._compiled) >= _MOST:
                self._compiled.clear()
            self._compiled[key] = compiled
            return
        stream = triton.runtime.driver.active.get_current_stream(device)
        function, metadata = compiled.function, compiled.packed_metadata
        compiled.run(programs, 1, 1, stream, function, metadata, None, None, None, *addresses, *numbers)


def kernel(function: Callable[..., Any]) -> Kernel:
    """Decorator: the kernel of a function in Triton's language."""
    return Kernel(function)


def blocks(number: int, size: int) -> int:
    """How many blocks of that size hold that many. (Triton's own is for kernels, and slow outside of them.)"""
    return -(-number // size)


def power_of_two(number: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << (number - 1).bit_length()


def _is_watched() -> bool:
    """Whether a profiler wants to hear of launches, which Triton then has to make."""
    runtime = triton.knobs.runtime
    return any(getattr(hook, "calls", hook) for hook in (runtime.launch_enter_hook, runtime.launch_exit_hook))
