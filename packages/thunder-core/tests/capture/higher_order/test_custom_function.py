# SPDX-License-Identifier: Apache-2.0
"""`torch.autograd.Function` in programs: the options of its context, and derivatives of higher order, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from outcomes import counts
from torch.autograd.function import once_differentiable

import thunder

Function = torch.autograd.Function
OTHER = torch.tensor([2.0, 3.0, 4.0], requires_grad=True)


class Dirty(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 5


class PartlyDifferentiable(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        a, b = x * 2, x * 3
        ctx.mark_non_differentiable(b)
        return a, b, x.long()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, h: Any, i: Any) -> torch.Tensor:
        return g * (2 if h is None else 3) * (5 if i is None else 7)


class NotMaterialized(PartlyDifferentiable):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return PartlyDifferentiable.forward(ctx, x)


class Two(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> torch.Tensor:
        return g * 2 if h is None else h * 11 if g is None else g * 7 + h


class Needs(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, n: int, w: torch.Tensor) -> torch.Tensor:
        return x * w * n

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        needed = ctx.needs_input_grad
        return g * float(sum(needed)) * (2 if needed[0] else 1), None, (g * 9 if needed[2] else None)


class ReturnsInput(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return g * x * x


class ReturnsView(ReturnsInput):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.view(-1)


class ReturnsInputAndMore(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        ctx.save_for_backward(x, y)
        return x, y * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, h: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return g * x * y, h * x * 3


class ReadsGlobal(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x * OTHER

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * g * x * OTHER


class Once(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * g * x


def derivatives(fn: Callable[[torch.Tensor], Any], step: int) -> list[Any]:
    """Return the results of a call, which of them require grad, and their first and second derivatives."""
    x = (torch.arange(1.0, 4.0) + step).requires_grad_()
    results = fn(x)
    results = results if isinstance(results, tuple) else (results,)
    found: list[Any] = [(t.tolist(), t.requires_grad) for t in results]
    loss = sum((t * t).sum() for t in results if t.requires_grad)
    (g,) = torch.autograd.grad(loss, x, create_graph=True)
    found.append(g.tolist())
    if g.requires_grad:
        (h,) = torch.autograd.grad((g * g).sum(), x, allow_unused=True)
        found.append(None if h is None else h.tolist())
    return found


def assert_as_eager(fn: Callable[[torch.Tensor], Any]) -> Any:
    """Compare three calls with eager, and return the jitted function."""
    jitted = thunder.jit(fn)
    for step in range(3):
        assert derivatives(jitted, step) == derivatives(fn, step)
    return jitted


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: Dirty.apply(x * 1) * 3,
        lambda x: PartlyDifferentiable.apply(x),
        lambda x: NotMaterialized.apply(x),
        lambda x: Needs.apply(x, 3, torch.full((3,), 2.0)),
        lambda x: Needs.apply(x.detach(), 3, x),
        lambda x: ReturnsInput.apply(x),
        lambda x: ReturnsInput.apply(x * 1),
        lambda x: ReturnsInput.apply(x * 1)[1:] * 2,
        lambda x: ReturnsView.apply(x * 1),
        lambda x: ReturnsInputAndMore.apply(x * 1, x * 2),
        lambda x: ReadsGlobal.apply(x.sin()).exp(),
    ],
)
def test_contexts_and_derivatives(fn: Callable[[torch.Tensor], Any]) -> None:
    assert counts(assert_as_eager(fn)) == (1, 2)


def test_an_input_that_is_marked_dirty_is_returned_itself() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        z = Dirty.apply(y)
        return y * (3.0 if z is y else 5.0)

    assert counts(assert_as_eager(f)) == (1, 2)


@pytest.mark.parametrize(
    "fn",
    [lambda x: Two.apply(x)[0], lambda x: Two.apply(x)[1] * 2, lambda x: Two.apply(x), lambda x: sum(Two.apply(x))],
)
def test_gradients_that_are_none_run_eagerly(fn: Callable[[torch.Tensor], Any]) -> None:
    """Which outputs have gradients is known only when backward runs."""
    jitted = assert_as_eager(fn)
    assert "Two calls set_materialize_grads(False)" in thunder.explain(jitted)


def test_gradients_that_are_none_matter_only_with_gradients() -> None:
    jitted = thunder.jit(lambda x: Two.apply(x)[0])
    for _ in range(2):
        assert torch.equal(jitted(torch.ones(3)), torch.full((3,), 2.0))
    assert counts(jitted) == (1, 1)


def test_once_differentiable_gradients_are_constants() -> None:
    """torch raises an error where a second derivative reaches them: there is no silent number."""
    jitted = thunder.jit(Once.apply)
    x = torch.arange(1.0, 4.0).requires_grad_()
    (g,) = torch.autograd.grad(jitted(x).sum(), x, create_graph=True)
    assert torch.equal(g, 2 * x.detach())
    assert not g.requires_grad


class Spread(Function):
    """Returns gradients that torch reduces to the shape of the input, and converts to its dtype."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g.double() * 2, torch.stack([g, g * 3])


