# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language that sort the elements along a dimension."""

from __future__ import annotations

import operator
from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes, prims
from thunder.core.binder import Binder
from thunder.core.prims.metas import canonicalize_dim
from thunder.core.prims.sorting import distinct_values
from thunder.core.proxies import TensorProxy, number_value
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.core.symint.numbers import index
from thunder.torch.base import torchsymbol

_SHAPE = (OpTags.SHAPE_OP,)


class _StableBinder(Binder):
    """A binder for a parameter `stable`, which torch accepts only if all other arguments are keywords."""

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = super().__call__(args, kwargs)
        if kwargs.get("stable") and len(args) > 1:
            return args[:1], {**dict(zip(self.names[1:], args[1:])), **kwargs}
        return args, kwargs


def _sort_samples(make: MakeTensor) -> Any:
    yield SampleInput(distinct_values(make, 4, 5))
    yield SampleInput(distinct_values(make, 4, 5), 0, True)
    yield SampleInput(distinct_values(make, 2, 3, 4), dim=1)
    yield SampleInput(make((3, 6)), stable=True)
    yield SampleInput(make((3, 6)), dim=0, descending=True, stable=True)
    yield SampleInput(make(()))
    yield SampleInput(make((0, 3)), 0)
    yield SampleInput(distinct_values(make, 4, 5).mT, -1)


def _sort_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 2), IndexError, "Dimension out of range"
    yield SampleInput(make((3,), dtype=dtypes.complex64)), RuntimeError, "[Ss]ort|order"


@torchsymbol(torch.sort, tags=_SHAPE)
def sort(input: TensorProxy, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Any:
    """Return the elements sorted along `dim`, and their original positions."""
    return torch.return_types.sort(prims.sort(input, dim, bool(descending), bool(stable)))


@torchsymbol(torch.argsort, tags=_SHAPE)
def argsort(input: TensorProxy, dim: int = -1, descending: bool = False, *, stable: bool = False) -> TensorProxy:
    """Return the positions that sort the elements along `dim`."""
    return prims.sort(input, dim, bool(descending), bool(stable))[1]


@torchsymbol(torch.msort, tags=_SHAPE)
def msort(input: TensorProxy) -> TensorProxy:
    """Return the elements sorted along the first dimension."""
    return prims.sort(input, 0)[0]


for _sym in (sort, argsort):
    _sym.bind = _StableBinder(_sym.meta, _sym.name)
    _sym.samples(_sort_samples)
    _sym.errors(_sort_errors)


@msort.samples
def _(make: MakeTensor) -> Any:
    for shape in ((4, 3), (), (0, 2), (5,)):
        yield SampleInput(make(shape))


@torchsymbol(torch.topk, tags=_SHAPE)
def topk(input: TensorProxy, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Return the `k` largest (or smallest) elements along `dim`, and their positions."""
    k = index(number_value(k))
    clang.base.demand(k, ">=", 0, lambda: f"selected index k out of range: k is {k}")
    length = input.shape[canonicalize_dim(input.ndim, dim)] if input.ndim else 1
    clang.base.demand(k, "<=", length, lambda: f"selected index k out of range: k is {k}, there are {length} elements")
    return torch.return_types.topk(prims.topk(input, k, dim, bool(largest), bool(sorted)))


topk.samples_of(prims.topk)


@torchsymbol(torch.kthvalue, tags=_SHAPE)
def kthvalue(input: TensorProxy, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the `k`-th smallest element along `dim`, counted from 1, and its position."""
    pair = prims.kthvalue(input, operator.index(number_value(k)), dim)
    if keepdim and input.ndim:
        pair = tuple([clang.unsqueeze(x, canonicalize_dim(input.ndim, dim)) for x in pair])
    return torch.return_types.kthvalue(pair)


@kthvalue.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(distinct_values(make, 4, 6), 3)
    yield SampleInput(distinct_values(make, 4, 6), 2, 0, True)
    yield SampleInput(make(()), 1)
    yield SampleInput(make((0, 2)), 1, 1)
    yield SampleInput(distinct_values(make, 6, 4).mT, 4, 0)


@kthvalue.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 4), RuntimeError, r"kthvalue\(\): selected number k out of range for dimension 1"
    yield SampleInput(make((2, 0)), 1), IndexError, "to have non-zero size"
