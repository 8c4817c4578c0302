# SPDX-License-Identifier: Apache-2.0
"""The operator `multimul`: two multiplications, defined by thunder's operations and run by NumPy."""

from __future__ import annotations

from numbers import Number
from typing import Any

import numpy as np
import torch


def like(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
    """Define the operator. Its metadata and its gradient are derived from this function."""
    return a * b, c * d


def run(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
    """Compute the operator on real tensors and numbers."""
    return _multiply(a, b), _multiply(c, d)


def _multiply(a: Any, b: Any) -> Any:
    if isinstance(a, Number) and isinstance(b, Number):
        return a * b
    x, y = (each.numpy(force=True) if isinstance(each, torch.Tensor) else each for each in (a, b))
    with np.errstate(all="ignore"):  # overflow gives infinity without a warning, as in torch
        return torch.from_numpy(np.asarray(np.multiply(x, y)))
