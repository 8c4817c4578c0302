# SPDX-License-Identifier: Apache-2.0
"""Tensors that programs store in unusual places, and calls with tensors in unusual positions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import thunder


class Operation:
    def __init__(self, given: torch.Tensor, result: torch.Tensor):
        self.given, self.result = given, result


def sets_an_attribute(x: Any) -> Any:
    x.double = x * 2
    return x + x.double


def test_attributes_of_a_tensor_argument() -> None:
    jitted = thunder.jit(sets_an_attribute)
    for i in range(3):
        x = torch.ones(2) + i
        assert jitted(x)[0] == 3 * (1 + i)
        assert torch.equal(x.double, x * 2)  # type: ignore[arg-type]
    assert thunder.cache_hits(jitted) == 2
    leaf = torch.ones(2, requires_grad=True)
    jitted(leaf)
    leaf.double.sum().backward()  # type: ignore[attr-defined]
    assert leaf.grad is not None and leaf.grad[0] == 2


def test_a_tape_of_objects() -> None:
    tape: list[Any] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        operation = Operation(x, x * 2)
        tape.append(operation)
        return operation.result + 1

    jitted = thunder.jit(f)
    for i in range(3):
        x = torch.ones(2) + i
        assert jitted(x)[0] == 2 * (1 + i) + 1
        assert tape[-1].given is x and tape[-1].result[0] == 2 * (1 + i)
    assert len(tape) == 3 and thunder.cache_hits(jitted) == 2


def itself(x: torch.Tensor) -> Any:
    out: list[Any] = [x + 1, (x * 2, {})]
    out.append(out)
    out[1][1]["all"] = out
    return out


def test_lists_that_contain_themselves() -> None:
    jitted = thunder.jit(itself)
    for i in range(3):
        found = jitted(torch.ones(2) + i)
        assert found[2] is found and found[1][1]["all"] is found
        assert found[0][0] == 2 + i and found[1][0][0] == 2 + 2 * i
    assert thunder.cache_hits(jitted) == 2


def test_an_argument_that_contains_itself() -> None:
    given: list[Any] = [torch.ones(2)]
    given.append(given)
    jitted = thunder.jit(lambda items: items[1][0] + 1)
    assert jitted([torch.ones(2), [torch.zeros(2)]])[0] == 1
    for _ in range(3):
        assert jitted(given)[0] == 2
    assert jitted([torch.ones(2), [torch.zeros(2)]])[0] == 1


def add_later(x: torch.Tensor) -> Any:
    def outer() -> Any:
        return lambda z: x + z

    return outer()


def add_item_later(x: torch.Tensor) -> Any:
    items = {"x": [x]}
    return lambda z: items["x"][0] + z


def add_attribute_later(x: torch.Tensor) -> Any:
    operation = Operation(x, x)
    return lambda z: operation.given + z


def add_default_later(x: torch.Tensor) -> Any:
    return lambda z, x=x: x + z


@pytest.mark.parametrize(
    "fn",
    [
        add_later,
        add_item_later,
        add_attribute_later,
        add_default_later,
        lambda x: functools.partial(torch.add, x),
        lambda x: x.add,
    ],
)
def test_callables_that_hold_an_input(fn: Callable[..., Any]) -> None:
    jitted = thunder.jit(fn, sharp_edges="allow")
    for i in range(3):
        assert jitted(torch.ones(2) + i)(torch.ones(2))[0] == 2 + i


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> Any:
        weight = self.weight
        return x * weight, lambda z: weight + z


def test_a_closure_over_a_parameter_does_not_end_the_trace() -> None:
    jitted = thunder.jit(Weighted())
    for _ in range(3):
        found, add = jitted(torch.ones(2))
        assert found[0] == 1 and add(torch.ones(2))[0] == 2


def slices(x: torch.Tensor) -> Any:
    first, last = x.to(torch.int32)
    return slice(first, last), {"rows": slice(0, last.item(), x.shape[0])}


def test_slices_of_tensors_and_numbers() -> None:
    jitted = thunder.jit(slices)
    for i in range(4):
        found, named = jitted(torch.tensor([1.0, 4.0 + i]))
        assert (found.start, found.stop, found.step) == (1, 4 + i, None)
        assert named == {"rows": slice(0, 4 + i, 2)} and type(named["rows"].stop) is int
    assert thunder.cache_misses(jitted) == 1


def test_a_branch_on_a_tensor_of_a_closure_is_compiled() -> None:
    """Neither the trace nor its decisions keep the symbolic tensor that the closure held."""
    limit = torch.ones(2)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if limit[0] < 10 else x

    jitted = thunder.jit(f, sharp_edges="error")
    for _ in range(3):
        assert jitted(torch.ones(2))[0] == 2
    assert thunder.cache_misses(jitted) == 1


NUMBERS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "nested": (lambda v: torch.tensor([[v.item()], [2.0]]), lambda i: (torch.tensor(1.5 + i),)),
    "rows": (lambda v: torch.tensor([[1, 2], [v.item(), 3]]), lambda i: (torch.tensor(1 + i),)),
    "tensors": (lambda v: torch.tensor([v, v * 2, 1.0]), lambda i: (torch.tensor(1.5 + i),)),
    "arange": (lambda v: torch.arange(v[0].item(), v[1].item()), lambda i: (torch.tensor([i, 5 + 2 * i]),)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_tensors_of_data_dependent_numbers(name: str) -> None:
    f, arguments = NUMBERS[name]
    jitted = thunder.jit(f)
    for i in range(4):
        found, expected = jitted(*arguments(i)), f(*arguments(i))
        assert torch.equal(found, expected) and found.dtype is expected.dtype
    assert thunder.cache_misses(jitted) == 1


def test_a_tensor_as_the_number_of_largest_elements() -> None:
    jitted = thunder.jit(lambda x, k: torch.topk(x, k).values + x.topk(k, largest=False)[0])
    x = torch.arange(9.0)
    for k in (3, 3, 4, 3):
        assert torch.equal(jitted(x, torch.tensor(k)), torch.topk(x, k).values + x.topk(k, largest=False)[0])
    assert thunder.cache_misses(jitted) + thunder.cache_hits(jitted) == 4, thunder.explain(jitted)


@pytest.mark.parametrize("train", [True, False])
def test_a_block_that_begins_with_an_in_place_relu(train: bool) -> None:
    torch.manual_seed(0)
    first, block = nn.Linear(3, 3), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3))
    jitted, x = thunder.jit(block), torch.randn(4, 3)
    gradients = []
    for run in (block, jitted, jitted):
        with torch.set_grad_enabled(train):
            hidden = first(x)
            out = run(hidden) + hidden  # of what the ReLU has left
        if train:
            gradients.append(torch.autograd.grad(out.sum(), first.weight)[0])
    for found in gradients[1:]:
        torch.testing.assert_close(found, gradients[0])


def test_a_module_under_ddp_is_compiled_from_the_first_call_on() -> None:
    """Without a process group: the class is only looked at."""
    parallel = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(parallel)
    jitted = thunder.jit(lambda x: parallel(x))
    with pytest.raises(AttributeError):  # eager's: it has no module
        jitted(torch.ones(2))
    assert "DistributedDataParallel" in thunder.explain(jitted)
    assert thunder.cache_misses(jitted) == 1
