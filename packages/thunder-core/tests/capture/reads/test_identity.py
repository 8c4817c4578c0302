# SPDX-License-Identifier: Apache-2.0
"""A cached program is never used where objects that it compared by identity have become the same, or different."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import thunder

X = torch.linspace(-1, 1, 6)


class Thing:
    pass


class Pair:
    a: Any
    b: Any


COMPARISONS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a is b,
    lambda a, b: a is not b,
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: id(a) == id(b),
    lambda a, b: hash(a) == hash(b),
    lambda a, b: a in [b],
    lambda a, b: a in {b},
    lambda a, b: [b, a].index(a),
    lambda a, b: [b, a].count(a),
    lambda a, b: len({a, b}),
    lambda a, b: len(set([a, b])),  # noqa: C405  the function, not the display
    lambda a, b: operator.is_(a, b),
]


@pytest.mark.parametrize("compare", COMPARISONS)
def test_objects_that_become_the_same(watch: Any, compare: Callable[[Any, Any], Any]) -> None:
    """And different again."""
    pair = Pair()
    pair.a, pair.b = Thing(), Thing()
    w = watch(lambda x: x * (compare(pair.a, pair.b) + 2))
    w.kept()
    pair.b = pair.a
    w.changed()
    pair.b = Thing()
    w.call()
    w.kept()


@pytest.mark.parametrize("make", [list, lambda: [1], dict, lambda: (1, [2]), set, nn.ReLU, lambda: nn.Linear(2, 2)])
def test_containers_and_modules_that_become_the_same(watch: Any, make: Callable[[], Any]) -> None:
    """Guarded by their classes and contents."""
    pair = Pair()
    pair.a, pair.b = make(), make()
    w = watch(lambda x: x * 2 if pair.a is pair.b else x * 3)
    pair.b = pair.a
    w.changed()


def test_nothing_is_guarded_without_a_comparison() -> None:
    """Objects that become the same need no new program."""
    pair = Pair()
    pair.a, pair.b = Thing(), Thing()
    pair.a.n = pair.b.n = 3
    jitted = thunder.jit(lambda x: x * pair.a.n * pair.b.n)
    jitted(X)
    pair.b = pair.a
    jitted(X)
    assert "check_different" not in str(thunder.last_prologue_traces(jitted)[-1])


def test_parameters_tell_modules_apart() -> None:
    """Modules with a parameter each need no further guard."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x) if layer is not self.layers[0] else layer(x) * 2
            return x

    net = Net()
    jitted = thunder.jit(net)
    torch.testing.assert_close(jitted(X), net(X))
    assert "check_different" not in str(thunder.last_prologue_traces(jitted)[-1])
    net.layers[2] = net.layers[0]
    torch.testing.assert_close(jitted(X), net(X))


def test_ids_that_the_program_stores() -> None:
    """In a set of objects that it has seen."""
    seen: set[int] = set()
    things = [Thing(), Thing()]
    pair = Pair()

    def fn(x: Any) -> Any:
        known = id(pair.a) in seen
        seen.add(id(pair.a))
        return x * 2 if known else x * 3

    jitted = thunder.jit(fn)
    for i, expected in ((0, 3), (0, 2), (1, 3), (1, 2), (0, 2)):
        pair.a = things[i]
        torch.testing.assert_close(jitted(X), X * expected)
    assert seen == {*map(id, things)}


# -- tensors ----------------------------------------------------------------------------------------------------------
class Slotted:
    __slots__ = ("w",)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(6))


