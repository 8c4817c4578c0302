# SPDX-License-Identifier: Apache-2.0
"""Operations that torch runs as they are: metadata, gradients to any order, tangents, batches, chance."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder
from thunder.capture.dispatch.opaque_operations import opaque_jvp, opaque_symbol, opaque_vmap
from thunder.core.errors import ThunderError
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import OpTags
from thunder.core.trace import Trace
from thunder.core.transforms import grad
from thunder.tests.running import execution_trace


def matrix(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64) + torch.eye(*shape, dtype=torch.float64) * 3


def test_gradients_of_gradients() -> None:
    """Torch's own, to any order."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.det(x).sin()

    x = matrix(3, 3)
    wanted, leaf = f(x.requires_grad_()), x
    for times in range(1, 4):
        (wanted,) = torch.autograd.grad(wanted.sum(), leaf, create_graph=True)
        program: Any = f
        for _ in range(times):
            program = grad(program)
        torch.testing.assert_close(program(x.detach())[0], wanted.detach())


def test_a_tensor_given_twice() -> None:
    """Has the sum of both gradients."""
    x = matrix(2, 2).requires_grad_()
    expected = torch.autograd.grad(torch.linalg.solve(x, x).exp().sum() + torch.linalg.det(x), x)[0]
    ours = thunder.jit(lambda x: torch.linalg.solve(x, x).exp().sum() + torch.linalg.det(x))(x)
    torch.testing.assert_close(torch.autograd.grad(ours, x)[0], expected, atol=1e-9, rtol=1e-9)


def test_the_same_random_numbers_in_backward() -> None:
    """What a function drew forward is what its gradient is about, though backward runs it again."""
    x = torch.ones(2000, requires_grad=True)
    jitted = thunder.jit(lambda x: torch.alpha_dropout(x, 0.5, True))
    for f in (jitted, lambda x: torch.alpha_dropout(x, 0.5, True)):
        torch.manual_seed(1)
        out = f(x)
        (g,) = torch.autograd.grad(out.sum(), x)
        kept = out > 0
        assert bool(((g != 0) == kept).all()) and 0 < int(kept.sum()) < 2000
        after = torch.rand(1)
    torch.manual_seed(1)
    jitted(x).sum().backward()
    assert torch.equal(torch.rand(1), after)  # backward left the generator as it was


def test_chance_is_seen_in_the_call() -> None:
    """Not by a name: dropout between the layers of an LSTM draws, and an LSTM without it does not."""

    def tags(dropout: float) -> Any:
        torch.manual_seed(0)
        lstm = torch.nn.LSTM(3, 2, 2, dropout=dropout)
        jitted = thunder.jit(lambda x: lstm(x)[0])
        x = torch.randn(4, 1, 3, requires_grad=True)
        for f in (jitted, lambda x: lstm(x)[0]):
            torch.manual_seed(3)
            out = f(x)
            yield out.detach(), torch.autograd.grad(out.sin().sum(), x)[0]
        found = [b.sym.tags for b in thunder.last_traces(jitted)[0].bound_symbols if OpTags.OPAQUE_OP in b.sym.tags]
        yield OpTags.RANDOM_OP in found[-1]

    for dropout in (0.0, 0.5):
        ours, theirs, drew = tags(dropout)
        assert drew is (dropout > 0)
        torch.testing.assert_close(ours, theirs)


def test_named_results_and_constants_among_them() -> None:
    """Results have torch's type, and those that torch has no gradient of do not require grad."""

    def f(x: torch.Tensor) -> Any:
        found = torch.linalg.lu(x)
        return found.P, found.L, found.U, type(found).__name__

    x = matrix(3, 3).requires_grad_()
    p, l, u, name = thunder.jit(f)(x)
    assert [t.requires_grad for t in (p, l, u)] == [False, True, True]
    assert name == "linalg_lu"


