# SPDX-License-Identifier: Apache-2.0
"""`torch._foreach_*` on lists of tensors: eager mode's values, and one program."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder
from thunder.capture.dispatch import foreach as tested


@pytest.fixture(params=[False, True], ids=["one by one", "kernels for lists"], autouse=True)
def lists(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Record calls for lists on the CPU, too, as on a GPU."""
    monkeypatch.setattr(tested, "_MULTI_TENSOR", {"cpu"} if request.param else set())
    return bool(request.param)


def names(jitted: Any) -> list[str]:
    return [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.name.startswith("foreach")]


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
    "the largest": lambda xs, ys: torch._foreach_max([x.clone() for x in xs]),
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


OTHERS: dict[str, tuple[Any, ...]] = {
    "add": (2, [0.5, 2.0], "tensors"), "sub": (2, [0.5, 2.0], "tensors"), "mul": (2, [0.5, 2.0], "tensors"),
    "div": (2, [0.5, 2.0], "tensors"), "clamp_max": (0.5, [0.5, 0.4], "tensors"),
    "clamp_min": (0.5, [0.5, 0.4], "tensors"), "maximum": (0.5, [0.5, 0.4], "tensors"),
    "minimum": (0.5, [0.5, 0.4], "tensors"), "pow": (2, [0.5, 2.0], "tensors"), "lerp": (),
    "addcdiv": (), "addcmul": (), "copy": (), "zero": (), "mm": (), "clone": (),
}  # fmt: skip
FUNCTIONS = sorted({n.strip("_").removeprefix("foreach_") for n in dir(torch) if n.startswith("_foreach_")})


@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in place"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_functions(name: str, in_place: bool) -> None:
    """With each form of the other operand."""
    function = getattr(torch, f"_foreach_{name}_" if in_place else f"_foreach_{name}", None)
    others = OTHERS.get(name, (None,))
    if function is None or not others:
        return
    for other in others:

        def call(xs: Any, ys: Any, other: Any = other) -> Any:
            xs = [x.clone() for x in xs]
            more = () if other is None else (ys if other == "tensors" else other,)
            found = function(xs, *more)
            return xs if in_place else found

        xs = [torch.linspace(0.1, 0.9, 3), torch.linspace(0.2, 0.8, 4).reshape(2, 2)]
        ys = [torch.linspace(1.1, 1.9, 3), torch.linspace(0.3, 0.7, 4).reshape(2, 2)]
        jitted = thunder.jit(call, fullgraph=True)
        found, expected = jitted(xs, ys), call(xs, ys)
        assert type(found) is type(expected) and all(map(torch.equal, found, expected))


def test_a_number_to_the_power_of_tensors() -> None:
    xs = [torch.rand(3), torch.rand(2)]
    call = lambda xs: torch._foreach_pow(0.9, xs)  # noqa: E731
    assert all(map(torch.equal, thunder.jit(call, fullgraph=True)(xs), call(xs)))


@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_numbers_in_a_tensor(name: str) -> None:
    """One for each tensor; they are no constants of the program."""
    xs = [torch.rand(3) + 1, torch.rand(2) + 1]
    call = lambda xs, n: getattr(torch, f"_foreach_{name}")(xs, xs, xs, n)  # noqa: E731
    jitted = thunder.jit(call, fullgraph=True)
    for n in (torch.tensor([0.1, 0.2]), torch.tensor([0.3, 1.0])):
        assert all(map(torch.equal, jitted(xs, n), call(xs, n)))
    assert thunder.cache_misses(jitted) == 1


ONE_BY_ONE: dict[str, Callable[..., Any]] = {
    "another dtype": lambda xs, ys: torch._foreach_add(xs, [y.double() for y in ys]),
    "another shape": lambda xs, ys: torch._foreach_add(xs, [y[:1] for y in ys]),
    "mixed dtypes": lambda xs, ys: torch._foreach_mul([xs[0], xs[1].double()], 2),
    "whole numbers": lambda xs, ys: torch._foreach_mul([x.long() for x in xs], 2),
    "complex numbers": lambda xs, ys: torch._foreach_mul(xs, 2j),
    "a complex number in a list": lambda xs, ys: torch._foreach_mul(xs, [2.0, 2j]),
    "copies": lambda xs, ys: [torch._foreach_copy_(z := [x.clone() for x in xs], ys), z][1],
}


@pytest.mark.parametrize("call", ONE_BY_ONE.values(), ids=ONE_BY_ONE)
def test_calls_without_a_kernel_for_lists(call: Callable[..., Any]) -> None:
    xs, ys = [torch.randn(3), torch.randn(2, 2)], [torch.rand(3) + 1, torch.rand(2, 2) + 1]
    jitted = thunder.jit(call, fullgraph=True)
    assert all(map(torch.equal, jitted(xs, ys), call(xs, ys)))
    assert not names(jitted)


def test_one_kernel_for_a_list(lists: bool) -> None:
    call = lambda xs, n: torch._foreach_div(xs, [0.3, 0.7])  # noqa: E731
    xs = [torch.randn(3), torch.randn(2, 2)]
    jitted = thunder.jit(call, fullgraph=True)
    assert all(map(torch.equal, jitted(xs, 1), call(xs, 1)))
    assert names(jitted) == ["foreach_div"] * lists


def test_unused_results_are_not_computed(lists: bool) -> None:
    jitted = thunder.jit(lambda xs: torch._foreach_sqrt(xs)[1], executors=["torch"])
    assert jitted([torch.ones(3), torch.ones(2)]).shape == (2,)
    found = thunder.last_traces(jitted)[-1].bound_symbols
    (op,) = [op for op in found if op.sym.name in ("sqrt", "foreach_sqrt")]
    assert len(op.flat_outs) == 1


def test_numbers_of_the_program() -> None:
    """Numbers in a list that a tensor contains change from call to call."""

    def call(xs: Any, step: Any) -> Any:
        step += 1
        return torch._foreach_mul(xs, [1 / step.item(), 2.0 - step.item()])

    jitted = thunder.jit(call, fullgraph=True)
    xs, ours, theirs = [torch.randn(3), torch.randn(2, 2)], torch.tensor(1.0), torch.tensor(1.0)
    for _ in range(3):
        assert all(map(torch.equal, jitted(xs, ours), call(xs, theirs)))
    assert thunder.cache_misses(jitted) == 1


@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in place"])
def test_gradients(in_place: bool) -> None:
    def call(xs: Any, ys: Any) -> Any:
        made = torch._foreach_addcmul(xs, ys, ys, [0.5, 2.0])
        if in_place:
            torch._foreach_mul_(made, ys)
        return sum(x.sum() for x in (*torch._foreach_div(made, [0.3, 0.7]), *torch._foreach_norm(xs)))

    def gradients(fn: Any) -> Any:
        draw = torch.Generator().manual_seed(0)
        xs, ys = [[torch.rand(s, generator=draw).requires_grad_() for s in (3, (2, 2))] for _ in range(2)]
        loss = fn(xs, ys)
        loss.backward()
        return [loss, *[x.grad for x in (*xs, *ys)]]

    for found, expected in zip(gradients(thunder.jit(call, fullgraph=True)), gradients(call)):
        torch.testing.assert_close(found, expected)


def test_batched() -> None:
    call = lambda x: torch._foreach_lerp([x, x.sin()], [x.cos(), x], 0.3)  # noqa: E731
    x = torch.randn(3, 4)
    for found, expected in zip(thunder.jit(torch.func.vmap(call))(x), call(x)):
        torch.testing.assert_close(found, expected)
