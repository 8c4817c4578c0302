# SPDX-License-Identifier: Apache-2.0
"""Vector norms in the torch language: p-norms over dimensions, and distances computed from them."""

from __future__ import annotations

import math
from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes
from thunder.core.dtypes import to_torch_dtype
from thunder.core.errors import UnsupportedError, check
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol
from thunder.torch.reductions import unreduced

_TAGS = (OpTags.REDUCTION_OP,)
_NAME = "linalg.vector_norm"


def _check_norm_dtype(x: Any, dtype: dtypes.dtype | None) -> None:
    check(
        dtypes.is_inexact_dtype(x.dtype),
        lambda: f"{_NAME}: Expected a floating point or complex tensor as input. Got {x.dtype}",
    )
    if dtype is None:
        return
    check(
        dtypes.is_inexact_dtype(dtype), lambda: f"{_NAME}: dtype should be floating point or complex, but got {dtype}"
    )
    kind = "complex" if dtypes.is_complex_dtype(x.dtype) else "real"
    check(
        dtypes.is_complex_dtype(dtype) == dtypes.is_complex_dtype(x.dtype),
        lambda: f"{_NAME}: dtype should be {kind} for {kind} inputs, but got {dtype}",
    )
    check(
        torch.promote_types(to_torch_dtype(x.dtype), to_torch_dtype(dtype)) == to_torch_dtype(dtype),
        lambda: (
            f"{_NAME}: the dtype of the input ({x.dtype}) should be convertible without narrowing to the specified "
            "dtype "
            f"({dtype})"
        ),
    )


def _check_identity(x: Any, ord: float, dims: Any, given: bool) -> None:
    if 0 <= ord < math.inf or 0 not in x.shape:
        return
    why = "the operation does not have an identity"
    check(given, lambda: f"{_NAME} cannot compute the {ord} norm on an empty tensor because {why}")
    for d in dims:
        check(
            x.shape[d] != 0,
            lambda: (
                f"{_NAME} cannot compute the {ord} norm on the dimension {d} because this dimension is empty and {why}"
            ),
        )


def _norm_of_lengths(a: Any, ord: float, dims: Any, keepdim: bool) -> Any:
    """Return the norm of nonnegative numbers over `dims`."""
    if ord == math.inf:
        return clang.amax(a, dims, keepdim) if dims else a
    if ord == -math.inf:
        return clang.amin(a, dims, keepdim) if dims else a
    if ord == 0:
        return clang.sum((a != 0).to(a.dtype), dims, keepdim)
    if ord == 1:
        return clang.sum(a, dims, keepdim)
    if ord == 2:
        return ltorch.sqrt(clang.sum(a * a, dims, keepdim))
    return clang.sum(a**ord, dims, keepdim) ** (1.0 / ord)


