# SPDX-License-Identifier: Apache-2.0
"""`torch._foreach_*` on lists of tensors: eager mode's values, and one program."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder

CALLS: dict[str, Callable[..., Any]] = {
    "a number": lambda xs, ys: torch._foreach_mul(xs, 2),
    "tensors": lambda xs, ys: torch._foreach_add(xs, ys, alpha=0.5),
    "numbers": lambda xs, ys: torch._foreach_div(xs, [2.0, 3.0]),
    "a tensor": lambda xs, ys: torch._foreach_mul(xs, torch.tensor(2.0)),
    "in place": lambda xs, ys: [torch._foreach_sub_(z := [x.clone() for x in xs], ys), z][1],
    "values": lambda xs, ys: torch._foreach_addcmul(xs, ys, ys, [0.1, 0.2]),
    "a value": lambda xs, ys: torch._foreach_addcdiv(xs, ys, ys, 0.3),
    "lerp": lambda xs, ys: torch._foreach_lerp(xs, ys, 0.1),
    "one argument": lambda xs, ys: torch._foreach_sqrt(torch._foreach_abs(xs)),
    "maximum": lambda xs, ys: torch._foreach_maximum(xs, ys),
    "minimum of a number": lambda xs, ys: torch._foreach_minimum(xs, 0.5),
    "clamped in place": lambda xs, ys: [torch._foreach_clamp_max_(z := [x.clone() for x in xs], ys), z][1],
    "power": lambda xs, ys: torch._foreach_pow(ys, [2.0, 0.5]),
    "power of a number": lambda xs, ys: torch._foreach_pow(2.0, xs),
    "the largest": lambda xs, ys: torch._foreach_max(torch._foreach_clone(xs)),
    "norm": lambda xs, ys: torch._foreach_norm(xs, 1),
    "copy": lambda xs, ys: [torch._foreach_copy_(z := [x * 2 for x in xs], ys), torch._foreach_zero_(z[:1]), z][2],
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_lists_of_tensors(call: Callable[..., Any]) -> None:
    xs, ys = [torch.randn(3), torch.randn(2, 2)], [torch.rand(3) + 1, torch.rand(2, 2) + 1]
    jitted = thunder.jit(call, fullgraph=True)
    for _ in range(2):
        found, expected = jitted(xs, ys), call(xs, ys)
        assert type(found) is type(expected) and len(found) == 2
        assert all(map(torch.equal, found, expected))
    assert thunder.cache_hits(jitted) == 1


def test_numbers_in_a_tensor() -> None:
    """One factor for each tensor: partly eager."""
    xs = [torch.ones(3), torch.ones(2)]
    call = lambda xs: torch._foreach_addcmul(xs, xs, xs, torch.tensor([0.1, 0.2]))  # noqa: E731
    found = thunder.jit(call, sharp_edges="allow")(xs)
    assert all(map(torch.equal, found, call(xs)))
