# SPDX-License-Identifier: Apache-2.0
"""Batches of traces: what becomes of operations, and compositions of transforms as hypothesis finds them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import thunder
import thunder.torch as ltorch
from thunder.core.errors import ThunderError
from thunder.core.langctx import set_langctx
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import Symbol
from thunder.core.trace import Trace
from thunder.passes.batching import Batch


def batched(fn, *shapes, size=4, **options):
    """The operations of `fn` over a batch, where the shapes that are lists are of one example."""
    trace = Trace("f")
    with tracectx(trace), set_langctx("torch"):
        examples = [TensorProxy(shape=s, device="cpu", dtype=torch.float64) for s in shapes]
        with trace.scope() as operations:
            out = fn(*examples)
        batch = Batch(size, **options)
        for p, shape in zip(examples, shapes):
            if isinstance(shape, list):
                batch.env[p.name] = batch.add(TensorProxy(like=p, shape=(size, *shape)))
        batch.run(operations)
        result = batch.batched(out)
    return [op.sym.name for op in trace.bound_symbols], result


def test_operations_stay_whole():
    assert batched(lambda x: ltorch.gelu(x), [3])[0] == ["gelu"]
    assert batched(lambda x: ltorch.softmax(x, 0), [3])[0] == ["softmax"]
    assert batched(lambda x, w: ltorch.linear(x, w), [3], (5, 3))[0] == ["linear"]
    assert batched(lambda x: ltorch.layer_norm(x, (3,)), [2, 3])[0] == ["layer_norm"]
    assert batched(lambda q: ltorch.scaled_dot_product_attention(q, q, q), [2, 2, 5, 4])[0] == [
        "reshape", "reshape", "reshape", "scaled_dot_product_attention", "reshape",
    ]  # fmt: skip


def test_what_is_the_same_for_all_examples_is_computed_once():
    names, out = batched(lambda x, w: x + ltorch.exp(w).sum(), [3], (3,))
    assert names[:2] == ["exp", "sum"] and out.shape == (4, 3)
    trace_names, out = batched(lambda x, w: w * 2, [3], (3,))
    assert trace_names == ["mul", "broadcast_in_dim"] and out.shape == (4, 3)


def test_composites_keep_their_gradients():
    sym = Symbol("twice", lambda x: x * 2, id="test.twice")
    sym.vjp(lambda g, out, x: g * 1000)
    names, out = batched(lambda x: sym(x), [3])
    assert names == ["vmap_twice"] and out.shape == (4, 3)

    @thunder.jit
    def f(x):
        return thunder.grad(lambda x: thunder.vmap(lambda x: sym(x))(x).sum())(x)

    assert (f(torch.ones(2, 3)) == 1000).all()


def test_rules_are_checked():
    sym = Symbol("odd", lambda x: TensorProxy(like=x), id="test.odd", is_prim=True)
    sym.batch(lambda b, x: ltorch.sum(x))
    with pytest.raises(ThunderError, match=r"rule of odd returned a batch of cpu f64\[\], but the operation"):
        batched(lambda x: sym(x), [3, 2])
    sym.batch(lambda b, x: (x, x))
    with pytest.raises(ThunderError, match="returned 2 values instead of 1"):
        batched(lambda x: sym(x), [3])
    sym.batch(lambda b, x: NotImplemented)
    with pytest.warns(UserWarning, match="odd has no batching rule and is called once for each of 4 examples"):
        assert batched(lambda x: sym(x), [3])[0].count("odd") == 4


def test_random_numbers():
    def draw(x):
        return ltorch.rand(3, dtype=torch.float64) + x

    with pytest.raises(RuntimeError, match="randomness error mode"):
        batched(draw, [3])
    assert batched(draw, [3], randomness="same")[1].shape == (4, 3)
    with pytest.raises(RuntimeError, match="randomness='same' has no meaning"):
        batched(lambda x: ltorch.bernoulli(x), [3], randomness="same")


# -- compositions -----------------------------------------------------------------------------------------------------
FUNCTIONS = {
    "product": lambda x: (x * torch.tanh(x.flip(0))).sum(),
    "attention": lambda x: (torch.softmax(x[:, None] * x[None, :], -1) @ x).pow(2).sum(),
    "sorted": lambda x: (x.sort().values * torch.arange(3, dtype=x.dtype)).cumsum(0).sin().sum(),
    "gathered": lambda x: x[torch.tensor([2, 0, 0])].exp().log1p().prod(),
    "branches": lambda x: torch.where(x > 0, x**3, x.cos()).norm(),
    "written": lambda x: _written(x).logsumexp(0),
    "normal": lambda x: torch.nn.functional.layer_norm(x, (3,)).mul(x).sum(),
}
TRANSFORMS = {
    "grad": lambda m, f: lambda x: m.grad(f)(x).sin().sum(),
    "value": lambda m, f: lambda x: sum(m.grad_and_value(f)(x)[::-1]).sum(),
    "jvp": lambda m, f: lambda x: m.jvp(f, (x,), (x.cos(),))[1],
    "vjp": lambda m, f: lambda x: m.vjp(f, x)[1](f(x))[0].sum(),
    "vmap": lambda m, f: lambda x: m.vmap(lambda s: f(x * s))(torch.ones(2, dtype=x.dtype) + x[:2]).sum(),
    "vmap over columns": lambda m, f: lambda x: m.vmap(f, in_dims=1)(torch.stack([x, x.sin()], 1)).prod(),
    "jacfwd": lambda m, f: lambda x: m.jacfwd(lambda x: f(x) * x)(x).tanh().sum(),
    "jacrev": lambda m, f: lambda x: m.jacrev(lambda x: f(x) * x[:2])(x).tanh().sum(),
}


def _written(x):
    y = x.clone()
    y[1:] += x[:-1]
    y[0] = x.sum()
    return y


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(FUNCTIONS)), st.lists(st.sampled_from(sorted(TRANSFORMS)), min_size=1, max_size=3))
def test_compositions_are_torchs(function, chain):
    x = torch.tensor([0.3, -0.8, 1.1], dtype=torch.float64)
    ours = theirs = FUNCTIONS[function]
    for name in chain:
        ours, theirs = TRANSFORMS[name](thunder, ours), TRANSFORMS[name](torch.func, theirs)
    torch.testing.assert_close(thunder.jit(ours)(x), theirs(x), rtol=1e-8, atol=1e-9)
