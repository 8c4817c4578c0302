# SPDX-License-Identifier: Apache-2.0
"""Matrix multiplications of the core language."""

from __future__ import annotations

from thunder.clang.base import clangop
from thunder.core import prims
from thunder.core.proxies import TensorProxy

__all__ = ["linear", "matmul"]


@clangop(method_name="matmul")
def matmul(a: TensorProxy, b: TensorProxy) -> TensorProxy:
    """Return the matrix product `a @ b`."""
    return prims.matmul(a, b)


@clangop()
def linear(a: TensorProxy, w: TensorProxy, bias: TensorProxy | None = None) -> TensorProxy:
    """Compute `a @ w.mT + bias`."""
    return prims.linear(a, w, bias)
