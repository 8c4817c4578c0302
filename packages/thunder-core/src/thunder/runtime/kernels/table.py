# SPDX-License-Identifier: Apache-2.0
"""The table of kernels, by the names that programs use. `thunder.runtime.names` looks names up in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from thunder.runtime.torch_originals import original_torch

__all__ = ["kernel", "kernels"]

F = TypeVar("F", bound=Callable[..., Any])

#: Each kernel by its name in the text of programs.
kernels: dict[str, Callable[..., Any]] = {}


def kernel(function: F) -> F:
    """Add a function to the table, under its name. Its file then calls the functions of torch as they were."""
    function.__globals__["torch"] = original_torch
    kernels[function.__name__] = function
    return function
