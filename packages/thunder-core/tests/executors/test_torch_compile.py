# SPDX-License-Identifier: Apache-2.0
"""Regions given to Inductor: what goes in, what stays outside, and that results are torch's.

Most tests run the graphs that Inductor would get as they are, since compiling them takes seconds; some compile.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._inductor
from torch.nn import functional as F

import thunder
from thunder.core.symbol import BoundSymbol
from thunder.executors import TORCH_COMPILE
from thunder.extend import OperatorExecutor, get_default_executors, get_executor


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """The graphs that Inductor was given; torch runs them."""
    found: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        assert len(inputs) == len([n for n in graph.graph.nodes if n.op == "placeholder"])
        assert all(not x.requires_grad for x in inputs)
        found.append(graph)
        return graph

    monkeypatch.setattr(torch._inductor, "compile", keep)
    return found


def jit(fn: Any, *more: Any) -> Any:
    """With this executor."""
    return thunder.jit(fn, executors=[*more, "torch_compile"])


def fusions(jitted: Any, *, backward: bool = False) -> list[BoundSymbol]:
    """The regions of the program that ran."""
    traces = thunder.last_backward_traces(jitted) if backward else thunder.last_traces(jitted)
    return [op for op in traces[-1].bound_symbols if op.sym.is_fusion]


def lines(jitted: Any) -> list[str]:
    """The names of the operations of the program that ran, without those that take values apart or drop them."""
    skipped = ("unpack_trivial", "python_del", "python_return")
    return [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.name not in skipped]


def test_it_is_there_and_no_default() -> None:
    """By name; never by itself."""
    assert get_executor("torch_compile") is TORCH_COMPILE
    assert TORCH_COMPILE not in get_default_executors()


def model(x: Any, weight: Any, gain: Any) -> Any:
    """Projections, a norm, attention, a loss."""
    h = F.linear(x, weight)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5) * gain
    y = F.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None], is_causal=True)[:, 0]
    return F.silu(y).sum(), torch.softmax(y, -1)


def arguments() -> list[torch.Tensor]:
    """For `model`."""
    torch.manual_seed(0)
    return [torch.randn(2, 5, 8), torch.randn(8, 8, requires_grad=True), torch.rand(8, requires_grad=True)]


def test_results_and_gradients(graphs: list[Any]) -> None:
    """One region forward, one backward, and what torch gives."""
    f = jit(model)
    args, theirs = arguments(), arguments()
    (loss, probabilities), (expected, others) = f(*args), model(*theirs)
    torch.testing.assert_close((loss, probabilities), (expected, others))
    (loss + probabilities.square().sum()).backward()
    (expected + others.square().sum()).backward()
    for a, b in zip(args[1:], theirs[1:]):
        torch.testing.assert_close(a.grad, b.grad)
    assert len(graphs) == 2
    assert [len(fusions(f)), len(fusions(f, backward=True))] == [1, 1]
    assert f(*args)[0].item() == loss.item()
    assert len(graphs) == 2, "compiled once"


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_compiled() -> None:
    """The same with Inductor's programs."""
    f = jit(lambda x, w: torch.tanh(x @ w).square().mean())
    x, w = torch.randn(6, 4), torch.randn(4, 4, requires_grad=True)
    other = w.detach().clone().requires_grad_()
    found, expected = f(x, w), torch.tanh(x @ other).square().mean()
    found.backward()
    expected.backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(w.grad, other.grad)


def test_trace(graphs: list[Any]) -> None:
    """The region is an operator, with what it stands for below it; the text runs."""
    f = jit(lambda a, b: (a + b).relu() * 2)
    a, b = torch.randn(2, 3), torch.randn(3)
    expected = f(a, b)
    text = str(thunder.last_traces(f)[-1])
    assert "(t3,) = TorchCompile0(a, b)\n    # t1 = ltorch.add(a, b)" in text
    namespace = thunder.last_traces(f)[-1].python_ctx()
    exec(text, namespace)
    assert torch.equal(namespace["computation"](a, b), expected)


def test_random_numbers_stay_outside(graphs: list[Any]) -> None:
    """They are torch's, in torch's order."""

    def fn(a: Any) -> Any:
        noise = torch.rand_like(a)
        return F.dropout((a + noise).exp(), 0.5) * 2 + torch.randn_like(a)

    f, a = jit(fn), torch.randn(4, 5)
    torch.manual_seed(3)
    found = f(a)
    torch.manual_seed(3)
    torch.testing.assert_close(found, fn(a))
    assert lines(f) == ["rand_like", "TorchCompile0", "dropout", "randn_like", "TorchCompile1"]


def test_writes_stay_outside(graphs: list[Any]) -> None:
    """The memory of an argument is written where the program says so."""

    def fn(a: Any, b: Any) -> Any:
        a.mul_(b).add_(1)
        return a.sin() * b

    f = jit(fn)
    a, b = torch.randn(3), torch.randn(3)
    other = a.clone()
    torch.testing.assert_close(f(a, b), fn(other, b))
    torch.testing.assert_close(a, other)
    assert "copy_" in " ".join(lines(f))


