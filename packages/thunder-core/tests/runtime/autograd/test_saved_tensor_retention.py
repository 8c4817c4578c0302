# SPDX-License-Identifier: Apache-2.0
"""Results that are differentiated one after the other: where eager's graphs are apart, nobody says `retain_graph`."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import thunder
from thunder.frontend import differentiable


def nothing_shared(x: Any, w: Any) -> Any:
    return x.sin() * w, w.exp() * w


def an_input_shared(x: Any, w: Any) -> Any:
    return x.sin(), w.exp(), (x * x).sum()


def what_saves_nothing_shared(x: Any, w: Any) -> Any:
    h = (x + w).view(3, 2)
    return h[0].sin(), h.t().exp(), h.sum()


def nothing_saved(x: Any, w: Any) -> Any:
    return x + w, (x - w).sum()


def one_saves_nothing(x: Any, w: Any) -> Any:
    return x.view(3, 2).mT, w.exp(), x.sum()


def all_shared(x: Any, w: Any) -> Any:
    h = x.tanh()
    return h.sin(), h * w


def two_shared(x: Any, w: Any) -> Any:
    h = x.tanh()
    return h.sin(), h.cos(), w.exp() * x


def products(x: Any, w: Any) -> Any:
    return x.view(2, 3) @ w.view(3, 2), x.view(3, 2) @ w.view(2, 3)


def numbers(seed: int = 0) -> list[torch.Tensor]:
    """Two leaves."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(6, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2)]


def passes(fn: Callable[..., Any], order: Any, retained: Any, hooks: bool) -> Any:
    """What comes of backward for results in an order; each error ends it."""
    x, w = numbers()
    seen: list[Any] = [[], []]
    if hooks:
        for p, of in zip((x, w), seen):
            p.register_hook(lambda g, of=of: of.append(g.clone()))
    out = fn(x, w)
    for i, retain in zip(order, retained):
        try:
            out[i].cos().sum().backward(retain_graph=retain)
        except RuntimeError as error:
            return str(error)
    return x.grad, w.grad, seen


PROGRAMS = [
    nothing_saved,
    one_saves_nothing,
    nothing_shared,
    an_input_shared,
    what_saves_nothing_shared,
    all_shared,
    two_shared,
    products,
]


@pytest.mark.parametrize("hooks", [False, True], ids=["plain", "hooks"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_every_order_is_as_in_eager(program: Callable[..., Any], hooks: bool) -> None:
    """Results and errors, of three passes, with and without `retain_graph`."""
    jitted = thunder.jit(program)
    count = len(program(*numbers()))
    errors = 0
    for order in itertools.product(range(count), repeat=2):
        for retained in itertools.product([False, True], repeat=2):
            found, expected = (passes(f, (*order, 0), (*retained, False), hooks) for f in (jitted, program))
            if isinstance(expected, str):
                errors += 1
                assert found == expected, (order, retained)
            else:
                torch.testing.assert_close(found, expected)
    assert errors == 0 if program is nothing_saved else errors


@pytest.mark.parametrize("options", [{}, {"cache": "symbolic values"}, {"remat": "all"}], ids=str)
def test_what_is_computed_again_and_symbolic_sizes(options: Any) -> None:
    """What a later pass reads may be made of what was saved, and numbers are saved too."""

    def f(x: Any, w: Any) -> Any:
        return (x.exp() * x.tanh()).sum() / x.shape[0], (w.sigmoid() * w.cos()).cumsum(0) * w.shape[0]

    jitted = thunder.jit(f, **options)
    for order in ((0, 1), (1, 0)):
        torch.testing.assert_close(*(passes(g, order, (False, False), False) for g in (jitted, f)))


def test_programs_with_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their first node is what has saved."""
    monkeypatch.setattr(differentiable, "MIN_STAGE_BYTES_CPU", 1 << 16)

    def f(x: Any, a: Any, b: Any, c: Any) -> Any:
        return (x @ a).tanh() @ b, (x @ c).tanh()

    given = [torch.randn(160, 160, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(4)]

    class Wide(nn.Module):
        forward = staticmethod(f)

    jitted = thunder.jit(Wide())
    found = []
    for g in (jitted, f):
        leaves = [p.detach().requires_grad_() for p in given]
        for y in g(*leaves):
            y.square().mean().backward()
        found.append([p.grad for p in leaves])
    torch.testing.assert_close(*found)
    assert jitted.stats.last.differentiable.layout.stages is not None


def test_a_write_between_two_passes() -> None:
    """Is seen where a later pass reads what was written to, and only there."""
    jitted = thunder.jit(an_input_shared)
    x, w = numbers()
    out = jitted(x, w)
    out[0].sum().backward()
    with torch.no_grad():
        x.add_(1)
    out[1].sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out[2].backward()


class Held:
    """What nodes save in it: copies, of which it says how many there are still."""

    def __init__(self) -> None:
        self.copies: list[StorageWeakRef] = []

    def __enter__(self) -> Held:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._copy, lambda x: x)
        self._hooks.__enter__()
        return self

    def __exit__(self, *given: Any) -> None:
        self._hooks.__exit__(*given)

    def _copy(self, x: torch.Tensor) -> torch.Tensor:
        copy = x.clone()
        self.copies.append(StorageWeakRef(copy.untyped_storage()))
        return copy

    @property
    def alive(self) -> int:
        """How many somebody keeps."""
        return sum(not copy.expired() for copy in self.copies)


@pytest.mark.parametrize("passed", [1, 2])
def test_what_is_left_goes_with_the_results(passed: int) -> None:
    """No cycle holds it, and what has been used goes at once."""
    jitted = thunder.jit(lambda x, w: (x.sin() * x, w.exp() * w))
    gc.collect()
    gc.disable()
    try:
        with Held() as held:
            out = jitted(*numbers())
        alive = [held.alive]
        for i in range(passed):
            out[i].sum().backward()
            alive.append(held.alive)
        assert all(more > less for more, less in itertools.pairwise(alive))
        assert (alive[-1] == 0) == (passed == 2)
        del out
        assert held.alive == 0
    finally:
        gc.enable()


def test_nothing_is_left_where_results_share_what_they_hang_on() -> None:
    """A loss beside what it was computed of: all goes with the loss."""
    jitted = thunder.jit(lambda x, w: ((h := (x * w).tanh()).square().sum(), h))
    x, w = numbers()
    with Held() as held:
        loss, rest = jitted(x, w)
    assert held.alive
    loss.backward()
    assert not held.alive
    with pytest.raises(RuntimeError, match="second time"):
        rest.sum().backward()


def test_gradients_are_differentiated_before_and_after() -> None:
    """A pass that is recorded keeps all that was saved."""
    found = []
    for f in (thunder.jit(an_input_shared), an_input_shared):
        x, w = numbers()
        out = f(x, w)
        (g,) = torch.autograd.grad(out[2], x, create_graph=True)
        (g * g).sum().backward()
        out[0].sum().backward()
        out[1].sum().backward()
        found.append([x.grad, w.grad])
    torch.testing.assert_close(*found)
