# SPDX-License-Identifier: Apache-2.0
"""`associative_scan` is part of a traced program, and computes what a loop computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan

import thunder

Pair = tuple[Any, Any]


def affine(left: Pair, right: Pair) -> Pair:
    """Compose `x -> a * x + b`, as in state space models."""
    return left[0] * right[0], right[0] * left[1] + right[1]


def flat(a: Any, b: Any, c: Any, d: Any) -> list[Any]:
    return [*affine((a, b), (c, d))]


def directly(a: Any, b: Any) -> Any:
    """Call the operation that torch's function calls on a GPU."""
    return torch.ops.higher_order.associative_scan(flat, [a, b], ())


def by_function(a: Any, b: Any) -> Any:
    return associative_scan(affine, (a, b), dim=0, combine_mode="generic")


def reverse(a: Any, b: Any) -> Any:
    found = associative_scan(affine, (a.flip(0), b.flip(0)), dim=0, reverse=True, combine_mode="generic")
    return found[0].flip(0), found[1].flip(0)


def loop(a: Any, b: Any) -> Any:
    found = [(a[0], b[0])]
    for i in range(1, len(a)):
        found.append(affine(found[-1], (a[i], b[i])))
    return torch.stack([x for x, _ in found]), torch.stack([x for _, x in found])


@pytest.mark.parametrize("fn", [directly, by_function, reverse])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 13, 32])
def test_it_is_as_a_loop(fn: Callable[..., Any], count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    given = [torch.rand(count, 2, 3, generator=generator, dtype=torch.float64) for _ in range(2)]
    results = []
    jitted = thunder.jit(fn)
    for run in (jitted, loop):
        inputs = [x.clone().requires_grad_() for x in given]
        out = run(*inputs)
        gradients = torch.autograd.grad(out[0].sin().sum() + out[1].square().sum(), inputs)
        results.append([*out, *gradients])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)
    assert "eager" not in thunder.explain(jitted)


def test_steps_grow_with_the_logarithm() -> None:
    jitted = thunder.jit(directly)
    counts = []
    for n in (64, 256):
        jitted(torch.rand(n, 2), torch.rand(n, 2))
        counts.append(len(thunder.last_traces(jitted)[-1].bound_symbols))
    assert counts[1] < 1.5 * counts[0]
