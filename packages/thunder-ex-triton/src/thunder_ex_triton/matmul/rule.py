# SPDX-License-Identifier: Apache-2.0
"""The rule that decides which matrix multiplications are padded, and to which sizes.

cuBLAS' fast kernels load and store vectors of 16 bytes, so each row of both operands and of the result (each column,
if an operand is a transposed view) must begin at a multiple of 16 bytes. For other sizes cuBLAS has slow kernels. A
language model with 50257 tokens has such sizes: the logits, and both matrix multiplications of their gradient.

The rule applies only to half precision. In float32 the fast kernels need TF32, which a global setting of torch enables
and disables at run time, and the slow kernels lose little without it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

__all__ = ["Sizes", "aligned", "aligned_sizes", "padded_sizes", "pays"]

DTYPES = (torch.float16, torch.bfloat16)
DEVICES: tuple[str, ...] = ("cuda",)

# The times behind the decision, for one H200. Only their ratios matter, and only near the threshold.
FLOPS = 700e12  # operations per second of an aligned matrix multiplication
SLOWDOWN = 5  # of the kernels for sizes that are not aligned: 5 to 8 were measured
COPIED = 2.5e12  # bytes per second, read and written, of a copy into padded memory
LAUNCH = 5e-6  # seconds of one more kernel

_VECTOR = 16  # bytes that cuBLAS loads at a time
# Elements. A multiple of the vector (8 elements), because Triton vectorizes only for strides that are multiples of 16.
_MULTIPLE = 16


class Sizes(NamedTuple):
    """The sizes of a matrix multiplication: `(m, k) @ (k, n)`."""

    m: int
    n: int
    k: int


def aligned(size: int, itemsize: int = 2) -> int:
    """Return the size to which a dimension is padded: `size` itself if rows of this size are aligned."""
    return size if size * itemsize % _VECTOR == 0 else -(-size // _MULTIPLE) * _MULTIPLE


def padded_sizes(
    sizes: Sizes, dtype: torch.dtype, device_type: str, *, batch: int = 1, a_columns: bool = False,
    b_columns: bool = False,
) -> Sizes | None:  # fmt: skip
    """Return the sizes of the padded matrix multiplication; None if padding is not needed or not profitable.

    `a_columns` and `b_columns` are true if the columns of an operand are contiguous, because it is a transposed view.
    """
    how: Any = {"batch": batch, "a_columns": a_columns, "b_columns": b_columns}
    padded = aligned_sizes(sizes, dtype, device_type, **how)
    return padded if padded is not None and pays(sizes, padded, batch, dtype.itemsize) else None


def aligned_sizes(
    sizes: Sizes, dtype: torch.dtype, device_type: str, *, batch: int = 1, a_columns: bool = False,
    b_columns: bool = False,
) -> Sizes | None:  # fmt: skip
    """Return the sizes of the padded matrix multiplication; None if padding is not needed."""
    m, n, k = sizes
    if dtype not in DTYPES or device_type not in DEVICES or 0 in (batch, m, n, k):
        return None
    contiguous = {"m" if a_columns else "k", "k" if b_columns else "n", "n"}  # the sizes of rows in memory
    padded = Sizes(*[aligned(x) if name in contiguous else x for name, x in zip("mnk", sizes)])
    return padded if padded != sizes else None


def pays(sizes: Sizes, padded: Sizes, batch: int, itemsize: int) -> bool:
    """Estimate whether padding saves time. Each padded operand, and a result that is cut, cost a copy."""
    (m, n, k), (pm, pn, pk) = sizes, padded
    faster = 2 * batch * (m * n * k * SLOWDOWN - pm * pn * pk) / FLOPS
    cut = n != pn or (batch > 1 and m != pm)
    copies = [(pm, pk)] * ((m, k) != (pm, pk)) + [(pk, pn)] * ((k, n) != (pk, pn)) + [(pm, pn)] * cut
    moved = sum(2 * batch * rows * columns * itemsize for rows, columns in copies)
    return faster - moved / COPIED - LAUNCH * len(copies) > 0
