# SPDX-License-Identifier: Apache-2.0
"""Handlers of indexing: the operator that torch's own Python functions slice with."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder
from thunder.core.symbol import OpTags

aten = torch.ops.aten


def test_slices_by_the_operator() -> None:
    """Results, gradients and writes through the view are those of eager mode, without an opaque operation."""

    def fn(x: Any) -> Any:
        a, b = aten.slice(x, 0, 0, -1, 2), aten.slice.Tensor(x, -1, 1, 99)
        with torch.no_grad():
            copy = x.clone()
            aten.slice(copy, 1, 2, 4).zero_()
        return (a * a).sum() + (b.sin() * copy[:, 1:]).sum()

    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    fast = thunder.jit(fn)
    ours, theirs = fast(x), fn(x)
    assert torch.equal(ours, theirs)
    assert torch.equal(*(torch.autograd.grad(out, x)[0] for out in (ours, theirs)))
    traces = thunder.last_traces(fast)[-1], thunder.last_backward_traces(fast)[-1]
    assert not any(OpTags.OPAQUE_OP in op.sym.tags for trace in traces for op in trace.bound_symbols)


def test_invalid_slices_by_the_operator() -> None:
    """They raise torch's errors."""
    for call in (lambda x: aten.slice(x, 2), lambda x: aten.slice(x[0, 0]), lambda x: aten.slice(x, 0, 0, 2, -1)):
        with pytest.raises((IndexError, RuntimeError)) as expected:
            call(torch.ones(2, 3))
        with pytest.raises(expected.type) as actual:
            thunder.jit(call)(torch.ones(2, 3))
        assert str(actual.value) == str(expected.value)
