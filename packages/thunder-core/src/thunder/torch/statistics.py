# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language on samples of random variables: covariance and correlation."""

from __future__ import annotations

from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol


def _check_weights(name: str, weights: Any, observations: int, *, integers: bool) -> None:
    kind = "integral" if integers else "floating point"
    check(
        weights.ndim <= 1,
        lambda: f"cov(): expected {name} to have one or fewer dimensions but got {name} with {weights.ndim} dimensions",
    )
    right = dtypes.is_exact_dtype(weights.dtype) if integers else dtypes.is_float_dtype(weights.dtype)
    check(right, lambda: f"cov(): expected {name} to have {kind} dtype but got {name} with {weights.dtype} dtype")
    count = weights.shape[0] if weights.ndim else 1
    check(
        count == observations,
        lambda: (
            f"cov(): expected {name} to have the same numel as there are observations in the input but got {count} != "
            f"{observations}"
        ),
    )


@torchsymbol(torch.cov)
def cov(input: TensorProxy, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """Return the covariance matrix of variables (the rows of `input`) over observations (its columns)."""
    check(
        input.ndim <= 2,
        lambda: f"cov(): expected input to have two or fewer dimensions but got an input with {input.ndim} dimensions",
    )
    check(input.dtype is not dtypes.bool8, lambda: "cov(): bool dtype is not supported for input")
    x = input if input.ndim == 2 else clang.reshape(input, (1, -1) if 0 not in input.shape else (1, 0))
    observations = x.shape[1]
    weights: Any = None
    if fweights is not None:
        _check_weights("fweights", fweights, observations, integers=True)
        weights = fweights
    if aweights is not None:
        _check_weights("aweights", aweights, observations, integers=False)
        weights = aweights if weights is None else weights * aweights
    total = observations if weights is None else ltorch.sum(weights)
    mean = ltorch.sum(x if weights is None else x * weights, 1) / total
    if weights is not None and aweights is not None and correction != 0:
        factor = total - correction * ltorch.sum(weights * aweights) / total
    else:
        factor = total - correction
    x = x - ltorch.unsqueeze(mean, 1)
    weighted = x if weights is None else x * weights
    products = ltorch.matmul(x, ltorch.conj(ltorch.mT(weighted)))
    # If `correction` is larger than the number of observations, torch divides by zero.
    factor = max(factor, 0) if isinstance(factor, int) else ltorch.where(factor > 0, factor, 0)
    return ltorch.squeeze(ltorch.true_divide(products, factor))


@cov.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 5)))
    yield SampleInput(make((3, 5)), correction=0)
    yield SampleInput(make((5,)))
    yield SampleInput(make((1, 4)), correction=2)
    yield SampleInput(make((5, 3)).mT)
    counts = make((5,), dtype=torch.int64, low=1, high=5)
    sizes = make((5,), dtype=torch.float64 if str(make.dtype) == "torch.float64" else torch.float32, low=0.1, high=1)
    sizes = sizes.detach()
    yield SampleInput(make((3, 5)), fweights=counts)
    yield SampleInput(make((3, 5)), aweights=sizes)
    yield SampleInput(make((3, 5)), fweights=counts, aweights=sizes, correction=0)


@cov.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 2, 2))), RuntimeError, "expected input to have two or fewer dimensions"
    yield SampleInput(make((3,), dtype=torch.bool)), RuntimeError, "bool dtype is not supported"
    yield SampleInput(make((2, 3)), fweights=make((3,))), RuntimeError, "expected fweights to have integral dtype"
    yield SampleInput(make((2, 3)), aweights=make((2,))), RuntimeError, "the same numel as there are observations"
    yield SampleInput(make((2, 3)), aweights=make((1, 3))), RuntimeError, "one or fewer dimensions"


@torchsymbol(torch.corrcoef)
def corrcoef(input: TensorProxy) -> Any:
    """Return the correlation matrix of variables (the rows of `input`), with elements in [-1, 1]."""
    check(
        input.ndim <= 2,
        lambda: (
            f"corrcoef(): expected input to have two or fewer dimensions but got an input with {input.ndim} dimensions"
        ),
    )
    c = cov(input)
    if c.ndim == 0:
        return c / c
    deviation = ltorch.sqrt(ltorch.real(ltorch.diagonal(c)))
    c = c / ltorch.unsqueeze(deviation, 1) / ltorch.unsqueeze(deviation, 0)
    if not dtypes.is_complex_dtype(c.dtype):
        return ltorch.clamp(c, -1, 1)
    return ltorch.complex(ltorch.clamp(ltorch.real(c), -1, 1), ltorch.clamp(ltorch.imag(c), -1, 1))


@corrcoef.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 7)))
    yield SampleInput(make((5,)))
    yield SampleInput(make((7, 3)).mT)


@corrcoef.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 2, 2))), RuntimeError, "expected input to have two or fewer dimensions"