def test_views_at_the_border_are_views(graphs: list[Any]) -> None:
    """Of inputs and of what the region makes; one that is also read inside is there too."""

    def fn(a: Any) -> Any:
        t = a.t()
        y = (t * 2).exp()
        return t[0], y[1:], (y.sum(0) + t.sum(0)).neg()

    f, a = jit(fn), torch.randn(3, 4)
    first, rest, total = f(a)
    torch.testing.assert_close((first, rest, total), fn(a))
    assert first.untyped_storage().data_ptr() == a.untyped_storage().data_ptr()
    assert rest.untyped_storage().nbytes() == 12 * 4, "a view of all of y"
    assert lines(f)[:2] == ["transpose" if "transpose" in lines(f)[0] else "t", "__getitem__"]
    a.zero_()
    assert first.abs().max() == 0


def test_only_views_are_no_region(graphs: list[Any]) -> None:
    """There is nothing to compute."""
    f, a = jit(lambda a: a.t().reshape(2, 6)[0]), torch.randn(3, 4)
    torch.testing.assert_close(f(a), a.t().reshape(2, 6)[0])
    assert not graphs and not fusions(f)


def test_other_strides_compile_again(graphs: list[Any]) -> None:
    """A gradient may come in with any strides, whatever the program was compiled for."""
    w = torch.randn(3, 3, requires_grad=True)
    f = jit(lambda w: w * w)
    for gradient in (torch.randn(3, 3), torch.randn(3, 3).t(), torch.ones(()).expand(3, 3)):
        w.grad = None
        f(w).backward(gradient)
        torch.testing.assert_close(w.grad, 2 * w.detach() * gradient)
    assert len(graphs) == 1 + 3
    f(w).backward(torch.randn(3, 3))
    assert len(graphs) == 4


def test_what_is_left_to_others(graphs: list[Any]) -> None:
    """Complex numbers, opaque operations, other executors' operators; the report says why."""
    other = OperatorExecutor("halves_beside", version="1")
    half = other.register_operator("half", like=lambda a: a * 0.5, fn=lambda a: a / 2)

    def fn(a: Any) -> Any:
        return torch.view_as_real(torch.fft.fft(half(a + 1) * 2)).abs() + 1

    f, a = jit(fn, other), torch.randn(8)
    torch.testing.assert_close(f(a), torch.view_as_real(torch.fft.fft((a + 1) / 2 * 2)).abs() + 1)
    assert lines(f)[:2] == ["TorchCompile0", "half"]
    report = str(thunder.examine(f, a))
    assert "torch_compile" in report
    assert "is an operator of halves_beside" in report or "halves_beside" in report


def test_what_inductor_refuses_torch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says so."""

    def refuse(*args: Any) -> Any:
        raise RuntimeError("no compiler found\nand a long story")

    monkeypatch.setattr(torch._inductor, "compile", refuse)
    f, a = jit(lambda a: a.sin() * 2), torch.randn(4)
    with pytest.warns(
        UserWarning, match=r"does not compile TorchCompile0 \(RuntimeError: no compiler found\); torch runs"
    ):
        found = f(a)
    torch.testing.assert_close(found, a.sin() * 2)
    torch.testing.assert_close(f(a), a.sin() * 2)


def test_fuel(graphs: list[Any]) -> None:
    """How many regions are made can be limited, to find one that is wrong."""

    def fn(a: Any) -> Any:
        return F.dropout((a + 1).exp(), 0.0, training=True).sin() * 2

    TORCH_COMPILE.set_fuel(1)
    try:
        f, a = jit(fn), torch.randn(4)
        torch.testing.assert_close(f(a), fn(a))
        assert len(fusions(f)) == 1
    finally:
        TORCH_COMPILE.set_fuel(None)


def programs() -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Programs whose operations have results or arguments of many kinds."""
    yield lambda a: torch.topk(a, 2, dim=-1), (torch.randn(3, 5),)
    yield lambda a: [x * 2 for x in a.chunk(2, -1)], (torch.randn(3, 4),)
    yield lambda a: {"x": a.to(torch.float64) + 1, "y": a > 0}, (torch.randn(3),)
    yield lambda a, i: F.embedding(i, a).sum(0), (torch.randn(5, 3), torch.tensor([0, 4, 2]))
    yield lambda a: F.layer_norm(a, (4,)).var(-1, correction=0), (torch.randn(3, 4),)
    yield lambda a: torch.where(a > 0, a, torch.zeros_like(a))[..., ::2], (torch.randn(2, 6),)
    yield lambda a: F.conv2d(a, torch.ones(2, 3, 2, 2)).relu(), (torch.randn(1, 3, 4, 4),)
    yield lambda a: (a.sum(), a), (torch.randn(3),)
    yield lambda self: self * 2 + 1, (torch.randn(3),)
    yield lambda a: torch.arange(4) + a.int(), (torch.randn(4),)


@pytest.mark.parametrize("number", range(len(list(programs()))))
def test_programs(number: int, graphs: list[Any]) -> None:
    """They give what torch gives."""
    fn, args = list(programs())[number]
    torch.testing.assert_close(jit(fn)(*args), fn(*args))
