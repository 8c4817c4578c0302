# SPDX-License-Identifier: Apache-2.0
"""Softmax: the two orders of its arguments, half precision, infinities; what is scaled to unit length."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
import thunder.torch as ltorch


def test_every_way_to_call_it(as_eager: Any, randn: Any) -> None:
    """torch's `(input, dim, dtype)`, functional's `(input, dim, _stacklevel, dtype)`, methods, no dimension."""
    x = randn(3, 4, dtype=torch.float32)
    for fn in (
        lambda x: torch.softmax(x, 1),
        lambda x: torch.softmax(x, -1, torch.float64),
        lambda x: x.softmax(dim=0),
        lambda x: F.softmax(x, 1, 3, torch.float64),
        lambda x: F.log_softmax(x, dim=1, dtype=torch.float64),
        lambda x: torch.special.log_softmax(x, 1),
        lambda x: F.softmin(x, 1),
    ):
        jitted = as_eager(fn, x, exactly=True)
        names = [b.sym.name for b in thunder.last_traces(jitted)[0].bound_symbols]
        assert {"softmax", "log_softmax", "softmin"} & set(names)
    for shape in ((3,), (3, 4), (2, 3, 4), (2, 3, 4, 2)):
        with pytest.warns(UserWarning, match="Implicit dimension choice for softmax"):
            expected = F.softmax(torch.ones(shape))
        with pytest.warns(UserWarning, match="Implicit dimension choice for softmax"):
            assert torch.equal(thunder.jit(lambda x: F.softmax(x))(torch.ones(shape)), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(as_eager: Any, by_primitives: Any, randn: Any, dtype: torch.dtype) -> None:
    """Computed in float32 and rounded once: the primitives give torch's very numbers."""
    x = randn(5, 300, dtype=dtype)
    for ours, theirs in ((ltorch.softmax, torch.softmax), (ltorch.log_softmax, torch.log_softmax)):
        as_eager(lambda x: theirs(x, 1), x, exactly=True)
        error = (by_primitives(ours, x.detach(), 1) - theirs(x.detach(), 1)).abs().max()
        assert error <= torch.finfo(dtype).eps * theirs(x.detach(), 1).abs().max()


def test_infinities(as_eager: Any, by_primitives: Any) -> None:
    """Masked elements, masked rows and overflows, as torch has them."""
    inf = math.inf
    x = torch.tensor([[0.0, -inf, 1.0], [-inf, -inf, -inf], [inf, 0.0, 1.0], [1e30, 0.0, -1e30]], requires_grad=True)
    for ours, theirs in ((ltorch.softmax, torch.softmax), (ltorch.log_softmax, torch.log_softmax)):
        as_eager(lambda x: theirs(x, 1), x)
        actual = by_primitives(ours, x.detach(), 1)
        torch.testing.assert_close(actual, theirs(x.detach(), 1), equal_nan=True)


def test_little_is_saved(randn: Any) -> None:
    """The result alone."""
    jitted = thunder.jit(lambda x: torch.softmax(x * 2, -1))
    jitted(randn(3, 4))
    assert len(thunder.last_backward_traces(jitted)[-1].args) == 2


def test_unit_length(as_eager: Any, randn: Any) -> None:
    """Vectors of no length: held at eps, with the gradients that torch gives."""
    x, y = randn(3, 4), randn(3, 4)
    zero = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    for a in (x, zero):
        as_eager(lambda x: F.normalize(x), a)
        as_eager(lambda x: F.normalize(x, 1.0, (0, 1), 1e-3), a)
        as_eager(lambda x, y: F.cosine_similarity(x, y, eps=0.1), a, y)
        as_eager(lambda x, y: F.pairwise_distance(x, y), a, y)
    as_eager(lambda x: F.pairwise_distance(x, x), x)
    as_eager(lambda x, y: F.cosine_similarity(x.unsqueeze(1), y.unsqueeze(0), dim=-1), x, y)


def test_types_that_have_no_exponential() -> None:
    """torch's error, which says what to do."""
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        thunder.jit(lambda x: torch.softmax(x, 0))(torch.arange(3))
    assert thunder.jit(lambda x: torch.softmax(x, 0, dtype=torch.float32))(torch.arange(3)).dtype is torch.float32
