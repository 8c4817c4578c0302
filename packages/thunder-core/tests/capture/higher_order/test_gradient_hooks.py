# SPDX-License-Identifier: Apache-2.0
"""Hooks on gradients, of modules and of tensors inside traced programs: called by the backward program."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import thunder


class Pair(nn.Module):
    """Two inputs and two outputs, not all of them tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, x: Any, scale: float, y: Any) -> Any:
        """Uses all of them."""
        z = self.layer(x) * scale
        return z, scale, z * y


class Net(nn.Module):
    """With a module to put hooks on in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    def forward(self, x: Any) -> Any:
        """What comes before and after it is differentiated too."""
        a, scale, b = self.pair(x * 2, 0.5, x.sin())
        return (a * b).tanh() * scale


def hooks(seen: list[Any]) -> dict[str, Callable[[nn.Module], Any]]:
    """Ways to put hooks on a module; they note what they get."""

    def note(module: Any, *grads: Any) -> None:
        seen.append((type(module), [[None if g is None else g.clone() for g in some] for some in grads]))

    def change(module: Any, inputs: Any, outputs: Any) -> Any:
        note(module, inputs, outputs)
        return tuple(None if g is None else g * 2 for g in inputs)

    def change_before(module: Any, outputs: Any) -> Any:
        note(module, outputs)
        return tuple(None if g is None else g * 3 for g in outputs)

    return {
        "noting": lambda m: m.register_full_backward_hook(note),
        "changing": lambda m: m.register_full_backward_hook(change),
        "before": lambda m: m.register_full_backward_pre_hook(change_before),
        "both": lambda m: (m.register_full_backward_pre_hook(change_before), m.register_full_backward_hook(change)),
        "two": lambda m: (m.register_full_backward_hook(change), m.register_full_backward_hook(change, prepend=True)),
        "inside": lambda m: m.layer.register_full_backward_hook(change),
    }


@pytest.mark.parametrize("name", hooks([]))
def test_hooks_of_modules(name: str) -> None:
    """Get eager's gradients, once for each backward, and what they return is used."""
    seen: list[Any] = []
    torch.manual_seed(0)
    model = Net()
    hooks(seen)[name](model.pair)
    jitted = thunder.jit(model)
    for k in range(3):
        results = []
        for f in (model, jitted):
            x = torch.linspace(-1, 1, 3, dtype=torch.float64).add(k).requires_grad_()
            seen.clear()
            out = f(x)
            assert not seen
            grads = torch.autograd.grad(out.sum(), [x, *model.parameters()])
            results.append((out, grads, [s for _, s in seen], len(seen)))
        torch.testing.assert_close(results[1], results[0])
        assert seen
    assert thunder.cache_hits(jitted) == 2, thunder.explain(jitted)


def test_hooks_of_modules_that_come_and_go() -> None:
    """The program is another one."""
    seen: list[Any] = []
    model = Net()
    jitted = thunder.jit(model)
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    jitted(x).sum().backward()
    handle = hooks(seen)["noting"](model.pair)
    jitted(x).sum().backward()
    assert len(seen) == 1
    handle.remove()
    jitted(x).sum().backward()
    assert len(seen) == 1
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (2, 1)


def test_global_hooks() -> None:
    """Of all modules."""
    seen: list[Any] = []
    handle = nn.modules.module.register_module_full_backward_hook(lambda module, *grads: seen.append(type(module)))
    try:
        x = torch.ones(3, dtype=torch.float64, requires_grad=True)
        model = Net()
        model(x).sum().backward()
        expected = list(seen)
        seen.clear()
        thunder.jit(model)(x).sum().backward()
        assert seen == expected
    finally:
        handle.remove()


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_no_input_requires_grad() -> None:
    """The hook gets the gradients of the outputs."""
    seen: list[Any] = []
    model = Net()
    hooks(seen)["noting"](model.pair)
    results = []
    for f in (model, thunder.jit(model)):
        seen.clear()
        f(torch.ones(3, dtype=torch.float64)).sum().backward()
        results.append([s for _, s in seen])
    torch.testing.assert_close(results[1], results[0])