def test_gradients_get_the_shape_and_dtype_of_their_inputs() -> None:
    jitted = thunder.jit(lambda x, y: Spread.apply(x.sin(), y).sum())
    for _ in range(2):
        grads = []
        for run in (lambda x, y: Spread.apply(x.sin(), y).sum(), jitted):
            x, y = torch.ones(1, 3, requires_grad=True), torch.ones(2, 1, requires_grad=True)
            grads.append(torch.autograd.grad(run(x, y), (x, y)))
        for one, other in zip(*grads):
            torch.testing.assert_close(one, other)
    assert counts(jitted) == (1, 1)


class Misshapen(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g[0]


def test_a_gradient_of_another_shape_is_torchs_error(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2, 3, requires_grad=True)
    monkeypatch.delenv("THUNDER_STRICT", raising=False)
    for run in (Misshapen.apply, thunder.jit(Misshapen.apply)):
        with pytest.raises(RuntimeError, match="MisshapenBackward returned an invalid gradient at index 0 - got"):
            run(x).sum().backward()


class ReadsNumber(Misshapen):
    """The backward computes with a number, and with a tensor of data-dependent size."""

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        rows = (g > 0).nonzero()[:, 0]
        return torch.zeros_like(g).index_add(0, rows, g[rows] * rows.shape[0]) * g.sum().item()


def test_numbers_in_a_backward() -> None:
    jitted = thunder.jit(lambda x, w: (ReadsNumber.apply(x.sin()) * w).sum())
    for shift in (-1.5, 0.0, 3.0):
        grads = []
        for run in (lambda x, w: (ReadsNumber.apply(x.sin()) * w).sum(), jitted):
            x = torch.linspace(-1, 1, 4).requires_grad_()
            grads.append(torch.autograd.grad(run(x, torch.arange(4.0) + shift), x))
        torch.testing.assert_close(grads[1], grads[0])
    assert counts(jitted) == (1, 2)


class KeptAlive(Function):
    """Its context is part of a cycle of garbage, as the frames of an exception are."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        ctx.save_for_backward(y)
        ctx.itself = ctx
        try:
            raise ValueError
        except ValueError as error:
            ctx.error = error
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 2


def test_garbage_shares_no_memory() -> None:
    """The program may write to a result that the context has saved."""
    jitted = thunder.jit(lambda x: KeptAlive.apply(x).add_(1))
    for _ in range(3):
        torch.testing.assert_close(jitted(torch.ones(3)), torch.full((3,), 3.0))
    assert counts(jitted) == (1, 2), thunder.explain(jitted)


class Recursive(Function):
    """The backward calls the function, as that of a linear solver does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, how: Any) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.how = how
        return x.sinh()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        y = Recursive.apply(x, ctx.how)
        return g * (1 + y * y).sqrt(), None


def test_a_backward_that_calls_its_own_function() -> None:
    jitted = assert_as_eager(lambda x: Recursive.apply(x, None).exp())
    assert counts(jitted) == (1, 2)


