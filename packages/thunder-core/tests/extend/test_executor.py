# SPDX-License-Identifier: Apache-2.0
"""Executors: what can be registered with them, and what they answer."""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.core import dtypes, prims
from thunder.core.errors import ThunderError
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import Trace
from thunder.extend import (
    FusionExecutor,
    Implementation,
    OperatorExecutor,
    deregister_executor,
    implementations_epoch,
    register_executor,
)


@pytest.fixture
def executor() -> Iterator[OperatorExecutor]:
    """A registered executor, gone afterwards."""
    out = OperatorExecutor("executor_test", version="1.2")
    register_executor(out)
    yield out
    deregister_executor(out)


def call(sym: Any, *args: Any, **kwargs: Any) -> BoundSymbol:
    """A call of `sym` with tensors of these names."""
    trace = Trace("f")
    with tracectx(trace):
        made = [
            TensorProxy(a, shape=(2,), device="cpu", dtype=dtypes.float32) if isinstance(a, str) else a for a in args
        ]
        sym(*made, **kwargs)
    return trace.bound_symbols[0]


# -- operators --------------------------------------------------------------------------------------------------------
def test_an_operator(executor: OperatorExecutor) -> None:
    """By a meta function, or like existing operations; its symbol is the executor's."""
    op = executor.register_operator(
        "sq", meta=lambda a: TensorProxy(like=a), fn=lambda a: a * a, tags=(OpTags.ELEMENTWISE_OP,)
    )
    assert (op.name, op.id, op.module, op.is_prim, op.executor) == ("sq", "executor_test.sq", None, True, executor)
    assert OpTags.ELEMENTWISE_OP in op.tags
    assert executor.opmap["sq"] is op
    assert op(torch.tensor([3.0])).item() == 9
    like = executor.register_operator("sq2", like=lambda a: a * a, fn=lambda a: a * a)
    assert not like.is_prim
    assert [sub.sym.name for sub in call(like, "a").subsymbols] == ["mul"]


def test_like_another_operator(executor: OperatorExecutor) -> None:
    """`like=` takes any function of proxies, a symbol too, and its parameters."""
    op = executor.register_operator("acme_add", like=ltorch.add, fn=torch.add)
    a, b = torch.ones(2), torch.ones(2)
    f = thunder.jit(lambda a, b: op(a, other=b, alpha=3), executors=[executor])
    assert torch.equal(f(a, b), a + 3 * b)
    assert "acme_add(a, b, alpha=3)" in str(thunder.last_traces(f)[-1])


def test_of_a_module(executor: OperatorExecutor) -> None:
    """Traces import it from there; the function need not be given again."""
    op = executor.register_operator("hypot", meta=lambda a, b: TensorProxy(like=a), module=torch)
    assert op.fn is torch.hypot
    f = thunder.jit(op, executors=[executor])
    assert f(torch.tensor([3.0]), torch.tensor([4.0])).item() == 5
    assert "= torch.hypot(a, b)" in str(thunder.last_traces(f)[-1])
    named = types.ModuleType("acme_kernels")
    named.fast = lambda a: a + 1
    assert executor.register_operator("fast", like=lambda a: a + 1, module=named).module == "acme_kernels"
    with pytest.raises(AttributeError, match="slow"):
        executor.register_operator("slow", like=lambda a: a, module=named)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "needs either like= .* or meta= .*neither"),
        ({"like": abs, "meta": abs}, ValueError, "both"),
    ],
)
def test_one_description(executor: OperatorExecutor, options: Any, error: Any, message: str) -> None:
    """No more, no less."""
    with pytest.raises(error, match=message):
        executor.register_operator("op", **options)


@pytest.mark.parametrize("name", ["", "two words", "a.b", "1st", "class"])
def test_names_that_no_trace_can_call(executor: OperatorExecutor, name: str) -> None:
    """Refused when they are registered, not when a trace is run."""
    with pytest.raises(ValueError, match="is not a Python identifier"):
        executor.register_operator(name, like=lambda a: a)


