# SPDX-License-Identifier: Apache-2.0
"""The memory that is updated: shared by inputs, strided, saved for backward, of optimizers, and given as `out=`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from memory_updates import check, lines, matrix

import thunder
from thunder.core.symbol import OpTags
from thunder.executors.torchex.fused_updates import is_fused_update
from thunder.executors.torchex.in_place import TorchMemory
from thunder.extend import NewResults, OperatorExecutor


def test_inputs_that_share_memory_are_not_updated_in_place() -> None:
    base = torch.rand(4, 3)

    def fn(a: Any, b: Any) -> Any:
        a.mul_(2).add_(b)
        return b * 1

    check(fn, base[:2], base[2:])
    check(fn, base[:2], base[1:3])
    check(fn, base[:2], base[:2])


def test_layouts_of_inputs() -> None:
    def fn(a: Any, g: Any) -> None:
        a.mul_(2).add_(g).exp_()

    weights = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    assert lines(thunder.last_traces(check(fn, weights, weights + 1))[-1]) == ["mul > a", "add > a", "exp > a"]
    assert lines(thunder.last_traces(check(fn, matrix().t(), matrix(1).t()))[-1])[-1] == "exp > a"
    every_other = torch.rand(2, 6)[:, ::2]
    assert lines(thunder.last_traces(check(fn, every_other, matrix()))[-1])[-1] == "copy_"
    assert lines(thunder.last_traces(check(fn, torch.rand(3).expand(3).clone()[:0], torch.rand(0)))[-1])


def test_saved_values_are_not_overwritten() -> None:
    """Values that backward needs are results of the forward program."""

    def fn(x: Any, state: Any) -> Any:
        y = x.exp()
        state.mul_(0.5).add_(y.detach())
        return (y * state).sum()

    for run in (fn, thunder.jit(fn)):
        x, state = matrix(1).requires_grad_(), matrix(2)
        run(x, state).backward()
        found = (x.grad, state)
        if run is fn:
            expected = found
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "SGD", "RMSprop", "NAdam", "Adagrad"])
def test_optimizers_make_no_copy_of_parameters_and_state(kind: str) -> None:
    results = []
    for jit in (False, True):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
        options = {"lr": 0.1, **({"momentum": 0.9} if kind == "SGD" else {})}
        optimizer = getattr(torch.optim, kind)(net.parameters(), **options)

        def step(x: Any, net: Any = net, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run = thunder.jit(step) if jit else step
        x = torch.rand(16, 16, generator=torch.Generator().manual_seed(1))
        results.append([run(x).item() for _ in range(5)])
        tensors = [*net.parameters(), *(p.grad for p in net.parameters())]
        tensors += [x for s in optimizer.state.values() for x in s.values() if isinstance(x, torch.Tensor)]
        results[-1] += [x.tolist() for x in tensors]
    assert results[0] == results[1]
    trace = thunder.last_traces(run)[-1]
    assert not [op for op in trace.bound_symbols if op.sym.name == "copy_" and op.args[0].ndim]
    assert any(line.endswith("_params_0") for line in lines(trace))


def test_an_update_of_many_tensors_is_changed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that is repeated for each result makes compile time grow with the square of the number of parameters."""
    changed: list[int] = []
    original = TorchMemory.written_to

    def written_to(self: TorchMemory, op: Any, targets: Any) -> Any:
        if is_fused_update(op):
            changed.append(len(targets))
        return original(self, op, targets)

    monkeypatch.setattr(TorchMemory, "written_to", written_to)
    ps = [torch.nn.Parameter(torch.full((4,), i / 8)) for i in range(20)]
    optimizer = torch.optim.AdamW(ps, fused=True)

    def step() -> None:
        sum(p.square().sum() for p in ps).backward()  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()

    jitted = thunder.jit(step)
    for _ in range(3):
        jitted()
    assert changed == [20, 60]  # before the state exists, and afterwards


# -- operators with `out=` --------------------------------------------------------------------------------------------
def scaled(a: torch.Tensor, n: float) -> torch.Tensor:
    return (a * n).contiguous()


def scaled_into(a: torch.Tensor, n: float, *, out: torch.Tensor) -> torch.Tensor:
    return torch.mul(a, n, out=out)


def rows_into(a: torch.Tensor, n: float, *, out: torch.Tensor) -> torch.Tensor:
    return out.zero_().add_(a.sum() * n)  # wrong if `out` is an argument


def rows(a: torch.Tensor, n: float) -> torch.Tensor:
    return torch.zeros(a.shape).add_(a.sum() * n)


@pytest.fixture
def acme() -> Any:
    """An executor with operators that were registered with `out=`; the second reads each element for all results."""
    executor = OperatorExecutor("acme", memory=NewResults())
    executor.register_operator(
        "scale", like=lambda a, n: a * n, fn=scaled, out=scaled_into, tags=(OpTags.ELEMENTWISE_OP,)
    )
    executor.register_operator("rows", like=lambda a, n: (a * 0) + a.sum() * n, fn=rows, out=rows_into)
    return executor.opmap


@pytest.mark.parametrize("level", ["0", "1"])
def test_operators_with_out(acme: Any, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their results are written where an input is updated, also over an argument if they are elementwise."""
    monkeypatch.setenv("THUNDER_VERIFY", level)
    monkeypatch.setenv("THUNDER_CACHE", "0")

    def update(name: str, of: str) -> Callable[..., Any]:
        def program(x: torch.Tensor, y: torch.Tensor) -> None:
            (x if of == "other" else y).copy_(acme[name](y, 0.5))

        return program

    expected = {
        ("scale", "other"): "scale_out > x", ("scale", "itself"): "scale_out > y",
        ("rows", "other"): "rows_out > x", ("rows", "itself"): "copy_",
    }  # fmt: skip
    for (name, of), wanted in expected.items():
        jitted = thunder.jit(update(name, of), executors=[acme["scale"].executor])
        x, y = matrix(), matrix(1)
        result = (scaled if name == "scale" else rows)(y, 0.5)
        address = x.data_ptr(), y.data_ptr()
        jitted(x, y)
        assert torch.equal(x if of == "other" else y, result)
        assert (x.data_ptr(), y.data_ptr()) == address
        assert lines(thunder.last_traces(jitted)[-1])[0] == wanted, (name, of)


def test_out_needs_new_results() -> None:
    """Otherwise nobody knows what a result shares memory with."""
    with pytest.raises(ValueError, match=r"pass memory=NewResults\(\) to OperatorExecutor"):
        OperatorExecutor("acme").register_operator("scale", like=lambda a, n: a * n, fn=scaled, out=scaled_into)