def test_arguments_without_derivatives() -> None:
    """Torch may have derivatives by some of the arguments alone."""
    x = torch.randn(1, 2, 8, 8, requires_grad=True)
    at = torch.rand(1, 2, 2)

    def f(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.fractional_max_pool2d(x, 2, output_size=(4, 4), _random_samples=at)

    expected = torch.autograd.grad(f(x, at).sin().sum(), x)[0]
    torch.testing.assert_close(torch.autograd.grad(thunder.jit(f)(x, at).sin().sum(), x)[0], expected)


def test_a_shape_that_no_fake_tensor_tells() -> None:
    """Functions that check values but give what their arguments' shapes say."""
    x = torch.randn(5, 9, dtype=torch.complex64)
    window = torch.hann_window(8)
    torch.testing.assert_close(thunder.jit(torch.istft)(x, 8, window=window), torch.istft(x, 8, window=window))
    logs = torch.randn(6, 2, 4).log_softmax(-1).requires_grad_()
    call = (torch.tensor([[1, 2], [3, 1]]), torch.tensor([6, 5]), torch.tensor([2, 1]))
    loss = thunder.jit(torch.nn.functional.ctc_loss)(logs, *call)
    expected = torch.nn.functional.ctc_loss(logs, *call)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, logs), torch.autograd.grad(expected, logs))


def record(program: Any, *tensors: torch.Tensor) -> Any:
    """Runs what `program` records of proxies of the tensors."""
    trace = Trace("f")
    with tracectx(trace):
        trace.args = [TensorProxy(shape=t.shape, device=t.device, dtype=t.dtype) for t in tensors]
        thunder.core.prims.python_return(program(*trace.args))
    for p in trace.args:
        trace.bound_symbols.insert(0, thunder.core.symbol.BoundSymbol(thunder.core.prims.unpack_trivial, (p,), {}, p))
    return execution_trace(trace, ()).python_callable()(*tensors)


def test_tangents() -> None:
    """The derivative in a direction, and zeros where none is given."""
    a, b, t = matrix(3, 3), matrix(3, 2), matrix(3, 3)
    sym = opaque_symbol(torch.linalg.solve)
    out, moved = record(lambda a, b, t: opaque_jvp(sym, (a, b), {}, [t, None]), a, b, t)
    wanted = torch.func.jvp(lambda a: torch.linalg.solve(a, b), (a,), (t,))
    torch.testing.assert_close((out, moved), wanted)


def test_derivatives_in_any_order() -> None:
    """Of an operation that torch runs, by batches of tangents too. Nothing is recorded for autograd."""

    def solved(a: Any, b: Any) -> Any:
        return torch.linalg.solve_triangular(a.tril() + torch.eye(2, dtype=a.dtype), b, upper=False)

    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(2, 2, dtype=torch.float64, generator=generator) for _ in range(2))
    for wrap in (
        lambda m: m.jacfwd(m.grad(lambda a, b: solved(a, b).sum())),
        lambda m: m.jacfwd(m.jacfwd(solved), argnums=1),
        lambda m: m.grad(lambda a, b: m.grad(lambda a: solved(a, b).sin().sum())(a).sum()),
        lambda m: m.jacfwd(lambda a, b: m.jacfwd(lambda a: solved(a.expand(2, 2), b).sum())(a[:1]).sum()),
        lambda m: m.jacfwd(lambda a, b: m.grad(lambda v: m.jacfwd(solved, argnums=1)(v * v, b).sum())(a)),
        lambda m: m.vmap(m.hessian(lambda a, b: solved(a, b[:, None]).sum()), in_dims=(None, 1)),
    ):
        found = wrap(thunder)(a, b)
        torch.testing.assert_close(found, wrap(torch.func)(a, b), rtol=1e-10, atol=1e-12)
        assert not found.requires_grad


def test_batches() -> None:
    """Over a batch of some of the arguments; results are batched in their first dimension."""
    a, b = torch.stack([matrix(3, 3), matrix(3, 3).mT], -1), matrix(3, 2)
    sym = opaque_symbol(torch.linalg.solve)
    out = record(lambda a, b: opaque_vmap(sym, (a, b), {}, [2, None]), a, b)
    torch.testing.assert_close(out, torch.linalg.solve(a.permute(2, 0, 1), b))


