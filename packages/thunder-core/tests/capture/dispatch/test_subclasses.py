# SPDX-License-Identifier: Apache-2.0
"""Subclasses of `torch.Tensor` without overrides are traced: classes, values and gradients are those of eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder


class Named(torch.Tensor):
    """A subclass with an attribute, a method and a property."""

    scale = 3

    def twice(self):
        """Return twice the tensor."""
        return self * 2

    @property
    def total(self):
        """The sum of the elements."""
        return self.sum()


class Special(Named):
    """A subclass of a subclass."""


class Other(torch.Tensor):
    """An unrelated subclass."""


class Overrides(torch.Tensor):
    """A subclass that changes an operation."""

    def add(self, other: Any) -> Any:
        """Return the tensor itself."""
        return self


class Dispatches(torch.Tensor):
    """A subclass with its own `__torch_function__`."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def named(*shape: int, cls: type = Named) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape).as_subclass(cls)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "an operation": (lambda x: x + 1, lambda: (named(3),)),
    "with a tensor": (lambda x, y: (x + y, y * 2, y @ x), lambda: (named(3), torch.ones(3))),
    "isinstance": (lambda x, y: (isinstance(x + y, Named), isinstance(y, Named)), lambda: (named(3), torch.ones(3))),
    "type": (lambda x: (type(x) is Named, type(x * 2).__name__, x.__class__), lambda: (named(3),)),
    "a method": (lambda x: (x.twice(), (x + 1).twice()), lambda: (named(3),)),
    "a property and an attribute": (lambda x: (x + 1).total * x.scale, lambda: (named(3),)),
    "a function in Python": (lambda x: torch.nn.functional.linear(x, torch.ones(3, 3)).relu(), lambda: (named(2, 3),)),
    "several results": (lambda x: (x.max(0), torch.split(x, 1)), lambda: (named(2, 3),)),
    "views and the same tensor": (lambda x: (x.view(-1), x[0], x.contiguous(), x), lambda: (named(2, 3),)),
    "a subclass of a subclass": (lambda x, y: (x + y, y + x), lambda: (named(3), named(3, cls=Special))),
    "in place": (lambda x, y: (y.mul_(0).add_(x), y, x.add_(1)), lambda: (named(3), torch.ones(3))),
    "as_subclass": (lambda y: y.as_subclass(Named) + 1, lambda: (torch.ones(3),)),
    "back to a tensor": (lambda x: (x.as_subclass(torch.Tensor) + 1, x + 1), lambda: (named(3),)),
    "in containers": (lambda x: {"a": [x + 1], "b": (x.shape, x.dtype)}, lambda: (named(3),)),
}


def check_same(found: Any, expected: Any) -> None:
    """Compare values and classes."""
    found, structure = torch.utils._pytree.tree_flatten(found)
    expected, other = torch.utils._pytree.tree_flatten(expected)
    assert structure == other
    for a, b in zip(found, expected):
        assert type(a) is type(b)
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    """They are compiled and cached."""
    fn, make = PROGRAMS[name]
    jitted = thunder.jit(fn)
    for _ in range(3):
        check_same(jitted(*make()), fn(*make()))
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (1, 2)


def test_gradients() -> None:
    """They flow to inputs, through results of the subclass."""

    def f(x):
        return (x * x).twice()

    x, y = named(3).requires_grad_(), named(3).requires_grad_()
    jitted = thunder.jit(f)
    found, expected = jitted(x), f(y)
    assert type(found) is Named
    found.sum().backward()
    expected.sum().backward()
    check_same(x.grad, y.grad)


def test_the_class_is_guarded() -> None:
    """Its methods, its attributes and new overrides."""
    cls: Any = type("Local", (Named,), {"scale": 2})

    def f(x):
        return x.add(1).twice() * x.scale

    jitted = thunder.jit(f)
    x = named(3, cls=cls)
    check_same(jitted(x), f(x))
    cls.scale = 5
    check_same(jitted(x), f(x))
    cls.twice = lambda self: self * 7
    check_same(jitted(x), f(x))
    cls.add = lambda self, other: self * 100
    check_same(jitted(x), f(x))
    assert thunder.cache_hits(jitted) == 0
    assert "overrides torch.Tensor.add" in thunder.explain(jitted)


@pytest.mark.parametrize(
    ("cls", "reason"),
    [(Overrides, "Overrides, which overrides torch.Tensor.add"), (Dispatches, "its own __torch_function__")],
)
def test_classes_with_overrides_run_eagerly(cls: type, reason: str) -> None:
    """The reason is the first override."""
    jitted = thunder.jit(lambda x: x.add(1))
    check_same(jitted(named(3, cls=cls)), named(3, cls=cls).add(1))
    assert reason in thunder.explain(jitted)


def test_classes_that_torch_does_not_combine() -> None:
    """The error is eager's."""
    with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for \+: 'Named' and 'Other'"):
        thunder.jit(lambda x, y: x + y)(named(3), named(3, cls=Other))
