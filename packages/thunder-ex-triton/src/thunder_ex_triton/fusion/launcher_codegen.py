# SPDX-License-Identifier: Apache-2.0
"""Generate, for each region, a Python function that only allocates memory and launches kernels, for warm calls.

The host limits the speed of programs with many small kernels, so every attribute lookup counts. Sizes, grids and
compiled kernels are therefore literals or globals of the generated function. The function passes calls that it was not
generated for to the general path. Examples are other strides, addresses that are not multiples of 16, a profiler's
launch hooks, and another current device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, NamedTuple

import torch

from thunder.toolkit.launch import current_cuda_device, current_stream, launch_cubin, new_tensor
from thunder_ex_triton.binaries import Binary

__all__ = ["Step", "warm_call"]

_ALIGNED = 128  # the alignment of each array in scratch memory, in bytes

Made = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]  # the shape, strides and dtype of a tensor to allocate


class Step(NamedTuple):
    """A launch: compiled kernel, grid, positions of the tensors (inputs, outputs, scratch), and other arguments."""

    compiled: Any
    grid: tuple[int, int]
    places: tuple[int, ...]
    numbers: tuple[Any, ...]


def warm_call(
    name: str,
    count: int,
    layouts: Sequence[tuple[int, ...] | None] | None,
    outputs: Sequence[Made],
    scratch: Sequence[Made],
    returned: Sequence[int],
    steps: Sequence[Step],
    device: int,
    otherwise: Callable[..., Any],
) -> Callable[..., Any]:
    """Return a function of a region's `count` inputs that launches `steps` and returns the outputs.

    `returned` are the positions of the returned tensors among the inputs and `outputs`, which the function allocates.
    `layouts` are the strides that the function checks for each input; None means contiguous. Without `layouts`, strides
    are not checked. If a check fails, `otherwise` is called.
    """
    inputs = [f"i{n}" for n in range(count)]
    results = [f"o{n}" for n in range(len(outputs))]
    names: dict[str, Any] = {"new": new_tensor, "device": current_cuda_device, "stream_of": current_stream}
    names["otherwise"] = otherwise
    conditions = [f"device() == {device}"]
    for x, layout in zip(inputs, layouts or ()):
        conditions.append(f"{x}.is_contiguous()" if layout is None else f"{x}.stride() == {layout}")
    lines = [f"{x} = {_allocation(made, names)}" for x, made in zip(results, outputs)]
    at, kept = _scratch(scratch, names)
    lines += kept
    addresses = [f"{x}.data_ptr()" for x in (*inputs, *results)]
    lines += [f"a{n} = {address}" for n, address in enumerate(addresses)]
    known = [*(f"a{n}" for n in range(len(addresses))), *at]
    used = [f"a{n}" for n in range(len(inputs))]
    unusual = [f"({' | '.join(used)}) & 15"] if used else []
    if not all(isinstance(step.compiled, Binary) for step in steps):
        unusual.append(_watched(names))
    launches = [_launch(i, step, known, names) for i, step in enumerate(steps)]
    body = [
        f"if {' and '.join(conditions)}:",
        *(f"    {line}" for line in lines),
        f"    if not ({' or '.join(unusual) or False}):",
        f"        stream = stream_of({device})",
        *(f"        {line}" for line in launches),
        f"        return ({''.join(f'{[*inputs, *results][i]}, ' for i in returned)})",
        f"return otherwise({', '.join(inputs)})",
    ]
    # Equal regions generate the same source, which is compiled once.
    text = "\n".join([f"def call({', '.join(inputs)}):", *(f"    {line}" for line in body), ""])
    exec(_code(text), names)
    function: Callable[..., Any] = names["call"]
    function.__name__ = function.__qualname__ = name
    return function


def _watched(names: dict[str, Any]) -> str:
    """Return the condition that a profiler has set launch hooks, which only Triton's launcher calls."""
    # The import is local: kernels that are launched without Triton do not load it.
    from thunder_ex_triton.launch import hooks

    names.update(hooks=hooks, enter=hooks.launch_enter_hook, leave=hooks.launch_exit_hook)
    set_now = [
        f"{x}.calls" if hasattr(names[x], "calls") else f"getattr({x}, 'calls', {x})" for x in ("enter", "leave")
    ]
    return " or ".join(["hooks.launch_enter_hook is not enter", "hooks.launch_exit_hook is not leave", *set_now])


def _allocation(made: Made, names: dict[str, Any]) -> str:
    shape, strides, dtype = made
    kind = str(dtype).replace(".", "_")
    names[kind] = dtype
    return f"new({shape}, {strides}, {kind})"


def _scratch(scratch: Sequence[Made], names: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the address of each scratch array, and the lines that allocate all scratch arrays together."""
    if not scratch:
        return [], []
    at, size = [], 0
    for shape, _, dtype in scratch:
        at.append(f"s + {size}")
        size += -(-math.prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED
    return at, [f"held = {_allocation(((size,), (1,), torch.uint8), names)}", "s = held.data_ptr()"]


def _launch(i: int, step: Step, known: Sequence[str], names: dict[str, Any]) -> str:
    """Return the line of a launch."""
    given = [known[place] for place in step.places] + [repr(n) for n in step.numbers]
    if isinstance(step.compiled, Binary):
        return _launch_of_binary(i, step, given, names)
    # The import is local, for the same reason.
    from thunder_ex_triton import launch

    names[f"launch{i}"], fixed = launch.direct(step.compiled)
    arguments = [str(n) for n in (*step.grid, 1)] + ["stream"]
    for j, x in enumerate(fixed):
        if x is None or x is False:
            arguments.append(repr(x))
        else:
            names[f"x{i}_{j}"] = x
            arguments.append(f"x{i}_{j}")
    return f"launch{i}({', '.join(arguments + given)})"


def _launch_of_binary(i: int, step: Step, given: Sequence[str], names: dict[str, Any]) -> str:
    binary: Binary = step.compiled
    names["launch"], names[f"function{i}"] = launch_cubin, binary.function
    passed = [given[k] for k in binary.passed] + ["None"] * binary.unused
    sizes = ", ".join(str(n) for n in (*step.grid, 1, binary.warps, binary.shared))
    return f"launch(function{i}, {sizes}, {binary.types!r}, ({''.join(f'{x}, ' for x in passed)}), stream)"


@functools.lru_cache(maxsize=4096)
def _code(text: str) -> CodeType:
    return compile(text, "<warm call>", "exec")
