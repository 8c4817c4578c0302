# SPDX-License-Identifier: Apache-2.0
"""What programs do that `thunder.grad`, `vmap` and their relatives transform: writes, regions, rules of their own."""

from __future__ import annotations

import pytest
import torch
import torch.func
from outcomes import rand, same

import thunder


# -- writes -----------------------------------------------------------------------------------------------------------
def test_writes_inside():
    def fn(x):
        y = x.clone()
        y[0] *= 3
        y.add_(x)
        return y

    x = rand(4, 3)
    same(thunder.vmap(fn)(x), torch.func.vmap(fn)(x))
    same(
        thunder.vmap(thunder.grad(lambda x: fn(x).sum()))(x), torch.func.vmap(torch.func.grad(lambda x: fn(x).sum()))(x)
    )
    same(thunder.jvp(fn, (x,), (x,)), torch.func.jvp(fn, (x,), (x,)))


def test_writes_to_inputs_reach_them():
    for transform in (
        lambda m, x: m.vmap(lambda x: x.mul_(2))(x),
        lambda m, x: m.vmap(lambda x: x.mul_(2), 1, 1)(x),
        lambda m, x: m.jvp(lambda x: x.mul_(2), (x,), (torch.ones_like(x),)),
    ):
        ours, theirs = torch.ones(2, 3), torch.ones(2, 3)
        same(transform(thunder, ours), transform(torch.func, theirs))
        same(ours, theirs)
    counter = torch.zeros(2)
    jitted = thunder.jit(lambda x: thunder.vmap(lambda x: x + counter.add_(1))(x))
    jitted(torch.ones(3, 2))
    same(jitted(torch.ones(3, 2)), torch.full((3, 2), 3.0))
    same(counter, torch.full((2,), 2.0))


@pytest.mark.parametrize(
    ("transform", "kind", "message"),
    [
        (lambda m, x: m.grad(lambda x: x.mul_(2).sum())(x), RuntimeError, "a leaf Variable that requires grad"),
        (lambda m, x: m.grad(lambda y: (x.mul_(2) * y).sum())(x.clone()), RuntimeError, "mutate a captured Tensor"),
        (lambda m, x: m.jvp(lambda y: x.mul_(y), (x.clone(),), (x,)), RuntimeError, "mutate a captured Tensor"),
        (lambda m, x: m.vmap(lambda y: x.mul_(y))(x.clone()), RuntimeError, "vmap"),
    ],
)
def test_writes_that_are_refused(transform, kind, message):
    for m in (torch.func, thunder):
        x = torch.ones(3)
        with pytest.raises(kind, match=message):
            transform(m, x)
        same(x, torch.ones(3))


