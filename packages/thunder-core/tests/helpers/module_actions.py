# SPDX-License-Identifier: Apache-2.0
"""Actions on a module with a part of everything: each has the same effect on a jitted copy, before and after calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import thunder


class Net(nn.Module):
    """Layers, a buffer, a number, and an attribute with a descriptor."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, width), nn.Tanh())
        self.head = nn.Linear(width, 2)
        self.weight = nn.Parameter(torch.linspace(-1, 1, 2))
        self.register_buffer("count", torch.zeros(()))
        self.scale = 2.0
        self._model = "a name that thunder once used"
        self.stats = {"width": width}

    @property
    def doubled(self) -> float:
        return self.scale * 2

    @doubled.setter
    def doubled(self, value: float) -> None:
        self.scale = value / 2

    def forward(self, x: Any, *, shift: float = 0.0) -> Any:
        """Scale, after the layers."""
        return self.head(self.body(x)) * self.weight * self.scale + shift + self.count

    def extra_repr(self) -> str:
        return f"scale={self.scale}"

    def twice(self, x: Any) -> Any:
        return self(x) + self(x)


Action = Callable[[Any, torch.Tensor], Any]


class Actions(dict[str, Action]):
    """Actions by name."""

    def add(self, fn: Action) -> Action:
        """Add a function to the actions on `Net`."""
        self[fn.__name__] = fn
        return fn


def outcome(run: Callable[[], Any]) -> Any:
    """Return what a function returns, or the class of its error."""
    try:
        return run()
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        return type(error)


def assert_same(found: Any, expected: Any) -> None:
    """Compare results with tensors in containers."""
    if isinstance(expected, torch.Tensor):
        assert type(found) is type(expected)
        torch.testing.assert_close(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected):
            assert_same(a, b)
    elif inspect.ismethod(expected):
        assert found.__func__.__name__ == expected.__func__.__name__
    else:
        assert found == expected


def compare(make: Callable[[], nn.Module], act: Action, x: Any) -> None:
    """Perform an action on a plain and on a jitted module, and compare everything."""
    results = []
    for jit in (lambda m: m, thunder.jit):
        torch.manual_seed(0)
        model = make()
        module = jit(model)
        before = outcome(lambda module=module: module(x))
        found = outcome(lambda module=module: act(module, x))
        torch.manual_seed(1)
        after = [outcome(lambda module=module: module(x)) for _ in range(2)]
        state = {**model.state_dict(), **{k: v for k, v in vars(model).items() if isinstance(v, (int, float, str))}}
        results.append((before, found, after, dict(state), sorted(vars(model)), type(model).__name__))
    assert_same(results[1], results[0])
