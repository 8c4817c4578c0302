# SPDX-License-Identifier: Apache-2.0
"""Reduction primitives: they keep the type, take explicit dimensions only, and refuse the rest in words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thunder.core import prims


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bfloat16, torch.complex64], ids=str)
def test_the_type_stays(dtype: torch.dtype) -> None:
    """Converting integers to int64 is the languages' to do; sums wrap as the type does."""
    x = torch.tensor([[200, 100], [3, 4]]).to(dtype)
    for prim, fn in ((prims.sum, torch.sum), (prims.prod, torch.prod)):
        assert torch.equal(prim(x, (0,)), fn(x, 0, dtype=dtype))
    assert prims.prod(x, (0, 1)).dtype is dtype


@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin", "var", "var_mean"])
def test_dimensions(name: str) -> None:
    """From the front, each once, none of a 0-d tensor."""
    options = {"correction": 0} if name.startswith("var") else {}
    prim = getattr(prims, name)
    x = torch.ones(2, 3)
    for dims, error, message in (
        ((), ValueError, "pass at least one"),
        ((2,), IndexError, r"\(2,\) are not different dimensions of a tensor of shape \(2, 3\)"),
        ((-1,), IndexError, "are not different dimensions"),
        ((0, 0), IndexError, "are not different dimensions"),
    ):
        with pytest.raises(error, match=message):
            prim(x, dims, **options)
    prim(torch.ones(()), (), **options)


def test_what_is_refused() -> None:
    """Truth values have no sum of their own type, complex numbers no order, integers no variance."""
    with pytest.raises(TypeError, match="bool tensors are summed as integers"):
        prims.sum(torch.ones(2, dtype=torch.bool), (0,))
    with pytest.raises(NotImplementedError, match="complex numbers have no order"):
        prims.argmax(torch.ones(2, dtype=torch.complex64), 0)
    with pytest.raises(RuntimeError, match="only support floating point and complex"):
        prims.var(torch.ones(2, dtype=torch.int64), (0,), correction=1)
    with pytest.raises(IndexError, match="Expected reduction dim 0 to have non-zero size"):
        prims.amax(torch.ones(0, 2), (0,))


def test_gradients_at_ties_and_zeros(as_eager_prims: Any) -> None:
    """Equal elements share, products of zeros are exact, in every order of dimensions."""
    x = torch.tensor([[[2.0, 2.0], [0.0, 1.0]], [[0.0, 0.0], [2.0, 1.0]]], dtype=torch.float64)
    for dims in ((0,), (1, 2), (2, 0), (0, 1, 2)):
        as_eager_prims(lambda x: prims.amax(x, dims), lambda x: x.amax(dims), x)

        def product(x: torch.Tensor, dims: tuple[int, ...] = dims) -> torch.Tensor:
            for d in sorted(dims, reverse=True):
                x = x.prod(d)
            return x

        as_eager_prims(lambda x: prims.prod(x, dims), product, x)