def test_replacing_functions_of_torch(executor: OperatorExecutor) -> None:
    """In programs that use the executor, one or several, and in no others."""
    op = executor.register_operator(
        "acme_exp", like=lambda a: a.exp(), fn=torch.exp, replaces=[torch.exp, torch.Tensor.exp]
    )
    assert executor.lookaside(torch.exp) is op
    assert executor.lookaside(torch.sin) is None
    x = torch.ones(2)
    for fn in (torch.exp, lambda a: a.exp()):
        with_it = thunder.jit(fn, executors=[executor])
        assert torch.equal(with_it(x), x.exp())
        assert "acme_exp(" in str(thunder.last_traces(with_it)[-1])
        without = thunder.jit(fn)
        without(x)
        assert "acme_exp(" not in str(thunder.last_traces(without)[-1])
    single = executor.register_operator("acme_sin", like=lambda a: a.sin(), fn=torch.sin, replaces=torch.sin)
    assert executor.lookaside(torch.sin) is single
    with pytest.raises(TypeError, match="replaces= needs functions of torch"):
        executor.register_operator("acme_fabs", like=lambda a: a.abs(), fn=torch.abs, replaces=math.fabs)


def test_bind_postprocess(executor: OperatorExecutor) -> None:
    """Sees each call that is recorded."""
    seen: list[BoundSymbol] = []
    op = executor.register_operator("noted", like=lambda a: a * 2, fn=lambda a: a * 2, bind_postprocess=seen.append)
    thunder.jit(op, executors=[executor])(torch.ones(2))
    assert seen
    assert all(b.sym is op for b in seen)


# -- implementations --------------------------------------------------------------------------------------------------
def test_by_symbol_or_id(executor: OperatorExecutor) -> None:
    """Both name the same operation."""
    op = executor.register_operator("acme_mul", like=ltorch.mul, fn=operator.mul)
    executor.register_implementation("torch.mul", op)
    bsym = call(ltorch.mul, "a", "b")
    assert executor.implementation(bsym).op is op
    assert executor.can_execute(bsym)
    assert executor.rejection(call(ltorch.add, "a", "b")) == "has no implementation of this operation"
    executor.register_implementation(prims.add.id, op)
    assert executor.can_execute(call(prims.add, "a", "b"))


def test_by_a_function_of_torch(executor: OperatorExecutor) -> None:
    """It stands for its operation; one that thunder does not look into is an operation of that name itself."""
    op = executor.register_operator("acme_silu", like=lambda a: a * ltorch.sigmoid(a), fn=torch.nn.functional.silu)
    executor.register_implementation(torch.nn.functional.silu, execution_transform=lambda a, inplace=False: op(a))
    f = thunder.jit(torch.nn.functional.silu, executors=[executor])
    f(torch.ones(2))
    assert "acme_silu(" in str(thunder.last_traces(f)[-1])
    executor.register_implementation(len, op)
    assert executor.implmap[len].op is op


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"checker": True}, "checker must be a function, but register_implementation got True"),
        ({"profitable": 3}, "profitable must be a function"),
        ({"grad_transform": "rule"}, "grad_transform must be a function"),
        ({"priority": "high"}, "priority must be an integer, but register_implementation got 'high'"),
        ({"priority": True}, "priority must be an integer"),
    ],
)
def test_what_is_registered_has_its_type(executor: OperatorExecutor, given: Any, message: str) -> None:
    """Else it would fail where a program is compiled, far from who wrote it."""
    with pytest.raises(TypeError, match=message):
        executor.register_implementation(ltorch.sin, execution_transform=lambda a: a, **given)
    with pytest.raises(TypeError, match="execution_transform must be a function"):
        executor.register_implementation(ltorch.sin, execution_transform=3)
    with pytest.raises(TypeError, match=r"register_operator\('o'\) expects functions as like= and meta=, not 3"):
        executor.register_operator("o", like=3)
    assert not executor.implmap and not executor.opmap


def test_names_that_no_operation_has(executor: OperatorExecutor) -> None:
    """A slip in a name would otherwise be an implementation that is never used."""
    for register in (
        lambda: executor.register_implementation("torch.sillu", execution_transform=abs),
        lambda: FusionExecutor("fuse_test").register_supported("torch.sillu"),
    ):
        with pytest.raises(ValueError, match=r"no operation with the id 'torch\.sillu', did you mean 'torch\.silu'"):
            register()


