# SPDX-License-Identifier: Apache-2.0
"""Lists that grow, of which a program asks no more than how long they are: the length becomes an input."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch
from torch import nn

import thunder

LOG: list[Any] = []


class Logging(nn.Module):
    """Appends to lists and computes with their lengths, before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[Any] = []
        self.recent: Any = deque()
        self.outside: list[Any] = []

    def forward(self, x: Any) -> Any:
        before = len(self.history)
        self.history.append(x.sum())
        self.recent.append(1)
        y = x * len(self.history)
        self.history.append(2.0)
        return y + before + 10 * len(self.outside) + len(self.recent)


def test_lengths_that_only_enter_arithmetic() -> None:
    net, other = Logging(), Logging()
    jnet = thunder.jit(net)
    for i in range(30):
        x = torch.randn(3)
        torch.testing.assert_close(jnet(x), other(x))
        assert (len(net.history), len(net.recent)) == (len(other.history), len(other.recent))
        for module in (net, other):
            module.outside += [None] * (i % 3)
    assert thunder.cache_misses(jnet) <= 5
    assert "len(v" in str(thunder.last_prologue_traces(jnet)[-1])


@pytest.mark.parametrize("where", ["a global", "a closure", "an argument's attribute"])
def test_wherever_the_list_is(where: str) -> None:
    log: list[Any] = LOG if where == "a global" else []
    log.clear()

    class Holder:
        def __init__(self) -> None:
            self.items = log

    if where == "a global":
        f: Any = lambda x, holder: x * len(LOG)  # noqa: E731
    elif where == "a closure":
        f = lambda x, holder: x * len(log)  # noqa: E731
    else:
        f = lambda x, holder: x * len(holder.items)  # noqa: E731
    jf = thunder.jit(f)
    for _ in range(12):
        log.append(torch.ones(1))
        holder = Holder() if where == "an argument's attribute" else None
        torch.testing.assert_close(jf(torch.ones(2), holder), torch.full((2,), float(len(log))))
    assert thunder.cache_misses(jf) == 3


def test_what_is_in_them_is_read() -> None:
    """Then each length is a program of its own."""
    items = [1.0]

    def sums(x: Any) -> Any:
        return x * sum(items) + len(items)

    def first(x: Any) -> Any:
        others = items
        return x * others[0] + len(items)

    def loops(x: Any) -> Any:
        for i in range(len(items)):
            x = x + items[i]
        return x

    for f in (sums, first, loops):
        jf = thunder.jit(f)
        for i in range(5):
            items.append(float(i))
            torch.testing.assert_close(jf(torch.ones(2)), f(torch.ones(2)))
            items[0] += 1
            torch.testing.assert_close(jf(torch.ones(2)), f(torch.ones(2)))


def test_a_branch_on_a_length() -> None:
    """Is a constraint."""
    items: list[int] = []

    def f(x: Any) -> Any:
        return x * 2 if len(items) < 6 else x - len(items)

    jf = thunder.jit(f)
    for i in range(15):
        items.append(i)
        torch.testing.assert_close(jf(torch.ones(2)), f(torch.ones(2)))
    assert thunder.cache_misses(jf) <= 5, thunder.explain(jf)


def test_len_is_python_s_again() -> None:
    assert "len" not in globals()


def test_a_list_in_a_variable_stays_that_list() -> None:
    """Whatever stands in for other things while the program is traced."""
    items, numbers, count = [1.0], {"k": [2.0]}, 0

    def f(x: Any) -> Any:
        nonlocal count
        count += 1
        items.append(1.0)
        return x * count + numbers["k"][0]

    first, second = items, numbers
    jf = thunder.jit(f)
    for _ in range(6):
        jf(torch.ones(2))
        assert items is first and numbers is second
    assert (count, len(first)) == (6, 7)
