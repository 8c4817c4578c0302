# SPDX-License-Identifier: Apache-2.0
"""Writes that autograd does not see: under `no_grad`, through `detach()` and `.data`, and in embeddings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder


def under_no_grad(x: Any, p: Any) -> Any:
    """A leaf's own memory, before it is used."""
    with torch.no_grad():
        p.mul_(0.5)
    return x * p * p


def a_view_under_no_grad(x: Any, p: Any) -> Any:
    """A part of it."""
    with torch.no_grad():
        p[0].mul_(2)
    return x * p * p


def detached(x: Any, p: Any) -> Any:
    """Through `detach()`."""
    p.detach().mul_(2)
    return x * p * p


def data(x: Any, p: Any) -> Any:
    """Through `.data`."""
    p.data.clamp_(0.1, 0.2)
    return x * p * p


def assigned_data(x: Any, p: Any) -> Any:
    """`.data = `."""
    p.data = p.data * 3
    return x * p * p


def a_value_that_requires_grad(x: Any, p: Any) -> Any:
    """Into what requires none: only the view that is written through has the value's gradient."""
    q, r = torch.zeros_like(x), torch.zeros_like(x)
    v = q.data
    v.copy_(p * 2)
    r.data.copy_(p)
    r.data.lerp_(q + p.detach(), 0.5)
    return x * p * q + v + r


def a_part_that_requires_grad(x: Any, p: Any) -> Any:
    """Through a view of such a view, whose base has the gradient, too."""
    q = torch.zeros_like(x)
    v = q.data
    v[0].copy_(p[0] * 2)
    return x * p * q + v * 3


def two_values_that_require_grad(x: Any, p: Any) -> Any:
    """Through two such views: the first keeps the gradient of its own value."""
    q = torch.zeros_like(x)
    v, w = q.data, q.detach()
    v.copy_(p * 2)
    w.mul_(p)
    return x * p * q + v * 3 + w


def an_intermediate(x: Any, p: Any) -> Any:
    """The gradient goes on as if nothing had been written."""
    q = p.sin()
    with torch.no_grad():
        q.mul_(2)
    return x + q


def a_view_made_before(x: Any, p: Any) -> Any:
    """It sees the write and keeps its gradient."""
    v = p[1]
    with torch.no_grad():
        p.mul_(2)
    return x * p + v


def through_a_view_made_before(x: Any, p: Any) -> Any:
    """And so does what it is a view of."""
    v = p[1]
    with torch.no_grad():
        v.mul_(2)
    return x * p + v


def a_view_that_looks_no_different(x: Any, p: Any) -> Any:
    """Likewise."""
    with torch.no_grad():
        v, w = p.view(p.shape), p[:]
    return x * p + v * w


def a_view_made_under_no_grad(x: Any, p: Any) -> Any:
    """It has no gradient."""
    with torch.no_grad():
        v = p[0]
    return x * p + v


def after_its_use(x: Any, p: Any) -> Any:
    """Backward sees what was used (eager refuses)."""
    y = x * p * p
    with torch.no_grad():
        p.zero_()
    return y


HIDDEN = [
    under_no_grad, a_view_under_no_grad, detached, data, assigned_data, an_intermediate,
    a_value_that_requires_grad, a_part_that_requires_grad, two_values_that_require_grad, a_view_made_before,
    through_a_view_made_before, a_view_made_under_no_grad, a_view_that_looks_no_different, after_its_use,
]  # fmt: skip


def test_data_that_stays_the_same() -> None:
    """`p.data = p.data.to(device, dtype)`, as losses with weights do, is compiled."""
    p = torch.nn.Parameter(torch.ones(3))
    buffer = torch.zeros(3)

    def f(x: Any) -> Any:
        p.data = p.data.to(device=x.device, dtype=x.dtype)
        buffer.data.copy_(x * p)
        return (x * p * (buffer / 2)).sum()

    jitted = thunder.jit(f)
    for _ in range(3):
        x, p.grad = torch.full((3,), 2.0, requires_grad=True), None
        jitted(x).backward()
        assert p.grad.tolist() == [2.0] * 3 and x.grad.tolist() == [1.0] * 3 and buffer.tolist() == [2.0] * 3
    assert thunder.cache_hits(jitted) == 2


@pytest.mark.parametrize("f", HIDDEN, ids=lambda f: f.__name__)
def test_writes_that_autograd_does_not_see(f: Any) -> None:
    """The value changes, the gradient flows on as it would have."""
    found = []
    for fn in (f, thunder.jit(f)):
        x = torch.arange(1.0, 7.0).reshape(2, 3)
        p = torch.full((2, 3), 0.5, requires_grad=True)
        y = fn(x, p)
        try:
            y.sum().backward()
        except RuntimeError:
            assert fn is f is after_its_use
            p.grad = x.clone()
        found.append((y.detach(), p.detach(), p.grad))
    torch.testing.assert_close(found[1], found[0])


def test_embeddings_that_renormalize() -> None:
    """`max_norm` writes to the weights under no_grad, before they are looked up."""
    torch.manual_seed(0)
    eager = torch.nn.Embedding(5, 3, max_norm=1.0).double()
    ours = torch.nn.Embedding(5, 3, max_norm=1.0).double()
    ours.load_state_dict(eager.state_dict())
    jitted = thunder.jit(ours)
    for tokens in ([1, 3, 1], [0, 4, 2]):
        for module in (eager, jitted):
            module(torch.tensor(tokens)).sum().backward()
        torch.testing.assert_close(ours.weight, eager.weight)
        torch.testing.assert_close(ours.weight.grad, eager.weight.grad)
