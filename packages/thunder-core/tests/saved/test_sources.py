# SPDX-License-Identifier: Apache-2.0
"""Sources with programs inside: checkpointed regions and custom functions. And what is not saved, with its reason."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import thunder
from thunder.frontend import saving
from thunder.saved.programs import SavedText
from thunder.saved.verify import Refused

pytestmark = pytest.mark.usefixtures("seeded", "cache")

LINEAR = torch.nn.Linear(4, 4)


class Scaled(torch.autograd.Function):
    """A function whose gradient is not that of its forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float, y: torch.Tensor) -> Any:
        """Return two results, and save an intermediate value."""
        z = x.sin() * y
        ctx.save_for_backward(z, x)
        ctx.factor = factor
        return z * factor, x.cos()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, h: torch.Tensor) -> Any:
        """Return gradients that nothing else could be mistaken for."""
        z, x = ctx.saved_tensors
        return g * z.exp() * 7 + h * x, None, g.flip(0) * ctx.factor


class Once(torch.autograd.Function):
    """A function that is differentiated once."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        """Return the square."""
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        """Return three times the argument."""
        (x,) = ctx.saved_tensors
        return g * x * 3


def _block(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(LINEAR(x).relu().sin(), 0.5)


def _checkpointed(x: torch.Tensor) -> Any:
    y = checkpoint(_block, x, use_reentrant=False)
    return checkpoint(lambda a, b: (a * b).exp(), y, x, use_reentrant=False), y.cos()


def _nested(x: torch.Tensor) -> Any:
    def inner(a: torch.Tensor) -> Any:
        return Scaled.apply(checkpoint(torch.sin, a, use_reentrant=False), 0.5, a)[0] * 2

    return checkpoint(inner, x, use_reentrant=False), x.exp()


def _custom(x: torch.Tensor) -> Any:
    a, b = Scaled.apply(x, 2.5, x.exp())
    return a + Once.apply(b), b * 2


def _same_argument(x: torch.Tensor) -> Any:
    a, b = Scaled.apply(x, 1.5, x)
    return a, b


def _step(f: Callable[..., Any], x: torch.Tensor, which: int, twice: bool) -> list[torch.Tensor]:
    torch.manual_seed(1)
    out = f(x)
    wrt = [x, *LINEAR.parameters()]
    found = torch.autograd.grad(out[which].square().sum(), wrt, create_graph=twice, allow_unused=True)
    again = torch.autograd.grad(found[0].sin().sum(), [x], allow_unused=True) if twice else ()
    return [*out, *(g for g in (*found, *again) if g is not None)]


def _notes(jitted: Any) -> list[str]:
    return [event.reason for event in thunder.compile_stats(jitted).events.of("saved")]


@pytest.mark.parametrize("f", [_checkpointed, _nested, _custom, _same_argument])
def test_gradients_that_were_not_saved(f: Callable[..., Any]) -> None:
    """Saved backward programs, others, and derivatives of second order are those of eager mode."""
    first, second = (thunder.jit(f, save=True) for _ in range(2))
    x = torch.randn(3, 4, requires_grad=True)
    _step(first, x, 0, False)
    assert _notes(first)[-1].startswith("saved"), _notes(first)
    for which, twice in ((0, False), (1, False), (1, True), (0, f is not _custom)):
        torch.testing.assert_close(_step(second, x, which, twice), _step(f, x, which, twice))
    stats = thunder.compile_stats(second)
    assert stats.saved_hits == 1 and stats.cache_misses == 0, _notes(second)


_table = functools.lru_cache(lambda n: n + 0.5)


def _hooked(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y.register_hook(lambda g: g * 2)
    return y.cos()


@pytest.mark.parametrize(
    "f, reason",
    [
        (lambda x: x * _table(3), "a memoized function that no module has by name"),
        (_hooked, "hooks on gradients"),
        (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), "the branches of torch.cond"),
    ],
)
def test_reasons(f: Callable[..., Any], reason: str) -> None:
    """`explain` says why a program was not saved."""
    jitted = thunder.jit(f, save=True)
    jitted(torch.randn(3, requires_grad=True)).sum().backward()
    assert reason in _notes(jitted)[-1]


@pytest.mark.parametrize("constant", [["checkpoint", {}, True], ["custom", {}, {}, {}]])
def test_operations_of_sources_in_other_programs(constant: Any) -> None:
    """A program that runs has none of them."""
    text = "def computation(x):\n  t0 = op(x)\n  return t0"
    with pytest.raises(Refused, match="only sources have"):
        SavedText({"name": "computation", "text": text, "constants": {"op": constant}}).check("program")


def test_lines_that_are_checked_when_a_program_is_saved() -> None:
    """They differ in more than digits and texts; a reader checks all lines."""
    head, same = "def f(x1, x2):", ["  t10 = torch.sin(x1)", "  t11 = torch.sin(x2)"]
    texts = ["  if x1 != 'a': raise GuardFailed('b', 1)", "  if x2 != 'c,': raise GuardFailed('', 2)"]
    others = [
        "  t9 = torch.sin(x1)",
        "  t10 = torch.cos(x1)",
        "  if x1 != 'a': raise GuardFailed('b', x1)",
        "  return t10",
    ]
    assert saving._different_lines("\n".join([head, *same, *texts, *others])).split("\n") == [
        head, same[1], texts[1], *others
    ]  # fmt: skip
