# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs for tests without a GPU: a launch computes on the memory that was captured."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import thunder
from thunder.transforms.graph_capture import Graph, Memory


def at_address(x: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor that does not keep it alive."""
    x, storage = x.detach(), x.untyped_storage()
    if not storage.nbytes():
        return x
    memory = torch.frombuffer((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr()), dtype=torch.uint8)
    found = on_storage(memory.untyped_storage(), x)
    found = torch._neg_view(found) if x.is_neg() else found
    return found.conj() if x.is_conj() else found


def on_storage(storage: Any, x: torch.Tensor) -> torch.Tensor:
    """A tensor on a storage, at the place that `x` has in its own."""
    return torch.empty(0, dtype=x.dtype).set_(storage, x.storage_offset(), x.shape, x.stride())


class Played:
    """Stands for CUDA's graphs: a launch computes on the memory that was captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail: bool = False):
        self.captures: list[Sequence[Any]] = []
        self.results: list[tuple[Any, list[weakref.ref[torch.Tensor]]]] = []  # of each graph, with its pools

        def capture(fn: Any, inputs: Sequence[Any], pools: Any, tables: Sequence[int]) -> Any:
            if fail:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.captures.append([weakref.ref(x) if isinstance(x, torch.Tensor) else None for x in inputs])
            tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
            given = {x.untyped_storage()._cdata for x in tensors}
            with torch.no_grad():
                before = [x.clone() for x in tensors]
                results = fn(*inputs)
                for x, value in zip(tensors, before):  # nothing runs while it is captured
                    if not torch.equal(x, value):
                        x.copy_(value)
            storages = {x.untyped_storage()._cdata: x.untyped_storage() for x in results}
            made = {k: torch.zeros(s.nbytes(), dtype=torch.uint8).untyped_storage() for k, s in storages.items()}
            outputs = [
                x if (k := x.untyped_storage()._cdata) in given else on_storage(made[k], x.resolve_conj().resolve_neg())
                for x in results
            ]

            own = [None if x.untyped_storage()._cdata in given else x for x in outputs]
            read = [at_address(x) if isinstance(x, torch.Tensor) else x for x in inputs]

            number = len(self.results)
            self.results.append((pools, [weakref.ref(x) for x in own if x is not None]))

            def launch() -> None:
                for others, later in self.results[number + 1 :]:  # may be in the memory of temporary values
                    for x in later if others is pools else ():
                        if (memory := x()) is not None:
                            memory.fill_(3)
                for memory, value in zip(own, fn(*read)):
                    if memory is not None:
                        memory.copy_(value)

            return Graph(launch, outputs, torch.device("cpu"))

        monkeypatch.setattr("thunder.transforms.captured_region.capture", capture)
        monkeypatch.setattr(Memory, "follow", lambda self, device: None)


def always(fn: Any, executors: Sequence[Any] = ("torch",)) -> Any:
    return thunder.jit(fn, executors=[*executors], cuda_graphs="always")