@torchsymbol(torch.linalg.vector_norm, is_method=False, tags=_TAGS, autocast={"cuda": "float32"})
def vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the p-norm over `dim` for p = `ord`: (|x1|^p + |x2|^p + …)^(1/p).

    For inf and -inf, return the largest and smallest absolute value. For 0, return the number of nonzero elements.
    """
    check(
        isinstance(ord, (int, float)),
        lambda: f"linalg_vector_norm(): argument 'ord' (position 2) must be Number, not {type(ord).__name__}",
        TypeError,
    )
    wanted = dtypes.to_dtype(dtype)
    _check_norm_dtype(x, wanted)
    dims = clang.reductions.reduction_dims(x, dim)
    _check_identity(x, ord, dims, dim is not None and dim != ())
    kind = wanted or x.dtype
    lengths = ltorch.abs(clang.maybe_convert_to_dtype(x, clang.reductions.compute_dtype(kind)))
    out = _norm_of_lengths(lengths, ord, dims, keepdim)
    return clang.maybe_convert_to_dtype(out, dtypes.corresponding_real_dtype(kind))


@vector_norm.vjp
def _(g: Any, out: Any, x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if ord == 0:
        return ltorch.zeros_like(x)
    g, norm = (unreduced(t, x, dim, keepdim) for t in (g, out))
    kind = dtypes.to_dtype(dtype) or x.dtype
    a = clang.maybe_convert_to_dtype(x, kind)
    return _norm_grad(g, norm, a, ord, dim).to(x.dtype)


def _norm_grad(g: Any, norm: Any, a: Any, ord: float, dim: Any) -> Any:
    # Where the norm is zero, torch defines the gradient as zero. The code must not divide by the norm there.
    if ord == 1:
        return ltorch.sgn(a) * g
    if ord == 2:
        return g * ltorch.where(norm == 0, 0.0, a / norm)
    size = ltorch.abs(a)
    if ord in (math.inf, -math.inf):
        mask = (size == norm) | (ltorch.isnan(size) & ltorch.isnan(norm))
        dims = clang.reductions.reduction_dims(a, dim)
        count = mask.sum(dims, True) if dims else 1
        return ltorch.sgn(a) * ((g / count) * mask)
    if ord < 1:
        return ltorch.where(a == 0, 0.0, ltorch.sgn(a) * size ** (ord - 1)) * g * norm ** (1 - ord)
    scaled = ltorch.sgn(a) * size ** (ord - 1) if ord < 2 else a * size ** (ord - 2)
    return scaled * (g / ltorch.where(norm == 0, math.inf, norm ** (ord - 1)))


def _norm_samples(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 4)))
    for ord in (0, 0.5, 1, 1.5, 2, 3, math.inf, -math.inf, -1):
        yield SampleInput(make((2, 3)), ord)
        yield SampleInput(make((2, 3, 4)), ord, (0, 2), True)
        yield SampleInput(make(()), ord)
    yield SampleInput(make((0, 3)), 2, 0)
    yield SampleInput(make((5, 3)).mT, 1, -1)


@vector_norm.samples
def _(make: MakeTensor) -> Any:
    yield from _norm_samples(make)
    wide = torch.complex128 if make((1,)).is_complex() else torch.float64
    yield SampleInput(make((2, 3)), 2, 1, dtype=wide)


@vector_norm.errors
def _(make: MakeTensor) -> Any:
    ints = make((3,), dtype=torch.int64)
    yield SampleInput(ints), RuntimeError, "Expected a floating point or complex tensor as input"
    yield SampleInput(make((0, 3)), math.inf), RuntimeError, "cannot compute the inf norm on an empty tensor"
    yield SampleInput(make((0, 3)), -1.5, 0), RuntimeError, "cannot compute the -1.5 norm on the dimension 0"
    yield SampleInput(make((3,)), dtype=torch.complex64), RuntimeError, "dtype should be real for real inputs"
    yield SampleInput(make((3,), dtype=torch.float64), dtype=torch.float32), RuntimeError, "without narrowing"
    yield SampleInput(make((3,)), 2, 1), IndexError, "Dimension out of range"


@torchsymbol(torch.norm, tags=_TAGS, autocast={"cuda": "float32"})
def norm(input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the p-norm over `dim`, or of all elements. "fro" is the 2-norm."""
    if p == "nuc":
        raise UnsupportedError('torch.norm(p="nuc") is not supported: use torch.linalg.matrix_norm(input, "nuc")')
    check(
        p is None or p == "fro" or not isinstance(p, str),
        lambda: f"linalg.matrix_norm: Order {p} not supported.",
    )
    check(
        p != "fro" or not isinstance(dim, (tuple, list)) or len(dim) <= 2,
        lambda: f"linalg.matrix_norm: dim must be a 2-tuple. Got {' '.join(map(str, dim))}",
    )
    return vector_norm(input, 2 if p in (None, "fro") else p, dim, keepdim, dtype=dtype)


@norm.samples
def _(make: MakeTensor) -> Any:
    yield from _norm_samples(make)
    yield SampleInput(make((2, 3)), "fro", (0, 1))
    yield SampleInput(make((2, 3)), dim=1)


@norm.errors
def _(make: MakeTensor) -> Any:
    ints = make((3,), dtype=torch.int64)
    yield SampleInput(ints), RuntimeError, "Expected a floating point or complex tensor as input"
    yield SampleInput(make((3, 3)), "two"), RuntimeError, "Order two not supported"


@torchsymbol(torch.dist, tags=_TAGS, autocast={"cuda": "float32"})
def dist(input: Any, other: Any, p: float = 2) -> Any:
    """Return the p-norm of `input - other`."""
    apart = input - other
    check(
        dtypes.is_inexact_dtype(apart.dtype),
        lambda: f"norm(): input dtype should be either floating point or complex. Got {apart.dtype} instead.",
    )
    return vector_norm(apart, p)


@dist.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 4)), make((4, 4)))
    for p in (0, 1, 3, math.inf):
        yield SampleInput(make((2, 3)), make((3,)), p)
    yield SampleInput(make((3,), dtype=torch.int64), make((3,)))
    yield SampleInput(make(()), make(()))
