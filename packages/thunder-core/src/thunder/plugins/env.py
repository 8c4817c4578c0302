# SPDX-License-Identifier: Apache-2.0
"""The environment that a plugin's probe can query: Python, torch, CUDA and other libraries.

Every property is computed on first access and cached. A probe that only checks whether a library is installed imports
nothing. Only properties of torch or CUDA import torch.
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

__all__ = [
    "AcceleratorDevice", "Availability", "Env", "GpuDevice", "describe_error", "major_and_minor", "reject_device",
    "reject_version",
]  # fmt: skip

Version = tuple[int, ...]


@dataclass(frozen=True)
class Availability:
    """A probe's result: whether the plugin can run here. If it cannot, `reason` is one line that says what to change.

    A plugin that can run may also return a note for users.
    """

    ok: bool
    reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.ok, bool):
            raise TypeError(f"Availability.ok must be True or False, but it is {self.ok!r}")
        if not self.ok and not self.reason:
            raise ValueError("Availability(False, …) needs a reason why the plugin cannot run")

    def __bool__(self) -> bool:
        return self.ok

    @classmethod
    def unless(cls, reason: str | None, note: str | None = None) -> Availability:
        """Return a negative result with `reason`, or, if `reason` is None, a positive result with `note`."""
        return cls(True, note or "") if reason is None else cls(False, reason)


@dataclass(frozen=True)
class GpuDevice:
    """One GPU as torch reports it."""

    index: int
    name: str
    capability: tuple[int, int]
    total_memory: int


@dataclass(frozen=True)
class AcceleratorDevice:
    """One device of any type that torch knows, e.g. `xpu`, `mps` or a vendor's. `total_memory` is None if unknown."""

    type: str
    index: int
    name: str
    total_memory: int | None = None


class Env:
    """The machine and the process. Properties are computed lazily and cached: an `Env` is a snapshot of one process."""

    @property
    def python(self) -> str:
        """The version of Python."""
        return platform.python_version()

    @functools.cached_property
    def platform(self) -> str:
        """The operating system and processor, e.g. `Linux-x86_64`."""
        return f"{platform.system()}-{platform.machine()}"

    @functools.cached_property
    def thunder_core(self) -> str | None:
        """The version of thunder-core; None if thunder runs from a source tree that is not installed."""
        return self.version_of("thunder-core")

    @functools.cached_property
    def _torch(self) -> tuple[Any, str | None]:
        try:
            # The import is local on purpose: this property checks whether it succeeds.
            torch = importlib.import_module("torch")
            # a folder named torch is imported as an empty namespace package
            return (torch, None) if hasattr(torch, "Tensor") else (None, "the module 'torch' is not PyTorch")
        except (Exception, SystemExit) as error:
            return None, f"{type(error).__name__}: {error}"

    @property
    def torch(self) -> str | None:
        """The version of torch; None if torch cannot be imported. Imports torch."""
        module, _ = self._torch
        return None if module is None else str(module.__version__)

    @property
    def torch_error(self) -> str | None:
        """The reason why torch cannot be imported, or None. Imports torch."""
        return self._torch[1]

    @property
    def cuda(self) -> str | None:
        """The CUDA version that torch was built for, or None. Imports torch."""
        module, _ = self._torch
        return None if module is None else module.version.cuda

    @functools.cached_property
    def cuda_error(self) -> str | None:
        """The reason why no CUDA device can be used, or None. Creates no CUDA context."""
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
        """The GPUs that torch can use. Initialises CUDA if there are any."""
        module, _ = self._torch
        if module is None or not self.cuda_available:
            return ()
        properties = [module.cuda.get_device_properties(index) for index in range(module.cuda.device_count())]
        return tuple(
            GpuDevice(index, gpu.name, (gpu.major, gpu.minor), gpu.total_memory) for index, gpu in enumerate(properties)
        )

    @functools.cached_property
    def accelerators(self) -> tuple[AcceleratorDevice, ...]:
        """The devices of the accelerator that torch uses in this process, of whatever vendor.

        torch loads the backend of a vendor when it is imported (the entry point `torch.backends`), or when the backend
        itself is imported.
        """
        module, _ = self._torch
        try:
            current = module.accelerator.current_accelerator(check_available=True)
            backend = None if current is None else module.get_device_module(current)
            count = 0 if backend is None else backend.device_count()
            return tuple(_describe_device(current.type, backend, index) for index in range(count))
        except Exception:  # a broken backend has no usable device
            return ()

    def lacks_device(self, device_type: str, *, install: str | None = None) -> str | None:
        """Return why this machine has no device of a type, e.g. a vendor's; None if it has one.

        install: the command that installs the backend of the device for torch, for the message.
        """
        there = {each.type for each in self.accelerators} | ({"cuda"} if self.devices else set())
        if device_type in there:
            return None
        reason = f"needs a device of type {device_type!r}, but torch finds {', '.join(sorted(there)) or 'none'}"
        return f"{reason}: {install}" if install else reason

    def lacks_gpu(self, oldest: Version, before: Version | None = None) -> str | None:
        """Return why there is no NVIDIA GPU with a compute capability in this range; None if there is one."""
        if self.cuda_error is not None:
            return f"needs an NVIDIA GPU: {self.cuda_error}"
        if any(_is_between(gpu.capability, oldest, before) for gpu in self.devices):
            return None
        there = ", ".join(f"{gpu.name} ({_dotted(gpu.capability)})" for gpu in self.devices)
        return f"needs a GPU of compute capability {_range(oldest, before)}, but this machine has {there or 'none'}"

    def lacks_version(
        self,
        distribution: str,
        oldest: Version,
        before: Version | None = None,
        *,
        install: str,
        name: str | None = None,
        module: str | None = None,
    ) -> str | None:
        """Return why a distribution is missing or has a version outside this range; None if it is usable.

        install: the command that installs the distribution, for the message.
        name: its name in messages.
        module: a module that must also be importable.
        """
        name = name or distribution
        version = self.version_of(distribution)
        if version is None or (module is not None and not self.has_module(module)):
            return f"needs {name}, which is not installed: {install}"
        return reject_version(name, version, oldest, before, install=install)

    def has_module(self, name: str) -> bool:
        """Check whether a top-level module can be found, without importing it."""
        try:
            return importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            return False

    def version_of(self, distribution: str) -> str | None:
        """Return the installed version of a distribution, from its metadata; None if it is not installed."""
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            return None

    def to_dict(self) -> dict[str, Any]:
        """Return all properties as JSON types. Imports torch."""
        return {
            "python": self.python,
            "platform": self.platform,
            "thunder_core": self.thunder_core,
            "torch": self.torch,
            "torch_error": self.torch_error,
            "cuda": self.cuda,
            "cuda_error": self.cuda_error,
            "devices": [vars(device) for device in self.devices],
            "accelerators": [vars(device) for device in self.accelerators],
        }


