# SPDX-License-Identifier: Apache-2.0
"""Gradients of casts that common subexpression elimination merged: summed in the dtype before the cast, as in eager.

Contract: the gradient of a merged cast may have the dtype before the cast until the gradient rule of the cast reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol

__all__ = ["MERGED_CASTS", "converted", "has_dtype", "is_only_cast"]

#: The key in `Trace.info` of the merged casts: the name of each result, and the dtype before the cast.
MERGED_CASTS = "merged_casts"


def converted(grad: Any, dtype: Any) -> Any:
    """Return a gradient in a dtype; None for the dtype leaves it as it is."""
    return grad if dtype is None or grad.dtype is dtype else prims.convert_element_type(grad, dtype)


def is_only_cast(grad: Any, operations: Iterable[BoundSymbol]) -> bool:
    """Check whether a rule's operations do nothing else with a gradient than cast it."""
    return all(op.sym is prims.convert_element_type for op in operations if grad.name in op.arg_names)


def has_dtype(x: Any, dtype: Any) -> bool:
    """Check whether a value is a tensor of a dtype."""
    return isinstance(x, TensorProxy) and x.dtype is dtype
