# SPDX-License-Identifier: Apache-2.0
"""Without a GPU the executor is tested with a stand-in for cuDNN, which writes down what it is told.

It computes nothing. Right numbers are tested on a GPU, or are torch's, where the stand-in says that it has no plan.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from thunder.extend import get_executor
from thunder.toolkit.testing import fallbacks_raise, is_ready, registered

os.environ.setdefault("THUNDER_VERIFY", "1")
os.environ.setdefault("THUNDER_STRICT", "1")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Weights and inputs are the same in each run, in whatever order the tests run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    """A program that falls back to eager mode raises an error instead of a warning."""
    with fallbacks_raise():
        yield


class NotSupported(RuntimeError):
    """The stand-in's refusal."""


class Described:
    """A tensor of a graph: what it was made with, and what was said of it afterwards."""

    def __init__(self, uid: int, **said: Any):
        self.uid = uid
        self.said = said

    def get_uid(self) -> int:
        return self.uid

    def _set(self, name: str, value: Any) -> Described:
        self.said[name] = value
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("set_"):
            return lambda value: self._set(name[4:], value)
        raise AttributeError(name)


class Graph:
    """A graph that writes down its operations and executions."""

    def __init__(self, library: Library, **how: Any):
        self.library = library
        self.how = how
        self.tensors: list[Described] = []
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.executions: list[tuple[Any, Any, Any, Any]] = []
        library.graphs.append(self)
        if library.by_address:  # as the frontend has it, where a graph was handed to cuDNN
            self._lowered_graph = SimpleNamespace(_execute_with_raw_ptrs=self._execute)
            self.selected_engine = None
            self.plans, self._plan_index = [SimpleNamespace(cpp_index=3)], 0

    def tensor(self, **said: Any) -> Described:
        made = Described(len(self.tensors) + 1, **said)
        self.tensors.append(made)
        return made

    def _call(self, name: str, results: int, args: Any, kwargs: Any) -> list[Described]:
        self.calls.append((name, args, kwargs))
        return [self.tensor(name=f"{name} {i}") for i in range(results)]

    def sdpa(self, *args: Any, **kwargs: Any) -> list[Any]:
        return self._call("sdpa", 2, args, kwargs)

    def sdpa_backward(self, *args: Any, **kwargs: Any) -> list[Any]:
        return self._call("sdpa_backward", 3, args, kwargs)

    def build(self, heuristics: Any) -> None:
        if self.library.refuses:
            raise NotSupported("the stand-in has no plan")

    def rmsnorm(self, **kwargs: Any) -> list[Any]:
        return self._call("rmsnorm", 2, (), kwargs)

    def layernorm(self, **kwargs: Any) -> list[Any]:
        return self._call("layernorm", 3, (), kwargs)

    def rmsnorm_backward(self, **kwargs: Any) -> list[Any]:
        return [*self._call("rmsnorm_backward", 2, (), kwargs), None]  # no gradient of a bias

    def layernorm_backward(self, **kwargs: Any) -> list[Any]:
        return self._call("layernorm_backward", 3, (), kwargs)

    def _variant_pack_uids(self) -> list[int]:
        return [x.uid for x in self.tensors]

    def _execute(self, where: int, count: int, workspace: int, handle: Any, index: int) -> None:
        addresses = (ctypes.c_void_p * count).from_address(where)
        self.executions.append((list(addresses), workspace, handle, index))

    def get_workspace_size(self) -> int:
        return self.library.workspace

    def execute(self, buffers: Any, workspace: Any, handle: Any, *, tensor_uids: Any) -> None:
        self.executions.append((buffers, workspace, handle, tensor_uids))


class Library:
    """What stands for the module `cudnn`."""

    cudnnGraphNotSupportedError = NotSupported
    data_type = SimpleNamespace(HALF="half", BFLOAT16="bfloat16", FLOAT="float", INT32="int32", INT64="int64")
    diagonal_alignment = SimpleNamespace(TOP_LEFT="top left", BOTTOM_RIGHT="bottom right")
    heur_mode = SimpleNamespace(A="a", FALLBACK="fallback")
    norm_forward_phase = SimpleNamespace(TRAINING="training")

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self.streams: list[int] = []
        self.refuses = False
        self.by_address = False
        self.workspace = 0
        self.capability = (9, 0)

    def backend_version(self) -> int:
        return 91900

    def create_handle(self) -> Any:
        return SimpleNamespace(stream=0, backend_handle=5)

    def destroy_handle(self, handle: Any) -> None:
        handle.stream = None

    def set_stream(self, handle: Any, stream: int) -> None:
        self.streams.append(stream)
        handle.stream = stream

    def pygraph(self, **how: Any) -> Graph:
        return Graph(self, **how)


def _on_the_cpu(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype).fill_(0)


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> Library:
    """The stand-in, in the place of cuDNN and with the CPU in the place of a GPU."""
    from thunder_ex_cudnn import plans, probe
    from thunder_ex_cudnn.attention import graphs, implementation, run, varlen
    from thunder_ex_cudnn.norms import graphs as norm_graphs
    from thunder_ex_cudnn.norms import implementation as norm_implementation
    from thunder_ex_cudnn.norms import run as norm_run

    stand_in = Library()
    for module in (plans, graphs, varlen, norm_graphs):
        monkeypatch.setattr(module, "library", lambda: stand_in)
    for module in (probe, implementation, norm_implementation):
        monkeypatch.setattr(module, "unusable_device", lambda device: None)
    monkeypatch.setattr(plans, "_threads", plans._Threads())
    monkeypatch.setattr(plans, "current_stream", lambda device: 7)
    monkeypatch.setattr(plans, "capability_of", lambda device: stand_in.capability)
    for module in (run, varlen, norm_run):
        monkeypatch.setattr(module, "current_device", lambda: -1)
    for module in (plans, run, norm_run):
        monkeypatch.setattr(module, "new_tensor", _on_the_cpu)
    return stand_in


@pytest.fixture
def executor(cudnn: Library) -> Iterator[Any]:
    """The executor, in use as if its plugin could run here."""
    from thunder_ex_cudnn import plugin

    if is_ready("cudnn"):
        yield get_executor("cudnn")
        return
    with registered("cudnn", plugin) as executors:
        yield executors["cudnn"]
