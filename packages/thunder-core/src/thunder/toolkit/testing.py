# SPDX-License-Identifier: Apache-2.0
"""Test a plugin on a machine without the library or the GPU that the plugin needs.

`FakeEnv` is an environment for a probe that is defined by tables. `registered` uses a plugin even if its probe would
reject it. In `fallbacks_raise`, no test passes because a program ran eagerly. `deterministic_algorithms` chooses them
in the context, and `repeats` checks that results and gradients are equal to the bit then. `measured_times` replaces the
clock of measured choices.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import torch

import thunder
import thunder.extend
from thunder import plugins
from thunder.core.environment import CACHE_VARIABLE
from thunder.extend import measuring
from thunder.plugins import Env, GpuDevice, PluginRegistry
from thunder.plugins.hookspecs import REGISTER_HOOKS

__all__ = [
    "FakeEnv",
    "deterministic_algorithms",
    "fallbacks_raise",
    "gpu",
    "is_ready",
    "measured_times",
    "new_process",
    "registered",
    "repeats",
]


def gpu(name: str = "NVIDIA H200", capability: tuple[int, int] = (9, 0)) -> GpuDevice:
    """Return a GPU of that name and compute capability."""
    return GpuDevice(0, name, capability, 1 << 37)


class FakeEnv(Env):
    """An environment for probes, defined by tables.

    versions: the installed distributions and their versions.
    modules: the modules that can be imported; the default is the names in `versions`.
    gpus: the GPUs that torch finds. `cuda_error` is the reason why torch finds none.
    """

    torch: str | None = None
    cuda: str | None = None

    def __init__(
        self,
        versions: Mapping[str, str | None] | None = None,
        modules: Collection[str] | None = None,
        *,
        gpus: Sequence[GpuDevice] = (gpu(),),
        cuda_error: str | None = None,
        torch: str | None = "2.13.0+cu130",
        cuda: str | None = "13.0",
    ):
        self.versions = dict(versions or {})
        self.modules = self.versions.keys() if modules is None else modules
        self.torch, self.cuda = torch, cuda
        self.devices = tuple(gpus) if cuda_error is None else ()
        self.cuda_error = cuda_error if cuda_error or gpus else "this torch was built without CUDA"

    def has_module(self, name: str) -> bool:
        return name in self.modules

    def version_of(self, distribution: str) -> str | None:
        return self.versions.get(distribution)


def is_ready(plugin: str) -> bool:
    """Load the plugins and check whether an installed plugin can be used here."""
    thunder.extend.get_default_executors()
    return any(record.name == plugin and record.ready for record in plugins.records())


@contextmanager
def registered(name: str, hooks: ModuleType) -> Iterator[dict[str, Any]]:
    """Register everything that the hooks of a plugin register, within the context, without running its probe.

    Yields the plugin's executors by name.
    """
    thunder.extend.get_default_executors()
    registry = PluginRegistry(name)
    for hook in REGISTER_HOOKS:
        if hasattr(hooks, hook):
            getattr(hooks, hook)(registry)
    executors = registry.executors
    registry.close()
    catalog = plugins.manager().catalog
    registry.commit(thunder.extend, catalog)
    try:
        yield executors
    finally:
        catalog.remove(registry.owner)
        for executor in executors.values():
            thunder.extend.deregister_executor(executor)


@contextmanager
def fallbacks_raise() -> Iterator[None]:
    """Raise each `thunder.FallbackWarning` within the context as an error.

    Otherwise a test that compares a jitted function with eager mode passes although the function is not compiled.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", thunder.FallbackWarning)
        yield


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Choose deterministic algorithms (`torch.use_deterministic_algorithms`), also of cuBLAS, within the context."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with mock.patch.dict(os.environ, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}):
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextmanager
def measured_times(times: Mapping[str, float] | Callable[[str], float]) -> Iterator[list[str]]:
    """Replace the clock of measured choices within the context: candidates take these milliseconds, by name.

    Choices are stored in a temporary folder, as on a machine where nothing was measured yet. Candidates are prepared
    and run, but not timed. Yields the list of the names whose time was asked for. Each name occurs once per turn.
    """
    timed: list[str] = []

    def clock(name: str, run: Callable[[], Any], device: torch.device) -> float:
        timed.append(name)
        return times(name) if callable(times) else times[name]

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {CACHE_VARIABLE: folder}))
        stack.enter_context(mock.patch.object(measuring, "clock", clock))
        yield timed


def new_process() -> None:
    """Forget what this process has decided by measurement (not what is stored), as a new process would."""
    measuring.forget_decisions()


def repeats(f: Callable[..., torch.Tensor], *inputs: torch.Tensor, times: int = 5) -> bool:
    """Check with deterministic algorithms that results, and gradients of inputs that require grad, are always equal.

    They are equal if each bit is. `f` is called several times with the same inputs.
    """
    leaves = [x for x in inputs if x.requires_grad]
    first: list[torch.Tensor] = []
    with deterministic_algorithms():
        for _ in range(times):
            out = f(*inputs)
            g = torch.linspace(-1, 1, out.numel(), device=out.device).reshape(out.shape).to(out.dtype)
            found = [out.detach(), *(torch.autograd.grad(out, leaves, g) if leaves else ())]
            first = first or [x.clone() for x in found]
            if not all(torch.equal(_bytes(a), _bytes(b)) for a, b in zip(first, found)):
                return False
    return True


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1).view(torch.uint8)
