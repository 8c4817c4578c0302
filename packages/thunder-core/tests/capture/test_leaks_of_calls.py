# SPDX-License-Identifier: Apache-2.0
"""No call keeps its inputs alive, and no cache keeps user classes alive."""

from __future__ import annotations

import collections
import enum
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import thunder


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Counting(nn.Module):
    """A module with an epilogue, and with a number that becomes symbolic."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.linear(x) * self.calls


class Box:
    """An argument with a tensor."""

    def __init__(self, x: torch.Tensor):
        self.x = x


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2 + ctx.saved_tensors[0]


PROGRAMS: dict[str, Callable[[], Any]] = {
    "plain": lambda: lambda x: x * 2,
    "view": lambda: lambda x: x.view(-1),
    "module": Counting,
    "in place": lambda: lambda x: x.detach().mul_(2),
    "item": lambda: lambda x: x * x.sum().item(),
    "vmap": lambda: lambda x: torch.vmap(torch.sin)(x),
    "grad": lambda: lambda x: torch.func.grad(lambda t: t.sin().sum())(x),
    "custom": lambda: lambda x: Double.apply(x),
    "container": lambda: lambda x: {"a": [x, x + 1]}["a"][1],
    "partly eager": lambda: lambda x: thunder.disable(lambda t: t * 2)(x),
    "size": lambda: lambda x: x * x.shape[0],
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("no_collection")
def test_inputs_die_with_the_call(name: str, requires_grad: bool) -> None:
    """After a first call and after warm ones, without a garbage collection."""
    jitted = thunder.jit(PROGRAMS[name]())
    for i in range(5):
        x = torch.ones(2 + i // 3, 3, requires_grad=requires_grad)
        ref = weakref.ref(x)
        y = jitted(x)
        out = weakref.ref(y)
        del x, y
        assert out() is None, f"the output of call {i} is alive"
        assert ref() is None, f"the input of call {i} is alive"


@pytest.mark.usefixtures("no_collection")
def test_objects_die_with_the_call() -> None:
    jitted = thunder.jit(lambda box: box.x * 2)
    for i in range(3):
        box = Box(torch.ones(2))
        refs = weakref.ref(box), weakref.ref(box.x)
        jitted(box)
        del box
        assert [r() for r in refs] == [None, None], f"call {i}"


def test_classes_die_with_their_programs() -> None:
    """With what their methods close over, after programs that read them, return them and get them as arguments."""

    def use() -> dict[str, weakref.ref[Any]]:
        held = Box(torch.ones(1))

        class Plain:
            factor = 2.0

            def times(self, x: Any) -> Any:
                return x * self.factor if held is not None else x

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear, self.plain = nn.Linear(3, 3), Plain()

            def forward(self, x: Any) -> Any:
                self.last = 1
                return self.plain.times(self.linear(x))

        class Mode(enum.Enum):
            A = 1

        pair = collections.namedtuple("pair", "a b")
        net, plain = Net(), Plain()
        programs = [thunder.jit(net), thunder.jit(lambda x: plain.times(x)), thunder.jit(lambda x: x * Mode.A.value)]
        for program in programs:
            for _ in range(3):
                program(torch.ones(3))
        thunder.jit(lambda p: p.a + p.b)(pair(torch.ones(1), torch.ones(1)))
        thunder.jit(lambda plain, x: plain.times(x))(plain, torch.ones(1))
        thunder.jit(lambda x: (plain, x))(torch.ones(1))
        return {
            "held": weakref.ref(held), "Plain": weakref.ref(Plain), "Net": weakref.ref(Net), "Mode": weakref.ref(Mode),
            "pair": weakref.ref(pair), "net": weakref.ref(net), "program": weakref.ref(programs[1]),
        }  # fmt: skip

    alive = use()
    gc.collect()
    assert [name for name, ref in alive.items() if ref() is not None] == []