def test_objects_that_hold_tensors_of_the_program_are_no_operands() -> None:
    """They do not outlive the run in the recorded operation."""

    def f(x: torch.Tensor) -> torch.Tensor:
        sign = x.sign()
        return Recursive.apply(x * 2, lambda y: y * sign)

    assert counts(assert_as_eager(f)) == (1, 2)


def test_a_hook_on_a_value_that_is_saved_has_its_own_gradient() -> None:
    """The hooked value and the saved one are two outputs of a node, and torch keeps one gradient for each tensor."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        y.register_hook(lambda g: g * 2)
        return y

    found = []
    for fn in (f, thunder.jit(f)):
        x = torch.arange(1.0, 4.0).requires_grad_()
        found.append(torch.autograd.grad(fn(x).sum(), x, create_graph=True)[0])
    torch.testing.assert_close(found[1], found[0])


# -- saved tensors ----------------------------------------------------------------------------------------------------
def hooks(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return x * x


def on_cpu(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.save_on_cpu():
        return x * x


def disabled(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return x * x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fn", [hooks, on_cpu, disabled])
def test_hooks_of_saved_tensors_run_eagerly(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    jitted = assert_as_eager(fn)
    assert "saved" in thunder.explain(jitted)


def test_saving_where_hooks_are_disabled_is_torchs_error() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"), torch.autograd.graph.save_on_cpu():
            return x * x

    with pytest.raises(RuntimeError, match="not here"):
        thunder.jit(f)(torch.ones(3, requires_grad=True))


# -- forward mode -----------------------------------------------------------------------------------------------------
def partly_constant(y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        a = y * 2
    return (a * y).sum()


def without_tangents(y: torch.Tensor) -> torch.Tensor:
    with torch.autograd.forward_ad._set_fwd_grad_enabled(False):
        a = y * 2
    return (a * y).sum()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.func.hessian(partly_constant)(x),
        lambda x: torch.func.grad(partly_constant)(x),
        lambda x: torch.func.jacfwd(partly_constant)(x),
        lambda x: torch.func.jvp(partly_constant, (x,), (torch.ones(3),))[1],
        lambda x: torch.func.jvp(without_tangents, (x,), (torch.ones(3),))[1],
    ],
)
@pytest.mark.parametrize("gradients", [False, True])
def test_tangents_flow_under_no_grad(fn: Callable[[torch.Tensor], torch.Tensor], gradients: bool) -> None:
    """`no_grad` stops gradients, but not tangents; `_set_fwd_grad_enabled(False)` stops tangents."""
    jitted = thunder.jit(fn)
    for _ in range(3):
        x = torch.arange(1.0, 4.0).requires_grad_(gradients)
        torch.testing.assert_close(jitted(x), fn(x))


class Scale(Function):
    """Its forward has no context, so torch binds the arguments of `apply` to the parameters of forward."""

    @staticmethod
    def forward(x: Any, by: Any = 2.0) -> Any:
        return x * by

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.by = inputs

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.by, None


class Stores(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale.apply

    def forward(self, x: Any) -> Any:
        return self.scale(x)


stored_method = Scale.apply


@pytest.mark.parametrize(
    "fn",
    [
        Stores(),
        lambda x: stored_method(x),
        lambda x: stored_method(x, by=3.0),
        lambda x: Scale.apply(x, 4.0),
        lambda x: Scale.apply(by=5.0, x=x),
    ],
)
def test_methods_that_programs_store_and_arguments_by_name(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    jitted = thunder.jit(fn, sharp_edges="error")
    for _ in range(2):
        outcomes = []
        for f in (fn, jitted):
            x = torch.rand(3, generator=torch.Generator().manual_seed(0), requires_grad=True)
            out = f(x)
            out.sum().backward()
            outcomes.append((out.detach(), x.grad))
        torch.testing.assert_close(outcomes[1], outcomes[0])
    assert thunder.cache_misses(jitted) == 1
    assert torch.autograd.Function.apply.__func__.__code__.co_filename.startswith(torch.__path__[0])  # type: ignore[attr-defined]
