# SPDX-License-Identifier: Apache-2.0
"""Fusions as data: what another process needs to run them, without the code that writes kernels.

    data = save_region(fn)     # the callable of a fusion that has run, in a trace
    fn = load_region(data)     # a callable of the same inputs

The data consists of JSON's types. It contains the source of the kernels, and how they are launched for each layout of
inputs that the fusion has seen. It names the binaries that Triton has compiled, with their hashes. If they are there,
the kernels are loaded without Triton (`binaries.py`). Otherwise Triton finds or compiles the kernels of the source.

Inputs of another layout, or at addresses that are no multiples of 16, are copied to memory that is as the kernels
expect it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from thunder.toolkit.launch import increment_versions
from thunder_ex_triton import binaries
from thunder_ex_triton.environment import interpreting
from thunder_ex_triton.fusion.launcher_codegen import Made, Step, warm_call

__all__ = ["NotSaved", "load_region", "save_region"]

FORMAT = 1


class NotSaved(ValueError):
    """A fusion that cannot be saved, or data that cannot be loaded here. The message says why."""


# -- saving ------------------------------------------------------------------------------------------------------------
def save_region(region: Any) -> dict[str, Any]:
    """Return a fusion as data. Raise `NotSaved` if it has not run yet, or depends on sizes that change."""
    # The import is local: what is saved was compiled, so this loads nothing. Loading needs none of it.
    from thunder_ex_triton.fusion.region import FusedRegion

    if type(region) is not FusedRegion:
        raise NotSaved(f"{region!r} is a {type(region).__name__}, and not a fusion of fixed sizes")
    if not region._programs:
        raise NotSaved(f"{region.name} has not run yet, so the layouts of its inputs are not known")
    sources: list[str] = []
    programs = [_program(key, region._usual, program, sources) for key, program in region._programs.items()]
    device = next(iter(region._programs.values())).device
    return {
        "format": FORMAT,
        "name": region.name,
        "device": device.type,
        "capability": [*torch.cuda.get_device_capability(device)] if device.type == "cuda" else None,
        "into": [[k, i] for k, i in region.into.items()],
        "sources": sources,
        "programs": programs,
    }


def _program(key: Any, usual: Any, program: Any, sources: list[str]) -> dict[str, Any]:
    compiled = program.compiled or [None] * len(program.steps)
    return {
        "strides": [list(s) for s in key],
        "contiguous": [tuple(s) == c for s, c in zip(key, usual)],
        "outputs": [_made(x) for x in program.outputs],
        "scratch": [_made(x) for x in program.scratch],
        "results": program.results,
        "steps": [_step(step, c, sources) for step, c in zip(program.steps, compiled)],
    }


def _made(made: Made) -> list[Any]:
    shape, strides, dtype = made
    return [list(shape), list(strides), str(dtype).removeprefix("torch.")]


def _step(step: Any, compiled: Any, sources: list[str]) -> dict[str, Any]:
    # The import is local: it loads Triton, which has compiled the kernel.
    from thunder_ex_triton.fusion.kernel_modules import source_of

    text = source_of(step.kernel.jit.fn)
    if text not in sources:
        sources.append(text)
    if any(type(n) not in (int, float, bool) for n in step.numbers):
        raise NotSaved(f"the kernel {step.kernel.__name__} has an argument that is neither a tensor nor a number")
    return {
        "source": sources.index(text),
        "kernel": step.kernel.__name__,
        "checks": bool(step.kernel.options),
        "grid": [*step.grid],
        "places": [*step.places],
        "numbers": [*step.numbers],
        "warps": step.warps,
        "binary": None if compiled is None else binaries.describe(compiled),
    }


# -- loading -----------------------------------------------------------------------------------------------------------
def load_region(data: dict[str, Any], folder: Path | None = None) -> LoadedRegion:
    """Return the callable of a fusion that `save_region` has saved. Binaries are also looked for in `folder`.

    Raise `NotSaved` if the data is for another version of this package, or for another kind of GPU.
    """
    if data.get("format") != FORMAT:
        raise NotSaved(f"the fusion was saved in format {data.get('format')}, and this version reads {FORMAT}")
    if data["device"] == "cuda":
        _check_capability(data, torch.device("cuda", torch.cuda.current_device()))
    return LoadedRegion(data, folder)


def _check_capability(data: dict[str, Any], device: torch.device) -> None:
    found = torch.cuda.get_device_capability(device)
    if [*found] != data["capability"]:
        raise NotSaved(f"{data['name']} was compiled for compute capability {tuple(data['capability'])}, not {found}")


class LoadedRegion:
    """A fusion that was loaded from data."""

    def __init__(self, data: dict[str, Any], folder: Path | None):
        self.name = self.__name__ = data["name"]
        self.data = data  # to save it again
        self.into: dict[int, int] = dict(data["into"])
        self._folder = folder
        self._layouts = [tuple(tuple(s) for s in program["strides"]) for program in data["programs"]]
        self._programs: dict[Any, Any] = {}  # by device and layout
        self._run: Any = self._general

    def __call__(self, *inputs: torch.Tensor) -> Any:
        results = self._run(*inputs)
        if self.into:
            increment_versions([inputs[i] for i in self.into.values()])
        return results

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def _general(self, *inputs: torch.Tensor) -> Any:
        """Run with inputs of any layout, on any device."""
        layout = tuple([x.stride() for x in inputs])
        device = inputs[0].device
        if layout not in self._layouts or any(x.data_ptr() & 15 for x in inputs):
            return self._run_copies(inputs)
        key = device.index, layout
        run = self._programs.get(key)
        if run is None:
            run = self._programs[key] = self._load(layout, device)
        elif len(self._layouts) == 1 and self._run == self._general and getattr(run, "compiled", True):
            # The functions of warm calls check the layout and the device, and programs that Triton launches do not.
            self._run = run.warm(self._checked(layout), self._general) if hasattr(run, "compiled") else run
            return self._run(*inputs)
        return run(*inputs)

    def _checked(self, layout: Any) -> list[Any]:
        """Return the strides that the function of warm calls checks, with None for contiguous inputs."""
        contiguous = self.data["programs"][self._layouts.index(layout)]["contiguous"]
        return [None if is_it else s for is_it, s in zip(contiguous, layout)]

    def _run_copies(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Run with copies of the inputs in a layout that has a program."""
        layout = self._layouts[0]
        copies = [
            torch.empty_strided(x.shape, s, dtype=x.dtype, device=x.device).copy_(x) for x, s in zip(inputs, layout)
        ]
        results = list(self._general(*copies))
        for k, i in self.into.items():
            results[k] = inputs[i].copy_(copies[i])
        return tuple(results)

    def _load(self, layout: Any, device: torch.device) -> Any:
        data = self.data["programs"][self._layouts.index(layout)]
        if device.type != self.data["device"]:
            raise NotSaved(f"{self.name} was saved for a {self.data['device']} device, and runs on {device}")
        if device.type == "cuda":
            _check_capability(self.data, device)
        made = [_unmade(x) for x in data["outputs"]], [_unmade(x) for x in data["scratch"]]
        steps = data["steps"]
        index = device.index
        loaded = binaries.load([s["binary"] for s in steps], index, self._folder) if device.type == "cuda" else None
        if loaded is None:
            return self._by_triton(data, made, device)
        calls = [
            Step(binary, tuple(s["grid"]), tuple(s["places"]), tuple(s["numbers"])) for binary, s in zip(loaded, steps)
        ]
        return warm_call(
            self.name, len(layout), self._checked(layout), *made, data["results"], calls, index, self._on_another_device
        )

    def _on_another_device(self, *inputs: torch.Tensor) -> Any:
        """Run a call for which the function of warm calls was not generated."""
        layout = tuple([x.stride() for x in inputs])
        device = inputs[0].device
        if layout in self._layouts and not any(x.data_ptr() & 15 for x in inputs):
            with torch.cuda.device(device):
                return (self._programs.get((device.index, layout)) or self._general)(*inputs)
        return self._general(*inputs)

    def _by_triton(self, data: dict[str, Any], made: tuple[list[Made], list[Made]], device: torch.device) -> Any:
        """Return the program of kernels that Triton compiles, or finds in its cache."""
        # The imports are local: they load Triton.
        from thunder_ex_triton.disk_cache import remember_triton
        from thunder_ex_triton.fusion.kernel_modules import load
        from thunder_ex_triton.fusion.program import KernelStep, Program
        from thunder_ex_triton.launch import Kernel

        if not interpreting():
            remember_triton()
        steps = []
        for s in data["steps"]:
            kernel = Kernel(getattr(load(self.data["sources"][s["source"]]), s["kernel"]), checks=s["checks"])
            steps.append(KernelStep(kernel, tuple(s["grid"]), tuple(s["places"]), tuple(s["numbers"]), s["warps"]))
        outputs, scratch = made
        return Program(self.name, len(data["strides"]), outputs, scratch, data["results"], steps, device)


def _unmade(made: Sequence[Any]) -> Made:
    shape, strides, dtype = made
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype):
        raise NotSaved(f"{dtype!r} is no dtype of this version of torch")
    return tuple(shape), tuple(strides), found
