# SPDX-License-Identifier: Apache-2.0
"""The gradients of grouped matrix products, in the order of torch, which depends on strides."""

from __future__ import annotations

import torch

from thunder.runtime.kernels.table import kernel

Optional = torch.Tensor | None


def _is_column_major(x: torch.Tensor) -> bool:
    return x.stride(-2) == 1 and x.stride(-1) == x.shape[-2]


def _in_rows(grad: torch.Tensor) -> torch.Tensor:
    """Return a gradient as a tensor whose rows or columns are contiguous, because torch rejects expanded tensors."""
    (m, n), (row, column) = grad.shape[-2:], grad.stride()[-2:]
    good = (row == 1 and column >= max(1, m)) or (column == 1 and row >= max(1, n))
    return grad if good else grad.contiguous()


@kernel
def grouped_mm_left_grad(grad: torch.Tensor, input: Optional, mat2: torch.Tensor, offs: Optional) -> torch.Tensor:
    """Return the gradient of the first factor, with its strides if it is dense."""
    grad = _in_rows(grad)
    if input is not None and _is_column_major(input):
        return torch._grouped_mm(mat2, grad.mT, offs).mT
    return torch._grouped_mm(grad, mat2.mT, offs)


@kernel
def grouped_mm_right_grad(grad: torch.Tensor, input: torch.Tensor, mat2: torch.Tensor, offs: Optional) -> torch.Tensor:
    """Return the gradient of the second factor, with its strides if it is dense."""
    grad = _in_rows(grad)
    if _is_column_major(mat2):
        return torch._grouped_mm(grad.mT, input, offs).mT
    return torch._grouped_mm(input.mT, grad, offs)
