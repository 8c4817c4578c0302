# SPDX-License-Identifier: Apache-2.0
"""What a plugin's probe may ask about the machine: Python, torch, CUDA, other libraries.

Everything is looked up when it is asked for, once. A probe that only needs to know whether a library is installed
imports nothing; only a question about torch or CUDA imports torch.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import platform
import re
from dataclasses import dataclass
from typing import Any

__all__ = ["Availability", "Env", "GpuDevice", "major_and_minor"]


@dataclass(frozen=True)
class Availability:
    """A probe's answer: can the plugin run here, and if not, why not (a line that tells the user what to change).

    A plugin that can run may have a line too: something that users should know of it here.
    """

    ok: bool
    reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.ok, bool):
            raise TypeError(f"Availability.ok must be True or False, but it is {self.ok!r}")
        if not self.ok and not self.reason:
            raise ValueError("Availability(False, …) needs a reason that tells the user why the plugin cannot run")

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True)
class GpuDevice:
    """One GPU as torch sees it."""

    index: int
    name: str
    capability: tuple[int, int]
    total_memory: int


class Env:
    """The machine and the process, lazily. Attributes are cached: an `Env` describes one moment of one process."""

    @property
    def python(self) -> str:
        """The version of Python."""
        return platform.python_version()

    @functools.cached_property
    def platform(self) -> str:
        """Operating system and processor, such as `Linux-x86_64`."""
        return f"{platform.system()}-{platform.machine()}"

    @functools.cached_property
    def thunder_core(self) -> str | None:
        """The version of thunder-core, or None when it runs from a bare source tree."""
        return self.version_of("thunder-core")

    @functools.cached_property
    def _torch(self) -> tuple[Any, str | None]:
        try:
            torch = importlib.import_module("torch")
            # a directory called torch imports as an empty namespace package
            return (torch, None) if hasattr(torch, "Tensor") else (None, "the module 'torch' is not PyTorch")
        except (Exception, SystemExit) as error:
            return None, f"{type(error).__name__}: {error}"

    @property
    def torch(self) -> str | None:
        """The version of torch, or None when it cannot be imported. Imports torch."""
        module, _ = self._torch
        return None if module is None else str(module.__version__)

    @property
    def torch_error(self) -> str | None:
        """Why torch cannot be imported, or None. Imports torch."""
        return self._torch[1]

    @property
    def cuda(self) -> str | None:
        """The CUDA version that torch was built for, or None. Imports torch."""
        module, _ = self._torch
        return None if module is None else module.version.cuda

    @functools.cached_property
    def cuda_error(self) -> str | None:
        """Why no CUDA device can be used, or None when one can. Creates no CUDA context."""
        module, error = self._torch
        if module is None:
            return f"torch cannot be imported ({error})"
        if module.version.cuda is None and getattr(module.version, "hip", None) is None:
            return "this torch was built without CUDA"
        try:
            return None if module.cuda.is_available() else "torch finds no usable CUDA device or driver"
        except Exception as failure:
            return f"{type(failure).__name__}: {failure}"

    @property
    def cuda_available(self) -> bool:
        """Whether torch can use a CUDA device."""
        return self.cuda_error is None

    @functools.cached_property
    def devices(self) -> tuple[GpuDevice, ...]:
        """The GPUs that torch sees, empty when it can use none. Initialises CUDA when there are some."""
        module, _ = self._torch
        if module is None or not self.cuda_available:
            return ()
        properties = [module.cuda.get_device_properties(index) for index in range(module.cuda.device_count())]
        return tuple(
            GpuDevice(index, gpu.name, (gpu.major, gpu.minor), gpu.total_memory) for index, gpu in enumerate(properties)
        )

    def lacks_gpu(self, oldest: tuple[int, int]) -> str | None:
        """Why there is no NVIDIA GPU of this compute capability or newer; None where there is one."""
        if self.cuda_error is not None:
            return f"needs an NVIDIA GPU: {self.cuda_error}"
        if any(gpu.capability >= oldest for gpu in self.devices):
            return None
        there = ", ".join(f"{gpu.name} ({'.'.join(map(str, gpu.capability))})" for gpu in self.devices)
        wanted = ".".join(map(str, oldest))
        return f"needs a GPU of compute capability {wanted} or newer, and there is only {there or 'none'}"

    def has_module(self, name: str) -> bool:
        """Whether a top-level module could be imported, without importing it."""
        try:
            return importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            return False

    def version_of(self, distribution: str) -> str | None:
        """The installed version of a distribution, from its metadata, or None."""
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            return None

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON types. Imports torch."""
        return {
            "python": self.python,
            "platform": self.platform,
            "thunder_core": self.thunder_core,
            "torch": self.torch,
            "torch_error": self.torch_error,
            "cuda": self.cuda,
            "cuda_error": self.cuda_error,
            "devices": [vars(device) for device in self.devices],
        }


def major_and_minor(version: str | None) -> tuple[int, int]:
    """The first two numbers of a version, to be compared; (0, 0) where it does not begin with two."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else (0, 0)
