# SPDX-License-Identifier: Apache-2.0
"""Results of CUDA graphs that are read where the graph wrote them: saved values, and gradients of a training step.

The next launch of the graph overwrites them, so it must not happen while a value can still be read. Each launch
therefore hands out new tensors, each with a storage of its own on the graph's memory (through DLPack, which also keeps
this memory alive). A storage that has expired has no reader left: all views and aliases share it.

A training step replaces `.grad` of its parameters, and does not read the old value. `.grad` is then still set when the
next launch overwrites its memory. This is safe if nothing but the parameter refers to the old gradient, which its
reference counts show.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.utils.dlpack
from torch.multiprocessing.reductions import StorageWeakRef

from thunder.runtime.replaced_gradients import replaced
from thunder.runtime.torch_private import from_dlpack, references_to_gradient

__all__ = ["LentResults", "can_be_lent"]


class LentResults:
    """Some of the results of one graph, in the graph's memory."""

    def __init__(self, results: Sequence[torch.Tensor]):
        self._results = results
        self.addresses = {x.data_ptr() for x in results}
        self._lent: list[StorageWeakRef] = []

    def hand_out(self) -> list[torch.Tensor]:
        """Return the results as new tensors."""
        found = [_again(x) for x in self._results]
        self._lent = [StorageWeakRef(x.untyped_storage()) for x in found]
        return found

    def are_unused(self) -> bool:
        """Check whether nobody can read the tensors that were handed out last."""
        self._lent = [ref for ref in self._lent if not ref.expired()]
        read = {ref.cdata for ref in self._lent}
        if not read:
            return True
        inputs = {id(x) for x in replaced.inputs}
        for leaf in replaced.leaves:
            gradient = leaf.grad
            if gradient is None or id(gradient) in inputs:
                continue
            storage = gradient.untyped_storage()._cdata
            if storage in read:
                del gradient
                references = references_to_gradient(leaf)
                if references is None or references != _references_of_slot():
                    return False
                read.discard(storage)
        return not read


def can_be_lent(x: torch.Tensor) -> bool:
    """Check whether DLPack supports a tensor."""
    try:
        again = _again(x)
    except (RuntimeError, TypeError, ValueError, BufferError):
        return False
    return again.shape == x.shape and again.stride() == x.stride() and again.data_ptr() == x.data_ptr()


def _again(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the memory of `x` and a storage of its own."""
    return from_dlpack(torch.utils.dlpack.to_dlpack(x))


@functools.cache
def _references_of_slot() -> tuple[int, int, int] | None:
    """Return the numbers of references to a gradient that only its leaf refers to."""
    leaf = torch.zeros(1, requires_grad=True)
    leaf.grad = torch.zeros(1)
    return references_to_gradient(leaf)