def test_a_shape_that_depends_on_values() -> None:
    """The program runs eagerly, with a warning that names the user's line and ways out, which may be an error."""
    a, b = torch.randn(4, 3), torch.randn(4, 2)
    jitted = thunder.jit(lambda a, b: torch.linalg.lstsq(a, b, driver="gelsd"))
    with pytest.warns(
        UserWarning, match=r"(?s)depends on the values of its input.*torch.where.*test_opaque_operations"
    ):
        found = jitted(a, b)
    torch.testing.assert_close(tuple(found), tuple(torch.linalg.lstsq(a, b, driver="gelsd")))
    assert "partly eager" in thunder.explain(jitted)
    strict = thunder.jit(lambda a, b: torch.linalg.lstsq(a, b, driver="gelsd"), sharp_edges="error")
    with pytest.raises(thunder.core.errors.TracingError, match="cannot be compiled"):
        strict(a, b)


@torch.library.custom_op("thunder_test_opaque::scaled_sin", mutates_args=())
def scaled_sin(x: torch.Tensor, k: float) -> torch.Tensor:
    """An operation from outside."""
    return (x * k).sin()


@scaled_sin.register_fake
def _(x: Any, k: float) -> Any:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.k = inputs[1]
    ctx.save_for_backward(inputs[0])


scaled_sin.register_autograd(
    lambda ctx, g: (g * (ctx.saved_tensors[0] * ctx.k).cos() * ctx.k, None), setup_context=_keep
)


@torch.library.custom_op("thunder_test_opaque::by_numpy", mutates_args=())
def by_numpy(x: torch.Tensor) -> torch.Tensor:
    """One whose gradient is none of torch's doing."""
    return x.sin()


@by_numpy.register_fake
def _(x: Any) -> Any:
    return torch.empty_like(x)


by_numpy.register_autograd(
    lambda ctx, g: torch.from_numpy((g.detach() * ctx.saved_tensors[0].detach().cos()).numpy().copy()),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


def test_tangents_of_operations_from_outside() -> None:
    """torch's forward mode takes these for constants; here tangents are those of the gradient that was registered."""
    x = matrix(3, 3)

    def f(x: Any) -> Any:
        return (scaled_sin(x, 2.0) * x).sum()

    def plain(x: Any) -> Any:
        return ((x * 2).sin() * x).sum()

    torch.testing.assert_close(thunder.jvp(f, (x,), (x.cos(),)), torch.func.jvp(plain, (x,), (x.cos(),)))
    torch.testing.assert_close(thunder.jacfwd(f)(x), torch.func.grad(plain)(x))
    with pytest.warns(UserWarning, match="no batching rule"):
        torch.testing.assert_close(thunder.hessian(f)(x[0]), torch.func.hessian(plain)(x[0]))


def test_operations_with_and_without_out() -> None:
    """An overload whose `out` arguments have other names does not make the operation one that writes."""
    x = matrix(3, 3)
    x = x @ x.T + torch.eye(3, dtype=x.dtype)

    def f(x: Any) -> Any:
        first = torch.linalg.cholesky_ex(x, out=None)
        targets = torch.empty_like(x), torch.empty((), dtype=torch.int32)
        torch.linalg.cholesky_ex(x * 2, out=targets)
        return first, targets, torch.linalg.inv_ex(x)

    jitted = thunder.jit(f)
    for k in range(3):
        torch.testing.assert_close(jitted(x + k), f(x + k))
    assert thunder.cache_hits(jitted) == 2, thunder.explain(jitted)


def test_a_gradient_that_has_none() -> None:
    """Second derivatives and tangents through it are refused, where they would be zeros."""
    x = matrix(3, 3)[0]
    torch.testing.assert_close(thunder.grad(lambda x: by_numpy(x).sum())(x), x.cos())
    message = "the gradient of by_numpy.default cannot be differentiated"
    with pytest.raises(ThunderError, match=message):
        thunder.jvp(lambda x: by_numpy(x).sum(), (x,), (x,))
    with pytest.raises(ThunderError, match=message):
        thunder.grad(lambda x: thunder.grad(lambda x: by_numpy(x).sum())(x).sum())(x)
    leaf = x.clone().requires_grad_()
    with pytest.raises(ThunderError, match=message):
        (first,) = torch.autograd.grad(thunder.jit(lambda x: by_numpy(x).sum())(leaf), leaf, create_graph=True)
        torch.autograd.grad(first.sum(), leaf)