def test_registering_again_replaces(executor: OperatorExecutor) -> None:
    """What was compiled with the old one is compiled again."""
    ops = [
        executor.register_operator(f"acme_mul_{n}", like=ltorch.mul, fn=lambda a, b, n=n: a * b + n) for n in (0, 1, 2)
    ]
    f = thunder.jit(lambda a, b: a * b, executors=[executor])
    x = torch.ones(2)
    executor.register_implementation(ltorch.mul, ops[1])
    assert f(x, x).tolist() == [2, 2]
    assert f(x, x).tolist() == [2, 2]
    assert (thunder.cache_misses(f), thunder.cache_hits(f)) == (1, 1)
    executor.register_implementation(ltorch.mul, ops[2])
    assert f(x, x).tolist() == [3, 3]
    assert thunder.cache_misses(f) == 2
    executor.register_implementation(ltorch.mul, ops[2], checker=lambda a, b: "no more")
    assert f(x, x).tolist() == [1, 1]
    assert thunder.cache_misses(f) == 3
    assert f(x, x).tolist() == [1, 1]
    assert thunder.cache_misses(f) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs an operator, an execution_transform or a grad_transform"),
        ({"checker": lambda a: True}, "needs an operator, an execution_transform or a grad_transform"),
        ({"op": ltorch.exp, "execution_transform": lambda a: a}, "not both"),
    ],
)
def test_what_an_implementation_needs(executor: OperatorExecutor, options: Any, message: str) -> None:
    """A way to run it or a gradient rule, and one way to run it."""
    before = implementations_epoch()
    with pytest.raises(ValueError, match=message):
        executor.register_implementation(ltorch.exp, **options)
    assert implementations_epoch() == before
    assert not executor.implmap


def test_only_a_gradient_rule(executor: OperatorExecutor) -> None:
    """The operation runs elsewhere, its gradient is the rule's."""

    def rule(input: Any) -> Any:
        from thunder.core.transforms import get_grad, put_grad

        out = ltorch.exp(input)
        put_grad(input, get_grad(out) * 7)
        return out

    executor.register_implementation(ltorch.exp, grad_transform=rule)
    bsym = call(ltorch.exp, "a")
    assert not executor.can_execute(bsym)
    assert executor.grad_rule(bsym) is rule
    x = torch.ones(2, requires_grad=True)
    f = thunder.jit(lambda a: a.exp(), executors=[executor])
    f(x).sum().backward()
    assert x.grad.tolist() == [7, 7]
    assert "torch.exp(" in str(thunder.last_traces(f)[-1])


def test_implementations_are_plain_records() -> None:
    """What is said of one."""
    assert not Implementation().executable
    assert Implementation(op=ltorch.exp).executable
    assert Implementation(execution_transform=abs).executable
    assert not Implementation(grad_transform=abs).executable


def test_names_and_versions(executor: OperatorExecutor) -> None:
    """As they were given."""
    assert (executor.name, executor.version) == ("executor_test", "1.2")
    assert repr(executor) == "thunder.extend.OperatorExecutor('executor_test')"
    assert repr(FusionExecutor("f")) == "thunder.extend.FusionExecutor('f')"
    assert OperatorExecutor("x").version is None


# -- fusion executors -------------------------------------------------------------------------------------------------
def test_supported_operations() -> None:
    """With a checker or without, with a transform for when they are not fused."""
    ex = FusionExecutor("fuse_test")
    ex.register_supported(prims.sin)
    ex.register_supported("torch.exp", lambda a: a.ndim == 1)
    assert ex.can_fuse(call(prims.sin, "a"))
    assert ex.can_fuse(call(ltorch.exp, "a"))
    assert ex.can_fuse(call(ltorch.sin, "a"))  # by its part
    assert not ex.can_fuse(call(ltorch.cos, "a"))
    ex.register_supported(ltorch.exp, lambda a: False, execution_transform=ltorch.exp2)
    assert not ex.can_fuse(call(ltorch.exp, "a"))
    assert ex.implementation(call(ltorch.exp, "a")).execution_transform is not None


