# SPDX-License-Identifier: Apache-2.0
"""Containers with thousands of items: they are guarded like small ones, and every change is seen."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import thunder
from thunder.runtime.guards import same_contents

N = 5000


class Item:
    def __init__(self, number: float):
        self.number = number


def set_to(key: Any, value: Any) -> Callable[[Any], None]:
    return lambda container: container.__setitem__(key, value)


def add(value: Any) -> Callable[[Any], None]:
    return lambda container: container.add(value)


def set_number(container: Any) -> None:
    container[7].number = 100.0


def set_inner(container: Any) -> None:
    container[7][0] = 100.0


CASES: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], None]]] = {
    "list of numbers": (list(range(N)), sum, set_to(N - 1, 7)),
    "list of numbers, other type": (list(range(N)), lambda c: float(type(c[4000]) is int), set_to(4000, 4000.0)),
    "list of floats, other sign": ([0.0] * N, lambda c: torch.tensor(c[9]).signbit() * 1, set_to(9, -0.0)),
    "deque": (deque(range(N)), sum, set_to(N - 1, 7)),
    "dict": ({str(i): i for i in range(N)}, lambda c: c["7"], set_to("7", 100)),
    "ordered dict": (OrderedDict((i, i) for i in range(N)), lambda c: c[7], set_to(7, 100)),
    "set of numbers": (set(range(N)), lambda c: float(-1 in c), add(-1)),
    "set of strings": ({str(i) for i in range(N)}, lambda c: float("x" in c), add("x")),
    "list of tensors": ([torch.full((2,), float(i)) for i in range(1500)], lambda c: c[7], set_to(7, torch.zeros(2))),
    "dict of tensors": (
        {i: torch.full((2,), float(i)) for i in range(1500)},
        lambda c: c[7],
        set_to(7, torch.zeros(2)),
    ),
    "list of objects": ([Item(i) for i in range(1500)], lambda c: c[7].number, set_number),
    "list of lists": ([[float(i), i] for i in range(1500)], lambda c: c[7][0], set_inner),
}


@pytest.mark.parametrize("name", CASES)
def test_large_container(name: str) -> None:
    container, use, change = CASES[name]

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + use(container)

    jitted, x = thunder.jit(f), torch.ones(2)
    for _ in range(4):
        assert torch.equal(jitted(x), f(x))
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (1, 3)
    before = f(x)
    change(container)
    assert not torch.equal(before, f(x))
    for _ in range(2):
        assert torch.equal(jitted(x), f(x))


def test_tuple_among_the_arguments() -> None:
    jitted = thunder.jit(lambda x, numbers: x * sum(numbers))
    for numbers in (tuple(range(N)), list(range(N)), tuple(range(1, N + 1))):
        for _ in range(2):
            assert jitted(torch.ones(2), numbers)[0] == sum(numbers)


def test_sequential_of_1100_modules() -> None:
    model = nn.Sequential(*[nn.Identity() for _ in range(1100)], nn.Linear(2, 2))
    jitted, x = thunder.jit(model), torch.ones(3, 2)
    for _ in range(3):
        torch.testing.assert_close(jitted(x), model(x))
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (1, 2)
    model[500] = nn.ReLU()
    torch.testing.assert_close(jitted(-x), model(-x))


def test_equal_contents_of_other_objects() -> None:
    """If the items are not the same objects, their types and values are compared."""
    strings = [f"{i} x" for i in range(N)]
    assert same_contents([*map(str.swapcase, map(str.swapcase, strings))], tuple(strings))
    assert same_contents({int(str(i)) for i in range(N)}, frozenset(range(N)))
    assert same_contents({f"{i}": float(i) for i in range(N)}, {f"{i}": float(i) for i in range(N)})
    assert not same_contents({f"{i}": i for i in range(N)}, {f"{i}": float(i) for i in range(N)})
    assert not same_contents({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert not same_contents({1000, True}, frozenset({1000, 1}))
