# SPDX-License-Identifier: Apache-2.0
"""Embedding tables, and one-hot encodings of class indices."""

from __future__ import annotations

from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes, prims
from thunder.core.errors import UnsupportedError, check
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import NON_DIFFERENTIABLE
from thunder.core.symint.numbers import is_unbacked
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol


def _padding_row(padding_idx: int | None, rows: int) -> int:
    if padding_idx is None:
        return -1
    check(-rows <= padding_idx < rows, lambda: "Padding_idx must be within num_embeddings", AssertionError)
    return padding_idx % rows


@torchsymbol(torch.nn.functional.embedding, is_method=False, layout="contiguous")
def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Return the row of `weight` for each index in `input`. The row `padding_idx` receives no gradient."""
    if max_norm is not None:
        raise UnsupportedError(
            "embedding(max_norm=…) writes to the weight. Leave max_norm out, and normalize the rows before the traced "
            "function, e.g. with torch.renorm"
        )
    check(weight.ndim == 2, lambda: "'weight' must be 2-D")
    if sparse:
        raise UnsupportedError(
            "embedding(sparse=True) has a sparse gradient, which traced programs do not support. Leave sparse out"
        )
    return prims.embedding(weight, input, _padding_row(padding_idx, weight.shape[0]), scale_grad_by_freq)


@embedding.vjp
def _(
    g: Any, out: Any, input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: Any = 2.0,
    scale_grad_by_freq: Any = False, sparse: Any = False,
) -> Any:  # fmt: skip
    padding_idx = _padding_row(padding_idx, weight.shape[0])
    return None, prims.embedding_backward(g, input, weight.shape[0], padding_idx, scale_grad_by_freq)


@embedding.jvp
def _(t: Any, out: Any, input: Any, weight: Any, *how: Any, **options: Any) -> Any:
    return prims.embedding(t[1], input)


def _numbers(make: MakeTensor, *shape: int, high: int) -> Any:
    return make(shape, low=0, high=high, dtype=torch.int64)


@embedding.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(_numbers(make, 2, 4, high=5), make((5, 3)))
    yield SampleInput(_numbers(make, 8, high=5), make((5, 3)), 2)
    yield SampleInput(_numbers(make, 8, high=5), make((5, 3)), -1)
    yield SampleInput(_numbers(make, 8, high=5), make((5, 3)), scale_grad_by_freq=True)
    yield SampleInput(_numbers(make, high=5), make((5, 3)))
    yield SampleInput(_numbers(make, 0, high=5), make((5, 3)))
    yield SampleInput(_numbers(make, 4, high=5).int(), make((5, 3)))
    yield SampleInput(_numbers(make, 3, 4, high=5).mT, make((3, 5)).mT)


@embedding.errors
def _(make: MakeTensor) -> Any:
    numbers = _numbers(make, 2, high=5)
    yield SampleInput(make((2,)), make((5, 3))), RuntimeError, "to have one of the following scalar types: Long, Int"
    yield SampleInput(numbers, make((5,))), RuntimeError, "'weight' must be 2-D"
    yield SampleInput(numbers, make((5, 3)), 5), AssertionError, "Padding_idx must be within num_embeddings"


@torchsymbol(torch.nn.functional.one_hot, is_method=False, tags=(NON_DIFFERENTIABLE,))
def one_hot(input: Any, num_classes: int = -1) -> Any:
    """Return zeros with a one at each index in `input`, in a new last dimension of size `num_classes`."""
    check(input.dtype is dtypes.int64, lambda: "one_hot is only applicable to index tensor of type LongTensor.")
    if not is_unbacked(num_classes) and num_classes == -1:
        raise UnsupportedError(
            "one_hot without num_classes depends on the largest index in the tensor, which is not known while tracing. "
            "Pass num_classes"
        )
    if 0 in input.shape:
        clang.base.demand(num_classes, ">=", 1, lambda: "Can not infer total number of classes from empty tensor.")
    clang.base.demand(num_classes, ">=", 1, lambda: "num_classes should be positive")
    numbers = ltorch.arange(num_classes, device=input.device)
    return (ltorch.unsqueeze(input, -1) == numbers).to(torch.int64)


@one_hot.samples
def _(make: MakeTensor) -> Any:
    for shape in ((2, 3), (), (0,), (4,)):
        yield SampleInput(_numbers(make, *shape, high=5), 5)


@one_hot.errors
def _(make: MakeTensor) -> Any:
    yield (
        SampleInput(_numbers(make, 3, high=5).int(), 5),
        RuntimeError,
        "only applicable to index tensor of type LongTensor",
    )