def _describe_device(kind: str, backend: Any, index: int) -> AcceleratorDevice:
    """Describe a device. Its backend may offer less than CUDA's."""
    properties = backend.get_device_properties(index) if hasattr(backend, "get_device_properties") else None
    name = getattr(properties, "name", None)
    if name is None and hasattr(backend, "get_device_name"):
        name = backend.get_device_name(index)
    return AcceleratorDevice(kind, index, name or kind, getattr(properties, "total_memory", None))


def major_and_minor(version: str | None) -> tuple[int, int]:
    """Return the first two numbers of a version, for comparisons.

    Return (0, 0) if it does not start with two numbers.
    """
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else (0, 0)


def reject_version(
    name: str, version: str, oldest: Version, before: Version | None = None, *, install: str | None = None
) -> str | None:
    """Return why a version is outside this range; None if it is inside.

    A version that does not start with two numbers is outside. `install` is the command that installs a suitable
    version.
    """
    found = re.match(r"\d+(\.\d+)+", version)
    if found and _is_between(tuple(map(int, found[0].split("."))), oldest, before):
        return None
    reason = f"needs {name} {_range(oldest, before)}, but {version} is installed"
    return f"{reason}: {install}" if install else reason


def reject_device(device: Any, library: str, types: tuple[str, ...] = ("cuda",)) -> str | None:
    """Return why a library for NVIDIA GPUs cannot run on a device; None if it can.

    types: the device types that it supports.
    """
    kind = getattr(device, "type", None) or str(device).partition(":")[0]
    return None if kind in types else f"{library} runs on NVIDIA GPUs, not on {kind}"


def describe_error(error: BaseException) -> str:
    """Return an error's type and the first line of its message, to report a library that fails to load."""
    lines = str(error).strip().splitlines()
    first = re.sub(r"\s+", " ", lines[0]) if lines else ""
    return f"{type(error).__name__}: {first}"


def _is_between(version: Version, oldest: Version, before: Version | None) -> bool:
    return version >= oldest and (before is None or version < before)


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _range(oldest: Version, before: Version | None) -> str:
    return f"{_dotted(oldest)} or newer" + (f", before {_dotted(before)}" if before is not None else "")
