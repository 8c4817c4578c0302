# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays as inputs and results of compiled programs. NumPy is imported by the first program that uses it."""

from __future__ import annotations

import functools
from typing import Any

import torch

from thunder.runtime.guards import GuardFailed

# Programs that are traced see replacements of this function.
from_numpy = torch.from_numpy

__all__ = ["array_of", "array_tensor", "dtype_of", "from_numpy", "new_array", "number_of", "shared_tensor"]


@functools.cache
def _ndarray() -> Any:
    import numpy

    return numpy.ndarray


def shared_tensor(x: Any) -> torch.Tensor | None:
    """Return a tensor with the memory of an array, or None if no tensor has its dtype, its strides or its class."""
    if type(x) is not _ndarray() or not x.flags.writeable or not x.dtype.isnative:
        return None
    try:
        return from_numpy(x)
    except (TypeError, ValueError):  # e.g. an array of objects, or negative strides
        return None


def array_tensor(x: Any) -> torch.Tensor:
    """Return a tensor with the memory of an array that is an input of the program."""
    found = shared_tensor(x)
    if found is None:
        raise GuardFailed("an array was a writable numpy.ndarray of numbers and is", type(x))
    return found


def array_of(t: torch.Tensor) -> Any:
    """Return the array of a tensor's memory."""
    return t.detach().numpy()


def new_array(x: Any) -> Any:
    """Return a copy of an array."""
    return x.copy()


def number_of(t: torch.Tensor) -> Any:
    """Return the NumPy number in a tensor."""
    return t.detach().numpy()[()]


@functools.cache
def dtype_of(dtype: torch.dtype) -> Any:
    """Return NumPy's dtype of the elements of a tensor."""
    import numpy

    return numpy.dtype(str(dtype).removeprefix("torch."))