def test_a_temporary_operation() -> None:
    """A fusion's bound symbol: what it reads, what it makes, what it stands for."""
    ex = FusionExecutor("fuse_test")
    parts = [call(prims.sin, "a")]
    a, out = parts[0].args[0], parts[0].output
    bsym = ex.register_temporary_operation("fusion_0", torch.sin, inputs=[a], outputs=(out,), bsyms=parts)
    assert bsym.sym.is_fusion
    assert bsym.sym.executor is ex
    assert (bsym.arg_names, bsym.out_names, bsym.subsymbols) == (("a",), (out.name,), parts)
    assert str(bsym).startswith(f"({out.name},) = fusion_0(a)")


def test_fuel_runs_out() -> None:
    """And what is not there is not taken."""
    ex = FusionExecutor("fuse_test")
    assert ex.get_fuel(1000)
    ex.set_fuel(2)
    assert [ex.get_fuel() for _ in range(3)] == [True, True, False]
    ex.set_fuel(2)
    assert not ex.get_fuel(3)
    assert ex.get_fuel(2)


# -- whose code raised ------------------------------------------------------------------------------------------------
def test_errors_name_the_executor_and_the_operation() -> None:
    """A checker, a transform or a gradient rule that raises: the error stays what it is, and says whose it is."""

    def raises(a: Any) -> Any:
        raise KeyError("dtype")

    x = torch.ones(2, requires_grad=True)
    for options, who in (
        ({"checker": raises}, r"the checker of the executor 'blame_test' for sin, which is called"),
        ({"execution_transform": raises}, r"the execution_transform of the executor 'blame_test' for sin"),
        ({"grad_transform": raises}, r"the gradient rule of the executor 'blame_test' for sin"),
    ):
        ex = OperatorExecutor("blame_test")
        op = None if "execution_transform" in options else ex.register_operator("s", like=lambda a: a, fn=torch.sin)
        ex.register_implementation(ltorch.sin, op, **options)
        with pytest.raises(KeyError, match=f"(?s)dtype.*in {who}.*at .*test_executor.py"):
            thunder.jit(lambda x: x.sin(), executors=[ex])(x)


def test_gradient_rules_give_what_the_operation_gives() -> None:
    """A rule whose result has another shape, dtype or nature is an error with the executor's name and the line."""

    def rule(meta: Any) -> Any:
        ex = OperatorExecutor("blame_test")
        op = ex.register_operator("s", meta=meta, fn=torch.sin)
        ex.register_implementation(ltorch.sin, op, grad_transform=lambda a: op(a))
        return thunder.jit(lambda x: x.sin(), executors=[ex])

    x = torch.ones(2, requires_grad=True)
    for meta, what in (
        (lambda a: TensorProxy(like=a, shape=(3,)), r"a cpu f32\[3\]"),
        (lambda a: TensorProxy(like=a, shape=(2, 1)), r"a cpu f32\[2, 1\]"),
        (lambda a: TensorProxy(like=a, dtype=dtypes.float64), r"a cpu f64\[2\]"),
    ):
        with pytest.raises(
            ThunderError,
            match=rf"rule of the executor 'blame_test' for sin returned {what}, but the operation returns "
            r"a cpu f32\[2\]\n  at .*test_executor.py",
        ):
            rule(meta)(x)


def test_an_operator_without_a_gradient_names_its_executor() -> None:
    """So whoever only installed it knows what to leave out."""
    ex = OperatorExecutor("blame_test")
    op = ex.register_operator("s", meta=lambda a: TensorProxy(like=a), fn=torch.sin)
    ex.register_implementation(ltorch.sin, op)
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(
        ThunderError, match=r"s has no gradient rule.*\n.*\n  it is an operator of the executor 'blame_"
    ):
        thunder.jit(lambda x: op(x), executors=[ex])(x)
    assert thunder.jit(lambda x: x.sin(), executors=[ex])(x).requires_grad  # torch's rule is used
