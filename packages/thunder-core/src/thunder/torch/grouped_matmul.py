# SPDX-License-Identifier: Apache-2.0
"""Grouped matrix products (mixture of experts): each group of rows is multiplied by the matrix of its expert.

torch computes the gradient of a column-major factor transposed, so that the gradient is column-major as well. Values of
a trace have no strides. Therefore the gradients are separate operations, whose implementation reads the strides.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from thunder.core import prims
from thunder.core.dtypes import to_dtype
from thunder.core.errors import check
from thunder.core.prims import needs_grad
from thunder.core.prims.grouped_matmul import ends_of_groups, grouped_mm_errors, grouped_mm_samples
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.torch.base import torchsymbol

_TAGS = (OpTags.MATMUL_OP,)


@torchsymbol(torch._grouped_mm, is_method=False, tags=_TAGS)
def grouped_mm(input: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Multiply groups of matrices (`torch.nn.functional.grouped_mm`).

    `offs` are the ends of the groups of rows or columns of factors with two dimensions.
    """
    out = prims.grouped_mm(input, mat2, offs)
    check(bias is None, lambda: "Bias not supported yet")
    check(
        out_dtype is None or to_dtype(out_dtype) is input.dtype,
        lambda: "Grouped gemm output dtype must match `mat_a` dtype",
    )
    return out


@grouped_mm.vjp
def _(g: Any, out: Any, input: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    # Only the strides of the first factor are read. It is not kept for them if the other factor needs no gradient.
    kept = input if needs_grad(mat2) else None
    return grouped_mm_left_grad(g, kept, mat2, offs), grouped_mm_right_grad(g, input, mat2, offs), None, None, None


@torchsymbol(id="torch.grouped_mm_left_grad", tags=_TAGS)
def grouped_mm_left_grad(grad: Any, input: Any, mat2: Any, offs: Any) -> Any:
    """Return the gradient of the first factor. Only the strides of `input` are read; None stands for row-major ones."""
    return prims.grouped_mm(grad, mat2.mT, offs)


@torchsymbol(id="torch.grouped_mm_right_grad", tags=_TAGS)
def grouped_mm_right_grad(grad: Any, input: Any, mat2: Any, offs: Any) -> Any:
    """Return the gradient of the second factor. Only the strides of `mat2` are read."""
    return prims.grouped_mm(input.mT, grad, offs)


@grouped_mm_left_grad.vjp
def _(g: Any, out: Any, grad: Any, input: Any, mat2: Any, offs: Any) -> Any:
    of_grad = grouped_mm_left_grad(g, grad, mat2.mT, offs)
    return of_grad, None, grouped_mm_right_grad(g, grad, mat2.mT, offs).mT, None


@grouped_mm_right_grad.vjp
def _(g: Any, out: Any, grad: Any, input: Any, mat2: Any, offs: Any) -> Any:
    of_grad = grouped_mm_right_grad(g, input.mT, grad, offs)
    return of_grad, grouped_mm_left_grad(g, input.mT, grad, offs).mT, None, None


# -- samples -----------------------------------------------------------------------------------------------------------
grouped_mm.samples(grouped_mm_samples)


@grouped_mm.errors
def _(make: MakeTensor) -> Any:
    yield from grouped_mm_errors(make)
    factors = make((16, 8)), make((2, 8, 8)), ends_of_groups(make, 8, 8)
    yield SampleInput(*factors, bias=make((2, 8))), RuntimeError, "Bias not supported yet"
    yield SampleInput(*factors, out_dtype=torch.float64), RuntimeError, "output dtype must match `mat_a` dtype"


def _small(make: MakeTensor) -> Any:
    """Return a factory of small numbers. torch has no kernel in float64 that would tell how far sums may be rounded."""
    return functools.partial(make, low=-2, high=2)


@grouped_mm_left_grad.samples
def _(make: MakeTensor) -> Any:
    make, ends = _small(make), ends_of_groups(make, 8, 0, 16, 8)
    yield SampleInput(make((32, 24)), make((32, 16), requires_grad=False), make((4, 16, 24)), ends)
    yield SampleInput(make((32, 24)), make((16, 32), requires_grad=False).mT, make((4, 24, 16)).mT, ends)
    yield SampleInput(make((4, 16, 24)), None, make((32, 24)), ends)


@grouped_mm_right_grad.samples
def _(make: MakeTensor) -> Any:
    make, ends = _small(make), ends_of_groups(make, 8, 0, 16, 8)
    yield SampleInput(make((32, 24)), make((32, 16)), make((4, 16, 24), requires_grad=False), ends)
    yield SampleInput(make((32, 24)), make((32, 16)), make((4, 24, 16), requires_grad=False).mT, ends)
    yield SampleInput(make((4, 16, 8)), make((4, 16, 24)), make((4, 24, 8), requires_grad=False), None)
