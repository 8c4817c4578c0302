# SPDX-License-Identifier: Apache-2.0
"""Results of CUDA graphs that are read where the graph wrote them: saved values, and gradients of a training step.

The next launch of the graph overwrites them, so it must not happen while a value can still be read. Each launch
therefore hands out new tensors on the storages of the graph's results. A storage to which nothing else refers has no
reader left: all views and aliases share it. References to its Python object count, too: torch counts this object once.

A training step replaces `.grad` of its parameters, and does not read the old value. `.grad` is then still set when the
next launch overwrites its memory. This is safe if nothing but the parameter refers to the old gradient, which its
reference counts show.
"""

from __future__ import annotations

import bisect
import functools
import sys
from collections.abc import Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from thunder.runtime.replaced_gradients import replaced
from thunder.runtime.torch_private import references_to_gradient, storage_references

__all__ = ["LentResults", "can_be_lent"]


class LentResults:
    """Some of the results of one graph, in the graph's memory."""

    def __init__(self, results: Sequence[torch.Tensor]):
        self._results = results
        self._addresses = [x.data_ptr() for x in results]
        self._storages = {storage._cdata: storage for storage in map(torch.Tensor.untyped_storage, results)}
        self._starts = sorted(storage.data_ptr() for storage in self._storages.values())
        self._ends = {storage.data_ptr(): storage.data_ptr() + storage.nbytes() for storage in self._storages.values()}
        self._handed_out = False  # whether somebody may read the results
        self.resized = False  # whether the graph's memory is not the results' any more
        # The references to each storage while nothing is handed out.
        self._own = self._references()

    @property
    def nbytes(self) -> int:
        """The bytes of the results."""
        return sum(storage.nbytes() for storage in self._storages.values())

    def hand_out(self) -> list[torch.Tensor]:
        """Return the results as new tensors, which are no views, and whose versions begin with zero."""
        self._handed_out = True
        return [x.data for x in self._results]

    def include(self, address: int) -> bool:
        """Check whether an address is in the memory of a result, e.g. of a part of it."""
        at = bisect.bisect_right(self._starts, address) - 1
        return at >= 0 and address < self._ends[self._starts[at]]

    def are_unused(self) -> bool:
        """Check whether nobody can read the tensors that were handed out."""
        if not self._handed_out:
            return True
        if self._addresses != [x.data_ptr() for x in self._results]:
            self._forget_resized()
        read = {k: n - self._own[k] for k, n in self._references().items() if n != self._own[k]}
        if not read:
            self._handed_out = False
            return True
        inputs, slot = {*map(id, replaced.inputs)}, _references_of_slot()
        for leaf in replaced.leaves:
            gradient = leaf.grad
            if gradient is None or id(gradient) in inputs:
                continue
            storage = gradient.untyped_storage()._cdata
            if storage in read:
                del gradient
                if references_to_gradient(leaf) != slot:
                    return False
                read[storage] -= 1
        return not any(read.values())

    def readers(self) -> list[StorageWeakRef]:
        """Return references to the storages which expire when nobody reads them any more, nor this object exists."""
        return [StorageWeakRef(storage) for storage in self._storages.values()]

    def _forget_resized(self) -> None:
        """Forget results whose storages somebody has resized. Other tensors may be in their memory now."""
        self.resized, self._starts = True, []
        whole = [x for x, address in zip(self._results, self._addresses) if x.data_ptr() == address]
        self._results, self._addresses = whole, [x.data_ptr() for x in whole]
        self._storages = {storage._cdata: storage for storage in map(torch.Tensor.untyped_storage, whole)}

    def _references(self) -> dict[int, int]:
        """Return the number of references to each storage and to its Python object, which is the same for all."""
        return {k: storage_references(k) + sys.getrefcount(storage) for k, storage in self._storages.items()}


def can_be_lent(x: torch.Tensor) -> bool:
    """Check whether a tensor has memory of which the readers can be counted."""
    return type(x) is torch.Tensor and x.layout is torch.strided and _references_of_slot() is not None


def _storage(x: torch.Tensor) -> int:
    """Return the identity of a tensor's storage."""
    return x.untyped_storage()._cdata  # type: ignore[no-any-return]


@functools.cache
def _references_of_slot() -> tuple[int, int] | None:
    """Return the numbers of references to a gradient that only its leaf refers to. None: torch cannot count them."""
    leaf = torch.zeros(1, device="cpu", requires_grad=True)
    leaf.grad = torch.zeros(1, device="cpu")
    try:
        storage_references(_storage(leaf))
        return references_to_gradient(leaf)
    except AttributeError:
        return None
