# SPDX-License-Identifier: Apache-2.0
"""`torch.cond` in traced programs: one of two programs runs, chosen by a tensor's value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from outcomes import message_and_notes
from torch import cond as held_under_another_name
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import thunder
from thunder.core.errors import TracingError
from thunder.core.transforms import grad

WEIGHT = torch.linspace(1, 2, 4, dtype=torch.float64).requires_grad_()


def by_python(pred: Any, true: Callable[..., Any], false: Callable[..., Any], operands: Any = ()) -> Any:
    """What it means."""
    return (true if bool(pred) else false)(*operands)


def up(x: Any) -> Any:
    """One way."""
    return x.sin() * WEIGHT


def down(x: Any) -> Any:
    """The other."""
    return x.exp() + 1


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "plain": lambda cond, x: cond(x.sum() > 0, up, down, (x,)) * 2,
    "no operands": lambda cond, x: cond(x.sum() > 0, lambda: x * WEIGHT, lambda: x - 1),
    "containers": lambda cond, x: cond(x[0] > 0, lambda y: (y, {"a": y * 2}), lambda y: (y * 3, {"a": y}), (x,))[1][
        "a"
    ],
    "operands handed on": lambda cond, x: cond(x[0] > 0, lambda y, z: (z, z), lambda y, z: (y, z), (x * 1, x * 2))[0],
    "nested": lambda cond, x: cond(
        x.sum() > 0, lambda y: cond(y.max() > 1, up, torch.tanh, (y,)), lambda y: down(y) * 2, (x,)
    ),
    "one after the other": lambda cond, x: cond(x[1] > 0, up, down, (cond(x[0] > 0, torch.sin, torch.cos, (x,)),)),
    "several operands": lambda cond, x: cond(x[0] > 0, lambda a, b: a @ b, lambda a, b: (a * b).sum(), (x, x.exp())),
    "a known choice": lambda cond, x: cond(x.shape[0] > 3, up, down, (x,)),
    "a number of both": lambda cond, x: cond(
        x[0] > 0, lambda y: y * y.sum().item(), lambda y: y - y.sum().item() * y.tolist()[1], (x,)
    ),
    "a module": lambda cond, x: cond(x[0] > 0, LINEAR, lambda y: y * 2, (x,)),
}
torch.manual_seed(0)
LINEAR = nn.Linear(4, 4, dtype=torch.float64)


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_for_both_choices(name: str) -> None:
    """With results and gradients of the one that is chosen."""
    f = PROGRAMS[name]
    jitted = thunder.jit(lambda x: f(torch.cond, x))
    base = torch.linspace(0.1, 2, 4, dtype=torch.float64)
    for x in (base, -base, base.flip(0) - 1, base * 0.1):
        x = x.clone().requires_grad_()
        found, expected = jitted(x), f(by_python, x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(
            torch.autograd.grad(found.sum(), (x, WEIGHT), allow_unused=True, materialize_grads=True),
            torch.autograd.grad(expected.sum(), (x, WEIGHT), allow_unused=True, materialize_grads=True),
        )
        torch.testing.assert_close(jitted(x.detach()), expected)
    assert thunder.cache_misses(jitted) == 2  # with and without gradients


def test_only_one_runs() -> None:
    """What the other one would compute is not computed."""
    runs: list[str] = []

    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            runs.append(func.__name__.partition(".")[0])
            return func(*args, **(kwargs or {}))

    jitted = thunder.jit(lambda x: torch.cond(x[0] > 0, torch.sin, torch.cos, (x,)))
    x = torch.ones(2)
    jitted(x)
    with Seen():
        jitted(x)
    assert "sin" in runs
    assert "cos" not in runs


def test_the_trace_is_a_program() -> None:
    """It shows both programs and runs, before and after executors have taken it."""
    jitted = thunder.jit(lambda x: torch.cond(x.sum() > 0, up, down, (x,)))
    x = torch.ones(4, dtype=torch.float64)
    with torch.no_grad():
        jitted(x)
    for trace in (thunder.last_traces(jitted)[0], thunder.last_traces(jitted)[-1]):
        text = str(trace)
        assert "true(x" in text
        assert "ltorch.exp" in text
        namespace = trace.python_ctx()
        exec(text, namespace)
        for y in (x, -x):
            torch.testing.assert_close(
                namespace["computation"](y, WEIGHT.detach()), by_python(y.sum() > 0, up, down, (y,)).detach()
            )


def test_gradients_by_thunder_of_any_order() -> None:
    """A gradient is a choice too."""
    f = thunder.jit(lambda x: torch.cond(x.sum() > 0, lambda y: y.sin() * y, torch.exp, (x,)).sum())
    for sign in (1, -1):
        x = sign * torch.linspace(0.5, 1, 3, dtype=torch.float64)
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(
            by_python(leaf.sum() > 0, lambda y: y.sin() * y, torch.exp, (leaf,)).sum(), leaf, create_graph=True
        )
        torch.testing.assert_close(grad(f)(x)[0], first)
        torch.testing.assert_close(grad(grad(f))(x)[0], torch.autograd.grad(first.sum(), leaf)[0])


def test_under_another_name() -> None:
    """A program may have imported the function."""
    jitted = thunder.jit(lambda x: held_under_another_name(x.sum() > 0, torch.sin, torch.cos, (x,)))
    for x in (torch.ones(2), -torch.ones(2)):
        torch.testing.assert_close(jitted(x), by_python(x.sum() > 0, torch.sin, torch.cos, (x,)))


def test_random_numbers() -> None:
    """Are drawn by the one that runs, and drawn again for its gradient."""
    jitted = thunder.jit(lambda x: torch.cond(x[0] > 0, lambda y: F.dropout(y, 0.5) * 1, lambda y: y * 2, (x,)))
    for x in (torch.ones(9), -torch.ones(9)):
        torch.manual_seed(0)
        found = jitted(x), torch.rand(1)
        torch.manual_seed(0)
        expected = by_python(x[0] > 0, lambda y: F.dropout(y, 0.5) * 1, lambda y: y * 2, (x,)), torch.rand(1)
        torch.testing.assert_close(found, expected)


def test_gradients_of_random_numbers() -> None:
    """Of any order; they are those that were drawn, and leave random numbers where they stood."""

    def drops(y: Any) -> Any:
        return F.dropout(y * y.sin(), 0.5) * torch.rand(9, dtype=torch.float64) + F.dropout(y, 0.2)

    def by(choose: Any) -> Any:
        return lambda x, w: F.dropout(choose(x[0] > 0, drops, lambda y: (y * w).exp() * torch.rand(()), (x * w,)), 0.1)

    f, jitted = by(by_python), thunder.jit(by(torch.cond))
    for sign in (1, -1, 1):
        results = []
        for g in (f, jitted):
            torch.manual_seed(0)
            x = (sign * torch.linspace(0.5, 1, 9, dtype=torch.float64)).requires_grad_()
            w = torch.ones(9, dtype=torch.float64, requires_grad=True)
            plain = torch.autograd.grad(g(x, w).sum(), (x, w))
            torch.rand(3)  # random numbers have moved on when backward comes
            out = g(x, w).sum()
            torch.rand(1)
            first = torch.autograd.grad(out, (x, w), create_graph=True)
            second = torch.autograd.grad((first[0] * first[1]).sum(), (x, w))
            results.append((plain, first, second, torch.rand(2)))
        torch.testing.assert_close(results[1], results[0])


def noisy(x: Any) -> Any:
    """One way, with random numbers."""
    return F.dropout(x, 0.5).sin() * torch.rand_like(x) * WEIGHT.detach()


def noisier(x: Any) -> Any:
    """The other, which draws more."""
    return (x * torch.randn(5, dtype=x.dtype).sum()).exp() + torch.rand_like(x)


TRANSFORMED: dict[str, Callable[[Any, Any], Any]] = {
    "tangents": lambda f, x: thunder.jvp(f, (x,), (x.cos(),)),
    "second tangents": lambda f, x: thunder.jvp(lambda y: thunder.jvp(f, (y,), (y.cos(),)), (x,), (x.exp(),)),
    "tangents of gradients": lambda f, x: thunder.jvp(thunder.grad(lambda y: f(y).square().sum()), (x,), (x.cos(),)),
    "gradients of tangents": lambda f, x: thunder.grad(lambda y: thunder.jvp(f, (y,), (y.cos(),))[1].sum())(x),
    "a batch that draws once": lambda f, x: thunder.vmap(f, randomness="same")(x.expand(1, 4)),
    "gradients of a batch": lambda f, x: thunder.vmap(thunder.grad(lambda y: f(y).sum()), randomness="same")(x[None]),
    "jacobian": lambda f, x: thunder.jacfwd(f, randomness="same")(x),
}


@pytest.mark.parametrize("name", TRANSFORMED)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_transforms_of_random_numbers(name: str, sign: float) -> None:
    """Each of the two draws as often as it would by itself, whatever is asked of it."""
    x, flag = torch.linspace(0.1, 0.9, 4, dtype=torch.float64), torch.tensor(sign)
    run, found = TRANSFORMED[name], []
    for fn in (lambda y: torch.cond(flag > 0, noisy, noisier, (y,)), noisy if sign > 0 else noisier):
        torch.manual_seed(0)
        found.append((run(fn, x), torch.rand(1)))
    torch.testing.assert_close(*found)


def test_batches_of_random_numbers() -> None:
    """Where all examples choose the same, only that draws; else both, since examples may differ."""
    x = torch.rand(3, 4, dtype=torch.float64) + 0.5
    for sign in (1, -1):
        torch.manual_seed(0)
        together = lambda y, s: torch.cond(s > 0, noisy, noisier, (y,))  # noqa: E731
        found = thunder.vmap(together, (0, None), randomness="same")(x, torch.tensor(sign)), torch.rand(1)
        torch.manual_seed(0)
        expected = thunder.vmap(noisy if sign > 0 else noisier, randomness="same")(x), torch.rand(1)
        torch.testing.assert_close(found, expected)
    mixed = x * torch.tensor([[1.0], [-1.0], [1.0]])
    apart = thunder.vmap(lambda y: torch.cond(y.sum() > 0, noisy, noisier, (y,)), randomness="different")(mixed)
    assert apart[0].lt(2).all() and apart[1].gt(0).all() and apart.isfinite().all()
    with pytest.raises(RuntimeError, match="called random operation"):
        thunder.vmap(lambda y: torch.cond(y.sum() > 0, noisy, noisier, (y,)))(mixed)


def test_random_numbers_of_a_generator_in_a_checkpoint() -> None:
    """A region that is computed again draws with the same generator in a branch of torch.cond."""
    generator = torch.Generator()

    def region(x: Any) -> Any:
        return torch.cond(x[0] > 0, lambda y: y * torch.rand(9, generator=generator).sin(), torch.exp, (x,)).sin()

    def f(x: Any) -> Any:
        return checkpoint(region, x, use_reentrant=False).sum()

    results = []

    def plain(x: Any) -> Any:
        return (x * torch.rand(9, generator=generator).sin()).sin().sum()

    for g in (plain, thunder.jit(f)):
        generator.manual_seed(3)
        x = torch.ones(9, requires_grad=True)
        results.append((torch.autograd.grad(g(x), x), torch.rand(2, generator=generator)))
    torch.testing.assert_close(results[1], results[0])


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a write": (lambda x: torch.cond(x[0] > 0, lambda y: y.add_(1), torch.sin, (x,)), "writes to a tensor"),
    "shapes": (lambda x: torch.cond(x[0] > 0, lambda y: y[:1], torch.sin, (x,)), "tensors that differ"),
    "types": (lambda x: torch.cond(x[0] > 0, lambda y: y > 0, torch.sin, (x,)), "tensors that differ"),
    "containers": (lambda x: torch.cond(x[0] > 0, lambda y: (y,), torch.sin, (x,)), "different containers"),
    "numbers": (lambda x: torch.cond(x[0] > 0, lambda y: (y, 1), lambda y: (y, 2), (x,)), "different numbers"),
    "many values": (lambda x: torch.cond(x > 0, torch.sin, torch.cos, (x,)), "single-element tensor"),
    "operands": (lambda x: torch.cond(x[0] > 0, torch.sin, torch.cos, x), "tuple of tensors"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_chosen(name: str) -> None:
    """Says why, and where."""
    f, message = REFUSED[name]
    with pytest.raises((TracingError, RuntimeError), match=message) as caught:
        thunder.trace()(f, torch.ones(3))
    assert "test_branching.py" in message_and_notes(caught.value)


def test_loops() -> None:
    """Run as Python: their number of steps depends on values."""
    for loop in (while_loop, lambda *how: torch.ops.higher_order.while_loop(*how, ())):
        jitted = thunder.jit(lambda x, loop=loop: loop(lambda y: y.sum() < 9, lambda y: (y * 2,), (x,))[0] + 1)
        for x in (torch.ones(3), torch.full((3,), 0.5)):
            torch.testing.assert_close(jitted(x), torch.full((3,), 5.0))
        assert "calls while_loop, whose number of steps depends on values" in thunder.explain(jitted)
