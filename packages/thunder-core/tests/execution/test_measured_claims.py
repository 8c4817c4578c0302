# SPDX-License-Identifier: Apache-2.0
"""Executors that compete for an operation: which one claims it, with and without gradients. The clock is a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import thunder
import thunder.torch as ltorch
from thunder.extend import OperatorExecutor, deregister_executor, get_grad, put_grad, register_executor
from thunder.toolkit.measuring import shape_class_of
from thunder.toolkit.testing import deterministic_algorithms, measured_times, new_process

TIMES = {"torch": 2.0, "acme": 1.0, "umbrella": 3.0}
FIRST: dict[str, Any] = {"measured": "first call"}


def executor(name: str, *, priority: int, measured: Any = True, **how: Any) -> OperatorExecutor:
    """An executor for softmax, with a gradient rule."""
    found = OperatorExecutor(name, version="1")
    op = found.register_operator(f"{name}_softmax", like=lambda a, dim: ltorch.softmax(a, dim), fn=torch.softmax)
    backward = found.register_operator(
        f"{name}_backward",
        like=lambda g, out, dim: out * (g - ltorch.sum(g * out, dim, True)),
        fn=lambda g, out, dim: out * (g - (g * out).sum(dim, True)),
    )

    def gradient(a: Any, dim: Any) -> Any:
        out = op(a, dim)
        put_grad(a, backward(get_grad(out), out, dim))
        return out

    how.setdefault("checker", lambda a, dim, dtype=None: True)
    found.register_implementation(ltorch.softmax, op, grad_transform=gradient, measured=measured, **how)
    return register_executor(found, default=True, priority=priority)  # type: ignore[return-value]


@pytest.fixture
def acme() -> Iterator[OperatorExecutor]:
    """An executor that is used only where it was measured to be faster."""
    found = executor("acme", priority=10, profitable=lambda a, dim: "torch is expected to be faster")
    yield found
    deregister_executor(found)


@pytest.fixture(autouse=True)
def timed() -> Iterator[list[str]]:
    with measured_times(TIMES) as found:
        yield found


def softmax(x: Any) -> Any:
    return torch.softmax(x, -1) * 2


def ran(f: Any = softmax, calls: int = 1, grad: bool = False, **options: Any) -> tuple[list[str], list[str]]:
    """The executors that run the softmax of a new jitted function and its gradient. Results are those of eager."""
    jitted = thunder.jit(f, **options)
    x = torch.linspace(-1, 1, 24).reshape(4, 6).requires_grad_(grad)
    for _ in range(calls):
        out = jitted(x)
        torch.testing.assert_close(out, f(x))
        if grad:
            (g,) = torch.autograd.grad(out.cos().sum(), x)
            torch.testing.assert_close(g, torch.autograd.grad(f(x).cos().sum(), x)[0])
    backward = thunder.last_backward_traces(jitted)
    return _names(thunder.last_traces(jitted)), _names(backward)


def _names(traces: Any) -> list[str]:
    operations = [op.sym for op in traces[-1].bound_symbols] if traces else []
    return sorted({sym.executor.name for sym in operations if "softmax" in sym.name or "backward" in sym.name})


def test_without_the_option(acme: OperatorExecutor, timed: list[str]) -> None:
    assert ran() == (["torch"], []) and not timed


def test_the_fastest_claims(acme: OperatorExecutor, timed: list[str]) -> None:
    """Also where its rule expects others to be faster."""
    assert ran(**FIRST) == (["acme"], []) and len(timed) == 10
    new_process()
    assert ran(measured=True) == (["acme"], []) and len(timed) == 10


def test_gradients_are_a_choice_of_their_own(acme: OperatorExecutor, timed: list[str]) -> None:
    """Forward and backward of a step are run by the same executor."""
    assert ran(grad=True, **FIRST) == (["acme"], ["acme"]) and len(timed) == 10
    assert ran(**FIRST) == (["acme"], []) and len(timed) == 20


def test_off_the_first_call(acme: OperatorExecutor, timed: list[str]) -> None:
    """All calls of this process are run by the default: also those that are compiled after the measurement."""
    forward, _ = ran(calls=4, grad=True, measured=True)
    assert forward == ["torch"] and len(timed) == 10
    assert ran(grad=True, measured=True)[0] == ["torch"]
    new_process()
    assert ran(grad=True, measured=True) == (["acme"], ["acme"])


def test_a_call_that_is_not_differentiated_has_the_executor_of_those_that_are(acme: OperatorExecutor) -> None:
    def f(x: Any) -> Any:
        return torch.softmax(x.detach(), -1) + torch.softmax(x, -1)

    assert ran(f, grad=True, **FIRST) == (["acme"], ["acme"])


def test_three_executors(acme: OperatorExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is the executor that claims by the rules."""
    umbrella = executor("umbrella", priority=20, measured=False)
    try:
        assert ran() == (["umbrella"], [])
        jitted = thunder.jit(softmax, **FIRST)
        jitted(torch.rand(4, 6))
        (choice,) = thunder.examine.choices(jitted)
        assert (choice.default, choice.chosen, choice.times) == ("umbrella", "acme", TIMES)
        assert "torch.softmax: acme (the default is umbrella), measured: acme 1 ms, torch 2 ms" in thunder.explain(
            jitted
        )
    finally:
        deregister_executor(umbrella)


