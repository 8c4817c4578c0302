# SPDX-License-Identifier: Apache-2.0
"""Counters on the CPU are updated together if nothing else reads or writes them, and only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import thunder

Counters = list[torch.Tensor]


def counters(dtype: torch.dtype = torch.float32, number: int = 5) -> Counters:
    return [torch.tensor(i, dtype=dtype) for i in range(number)]


def calls(jitted: Any) -> list[tuple[str, int]]:
    """Return the joined calls of the program, with their numbers of counters."""
    ops = thunder.last_traces(jitted)[-1].bound_symbols
    return [(op.sym.name, len(op.output)) for op in ops if "counters" in op.sym.name]


def check(fn: Callable[..., Any], *lists: Counters) -> Any:
    """Compare three calls with eager mode: results and counters, which keep their own memory."""
    ours, theirs = ([[x.clone() for x in xs] for xs in lists] for _ in range(2))
    jitted = thunder.jit(fn)
    for _ in range(3):
        found, expected = jitted(*ours), fn(*theirs)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        for xs, ys in zip(ours, theirs):
            torch.testing.assert_close(xs, ys, rtol=0, atol=0)
    assert len({x.untyped_storage().data_ptr() for xs in ours for x in xs}) == sum(map(len, ours))
    return jitted


def count(ns: Counters) -> list[Any]:
    return [n.add_(1).item() for n in ns]


def count_or_fail(ns: Counters) -> list[Any]:
    """The program writes nothing before the division, which may fail."""
    return [6 // n.add_(1).item() for n in ns]


def only_count(ns: Counters) -> None:
    for n in ns:
        n.add_(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_counters(dtype: torch.dtype) -> None:
    assert calls(check(count, counters(dtype))) == [("add_to_counters_", 5)]
    assert calls(check(count_or_fail, counters(dtype))) == [("add_to_counters", 5), ("copy_counters_", 5)]


def test_whole_numbers() -> None:
    """The value of a sum is computed from that of its counter, which is therefore read twice."""
    assert calls(check(only_count, counters(torch.int64))) == [("add_to_counters_", 5)]
    assert calls(check(count, counters(torch.int64))) == []


def test_errors_leave_the_counters() -> None:
    ns = [torch.tensor(n) for n in (3, -1, 5, 7)]
    jitted = thunder.jit(count_or_fail)
    for _ in range(2):
        jitted([torch.tensor(n) for n in (3, 4, 5, 7)])
    with pytest.raises(ZeroDivisionError):
        jitted(ns)
    assert [n.item() for n in ns] == [4, 0, 5, 7]  # as in eager mode


def test_rounding() -> None:
    """Beyond what the dtype can count, sums are rounded as in eager mode."""
    check(count, [torch.tensor(float(n)) for n in (2**24 - 1, 2**24, 2**24 + 2, 0.1)])


def test_few_counters() -> None:
    assert calls(check(count, counters(number=3))) == []


def test_other_numbers_and_dtypes_are_counted_separately() -> None:
    def fn(ns: Counters, ms: Counters, ks: Counters) -> list[float]:
        return [*[n.add_(1).item() for n in ns], *[m.add_(2).item() for m in ms], *[k.add_(1).item() for k in ks]]

    found = calls(check(fn, counters(), counters(number=4), counters(torch.float64, 6)))
    assert sorted(found) == [("add_to_counters_", n) for n in (4, 5, 6)]


def reads_the_old_value(ns: Counters) -> list[Any]:
    return [n * 2 for n in ns] + [n.add_(1).item() for n in ns]


def returns_the_sum(ns: Counters) -> list[Any]:
    found = []
    for n in ns:
        new = n + 1
        n.copy_(new)
        found.append(new)
    return found


def computes_with_the_sum(ns: Counters) -> list[Any]:
    return [n.add_(1) * 0.5 for n in ns]


def counts_twice(ns: Counters) -> list[Any]:
    return [n.add_(1).add_(1).item() for n in ns]


def sums_twice(ns: Counters) -> list[Any]:
    return [n.add_((n + 1).item() * 0 + 1).item() for n in ns]


def writes_another_counter(ns: Counters) -> list[Any]:
    new = [n + 1 for n in ns]
    for n, value in zip(ns, reversed(new)):
        n.copy_(value)
    return [value.item() for value in new]


def becomes_another_dtype(ns: Counters) -> list[Any]:
    return [(n + 0.5).item() for n in ns]


OTHERS = [
    reads_the_old_value, returns_the_sum, computes_with_the_sum, counts_twice, sums_twice, writes_another_counter,
    becomes_another_dtype,
]  # fmt: skip


@pytest.mark.parametrize("fn", OTHERS)
def test_what_is_not_joined(fn: Callable[..., Any]) -> None:
    dtype = torch.int64 if fn is becomes_another_dtype else torch.float32
    assert calls(check(fn, counters(dtype))) == []


def test_one_counter_under_two_names() -> None:
    """thunder refuses such inputs, and the call runs as in eager mode."""
    shared = torch.tensor(0.0)
    jitted = thunder.jit(count)
    for k in range(3):
        assert jitted([shared] * 5) == [*range(5 * k + 1, 5 * k + 6)]


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adam, torch.optim.NAdam, torch.optim.RMSprop])
def test_optimizers(optimizer: Any) -> None:
    """Steps leave what eager mode leaves, and each parameter has a counter of its own."""

    def trained(jit: Callable[..., Any]) -> tuple[Any, ...]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1))
        updates = optimizer(net.parameters(), lr=0.01)

        def step(x: torch.Tensor) -> torch.Tensor:
            updates.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            updates.step()
            return loss.detach()

        run = jit(step)
        losses = [run(torch.full((2, 3), k + 1.0)) for k in range(4)]
        return run, losses, [*net.parameters()], [updates.state[p]["step"] for p in net.parameters()]

    jitted, *found = trained(thunder.jit)
    _, *expected = trained(lambda f: f)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert calls(jitted)[0][1] == 6
    steps = found[-1]
    steps[0].fill_(9)
    assert [n.item() for n in steps] == [9] + [4] * 5
