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
