# SPDX-License-Identifier: Apache-2.0
"""Arguments that torch's losses share: the reduction, in the current spelling and the deprecated one."""

from __future__ import annotations

import warnings
from typing import Any

from thunder import clang
from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.proxies import TensorProxy
from thunder.core.symint.numbers import equal_shapes

__all__ = ["Flag", "reduced", "reduction_of", "upcast", "warn_of_sizes"]

Flag = bool | None


def reduction_of(reduction: str, size_average: Flag = None, reduce: Flag = None) -> str:
    """Return the reduction for `reduction`, or for the deprecated arguments `size_average` and `reduce`."""
    if size_average is not None or reduce is not None:
        by_size, at_all = (True if x is None else x for x in (size_average, reduce))
        reduction = "none" if not at_all else "mean" if by_size else "sum"
        warnings.warn(
            f"size_average and reduce args will be deprecated, please use reduction='{reduction}' instead.",
            stacklevel=6,
        )
    check(reduction in ("none", "mean", "sum"), lambda: f"{reduction} is not a valid value for reduction", ValueError)
    return reduction


def reduced(loss: TensorProxy, reduction: str, dtype: dtypes.dtype | None = None) -> Any:
    """Return the losses of all elements, their mean, or their sum, in `dtype`."""
    if reduction == "mean":
        loss = clang.mean(loss)
    elif reduction == "sum":
        loss = clang.sum(loss)
    return loss if dtype is None else clang.maybe_convert_to_dtype(loss, dtype)


def upcast(*tensors: Any) -> tuple[Any, ...]:
    """Return the tensors in the dtype that losses are computed in. None stays None."""
    return tuple(
        None if x is None else clang.maybe_convert_to_dtype(x, clang.reductions.compute_dtype(x.dtype)) for x in tensors
    )


def warn_of_sizes(input: TensorProxy, target: TensorProxy) -> None:
    """Emit torch's warning for a loss of tensors with different shapes."""
    if not equal_shapes(input.shape, target.shape):
        warnings.warn(
            f"Using a target size (torch.Size({list(target.shape)})) that is different to the input size "
            f"(torch.Size({list(input.shape)})). This will likely lead to incorrect results due to broadcasting. "
            "Please ensure "
            "they have the same size.",
            stacklevel=6,
        )
