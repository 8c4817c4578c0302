# SPDX-License-Identifier: Apache-2.0
"""Elementwise arithmetic of the torch language."""

from __future__ import annotations

from typing import Any

import torch

from thunder import clang
from thunder.core.samples import MakeTensor, SampleInput, elementwise_binary
from thunder.core.symbol import OpTags
from thunder.torch.base import torchsymbol

_TAGS = (OpTags.ELEMENTWISE_OP,)


@torchsymbol(torch.add, tags=_TAGS)
def add(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """input + alpha * other."""
    return clang.add(input, other if alpha == 1 else clang.mul(other, alpha))


@add.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_binary(make)
    yield SampleInput(make((2, 3)), make((3,)), alpha=2)


@torchsymbol(torch.sub, torch.subtract, tags=_TAGS)
def sub(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """input - alpha * other."""
    return clang.sub(input, other if alpha == 1 else clang.mul(other, alpha))


@sub.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_binary(make)
    yield SampleInput(make((2, 3)), make((3,)), alpha=2)


@torchsymbol(torch.mul, torch.multiply, tags=_TAGS)
def mul(input: Any, other: Any) -> Any:
    """input * other."""
    return clang.mul(input, other)


@mul.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_binary(make)


@torchsymbol(torch.neg, torch.negative, tags=_TAGS)
def neg(input: Any) -> Any:
    """-input."""
    return clang.neg(input)


@torchsymbol(torch.exp, tags=_TAGS)
def exp(input: Any) -> Any:
    """e to the power of input."""
    return clang.exp(input)
