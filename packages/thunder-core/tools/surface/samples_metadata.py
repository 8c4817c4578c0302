# SPDX-License-Identifier: Apache-2.0
"""Samples of names that depend only on a tensor's metadata, and of names that read its values."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from surface.samples import Maker, calls
from thunder.core.samples import SampleInput

_PROPERTIES = ("device", "dtype", "grad_dtype", "grad_fn", "is_cpu", "is_cuda", "is_ipu", "is_leaf", "is_maia",
               "is_meta", "is_mkldnn", "is_mps", "is_mtia", "is_nested", "is_quantized", "is_sparse", "is_sparse_csr",
               "is_vulkan", "is_xla", "is_xpu", "itemsize", "layout", "name", "nbytes", "ndim", "output_nr",
               "requires_grad", "retains_grad", "shape", "data")  # fmt: skip
_METHODS = ("__len__", "__hash__", "dim", "dim_order", "element_size", "get_device", "is_complex", "is_conj",
            "is_contiguous", "is_distributed", "is_floating_point", "is_inference", "is_neg", "is_pinned", "is_signed",
            "ndimension", "nelement", "numel", "size", "storage_offset", "stride", "to_dense")  # fmt: skip
_FUNCTIONS = ("get_device", "is_complex", "is_conj", "is_distributed", "is_floating_point", "is_inference", "is_neg",
              "is_signed", "is_tensor", "numel")  # fmt: skip


@calls(
    *(f"torch.Tensor.{name}" for name in (*_PROPERTIES, *_METHODS)),
    *(f"torch.{name}" for name in _FUNCTIONS),
)
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2, 3))
    yield SampleInput(make(4, 3).t())


@calls("torch.is_same_size", "torch.Tensor.is_same_size", "torch.result_type")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2, 3), make(2, 3))
    yield SampleInput(make(2, 3), make.ints(2))


@calls("torch.can_cast", "torch.promote_types")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(torch.float32, torch.int64)
    yield SampleInput(torch.int64, torch.float32)


@calls("torch.broadcast_shapes")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput((2, 1), (3,), (4, 2, 3))


# -- values -----------------------------------------------------------------------------------------------------------
@calls("torch.Tensor.item", "torch.Tensor.tolist")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make())
    yield SampleInput(make(1))


@calls("torch.nonzero", "torch.Tensor.nonzero", "torch.argwhere", "torch.Tensor.argwhere")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 4) * make.bools(3, 4))


@calls("torch.masked_select", "torch.Tensor.masked_select")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 4), make.bools(3, 4))


@calls("torch.unique", "torch.Tensor.unique", "torch.unique_consecutive", "torch.Tensor.unique_consecutive")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make.ints(12, high=4))
    yield SampleInput(make.ints(12, high=4), return_inverse=True, return_counts=True)


@calls("torch.bincount", "torch.Tensor.bincount")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make.ints(12, high=4))
    yield SampleInput(make.ints(12, high=4), make(12), 6)


@calls("torch.combinations")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4))
    yield SampleInput(make(4), 3, with_replacement=True)
