# SPDX-License-Identifier: Apache-2.0
"""Reductions of the core language: dimensions from either end, kept or not, and the types of results."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder
from thunder import clang
from thunder.core.symbol import Symbol


def jitted(fn: Any, *args: Any) -> Any:
    """What a function of the core language gives for tensors, as an operation of its own."""
    return thunder.jit(Symbol("operation", fn, id=object()))(*args)


@pytest.mark.parametrize("dim", [None, 0, -1, (0, 2), (-3, -1), ()], ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
def test_dimensions(dim: Any, keepdim: bool) -> None:
    """Every one of torch's ways to name them; an empty tuple is all, except where truth is asked for."""
    x = torch.rand(2, 3, 4) - 0.5
    for name in ("sum", "mean", "amax", "amin", "var"):
        theirs = getattr(torch, name)(x, dim, keepdim=keepdim) if dim is not None else None
        ours = jitted(lambda x: getattr(clang, name)(x, dim, keepdim), x)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs)
        else:
            assert ours.ndim == (3 if keepdim else 0)
    for name in ("any", "all"):
        ours = jitted(lambda x: getattr(clang, name)(clang.gt(x, 0), dim, keepdim), x)
        assert torch.equal(ours, getattr(torch, name)(x > 0, dim, keepdim=keepdim))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.bfloat16], ids=str)
def test_types(dtype: torch.dtype) -> None:
    """Integers are summed as int64, half precision stays."""
    x = torch.tensor([[1, 0], [1, 1]]).to(dtype)
    assert torch.equal(jitted(clang.sum, x), x.sum())
    assert torch.equal(jitted(clang.prod, x), x.prod())
    assert jitted(clang.any, x).dtype is torch.bool


def test_errors() -> None:
    """torch's words and types."""
    for fn, error, message in (
        (lambda x: clang.sum(x, 2), IndexError, r"expected to be in range of \[-2, 1\], but got 2"),
        (lambda x: clang.sum(x, (0, -2)), RuntimeError, "dim 0 appears multiple times in the list of dims"),
        (lambda x: clang.mean(clang.maybe_convert_to_dtype(x, int)), RuntimeError, "could not infer output dtype"),
        (lambda x: clang.amax(clang.getitem(x, slice(0, 0))), RuntimeError, "Expected reduction dim to be specified"),
        (lambda x: clang.argmax(clang.gt(x, 0)), RuntimeError, "does not support bool input"),
        (lambda x: clang.var(clang.maybe_convert_to_dtype(x, int)), RuntimeError, "std and var only support"),
    ):
        with pytest.raises(error, match=message):
            jitted(fn, torch.ones(2, 2))