def test_hooks_keep_no_model_alive() -> None:
    """Nor does the program that calls them."""
    model = Net()
    jitted = thunder.jit(lambda m, x: m(x))
    hooks([])["noting"](model.pair)
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    jitted(model, x).sum().backward()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_hooks_of_tensors() -> None:
    """Change the gradient, or only look at it; several, and one that has been removed."""
    seen: list[Any] = []

    def look(g: Any) -> None:
        seen.append(g.clone())

    def f(x: Any) -> Any:
        y = x.sin()
        y.register_hook(lambda g: g * 3)
        y.register_hook(look)
        y.register_hook(lambda g: g / 0).remove()
        return (y * x).sum() + y.sum()

    jitted = thunder.jit(f)
    for k in range(2):
        results = []
        for g in (f, jitted):
            seen.clear()
            x = torch.linspace(0, 1, 3, dtype=torch.float64).add(k).requires_grad_()
            results.append((torch.autograd.grad(g(x), x), list(seen)))
        torch.testing.assert_close(results[1], results[0])
        assert len(seen) == 1
    assert "hook on a tensor is a closure or an object" in thunder.explain(jitted)  # `look` has a list
    plain = thunder.jit(lambda x: doubled(x).sum())
    for _ in range(2):
        x = torch.ones(3, requires_grad=True)
        torch.testing.assert_close(torch.autograd.grad(plain(x), x)[0], 2 * x.cos())
    assert thunder.cache_hits(plain) == 1


def doubled(x: Any) -> Any:
    """A hook without state."""
    y = x.sin()
    y.register_hook(times_two)
    return y


def times_two(g: Any) -> Any:
    """A hook."""
    return g * 2


def used_first(x: Any) -> Any:
    """Registers too late."""
    y = x * 2
    z = y * 3
    y.register_hook(times_two)
    return y + z


@pytest.mark.parametrize(
    "f",
    [used_first, lambda x: (x.register_hook(times_two), x * 2)[1], lambda x: (x * 2)[0].register_hook(times_two) and x],
)
def test_hooks_for_which_it_is_too_late(f: Any) -> None:
    """The program runs as Python, and what is registered on an input stays there."""
    jitted = thunder.jit(f)
    for _ in range(2):
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        for fn, given in ((jitted, x), (f, y)):
            for _ in range(2):
                fn(given).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert "registers a hook on an input, on a view" in thunder.explain(jitted)


def squared(g: Any) -> Any:
    """A hook that is not linear, so that its own derivative matters."""
    return g * g.sin() + 1


def with_constants(x: Any) -> Any:
    y, factor, name = x.sin(), 3.0, "factor"
    y.register_hook(lambda g: g * factor * len(name))
    return (y * x).sum()


def with_count(x: Any) -> Any:
    y, count = x.sin(), 0

    def hook(g: Any) -> Any:
        nonlocal count
        count += 1
        return g * count

    y.register_hook(hook)
    return y.sum()


def with_default(x: Any) -> Any:
    y = x.sin()
    y.register_hook(lambda g, seen=[]: seen.append(0) or g * len(seen))
    return y.sum()


@pytest.mark.parametrize(("f", "is_cached"), [(with_constants, True), (with_count, False), (with_default, False)])
def test_state_of_hooks(f: Any, is_cached: bool) -> None:
    """A hook with constants in its closure serves all calls. The call creates other state anew."""
    jitted = thunder.jit(f)
    for k in range(3):
        x = torch.linspace(0, 1, 3).add(k).requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(jitted(x), x), torch.autograd.grad(f(x), x))
    assert thunder.cache_hits(jitted) == (2 if is_cached else 0), thunder.explain(jitted)


def test_derivatives_through_hooks() -> None:
    """Of order two and three, through a hook of a tensor and one of a module; each hook runs once a backward."""
    calls: list[int] = []

    def of_module(module: Any, gradients: Any, _: Any) -> Any:
        calls.append(1)
        return (gradients[0] * gradients[0].exp(),)

    layer = nn.Linear(3, 3, dtype=torch.float64)
    layer.register_full_backward_hook(of_module)

    def f(x: Any) -> Any:
        y = layer(x.sin())
        y.register_hook(squared)
        return (y**3).sum() * x.sum()

    results = []
    for g in (f, thunder.jit(f)):
        calls.clear()
        x = torch.linspace(0.1, 1, 3, dtype=torch.float64).requires_grad_()
        found = [g(x)]
        for _ in range(3):
            found.append(torch.autograd.grad(found[-1].sum(), x, create_graph=True)[0])
            found.append(torch.tensor(len(calls)))
            found[-1], found[-2] = found[-2], found[-1]
        results.append(found)
    torch.testing.assert_close(results[1], results[0])


def hooked_sin(x: Any) -> Any:
    """With a hook."""
    y = x.sin() * 1
    y.register_hook(times_two)
    return y