def test_executors_that_the_user_names(acme: OperatorExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named executors and torch compete; the first named is the default."""
    assert ran(executors=["acme"], **FIRST) == (["acme"], [])
    monkeypatch.setitem(TIMES, "torch", 0.5)
    new_process()
    with measured_times(TIMES):
        assert ran(executors=["acme"], **FIRST) == (["torch"], [])


@pytest.mark.parametrize("checker", [lambda a, dim: "not this", lambda a, dim: False])
def test_executors_that_do_not_support_a_call(checker: Any, timed: list[str]) -> None:
    found = executor("acme", priority=10, checker=checker)
    try:
        assert ran(**FIRST) == (["torch"], []) and not timed
    finally:
        deregister_executor(found)


def test_calls_without_a_class(timed: list[str]) -> None:
    """The rules decide for calls for which the function returns None."""
    found = executor("acme", priority=10, measured=lambda a, dim: None if a.shape[0] == 4 else shape_class_of(a, dim))
    try:
        assert ran(**FIRST) == (["acme"], []) and not timed
        thunder.jit(softmax, **FIRST)(torch.rand(5, 6))
        assert timed
    finally:
        deregister_executor(found)


def test_symbolic_sizes(acme: OperatorExecutor, timed: list[str]) -> None:
    """Sizes that are only known at run time have no class."""
    assert ran(cache="symbolic values", **FIRST) == (["torch"], []) and not timed


def test_deterministic_algorithms(acme: OperatorExecutor, timed: list[str]) -> None:
    assert ran(**FIRST) == (["acme"], [])
    with deterministic_algorithms():
        assert ran(**FIRST) == (["torch"], [])
    assert len(timed) == 10


def test_modules_and_wrong_values() -> None:
    with pytest.raises(ValueError, match=r'measured is False, True .* or "first call"'):
        thunder.jit(softmax, measured="always")
    assert thunder.jit(torch.nn.Linear(2, 2), measured=True)(torch.ones(2)).shape == (2,)


def test_inside_modes_nothing_is_timed(acme: OperatorExecutor, timed: list[str]) -> None:
    """The clock waits for a call that no mode of the user sees. A default device is no such mode."""
    jitted = thunder.jit(softmax, measured=True)
    x = torch.rand(4, 6)
    for _ in range(3):
        with FlopCounterMode(display=False):
            jitted(x)
    assert not timed
    with torch.device("cpu"):
        for _ in range(3):
            jitted(x)
    assert len(timed) == 10
