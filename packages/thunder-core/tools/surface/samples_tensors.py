# SPDX-License-Identifier: Apache-2.0
"""Samples of functions that create, reshape, copy, count and compare tensors."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from surface.samples import Maker, calls
from thunder.core.samples import SampleInput


# -- creation ----------------------------------------------------------------------------------------------------------
@calls("torch.as_tensor", "torch.asarray")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2, 3))
    yield SampleInput([[1.0, 2.0], [3.0, 4.0]])
    yield SampleInput(make(2, 3), dtype=torch.float64)


@calls("torch.bartlett_window", "torch.blackman_window", "torch.hamming_window", "torch.hann_window",
       "torch.kaiser_window")  # fmt: skip
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(7)
    yield SampleInput(6, periodic=False, dtype=torch.float64)


@calls("torch.range")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(1, 4)
    yield SampleInput(1.0, 4.0, 0.5)


@calls("torch.empty_permuted")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput((2, 3, 4), (2, 0, 1))


@calls("torch.Tensor.new_empty_strided")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2), (2, 3), (1, 2))


@calls("torch.Tensor.new")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(2), [1.0, 2.0])


# -- views and copies -------------------------------------------------------------------------------------------------
@calls("torch.alias_copy", "torch.detach_copy", "torch.t_copy", "torch.Tensor.__deepcopy__", "torch.Tensor.__iter__",
       "torch.Tensor.__reversed__", "torch.unbind_copy", "torch.zero_", "torch.Tensor.zero_")  # fmt: skip
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 4))
    yield SampleInput(make(3, 4).t())


@calls("torch.as_strided_copy")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 4), (2, 2), (1, 2), 1)


@calls("torch.diagonal_copy")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 4))
    yield SampleInput(make(3, 4, 2), 1, 1, 2)


@calls("torch.expand_copy")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 1), (2, 3, 4))


@calls("torch.permute_copy")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 1, 2), (2, 0, 1))


@calls("torch.select_copy", "torch.squeeze_copy", "torch.unsqueeze_copy")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 1, 2), 1, 0)
    yield SampleInput(make(3, 1, 2), 1)


@calls("torch.slice_copy")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(5, 2), 0, 1, 4, 2)


@calls("torch.split_copy", "torch.unsafe_split", "torch.Tensor.unsafe_split", "torch.unsafe_chunk",
       "torch.Tensor.unsafe_chunk")  # fmt: skip
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(5, 2), 2)
    yield SampleInput(make(2, 6), 3, 1)


@calls("torch.split_with_sizes_copy", "torch.unsafe_split_with_sizes", "torch.Tensor.unsafe_split_with_sizes")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(5, 2), [2, 3])


@calls("torch.transpose_copy")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(5, 2, 3), 0, 2)


@calls("torch.unfold_copy")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(5, 2), 0, 3, 1)


@calls("torch.view_as_complex_copy")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(5, 2))


@calls("torch.view_as_real_copy")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(5, 2, dtype=torch.complex64))


@calls("torch.view_copy")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 2), (2, 4))


@calls("torch.Tensor.requires_grad_")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 2), False)


# -- in-place writes ---------------------------------------------------------------------------------------------------
@calls("torch.Tensor.copy_")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 4), make(3, 4))
    yield SampleInput(make(3, 4), make(4))
    yield SampleInput(make(3, 4), make.ints(3, 1))


@calls("torch.Tensor.__setitem__")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 4), 1, 2.0)
    yield SampleInput(make(3, 4), (slice(None), 1), make(3))
    yield SampleInput(make(3, 4), make.bools(3, 4), 0.0)


@calls("torch.Tensor.fill_diagonal_")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 4), 2.0)
    yield SampleInput(make(7, 3), 2.0, wrap=True)


@calls("torch.Tensor.float_power_")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 4, dtype=torch.float64, low=1), 2.0)


@calls("torch.Tensor.where")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 4), make.bools(3, 4), make(4))


# -- counting, sorting, comparing -------------------------------------------------------------------------------------
@calls("torch.histc", "torch.Tensor.histc")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(12), 5)
    yield SampleInput(make(12), 5, -3, 3)


@calls("torch.histogram", "torch.Tensor.histogram")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(12), 5)
    yield SampleInput(make(12), 5, range=(-3.0, 3.0), weight=make(12), density=False)


@calls("torch.histogramdd")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(12, 2), [3, 4])


@calls("torch.hash_tensor", "torch.Tensor.hash_tensor")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(12))


@calls("torch.mode", "torch.Tensor.mode")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 5))
    yield SampleInput(make(3, 5), 0, True)


@calls("torch.nanmedian", "torch.Tensor.nanmedian")
def _(make: Maker) -> Iterator[SampleInput]:
    x = make(3, 5)
    x[1, 2] = torch.nan
    yield SampleInput(x)
    yield SampleInput(x, 1, True)


@calls("torch.quantile", "torch.Tensor.quantile", "torch.nanquantile", "torch.Tensor.nanquantile")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 5), 0.3)
    yield SampleInput(make(3, 5), make.unit(4), 1, keepdim=True)
    for how in ("lower", "higher", "midpoint", "nearest"):
        yield SampleInput(make(3, 5), 0.3, 0, interpolation=how)


@calls("torch.segment_reduce")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(6), "sum", lengths=torch.tensor([2, 4]))


@calls("torch.unravel_index")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make.ints(5, high=12), (3, 4))


@calls("torch.trapezoid", "torch.trapz", "torch.cumulative_trapezoid")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 5))
    yield SampleInput(make(3, 5), make(3, 5))
    yield SampleInput(make(3, 5), dx=0.5, dim=0)


@calls("torch.gradient")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(5))
    yield SampleInput(make(4, 5), spacing=0.5)
    yield SampleInput(make(4, 5), dim=1, edge_order=2)
    yield SampleInput(make(4, 5), spacing=(torch.tensor([0.0, 1.0, 3.0, 4.0]), torch.arange(5.0) * 2))


@calls("torch.vander", "torch.linalg.vander")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4))
    yield SampleInput(make(4), N=3)


@calls("torch.cdist")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 3), make(5, 3))
    yield SampleInput(make(2, 4, 3), make(1, 5, 3), p=1.0)


@calls("torch.pdist", "torch.nn.functional.pdist")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 3))
    yield SampleInput(make(4, 3), 3.0)


@calls("torch.renorm", "torch.Tensor.renorm", "torch.Tensor.renorm_")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 3), 2, 0, 5.0)


# -- random numbers ----------------------------------------------------------------------------------------------------
@calls("torch.binomial")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(torch.full((5,), 10.0), make.unit(5))
