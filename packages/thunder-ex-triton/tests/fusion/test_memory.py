# SPDX-License-Identifier: Apache-2.0
"""Fusions write updates to the memory of the program's inputs, and only where every value needs one element of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder
from thunder.extend import OpTags
from thunder_ex_triton.probe import interpreting

DEVICE = "cpu" if interpreting() else "cuda"


def momentum(p: Any, m: Any, g: Any) -> None:
    m.mul_(0.9).add_(g)
    p.add_(m, alpha=-0.1)


def returns_a_temporary(p: Any, m: Any, g: Any) -> Any:
    m.mul_(0.9).add_(g)
    p.sub_(m.sqrt())
    return m.exp()


def transposes(p: Any, m: Any, g: Any) -> None:
    p.copy_((p * 2).t() + m)
    m.add_(g)


def flips(p: Any, m: Any, g: Any) -> None:
    p.mul_(2)
    m.copy_(m.flip(0) * g)


def sums(p: Any, m: Any, g: Any) -> None:
    p.copy_(p / p.sum(1, keepdim=True))
    m.add_(p)


CASES: list[tuple[Callable[..., Any], int]] = [
    (momentum, 2), (returns_a_temporary, 2), (transposes, 1), (flips, 1), (sums, 0),
]  # fmt: skip


def matrices() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(8, 8, generator=generator).to(DEVICE) + 0.1 for _ in range(3)]


@pytest.mark.parametrize(("fn", "at_most"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_updates(fn: Callable[..., Any], at_most: int) -> None:
    """Results and inputs are those of eager mode. `at_most` inputs are written by kernels, and the others by copies."""
    ours, theirs = matrices(), matrices()
    jitted = thunder.jit(fn, executors=["triton"])
    for _ in range(3):
        torch.testing.assert_close(jitted(*ours), fn(*theirs))
        torch.testing.assert_close(ours, theirs)
    operations = thunder.last_traces(jitted)[-1].bound_symbols
    copies = sum(op.sym.name == "copy_" for op in operations)
    assert any(op.sym.is_fusion for op in operations)
    assert 2 - copies <= at_most
    if fn in (momentum, returns_a_temporary):
        assert copies == 0
        assert any(op.sym.is_fusion and OpTags.IN_PLACE_OP in op.sym.tags for op in operations)


def test_autograd_sees_writes() -> None:
    """A graph that saved a tensor before the write raises eager mode's error."""
    p, m, g = matrices()
    weight = torch.ones_like(m, requires_grad=True)
    jitted = thunder.jit(momentum, executors=["triton"])
    for _ in range(3):
        product = weight * m
        before = p._version, m._version
        jitted(p, m, g)
        assert p._version > before[0] and m._version > before[1]
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


def test_memory_of_other_strides_is_refused() -> None:
    """Programs check strides, so this cannot happen in a jitted function."""
    jitted = thunder.jit(momentum, executors=["triton"])
    p, m, g = matrices()
    jitted(p, m, g)
    (fusion,) = [op for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.is_fusion]
    given = {"p": p, "m": m, "g": g}
    region = fusion.sym.fn
    count = len(region.inputs)
    with pytest.raises(RuntimeError, match="to a tensor of"):
        region(*[given[x.name] for x in fusion.args[:count]], *[given[x.name].t() for x in fusion.args[count:]])