def inner(value: Any, x: Any) -> Any:
    """A gradient inside of the program."""
    return torch.autograd.grad(value.sum(), x, create_graph=True)[0]


def twice(y: Any, x: Any) -> Any:
    """Two gradients through one hook."""
    return inner(y, x) * inner(y * y, x)


def region(f: Callable[[Any], Any], x: Any) -> Any:
    """Computed again for backward."""
    return checkpoint(f, x, use_reentrant=False)


DIFFERENTIATED_TWICE: dict[str, Callable[[Any], Any]] = {
    "a region": lambda x: region(lambda x: hooked_sin(x) * x, x),
    "regions in regions": lambda x: region(lambda x: region(lambda x: hooked_sin(x) * x, x).exp(), x),
    "a gradient inside": lambda x: inner(hooked_sin(x) * x, x),
    "gradients inside": lambda x: twice(hooked_sin(x), x),
    "by what is hooked": lambda x: (lambda y: inner((y * x).sin(), y) * y)(hooked_sin(x)),
    "a gradient in a region": lambda x: region(lambda x: inner(hooked_sin(x) * x, x), x),
    "a region in a gradient": lambda x: inner(region(lambda x: hooked_sin(x) * x, x), x),
}


@pytest.mark.parametrize("name", DIFFERENTIATED_TWICE)
def test_each_derivative_goes_through_the_hooks(name: str) -> None:
    """As in eager, also where a program or a part of it is differentiated more than once."""
    f, results = DIFFERENTIATED_TWICE[name], []
    for g in (f, thunder.jit(f)):
        x = torch.linspace(0.1, 1, 4, dtype=torch.float64).requires_grad_()
        (first,) = torch.autograd.grad(g(x).sum(), x, create_graph=True)
        results.append((first, torch.autograd.grad(first.pow(2).sum(), x)))
    torch.testing.assert_close(results[1], results[0])


def test_a_hook_that_uses_what_requires_grad() -> None:
    """Its gradient would be lost: an error that says so, once it would matter."""
    weight = torch.ones(3, requires_grad=True)

    def f(x: Any) -> Any:
        y = x.sin()
        y.register_hook(lambda g: g * weight)
        return (y * y).sum()

    x = torch.ones(3, requires_grad=True)
    expected = torch.autograd.grad(f(x), x)
    torch.testing.assert_close(torch.autograd.grad(thunder.jit(f)(x), x), expected)
    with pytest.raises(RuntimeError, match="uses another tensor that requires grad"):
        torch.autograd.grad(thunder.jit(f)(x), x, create_graph=True)


def test_gradients_that_do_not_exist() -> None:
    """As torch says it."""
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        thunder.jit(doubled)(torch.ones(3))


def test_equal_tensors_with_hooks_of_their_own() -> None:
    """What is equal is computed once, but results with other hooks stay two tensors."""

    def fn(k: Any) -> Any:
        a = k * 2.0
        a.register_hook(lambda g: g * 3)
        b = k * 2.0
        b.register_hook(lambda g: g * 5)
        c = k * 2.0
        return a, b, c, a.sin() * b.sin()

    jitted = thunder.jit(fn)
    for run in (fn, jitted):
        k = torch.tensor([0.5, 1.0], dtype=torch.float64, requires_grad=True)
        *same, product = run(k)
        assert len({id(x) for x in same}) == 3
        found = [torch.autograd.grad(x.sum(), k, retain_graph=True)[0].tolist() for x in same]
        assert found == [[6.0, 6.0], [10.0, 10.0], [2.0, 2.0]]
        (g,) = torch.autograd.grad(product.sum(), k)
        torch.testing.assert_close(g, 2 * (3 + 5) * (2 * k).cos() * (2 * k).sin())


def scaled_by(factor: float, g: Any) -> Any:
    return g * factor


def test_a_partial_function_as_a_hook() -> None:
    """Its arguments are constants, so the call creates no state."""

    def f(x: Any) -> Any:
        y = x.sin()
        y.register_hook(functools.partial(scaled_by, 3.0))
        return (y * x).sum()

    jitted = thunder.jit(f, sharp_edges="error")
    for k in range(3):
        grads = []
        for run in (f, jitted):
            x = torch.linspace(0, 1, 3, dtype=torch.float64).add(k).requires_grad_()
            grads.append(torch.autograd.grad(run(x), x))
        torch.testing.assert_close(grads[1], grads[0])
    assert thunder.cache_misses(jitted) == 1
