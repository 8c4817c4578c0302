# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language along a dimension: cumulative sums, products and extremes, and differences."""

from __future__ import annotations

import operator
from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes, prims
from thunder.core.errors import check
from thunder.core.prims.metas import canonicalize_dim
from thunder.core.prims.scans import scan_samples, wrong_dims
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.torch.base import torchsymbol
from thunder.torch.joining import concat
from thunder.torch.shape import own_memory

_TAGS = (OpTags.REDUCTION_OP,)


def _promoted(a: TensorProxy, dtype: Any) -> TensorProxy:
    """Return `a` in `dtype`. By default, integers and booleans become int64, as in torch."""
    if dtype is not None:
        return clang.maybe_convert_to_dtype(a, dtypes.to_dtype(dtype))
    return clang.maybe_convert_to_dtype(a, dtypes.int64) if dtypes.is_exact_dtype(a.dtype) else a


@torchsymbol(torch.cumsum, tags=_TAGS, autocast={"cuda": "float32"})
def cumsum(input: TensorProxy, dim: int, *, dtype: Any = None) -> TensorProxy:
    """Return the cumulative sums along `dim`."""
    return prims.cumsum(_promoted(input, dtype), dim)


@torchsymbol(torch.cumprod, tags=_TAGS, autocast={"cuda": "float32"})
def cumprod(input: TensorProxy, dim: int, *, dtype: Any = None) -> TensorProxy:
    """Return the cumulative products along `dim`."""
    return prims.cumprod(_promoted(input, dtype), dim)


@torchsymbol(torch.logcumsumexp, tags=_TAGS)
def logcumsumexp(input: TensorProxy, dim: int) -> TensorProxy:
    """Return the cumulative logsumexp along `dim`: the logarithms of the cumulative sums of exponentials."""
    if not dtypes.is_inexact_dtype(input.dtype):
        if input.ndim == 0 and input.device.type != "cpu":
            return prims.clone(input)  # torch's GPU kernels do not check the dtype if there is nothing to sum
        raise NotImplementedError(
            f"logcumsumexp is not implemented for {input.dtype}. Convert the input to a floating point dtype"
        )
    return prims.logcumsumexp(input, dim)


@torchsymbol(torch.cummax, tags=_TAGS)
def cummax(input: TensorProxy, dim: int) -> Any:
    """Return the cumulative maxima along `dim`, and their positions."""
    return torch.return_types.cummax(prims.cummax(input, dim))


@torchsymbol(torch.cummin, tags=_TAGS)
def cummin(input: TensorProxy, dim: int) -> Any:
    """Return the cumulative minima along `dim`, and their positions."""
    return torch.return_types.cummin(prims.cummin(input, dim))


@cumsum.samples
def _(make: MakeTensor) -> Any:
    yield from scan_samples(make, low=-2, high=2)
    yield SampleInput(make((4, 3), low=-2, high=2), 0, dtype=torch.float64)


@cumprod.samples
def _(make: MakeTensor) -> Any:
    yield from scan_samples(make, low=0, high=2)
    # torch's gradient is wrong for a complex input with a real dtype: it multiplies the complex numbers.
    wide = torch.complex128 if make(()).is_complex() else torch.float64
    yield SampleInput(make((4, 3), low=0, high=2), 0, dtype=wide)


logcumsumexp.samples_of(prims.logcumsumexp)


cummax.samples_of(prims.cummax)
cummin.samples_of(prims.cummin)
for _sym in (cumsum, cumprod, logcumsumexp):
    _sym.errors(wrong_dims)


@torchsymbol(torch.diff, tags=(OpTags.SHAPE_OP,))
def diff(
    input: TensorProxy,
    n: int = 1,
    dim: int = -1,
    prepend: TensorProxy | None = None,
    append: TensorProxy | None = None,
) -> TensorProxy:
    """Return the differences between neighbors along `dim`, applied `n` times."""
    check(input.ndim > 0, lambda: "diff expects input to be at least one-dimensional")
    n = operator.index(n)
    check(n >= 0, lambda: f"order must be non-negative but got {n}")
    dim = canonicalize_dim(input.ndim, dim)
    parts = [x for x in (prepend, input, append) if x is not None]
    check(
        all(x.ndim == input.ndim for x in parts),
        lambda: "diff expects prepend or append to be the same dimension as input",
    )
    if n == 0:
        return prims.clone(input)
    a = concat.meta(parts, dim) if len(parts) > 1 else input
    for _ in range(min(n, a.shape[dim])):
        length = a.shape[dim]
        later = clang.slice_in_dim(a, min(1, length), length, dim=dim)
        sooner = clang.slice_in_dim(a, 0, max(length - 1, 0), dim=dim)
        a = clang.logical_xor(later, sooner) if dtypes.is_boolean_dtype(a.dtype) else clang.sub(later, sooner)
    return own_memory(a, input)


@diff.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((5,)))
    yield SampleInput(make((4, 5)), 2, 0)
    yield SampleInput(make((2, 3)), 5)
    yield SampleInput(make((4, 3)), 0)
    yield SampleInput(make((4, 3)), 1, -1, make((4, 1)), make((4, 2)))
    yield SampleInput(make((4, 3)), append=make((4, 1)))
    yield SampleInput(make((0, 3)), 1, 0)


@diff.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make(())), RuntimeError, "diff expects input to be at least one-dimensional"
    yield SampleInput(make((3,)), -1), RuntimeError, "order must be non-negative but got -1"
    yield SampleInput(make((3, 3)), prepend=make((3,))), RuntimeError, "to be the same dimension as input"
