# SPDX-License-Identifier: Apache-2.0
"""The primitive for grouped matrix products: batches, tangents, and that it does not fail because of values."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import thunder
from thunder.core import dtypes, prims
from thunder.core.devices import cpu
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace
from thunder.passes.postponing import may_fail

SHAPES = {
    "rows": ((32, 16), (4, 16, 24)),
    "columns": ((4, 16, 24), (24, 32)),
    "inner": ((16, 32), (32, 24)),
    "batches": ((4, 16, 24), (4, 24, 32)),
}
# The groups of three examples. In the last two, something is in no group.
ENDS = torch.tensor([[8, 8, 16, 32], [4, 12, 20, 24], [0, 0, 8, 8]], dtype=torch.int32)


def _without_groups_zero(out: torch.Tensor, form: str, ends: torch.Tensor) -> torch.Tensor:
    """The result with zeros where it is undefined."""
    if form == "rows":
        out[ends[-1] :] = 0
    if form == "columns":
        out[:, ends[-1] :] = 0
    return out


@pytest.mark.parametrize("form", SHAPES)
def test_batches(form: str) -> None:
    """Of any of the arguments, as one product; what is in no group stays out."""
    torch.manual_seed(0)
    count = 2 if form == "batches" else 3
    for batched in itertools.product((False, True), repeat=count):
        if not any(batched):
            continue
        whole = [torch.randn(3, *shape) for shape in SHAPES[form]] + [ENDS][: count - 2]
        args = [x if yes else x[0 if x is not ENDS else 1] for x, yes in zip(whole, batched)]
        dims = tuple(0 if yes else None for yes in batched)
        fast = thunder.jit(torch.vmap(lambda *args: torch._grouped_mm(*args), in_dims=dims))
        found = fast(*args)
        names = [op.sym.name for op in thunder.last_traces(fast)[-1].bound_symbols]
        assert names.count("_grouped_mm") == 1
        for i in range(3):
            one = [x[i] if yes else x for x, yes in zip(args, batched)]
            expected, actual = torch._grouped_mm(*one), found[i]
            if count == 3:
                expected, actual = (_without_groups_zero(x, form, one[2]) for x in (expected, actual))
            torch.testing.assert_close(actual, expected)


def test_gradients_of_each_example() -> None:
    """`vmap` of gradients, which contain the other forms."""
    torch.manual_seed(0)
    a, b, g = torch.randn(3, 32, 16), torch.randn(4, 16, 24), torch.randn(32, 24)

    def gradients(a: Any, ends: Any) -> Any:
        rows = (torch.arange(32) < ends[-1]).unsqueeze(1)

        def loss(a: Any, b: Any) -> Any:
            return (torch.where(rows, torch._grouped_mm(a, b, ends), 0.0) * g).sum()

        return torch.func.grad(loss, argnums=1)(a, b)

    found = thunder.jit(torch.vmap(gradients))(a, ENDS)
    for i in range(3):
        weight = b.clone().requires_grad_()
        torch._grouped_mm(a[i], weight, ENDS[i])[: ENDS[i, -1]].mul(g[: ENDS[i, -1]]).sum().backward()
        torch.testing.assert_close(found[i], weight.grad)


def test_tangents() -> None:
    """torch has no forward mode for it; the product is linear in both factors."""
    torch.manual_seed(0)
    a, b, ends = torch.randn(32, 16), torch.randn(4, 16, 24), ENDS[0]
    moved = torch.randn_like(a), torch.randn_like(b)
    _, found = thunder.jvp(lambda a, b: torch._grouped_mm(a, b, ends), (a, b), moved)
    torch.testing.assert_close(found, torch._grouped_mm(moved[0], b, ends) + torch._grouped_mm(a, moved[1], ends))


def test_it_cannot_fail() -> None:
    """Because of values: a region of a program may contain it."""
    shapes: Any = {"a": (32, 16), "b": (4, 16, 24)}
    a, b = (TensorProxy(name, shape=shape, device=cpu, dtype=dtypes.bfloat16) for name, shape in shapes.items())
    ends = TensorProxy("ends", shape=(4,), device=cpu, dtype=dtypes.int32)
    with tracectx(Trace("f", args=[a, b, ends])) as trace:
        prims.grouped_mm(a, b, ends)
    assert not may_fail(trace.bound_symbols[-1])
    for values in ((40, 50, -3, 70), (32, 8, 64, 8)):
        assert torch._grouped_mm(torch.ones(32, 16), torch.ones(4, 16, 24), torch.tensor(values).int()).shape == (
            32,
            24,
        )