# -- rules of the user's own ------------------------------------------------------------------------------------------
class Scaled(torch.autograd.Function):
    """x ** 2, with a gradient, tangents and batches that say who they are."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x, factor):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.factor = inputs
        ctx.save_for_backward(x.exp())
        ctx.save_for_forward(x.exp())

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor * ctx.saved_tensors[0], None

    @staticmethod
    def jvp(ctx, t, _):
        return t * (ctx.factor + 1) * ctx.saved_tensors[0]


class WithVmap(Scaled):
    @staticmethod
    def vmap(info, in_dims, x, factor):
        assert (info.batch_size, in_dims) == (3, (0, None))
        return (x.movedim(in_dims[0], 1) * 100), 1


class Generated(Scaled):
    generate_vmap_rule = True


def test_autograd_functions_bring_their_rules():
    x = rand(3, 2)
    expected = None
    for m in (torch.func, thunder):
        found = (
            m.grad(lambda x: Scaled.apply(x, 3).sum())(x),
            m.jvp(lambda x: Scaled.apply(x, 3), (x,), (x.cos(),)),
            m.vmap(lambda x: WithVmap.apply(x, 3))(x),
            m.vmap(m.grad(lambda x: Generated.apply(x, 3).sum()))(x),
            m.grad(lambda x: m.vmap(lambda x: Generated.apply(x, 3))(x).sum())(x),
        )
        expected = found if expected is None else expected
    same(found, expected)
    # What torch has no answer to keeps its own gradient and tangents here.
    same(thunder.jvp(lambda x: thunder.vmap(lambda x: Scaled.apply(x, 3))(x), (x,), (x,))[1], x * 4 * x.exp())
    same(thunder.grad(lambda x: thunder.vmap(lambda x: Scaled.apply(x, 3))(x).sum())(x), 3 * x.exp())


def test_rules_from_outside():
    from thunder.core.transforms import register_batch, register_grad, register_jvp

    ex = thunder.extend.OperatorExecutor("rules_from_outside")
    thunder.extend.register_executor(ex)

    def meta(x):
        return thunder.core.proxies.TensorProxy(like=x)

    double = ex.register_operator("double_of_outside", meta=meta, fn=lambda x: x * 2)
    fn, x = thunder.jit(lambda x: double(x) + 1, executors=[ex]), rand(3)
    with pytest.warns(UserWarning, match="double_of_outside has no batching rule"):
        same(thunder.vmap(fn)(x), x * 2 + 1)
    with pytest.raises(
        thunder.core.errors.ThunderError, match="double_of_outside has no tangent rule and no gradient rule"
    ) as caught:
        thunder.jvp(fn, (x,), (x,))
    assert "test_functional_programs.py" in str(caught.value)
    register_grad(double, lambda x: _doubled(double, x))
    same(thunder.jvp(fn, (x,), (x,))[1], x * 2)
    register_jvp(double.id, lambda t, out, x: t[0] * 20)
    register_batch(double, lambda b, x: double(x) + 100)
    same(thunder.jvp(thunder.jit(lambda x: double(x), executors=[ex]), (x,), (x,))[1], x * 20)
    same(thunder.vmap(thunder.jit(lambda x: double(x), executors=[ex]))(x), x * 2 + 100)


def _doubled(double, x):
    from thunder.core.transforms import get_grad, put_grad

    out = double(x)
    put_grad(x, get_grad(out) * 2)
    return out


# -- parts of torch ---------------------------------------------------------------------------------------------------
def test_operations_that_thunder_does_not_look_into():
    x = rand(3, 4, 4)
    for fn in (torch.linalg.det, lambda x: torch.fft.rfft(x).abs(), lambda x: torch.linalg.solve(x, x + 1)):
        for call in (
            lambda m, fn: m.vmap(fn)(x),
            lambda m, fn: m.jvp(fn, (x,), (x.sin(),)),
            lambda m, fn: m.vmap(m.grad(lambda x: fn(x).sum()))(x),
            lambda m, fn: m.vmap(lambda x: m.jvp(fn, (x,), (x.sin(),)))(x),
            lambda m, fn: m.grad(lambda x: m.vmap(fn)(x).sum())(x),
        ):
            same(call(thunder, fn), call(torch.func, fn))


def test_choices():
    def fn(p, x):
        return torch.cond(p, lambda x: (x.sin() * w,), lambda x: (x.cos() + 1,), (x,))[0]

    x, w, p = rand(4, 3), rand(3), torch.tensor([True, False, True, False])
    plain = lambda p, x: torch.where(p, x.sin() * w, x.cos() + 1)  # noqa: E731
    expected = torch.func.vmap(plain)(p, x)
    same(thunder.vmap(fn)(p, x), expected)
    same(thunder.vmap(fn, (None, 0))(p[1], x), x.cos() + 1)
    same(thunder.jvp(lambda x: fn(p[0], x), (x,), (x,)), torch.func.jvp(lambda x: plain(p[0], x), (x,), (x,)))
    ours, theirs = (
        m.vmap(m.grad(lambda p, x, f=f: f(p, x).sum(), 1))(p, x) for m, f in ((thunder, fn), (torch.func, plain))
    )
    same(ours, theirs)


def test_regions_that_are_computed_again():
    from torch.utils.checkpoint import checkpoint

    def block(x):
        return torch.tanh(x @ w).sin()

    def fn(x):
        return checkpoint(block, x, use_reentrant=False).pow(2).sum()

    x, w = rand(3, 4), rand(4, 4)
    plain = lambda x: block(x).pow(2).sum()  # noqa: E731
    same(thunder.grad(fn)(x), torch.func.grad(plain)(x))
    same(thunder.jvp(fn, (x,), (x,)), torch.func.jvp(plain, (x,), (x,)))
    same(thunder.vmap(thunder.grad(fn))(x[:, None]), torch.func.vmap(torch.func.grad(plain))(x[:, None]))
    same(thunder.hessian(fn)(x), torch.func.hessian(plain)(x))


def test_complex_numbers_and_autocast():
    z = torch.randn(3, dtype=torch.complex128)
    for call in (
        lambda m: m.grad(lambda a: (a * a.conj() * z).abs().sum())(z),
        lambda m: m.vjp(lambda a: a.sin() * z, z)[1](z),
        lambda m: m.jvp(lambda a: a.sin() * z, (z,), (z.conj(),)),
        lambda m: m.vmap(m.grad(lambda a: (a.exp() * z).abs().sum()))(torch.stack([z, z * 2])),
    ):
        same(call(thunder), call(torch.func))

    def cast(x):
        with torch.autocast("cpu", torch.bfloat16):
            return (x @ x.T).float().sum()

    x = torch.ones(2, 2)
    same(thunder.grad(cast)(x), torch.func.grad(cast)(x))


def test_modules_with_statistics():
    x = torch.randn(5, 4, 3)
    for module in (torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3).eval()):
        for transform in (
            lambda m, f: m.vmap(f)(x),
            lambda m, f: m.grad(lambda x: f(x[0]).pow(2).sum())(x),
            lambda m, f: m.jvp(f, (x[0],), (x[0],)),
        ):
            before = module.running_mean.clone()
            if module.training:  # nothing may be half written
                for m in (torch.func, thunder):
                    with pytest.raises(RuntimeError):
                        transform(m, module)
            else:
                torch.testing.assert_close(transform(thunder, module), transform(torch.func, module))
            same(module.running_mean, before)


def test_dropout_draws_what_torch_draws():
    x = torch.randn(6, 3)
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Dropout(0.5), torch.nn.Linear(5, 1))
    found = []
    for m in (torch.func, thunder):
        torch.manual_seed(5)
        found.append([m.vmap(m.grad(lambda x: net(x).sum()), randomness=r)(x) for r in ("different", "same")])
        found[-1].append(
            m.vmap(lambda x, m=m: m.vmap(torch.rand_like, randomness="different")(x), randomness="same")(x)
        )
    torch.testing.assert_close(*found)