def _holders() -> dict[str, tuple[torch.Tensor, Callable[[], Any]]]:
    """Return tensors, and functions that read the same tensors where the program finds them."""
    tensors = [torch.ones(6) for _ in range(6)]
    attribute, slot, net = Thing(), Slotted(), Net()
    attribute.w, slot.w, items, entries, cell = tensors[:5]
    items, entries = [items], {"w": entries}
    pair = (tensors[5],)
    tensors[2], tensors[3] = items[0], entries["w"]
    return {
        "attribute": (tensors[0], lambda: attribute.w),
        "slot": (tensors[1], lambda: slot.w),
        "list": (tensors[2], lambda: items[0]),
        "dict": (tensors[3], lambda: entries["w"]),
        "closure": (tensors[4], lambda: cell),
        "tuple": (tensors[5], lambda: pair[0]),
        "parameter": (net.w, lambda: net.w),
    }


@pytest.mark.parametrize("place", list(_holders()))
@pytest.mark.parametrize(
    "compare",
    [
        lambda x, w: x is w,
        lambda x, w: any(x is i for i in [w]),
        lambda x, w: id(x) == id(w),
        lambda x, w: x in [w] if x is w else False,
    ],
)
def test_an_argument_that_the_program_finds_elsewhere(place: str, compare: Callable[[Any, Any], Any]) -> None:
    """Is the same tensor, as in eager mode."""
    tensor, read = _holders()[place]

    def fn(x: Any) -> Any:
        return x * 2 if compare(x, read()) else x * 3

    jitted = thunder.jit(fn)
    for x in (tensor, torch.ones(6), tensor, tensor, torch.ones(6)):
        torch.testing.assert_close(jitted(x), fn(x))
    assert read() is tensor
    assert place == "tuple" or thunder.cache_hits(jitted) >= 2  # the handle cannot be put into a tuple


def test_the_last_input() -> None:
    """A module that compares its input with the previous one."""

    class Last(nn.Module):
        last: Any = None

        def forward(self, x: Any) -> Any:
            r = x * 2 if x is self.last else x * 3
            self.last = x
            return r

    eager, jitted = Last(), Last()
    fast = thunder.jit(jitted)
    inputs = [torch.ones(3), torch.ones(3)]
    for i in (0, 0, 0, 1, 0, 0, 1, 1):
        torch.testing.assert_close(fast(inputs[i]), eager(inputs[i]))
        assert jitted.last is inputs[i]
    assert thunder.cache_hits(fast) >= 3


RETURN_INPUT: list[Callable[[Any], Any]] = [
    torch.Tensor.contiguous,
    torch.Tensor.float,
    torch.Tensor.cpu,
    torch.flatten,
    torch.Tensor.detach,
    torch.conj,
    lambda t: t.to(torch.float32),
    lambda t: t.view(-1),
    lambda t: t.requires_grad_(False),
]


def test_operations_that_return_their_input() -> None:
    """The same tensor object, for arguments and for other tensors."""
    w = torch.ones(3)

    def fn(x: Any) -> Any:
        return x * 2, [f(t) is t for t in (x, w) for f in RETURN_INPUT]

    assert thunder.jit(fn)(torch.ones(3))[1] == fn(torch.ones(3))[1]


# -- containers that are passed twice ---------------------------------------------------------------------------------
def test_a_container_that_is_passed_twice() -> None:
    """Is one container for the program, also inside another one."""

    def fn(x: Any, a: Any, b: Any) -> Any:
        a["n"] = x * 5
        return b["n"] * (2 if a is b else 3)

    def nested(pair: Any) -> Any:
        a, d = pair
        a.append(a[0] * 2)
        return a[0] * len(d["a"]) * (2 if a is d["a"] else 3)

    jitted, inner = thunder.jit(fn), thunder.jit(nested)
    for same in (True, False, True, True, False):
        for f in (fn, jitted):
            d: dict[str, Any] = {"n": torch.ones(3)}
            torch.testing.assert_close(
                f(torch.ones(3), d, d if same else dict(d)), torch.full((3,), 10.0 if same else 3.0)
            )
        for f in (nested, inner):
            items = [torch.ones(3)]
            result = f((items, {"a": items if same else [*items]}))
            torch.testing.assert_close(result, torch.full((3,), 4.0 if same else 3.0))
            assert len(items) == 2
    assert thunder.cache_misses(jitted) == 2
