# SPDX-License-Identifier: Apache-2.0
"""Training steps that call `backward()`, for tests: compared with eager mode to the bit, with the objects they keep."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from training import batch, network

import thunder


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        return torch.equal(found, expected) and found.stride() == expected.stride()
    if isinstance(expected, (tuple, list)):
        return len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected)


def gradients(net: nn.Module) -> list[Any]:
    return [p.grad if p.grad is None else p.grad.clone() for p in net.parameters()]


def check(make: Callable[[nn.Module], Callable[..., Any]], *, calls: int = 4, programs: int = 1) -> Any:
    """Compare a training step with eager mode to the bit, call by call; `make` returns the step of a network."""
    eager, net = network(), network()
    expected, jitted = make(eager), thunder.jit(make(net), fullgraph=True)
    for k in range(calls):
        before = [[p.grad for p in m.parameters()] for m in (eager, net)]
        one, other = jitted(*batch(k)), expected(*batch(k))
        assert same(one, other) and same(gradients(net), gradients(eager))
        assert same([*net.parameters()], [*eager.parameters()])
        kept = [[p.grad is g for p, g in zip(m.parameters(), b)] for m, b in zip((eager, net), before)]
        assert kept[0] == kept[1]
    assert thunder.cache_misses(jitted) == programs and thunder.cache_hits(jitted) == calls - programs
    return jitted


def update(net: nn.Module) -> None:
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad
