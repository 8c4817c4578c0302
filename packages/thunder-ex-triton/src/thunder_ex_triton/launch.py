# SPDX-License-Identifier: Apache-2.0
"""Launches of Triton kernels with little host overhead.

At every launch, Triton inspects all arguments to find the compiled kernel. Most launches have the same signature as an
earlier launch. For these, one dictionary lookup finds the compiled kernel, which is passed directly to the driver. This
module contains all uses of Triton's private interfaces.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import triton
from triton.runtime import build

from thunder.toolkit.launch import current_cuda_device, current_stream, increment_versions, new_tensor, no_device
from thunder_ex_triton.environment import interpreting

__all__ = [
    "INTERPRETED", "MOST_BLOCKS", "Kernel", "blocks", "current_device", "current_stream", "direct", "hooks",
    "increment_versions", "is_watched", "kernel", "load_apart", "new_tensor", "power_of_two", "starts_early",
]  # fmt: skip

INTERPRETED = interpreting()  # Triton reads this when a kernel is declared, not when the kernel is launched

# Triton's default is about to change, and Triton 3.9 warns of that.
_ARITHMETIC: dict[str, Any] = {} if "TRITON_DEFAULT_FP_FUSION" in os.environ else {"enable_fp_fusion": True}
_MOST = 512  # the number of launch signatures that a kernel caches


class Kernel:
    """A Triton kernel whose first parameters are tensors. `kernel(programs, tensors, numbers, warps)` launches it.

    `numbers` are the other arguments (including `constexpr` arguments), in the order of the parameters.
    """

    def __init__(self, function: Callable[..., Any], *, checks: bool = False, early: bool = False):
        self.jit: Any = triton.jit(function) if inspect.isfunction(function) else function
        # Compile the kernel's own assertions, but not Triton's overflow checks of all arithmetic.
        self.options: dict[str, Any] = {"debug": True, "sanitize_overflow": False} if checks else {}
        if early:  # the function calls `gdc_wait` (see `starts_early`)
            self.options["launch_pdl"] = True
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self._compiled: dict[Any, Any] = {}

    def __call__(
        self,
        programs: int | tuple[int, int],
        tensors: tuple[torch.Tensor | None, ...],
        numbers: tuple[Any, ...],
        warps: int,
    ) -> None:
        """Run `programs` programs on the device of the first tensor, in its current stream."""
        assert tensors[0] is not None
        device = tensors[0].device.index
        grid = (programs, 1) if isinstance(programs, int) else programs
        if INTERPRETED:
            self.jit[grid](*tensors, *numbers, num_warps=warps)
        elif device == current_device():
            self._launch(device, grid, tensors, numbers, warps)
        else:
            with torch.cuda.device(device):
                self._launch(device, grid, tensors, numbers, warps)

    def compiled(
        self,
        grid: tuple[int, int],
        tensors: tuple[torch.Tensor | None, ...],
        numbers: tuple[Any, ...],
        warps: int,
    ) -> Any:
        """Launch the kernel on the current device through Triton, and return the compiled kernel."""
        return self.jit[grid](*tensors, *numbers, num_warps=warps, **_ARITHMETIC, **self.options)

    def compile_ahead(
        self, grid: tuple[int, int], dtypes: tuple[torch.dtype, ...], numbers: tuple[Any, ...], warps: int
    ) -> None:
        """Compile the kernel for tensors of these dtypes at aligned addresses, and load it, without launching it.

        Triton compiles C code that launches kernels of a signature. This is a part of loading.
        """
        compiled = self.jit.warmup(*dtypes, *numbers, grid=grid, num_warps=warps, **_ARITHMETIC, **self.options)
        direct(compiled)

    def _launch(
        self,
        device: int,
        grid: tuple[int, int],
        tensors: tuple[torch.Tensor | None, ...],
        numbers: tuple[Any, ...],
        warps: int,
    ) -> None:
        addresses = [None if x is None else x.data_ptr() for x in tensors]
        # Triton specializes on the dtype of each tensor and on whether its address is a multiple of 16. It also
        # specializes on whether each number is 1 or a multiple of 16. A key with the numbers' values distinguishes more
        # cases than needed, but is cheaper.
        kinds = [None if x is None else (x.dtype, a & 15) for x, a in zip(tensors, addresses)]
        key = (device, warps, numbers, *kinds)
        found = self._compiled.get(key)
        if found is None or is_watched():
            compiled = self.compiled(grid, tensors, numbers, warps)
            if len(self._compiled) >= _MOST:
                self._compiled.clear()
            self._compiled[key] = direct(compiled)
            return
        launch, fixed = found
        launch(*grid, 1, current_stream(device), *fixed, *addresses, *numbers)


def load_apart(load: Callable[[str, str], ModuleType]) -> Callable[[str, str], ModuleType]:
    """Wrap Triton's function that loads launchers, so that threads do not exchange them.

    In Triton 3.6, launchers of all signatures are C extensions with one name. If a file is loaded again, CPython does
    not make a module, but writes the file's function to the module in `sys.modules`. Triton then reads the function
    from there, where another thread may have written its own.
    """
    lock = threading.Lock()

    def load_alone(name: str, path: str) -> ModuleType:
        with lock:
            sys.modules.pop(name, None)
            return load(name, path)

    return load_alone


if triton.__version__.startswith("3.6."):
    build._load_module_from_path = load_apart(build._load_module_from_path)


def starts_early(device: torch.device) -> bool:
    """Check whether kernels can start before the kernel before them in their stream has ended.

    Such a kernel begins with `gdc_launch_dependents()`, which lets the next one start, and `gdc_wait()`, which waits
    until the memory of all kernels before it is written ("programmatic dependent launch"). Only the launch overlaps, so
    values cannot change. It pays for chains of small kernels.
    """
    return not INTERPRETED and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def kernel(function: Callable[..., Any]) -> Kernel:
    """Decorate a function in Triton's language to make it a kernel."""
    return Kernel(function)


MOST_BLOCKS = 65535  # in the second and the third dimension of a grid


def blocks(number: int, size: int) -> int:
    """Return the ceiling of `number / size`. (`triton.cdiv` is meant for kernels, and is slow on the host.)"""
    return -(-number // size)


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


#: The index of the current device. (Call this only after CUDA is initialized, i.e. if a tensor on a GPU exists.)
current_device: Callable[[], int] = no_device if INTERPRETED else current_cuda_device


#: The object that holds Triton's launch hooks, which profilers set.
hooks: Any = triton.knobs.runtime


def is_watched() -> bool:
    """Check whether a profiler has set launch hooks. Only Triton's launcher calls these hooks."""
    return any(getattr(hook, "calls", hook) for hook in (hooks.launch_enter_hook, hooks.launch_exit_hook))


def direct(compiled: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the function that launches a compiled kernel, and the fixed arguments that follow the stream.

    The arguments of this function are the three dimensions of the grid, the stream, the fixed arguments, and the
    kernel's arguments (tensors as addresses). If the launcher of the Triton version is known, the function is the
    launcher's C function.
    """
    run = compiled.run
    launch = getattr(run, "launch", None)
    needs_memory = getattr(run, "global_scratch_size", 1) or getattr(run, "profile_scratch_size", 1)
    if triton.__version__.startswith("3.6.") and inspect.isbuiltin(launch) and not needs_memory:
        ways = (run.launch_cooperative_grid, run.launch_pdl)
        return launch, (compiled.function, *ways, None, None, compiled.packed_metadata, None, None, None)
    return run, (compiled.function, compiled.packed_metadata, None, None, None)
