# SPDX-License-Identifier: Apache-2.0
"""What a refused call is told: what was read, what it was, what it is."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import thunder
from thunder.runtime.guards import GuardFailed
from thunder.runtime.messages import format_value

X = torch.ones(2)


class Config:
    """Something with options."""

    def __init__(self) -> None:
        self.width = 3
        self.layers, self.sizes, self.many = [1, 2], [1, 2], [1] * 200
        self.table = {"a": 1}
        self.inner = types.SimpleNamespace(p=0.5)


class Model(nn.Module):
    """Something to be changed."""

    def __init__(self) -> None:
        super().__init__()
        self.cfg = Config()
        self.layer = nn.Linear(2, 2)
        self.act = torch.relu
        self.parts = nn.ModuleList([nn.Identity()])

    def forward(self, x: Any, scale: Any = 1) -> Any:
        """Reads of every kind."""
        c = self.cfg
        y = (
            self.act(self.layer(x))
            * c.width
            * len(c.layers)
            * c.sizes[0]
            * sum(c.many)
            * len(c.table)
            * c.inner.p
            * scale
        )
        if hasattr(self, "extra"):
            y = y + 1
        for part in self.parts:
            y = part(y)
        return y * helper(2)


def helper(n: int, k: int = 7) -> int:
    """A global function."""
    return n * k


def other(n: int, k: int = 1) -> int:
    """Another."""
    return n + k


def setting(path: str, value: Any) -> Callable[[Any], None]:
    """Sets an attribute of the model however deep."""

    def change(m: Any) -> None:
        *parents, last = path.split(".")
        for name in parents:
            m = getattr(m, name)
        setattr(m, last, value)

    return change


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "number": (setting("cfg.width", 4), r"Model\.cfg\.width was 3 and is 4"),
    "type": (setting("cfg.width", "4"), r"Model\.cfg\.width was 3 and is '4'"),
    "object": (
        setting("cfg", types.SimpleNamespace()),
        r"Model\.cfg was of the class Config and is of the class SimpleNamespace",
    ),
    "length": (lambda m: m.cfg.layers.append(3), r"len\(Model\.cfg\.layers\) was 2 and is 3"),
    "list": (lambda m: m.cfg.sizes.append(3), r"the contents of Model\.cfg\.sizes were \(1, 2\) and are \[1, 2, 3\]"),
    "long list": (
        lambda m: m.cfg.many.append(3),
        r"the contents of Model\.cfg\.many were 200 items and are a list of 201 items",
    ),
    "dict": (
        lambda m: m.cfg.table.update(b=2),
        r"the contents of Model\.cfg\.table were \{'a': 1\} and are \{'a': 1, 'b': 2\}",
    ),
    "namespace": (setting("cfg.inner.p", 0.25), r"Model\.cfg\.inner\.p was 0\.5 and is 0\.25"),
    "function": (setting("act", torch.tanh), r"Model\.act was .*relu.* and is another: .*tanh"),
    "appeared": (setting("extra", 1), r"Model had no extra and has one now"),
    "children": (
        lambda m: m.parts.append(nn.Identity()),
        r"the keys of Model\.parts\._modules were \('0',\) and are \('0', '1'\)",
    ),
    "shape": (
        setting("layer.weight", nn.Parameter(torch.ones(3, 2))),
        r"the shape of Model\.layer\.weight was \(2, 2\) and is \(3, 2\)",
    ),
    "dtype": (lambda m: m.double(), r"the dtype of .*weight was torch\.float32 and is torch\.float64"),
    "frozen": (lambda m: m.requires_grad_(False), r"the requires_grad of .*weight was True and is False"),
    "class": (setting("layer", nn.Identity()), r"Model\.layer was of the class Linear and is of the class Identity"),
    "hook": (lambda m: m.layer.register_forward_hook(lambda *a: None), r"_forward_hooks .*items; their number is 1"),
    "mode": (lambda m: torch.set_grad_enabled(False), r"grad mode was True and is False"),
    "dtype by default": (
        lambda m: torch.set_default_dtype(torch.float64),
        r"the default dtype was torch\.float32 and is torch\.float64",
    ),
    "global": (
        lambda m: globals().update(helper=other),
        r"helper was the function helper \(.*test_messages\.py:\d+\) and is another: the function other",
    ),
    "defaults": (
        lambda m: setattr(helper, "__defaults__", (2,)),
        r"the contents of helper\.__defaults__ were \(7,\) and are \(2,\)",
    ),
    "code": (
        lambda m: setattr(helper, "__code__", other.__code__),
        r"helper\.__code__ was the code at .*test_messages\.py:\d+ and is another: the code at",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changed_is_named(name: str) -> None:
    """With its old value and its new one."""
    change, message = CHANGES[name]
    before = helper, helper.__defaults__, helper.__code__
    model = Model()
    jitted = thunder.jit(model)
    jitted(X)
    jitted(X)
    assert thunder.cache_hits(jitted) == 1
    try:
        change(model)
        prologue = thunder.last_prologue_traces(jitted)[-1].python_callable(decorators=False)
        with pytest.raises(Exception) as refused:
            prologue(X)
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        globals()["helper"], before[0].__defaults__, before[0].__code__ = before
    assert isinstance(refused.value, GuardFailed), repr(refused.value)
    refused.match(message)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((X, 2), "scale was 1 and is 2"),
        ((X, X), "scale was 1 and is a Tensor"),
        ((X.double(), 1), r"the dtype of x was torch\.float32 and is torch\.float64"),
        ((X[None], 1), r"the shape of x was \(2,\) and is \(1, 2\)"),
        ((3, 1), "the class of x was the class Tensor and is the class int"),
        ((X,), "2 arguments were given by position, and 1 are, with 0 by name"),
    ],
)
def test_arguments(args: Any, message: str) -> None:
    """As their parameters are called; `thunder.explain` says it."""

    def f(x: Any, scale: Any) -> Any:
        return (x if isinstance(x, torch.Tensor) else X) * scale

    jitted = thunder.jit(f)
    jitted(X, 1)
    prologue = thunder.last_prologue_traces(jitted)[-1].python_callable(decorators=False)
    with pytest.raises(Exception, match=message):
        prologue(*args)
    if len(args) == 2:
        jitted(*args)
        assert "recompiled because" in thunder.explain(jitted)


def test_tensors_that_were_different() -> None:
    """Which are one now."""
    jitted = thunder.jit(lambda a, b: a + b)
    jitted(X, X * 1)
    jitted(X, X)
    assert "identical tensors were none and are a and b" in thunder.explain(jitted)


def test_values_in_messages() -> None:
    """Are short, and run no code of the user's."""

    class Loud:
        def __repr__(self) -> str:
            raise AssertionError

    assert format_value(Loud()) == "a test_values_in_messages.<locals>.Loud"
    assert format_value([Loud()]) == "a list of 1 item"
    assert format_value(torch.ones(1000)) == "a Tensor"
    assert format_value(list(range(1000))) == "a list of 1000 items"
    assert format_value(deque([1, 2])) == "deque([1, 2])"
    assert len(format_value("x" * 1000)) == 120
    assert format_value({"a": (1, None, torch.float32)}) == "{'a': (1, None, torch.float32)}"
    assert format_value(torch) == "the module torch"
