# SPDX-License-Identifier: Apache-2.0
"""The check of tensors' metadata in a saved prologue. It is exchanged for torch's check when it first accepts a call.

torch's check is made from tensors, which a new process does not have before its first call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.runtime.tensor_check import TensorCheck, explain_difference, metadata_of, sameness
from thunder.runtime.torch_private import dispatch_keys

__all__ = ["SavedTensorCheck"]


class SavedTensorCheck:
    """Compares the metadata of several tensors with that of the call for which the program was traced."""

    def __init__(
        self,
        expected: Sequence[tuple[Any, ...]],
        names: Sequence[str],
        dims: Sequence[frozenset[int]],
        keys: Sequence[int | None],
        same: tuple[int, ...] | None,
    ):
        self.expected = list(expected)
        self.names = list(names)
        self.dims = list(dims)
        self.dispatch_keys = list(keys)
        self.same = same
        self.accepts: Callable[..., bool] = self._accepts_first

    def _accepts_first(self, *tensors: Any) -> bool:
        """Compare in Python. If all metadata is equal, check later calls with torch."""
        if len(tensors) != len(self.expected) or sameness([*map(id, tensors)]) != self.same:
            return False
        for t, expected, dims, keys in zip(tensors, self.expected, self.dims, self.dispatch_keys):
            if not isinstance(t, torch.Tensor) or metadata_of(t, dims) != expected:
                return False
            if keys is not None and dispatch_keys(t) != keys:
                return False
        self.accepts = TensorCheck(tensors, self.names, self.dims).accepts
        return True

    def __call__(self, tensors: Sequence[Any]) -> bool:
        return self.accepts(*tensors)

    def changed_sizes(self, tensors: Sequence[Any]) -> list[tuple[Any, int]]:
        """Return nothing: a saved program does not know the sources of its tensors."""
        return []

    def explain(self, tensors: Sequence[Any]) -> str:
        """Describe the first difference."""
        return explain_difference(self, tensors)
