# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language on three-dimensional vectors, and on sets of numbers (`isin`)."""

from __future__ import annotations

from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims.elementwise_base import conjugated, differentiable
from thunder.core.prims.metas import canonicalize_dim
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import NON_DIFFERENTIABLE
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol
from thunder.torch.elementwise_base import sum_to


# -- cross products ---------------------------------------------------------------------------------------------------
@torchsymbol(torch.linalg.cross, id="torch.linalg.cross", is_method=False)
def linalg_cross(input: TensorProxy, other: TensorProxy, *, dim: int = -1) -> TensorProxy:
    """Return the cross products of vectors with three components along `dim`."""
    check(input.ndim == other.ndim, lambda: "linalg.cross: inputs must have the same number of dimensions.")
    dim = canonicalize_dim(input.ndim, dim)
    lengths = [x.shape[dim] if x.ndim else 1 for x in (input, other)]
    check(
        lengths == [3, 3],
        lambda: f"linalg.cross: inputs dimension {dim} must have length 3. Got {lengths[0]} and {lengths[1]}",
    )
    a, b = clang.maybe_broadcast(input, other)
    first, second = ltorch.roll(a, -1, dim) * ltorch.roll(b, -2, dim), ltorch.roll(a, -2, dim) * ltorch.roll(b, -1, dim)
    if dtypes.is_boolean_dtype(first.dtype) and first.device.type != "cpu":
        return ltorch.logical_xor(first, second)  # torch's GPU kernel computes a difference of booleans like this
    return first - second


@linalg_cross.vjp
def _(g: Any, out: Any, input: Any, other: Any, *, dim: int = -1) -> Any:
    by_input = linalg_cross(conjugated(other), g, dim=dim) if differentiable(input) else None
    by_other = linalg_cross(g, conjugated(input), dim=dim) if differentiable(other) else None
    return sum_to(by_input, input), sum_to(by_other, other)


@torchsymbol(torch.cross, autocast={"cuda": "widest"})
def cross(input: TensorProxy, other: TensorProxy, dim: int | None = None) -> TensorProxy:
    """Return the cross products of vectors along `dim`. The default is the first dimension of length 3."""
    if dim is None:
        found = [d for d, n in enumerate(input.shape) if n == 3]
        check(bool(found), lambda: "no dimension of size 3 in input")
        dim = found[0]
    return linalg_cross(input, other, dim=dim)


@linalg_cross.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), make((4, 3)))
    yield SampleInput(make((3,)), make((3,)))
    yield SampleInput(make((1, 3)), make((4, 3)))
    yield SampleInput(make((3, 2)), make((3, 1)), dim=0)
    yield SampleInput(make((0, 3)), make((0, 3)))
    yield SampleInput(make((3, 5)).mT, make((5, 3)))


@cross.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 3)), make((4, 3)))
    yield SampleInput(make((2, 3, 3)), make((2, 3, 3)), 2)
    yield SampleInput(make((3, 1)), make((3, 4)), dim=0)


def _cross_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 2)), make((4, 2)), dim=1), RuntimeError, "must have length 3. Got 2 and 2"
    yield SampleInput(make((3,)), make((4, 3)), dim=0), RuntimeError, "the same number of dimensions"
    yield SampleInput(make((4, 3)), make((4, 3)), dim=2), IndexError, "Dimension out of range"


linalg_cross.errors(_cross_errors)


@cross.errors
def _(make: MakeTensor) -> Any:
    yield from _cross_errors(make)
    yield SampleInput(make((2, 2)), make((2, 2))), RuntimeError, "no dimension of size 3 in input"


# -- membership -------------------------------------------------------------------------------------------------------
@torchsymbol(torch.isin, is_method=False, tags=(NON_DIFFERENTIABLE,))
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> TensorProxy:
    """Return a mask of the `elements` that are in `test_elements`, or with `invert` of those that are not."""
    for x in (elements, test_elements):
        if isinstance(x, TensorProxy):
            check(
                x.dtype not in (dtypes.bool8, dtypes.complex64, dtypes.complex128),
                lambda x=x: f"Unsupported input type encountered for isin(): {x.dtype}",  # type: ignore[misc]
            )
    if isinstance(test_elements, TensorProxy):
        flat = ltorch.flatten(test_elements)
        column = ltorch.unsqueeze(elements, -1) if isinstance(elements, TensorProxy) else elements
        found = ltorch.any(column == flat, -1)
    else:
        check(
            isinstance(elements, TensorProxy),
            lambda: "isin(): one of elements and test_elements has to be a tensor",
            TypeError,
        )
        found = elements == test_elements
    return ltorch.logical_not(found) if invert else found


@isin.samples
def _(make: MakeTensor) -> Any:
    small = {"low": 0, "high": 5}
    yield SampleInput(make((4, 4), **small), make((3,), **small))
    yield SampleInput(make((2, 3), **small), make((2, 2), **small), invert=True)
    yield SampleInput(make((), **small), make((3,), **small))
    yield SampleInput(make((5,), **small), 2)
    yield SampleInput(2, make((5,), **small))
    yield SampleInput(make((5,), **small), make((0,)))
    yield SampleInput(make((0, 2)), make((3,)), assume_unique=True)


@isin.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,), dtype=torch.bool), make((3,))), RuntimeError, "Unsupported input type encountered"
