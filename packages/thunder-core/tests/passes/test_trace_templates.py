# SPDX-License-Identifier: Apache-2.0
"""Calls that are alike: which ones are, and that what is written again is what tracing would have given."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.core import devices, dtypes, prims
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import Symbol
from thunder.core.trace import Trace
from thunder.core.transforms import get_grad, put_grad, register_grad
from thunder.core.verify import verify
from thunder.passes import autodiff
from thunder.passes.autodiff import differentiate
from thunder.passes.trace_templates import Names, Unlike, Values, likeness


def tensor(name: str, *shape: int, dtype: dtypes.dtype = dtypes.float32) -> TensorProxy:
    return TensorProxy(name, shape=shape, device=devices.cpu, dtype=dtype)


def like(a: Any, b: Any, tracked: Any = ()) -> bool:
    return likeness(a, Values(), set(tracked)) == likeness(b, Values(), set(tracked))


def test_what_is_known_of_tensors_counts_and_their_names_do_not():
    a, b = tensor("a", 2, 3), tensor("b", 2, 3)
    assert like(a, b) and like([a, 1], [b, 1]) and like({"x": a}, {"x": b})
    assert not like(a, tensor("b", 3, 2)) and not like(a, tensor("b", 2, 3, dtype=dtypes.float64))
    assert not like(a, b, tracked=["a"]) and like(a, b, tracked=["a", "b"])


def test_which_tensors_are_the_same_counts():
    a, b = tensor("a", 2), tensor("b", 2)
    assert like((a, a), (b, b)) and not like((a, a), (a, b))
    assert not like((a, b, a), (a, b, b))


def test_numbers_count_with_their_types_and_signs():
    assert like((1, 2.0, "s", None), (1, 2.0, "s", None)) and like(float("nan"), float("nan"))
    assert not like(1, 1.0) and not like(1, True) and not like(0.0, -0.0) and not like((1,), [1])
    assert not like(slice(1), slice(2)) and like(slice(None, 3), slice(None, 3))
    assert not like(torch.Generator(), torch.Generator())


def test_unknown_numbers_are_like_nothing():
    with pytest.raises(Unlike):
        likeness((NumberProxy("n", 2, int),), Values(), set())


def test_names_are_known_where_there_is_no_gap():
    trace = Trace("f", args=[tensor("t2", 2)])
    names = Names(trace)
    made = [trace.make_name("t") for _ in range(2)]
    assert names.made() == made == ["t0", "t1"]
    names = Names(trace)
    trace.make_name("t")  # t3: the program has a t2
    with pytest.raises(Unlike):
        names.made()
    names = Names(trace)
    trace.make_name("n")
    with pytest.raises(Unlike):
        names.made()


def traced(fn: Any, count: int = 2) -> Trace:
    """The trace of `fn` on inputs of shape (2, 2)."""
    trace = Trace("f", args=[tensor(f"x{i}", 2, 2) for i in range(count)])
    with tracectx(trace), thunder.core.langctx.set_langctx("torch"):
        trace.output = fn(*trace.args)
        prims.python_return(trace.output)
    return trace


def layers(x: Any, w: Any) -> Any:
    for _ in range(3):
        y = ltorch.layer_norm(ltorch.linear(x, w), (2,))
        x = x + ltorch.tanh(y).transpose(0, 1).reshape(2, 2) * ltorch.softmax(y, -1)
        x = x * 0.5 + ltorch.where(x > 0, x, x.exp())
    return (x @ w.T).sum()


def test_the_program_is_that_of_tracing_every_call():
    """Names included, at every level."""
    trace = traced(layers)
    found = differentiate(trace)
    with mock.patch.object(autodiff.JointTrace, "_likeness", side_effect=Unlike):
        every = differentiate(trace)
    for program in (found, every):
        program.provenance = None
    assert str(verify(found)) == str(verify(every))
    assert [op.source for op in found.bound_symbols] == [op.source for op in every.bound_symbols]


def test_a_rule_is_asked_once_for_calls_that_are_alike():
    asked = []
    sym = Symbol("twice", lambda a, n=2: prims.mul(a, a), id="test.twice")

    @sym.grad
    def _(a: Any, n: int = 2) -> Any:
        asked.append(n)
        out = prims.sin(a)
        put_grad(a, get_grad(out) * prims.cos(a))
        return out

    trace = traced(lambda a, b: sym(sym(sym(a)), 3) + sym(b, 3) + sym(a))
    verify(differentiate(trace))
    assert sorted(asked) == [2, 3]  # of a, b and results of the program nothing else is known


def test_rules_from_outside_are_asked_for_each_call():
    asked = []
    sym = Symbol("outside", lambda a: prims.mul(a, a), id="test.outside")

    def rule(a: Any) -> Any:
        asked.append(a.name)
        out = sym(a)
        put_grad(a, get_grad(out))
        return out

    with mock.patch.dict(autodiff._registered):
        register_grad(sym, rule)
        verify(differentiate(traced(lambda a, b: sym(sym(a)) + sym(b))))
    assert len(asked) == 3


def test_results_that_are_inputs():
    """The gradient of what a call passes through flows into what it was given."""
    sym = Symbol("same", lambda a, b: a, id="test.same")

    @sym.grad
    def _(a: Any, b: Any) -> Any:
        put_grad(b, get_grad(a) * 2)
        return a

    def program(a: Any, b: Any) -> Any:
        for _ in range(3):
            a = prims.sin(prims.mul(a, b))
        return a

    x = [torch.rand(2, 2) for _ in range(2)]
    found = differentiate(traced(lambda a, b: program(a, b) * program(b, a))).python_callable()(*x)
    ours = [t.clone().requires_grad_() for t in x]

    def eager(a: Any, b: Any) -> Any:
        for _ in range(3):
            a = torch.sin(a * b)
        return a

    (eager(*ours) * eager(*ours[::-1])).sum().backward()
    torch.testing.assert_close(found, [t.grad for t in ours])
    verify(differentiate(traced(lambda a, b: sym(sym(a, b), b) + sym(b, a))))


def test_parts_without_a_rule_count_with_their_arguments():
    """Two selections differ by the positions in them, which a part makes a tensor of that no gradient flows through."""

    def program(x: Any) -> Any:
        return (x[..., [-2], :] * 2 + x[..., [-1], :] * 3 + x[..., [-2], :]).sum()

    x = torch.rand(2, 3, 4, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(thunder.jit(program)(x), x)
    (wanted,) = torch.autograd.grad(program(x), x)
    torch.testing.assert_close(found, wanted)
