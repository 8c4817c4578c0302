# SPDX-License-Identifier: Apache-2.0
"""A region as a function of its inputs, which nvFuser compiles at the first call with inputs of each layout."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.core.devices import to_torch_device
from thunder.core.dtypes import to_torch_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.execution.regions import Region
from thunder.executors.torch_compile import program_of
from thunder.torch.private import FakeTensorMode
from thunder_ex_nvfuser.library import library
from thunder_ex_nvfuser.source import definition, program

__all__ = ["FusedRegion", "contiguous"]

# Definitions that are alike share what nvFuser compiled. It is kept by text, and dropped when it was not used for long.
MOST_DEFINITIONS = 1024
_layouts: dict[str, list[tuple[int, ...]]] = {}  # of the results, by the definition that lays them out in the usual way
_defining = threading.Lock()  # nvFuser has one definition at a time that is being written


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(int(n), 1)
    return tuple(reversed(strides))


class FusedRegion:
    """Operations as one definition. `source` is its text for contiguous inputs, as a program that can be run."""

    template = "nvFuser's"

    def __init__(self, name: str, region: Region, operations: Sequence[BoundSymbol]):
        self.name = self.__name__ = name
        self.region = region
        self.operations = list(operations)
        self.inputs: list[TensorProxy] = list(region.inputs)  # type: ignore[arg-type]
        self.outputs: list[TensorProxy] = list(region.outputs)  # type: ignore[arg-type]
        self._programs: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *inputs: torch.Tensor) -> Any:
        key = tuple([x.stride() for x in inputs])
        run = self._programs.get(key)
        if run is None:
            return self._first_call(key, inputs)
        return run(inputs)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def source(self) -> str:
        """What nvFuser is told of it, as a program that can be read and run."""
        strides = [contiguous(p.shape) for p in self.inputs]
        return program(
            self.name, self.operations, list(zip(self.inputs, strides)), list(zip(self.outputs, self._layout(strides)))
        )

    def _layout(self, strides: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """How its outputs lie in memory: as torch lays them out, which is asked with tensors that hold nothing."""
        place = _by_place()
        outputs = [(p, contiguous(p.shape)) for p in self.outputs]
        text = definition(self.operations, list(zip(self.inputs, strides)), outputs, named=place)
        if text not in _layouts:
            with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
                inputs = [_like(p, s) for p, s in zip(self.inputs, strides)]
                found = program_of(self.name, self.region).python_callable()(*inputs)
            _layouts[text] = [tuple(x.stride()) for x in found]
        return _layouts[text]

    def _first_call(self, key: tuple[tuple[int, ...], ...], inputs: Sequence[torch.Tensor]) -> Any:
        """Compiles it for this layout. What nvFuser cannot do after all torch does."""
        outputs = list(zip(self.outputs, self._layout(key)))
        text = definition(self.operations, list(zip(self.inputs, key)), outputs, named=_by_place())
        try:
            run: Any = _Program(text, to_torch_device(self.outputs[0].device), outputs)
            result = run.first(inputs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            lines = str(error).strip().splitlines()
            warnings.warn(
                f"nvfuser: {self.name} is not run by nvFuser ({type(error).__name__}: {lines[0] if lines else ''}); "
                "torch runs it",
                stacklevel=3,
            )
            by_torch = program_of(self.name, self.region).python_callable()
            run = lambda inputs: by_torch(*inputs)  # noqa: E731
            result = run(inputs)
        self._programs[key] = run
        return result


def _like(p: TensorProxy, strides: Sequence[int]) -> torch.Tensor:
    return torch.empty_strided(
        tuple(p.shape), tuple(strides), dtype=to_torch_dtype(p.dtype), device=to_torch_device(p.device)
    )


def _by_place() -> Callable[[str], str]:
    """Names values by the order in which they are first written."""
    names: dict[str, str] = {}
    return lambda name: names.setdefault(name, f"v{len(names)}")


@functools.lru_cache(maxsize=MOST_DEFINITIONS)
def _compiled(text: str) -> Any:
    """What nvFuser makes of a definition; it compiles kernels when it sees inputs."""
    nvfuser = library()
    scope = {"DataType": nvfuser.DataType}
    exec(compile(text, "<nvfuser>", "exec"), scope)
    with _defining:
        fd = nvfuser.FusionDefinition()
        fd.__enter__()
        try:
            scope["define"](fd)
        finally:
            fd.__exit__(None, None, None)  # which prints an exception that it is told of
        return nvfuser.FusionExecutorCache(fd.fusion)


class _Program:
    """A region for inputs of one layout."""

    def __init__(self, text: str, device: torch.device, outputs: Sequence[tuple[TensorProxy, tuple[int, ...]]]):
        self.execute = _compiled(text).execute
        self.device = device
        self.wanted = [(tuple(map(int, p.shape)), strides, to_torch_dtype(p.dtype)) for p, strides in outputs]
        self.laid_anew: list[int] = []

    def first(self, inputs: Sequence[torch.Tensor]) -> Any:
        """The first run, which shows what nvFuser's results are."""
        found = self.execute(list(inputs), device=self.device.index)
        taken = {x.untyped_storage().data_ptr() for x in inputs}
        for i, (x, (shape, strides, dtype)) in enumerate(zip(found, self.wanted)):
            if tuple(x.shape) != shape or x.dtype is not dtype:
                raise TypeError(f"result {i} is {x.dtype} of {tuple(x.shape)}, not {dtype} of {shape}")
            where = x.untyped_storage().data_ptr()
            if where in taken or not _lies(x, strides):
                self.laid_anew.append(i)
            taken.add(where)
        return tuple(self._anew(found) if self.laid_anew else found)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Any:
        found = self.execute(inputs, device=self.device.index)
        return tuple(self._anew(found) if self.laid_anew else found)

    def _anew(self, found: list[torch.Tensor]) -> list[torch.Tensor]:
        """The results, those that share memory or lie otherwise than eager's in memory of their own."""
        found = list(found)
        for i in self.laid_anew:
            shape, strides, dtype = self.wanted[i]
            found[i] = torch.empty_strided(shape, strides, dtype=dtype, device=self.device).copy_(found[i])
        return found


def _lies(x: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether it has these strides, where there is more than one element."""
    return all(a == b for a, b, n in zip(x.stride(), strides, x.shape) if n != 1)
