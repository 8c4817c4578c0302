# SPDX-License-Identifier: Apache-2.0
"""Functions of torch that the user replaces: programs run eagerly meanwhile, and compiled programs do not call them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder.core.errors import TracingError
from thunder.runtime.torch_originals import namespaces, original_torch, places, replaced

sin, linear = torch.sin, torch.nn.Linear(3, 3)

# What is replaced, with what, and a program that it changes.
CASES: dict[str, tuple[Any, str, Any, Callable[..., Any]]] = {
    "function": (torch, "sin", torch.cos, lambda x: torch.sin(x)),
    "function of a gradient": (torch, "cos", torch.exp, lambda x: torch.sin(x)),
    "function of Python": (torch, "sin", lambda x: sin(x) * 2, lambda x: torch.sin(x)),
    "function behind a method": (torch, "sin", torch.cos, lambda x: x.sin()),
    "method": (torch.Tensor, "sin", torch.Tensor.cos, lambda x: x.sin()),
    "method by getattr": (torch.Tensor, "sin", torch.Tensor.cos, lambda x: getattr(x, "sin")()),  # noqa: B009
    "own method": (torch.Tensor, "exp", lambda x: sin(x), lambda x: x.exp()),
    "operator": (torch.Tensor, "__mul__", torch.Tensor.__add__, lambda x: x * x),
    "property": (torch.Tensor, "mT", property(lambda x: sin(x)), lambda x: x.mT),
    "functional": (F, "gelu", F.silu, lambda x: F.gelu(x)),
    "functional of a module": (F, "linear", lambda x, w, b: sin(x), lambda x: linear(x)),
    "inside a function of torch": (torch, "relu", lambda x: sin(x), lambda x: F.relu(x)),
    "factory": (torch, "ones", torch.zeros, lambda x: x * torch.ones(3)),
    "factory of thunder": (torch, "full", lambda *args, **kwargs: torch.zeros(args[0]), lambda x: x.sum().exp()),
    "namespace": (torch.special, "erf", torch.special.erfc, lambda x: torch.special.erf(x)),
}


def compared(fn: Callable[..., Any], run: Callable[..., Any]) -> None:
    """Check that `run` computes what `fn` computes, and its gradients."""
    x = torch.linspace(0.1, 2, 9).reshape(3, 3).requires_grad_()
    expected, found = fn(x), run(x)
    torch.testing.assert_close(found, expected)
    for one, other in zip(torch.autograd.grad(found.sum(), x), torch.autograd.grad(expected.sum(), x)):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore::thunder.FallbackWarning")
@pytest.mark.parametrize("case", CASES)
def test_replaced_before_the_first_call(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, new, fn = CASES[case]
    jfn = thunder.jit(fn)
    monkeypatch.setattr(owner, name, new)
    for _ in range(3):
        compared(fn, jfn)
    assert thunder.cache_misses(jfn) == 0
    monkeypatch.undo()
    assert replaced() is None
    compared(fn, jfn)
    assert thunder.cache_misses(jfn) == 1  # it is compiled after all


@pytest.mark.filterwarnings("ignore::thunder.FallbackWarning")
@pytest.mark.parametrize("case", CASES)
def test_replaced_between_calls(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, new, fn = CASES[case]
    jfn = thunder.jit(fn)
    compared(fn, jfn)
    monkeypatch.setattr(owner, name, new)
    compared(fn, jfn)
    monkeypatch.undo()
    compared(fn, jfn)
    assert thunder.cache_misses(jfn) == 1


def test_replaced_between_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, requires_grad=True)
    y = thunder.jit(lambda x: torch.sin(x))(x)
    monkeypatch.setattr(torch, "cos", torch.exp)
    monkeypatch.setattr(torch, "mul", torch.add)
    (found,) = torch.autograd.grad(y.sum(), x)
    monkeypatch.undo()
    torch.testing.assert_close(found, x.detach().cos())


def test_the_warning_names_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "sin", torch.cos)
    jfn = thunder.jit(lambda x: torch.sin(x))
    with pytest.warns(thunder.FallbackWarning, match=r"torch\.sin has been replaced"):
        jfn(torch.ones(3))
    assert "torch.sin has been replaced" in thunder.explain(jfn)


@pytest.mark.parametrize("options", [{"sharp_edges": "error"}, {"fullgraph": True}])
def test_an_error_where_eager_mode_is_not_allowed(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "sin", torch.cos)
    with pytest.raises(TracingError, match=r"torch\.sin has been replaced"):
        thunder.jit(lambda x: torch.sin(x), **options)(torch.ones(3))


@pytest.mark.parametrize("new", ["torch.cos", "torch.Tensor.cos", "lambda x: x"])
def test_replaced_before_thunder_is_loaded(new: str) -> None:
    program = f"""
import torch, warnings
torch.sin = {new}
import thunder
f = lambda x: torch.sin(x)
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    assert torch.equal(thunder.jit(f)(torch.ones(3)), f(torch.ones(3)))
assert "torch.sin has been replaced" in str(found[0].message), found
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_nothing_of_torch_counts_as_replaced() -> None:
    assert replaced() is None


def test_other_attributes_of_torch_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "sine", torch.cos, raising=False)
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda x: "x")
    assert replaced() is None
    assert original_torch.sine is torch.cos  # found although it is new


def test_the_copies_of_the_namespaces() -> None:
    assert original_torch.nn.functional.gelu is F.gelu
    assert original_torch.special.erf is torch.special.erf
    assert namespaces["torch.Tensor"].__getitem__ is torch.Tensor.__getitem__


def test_places() -> None:
    assert [(owner, name) for owner, _, name, _ in places(torch.sin, inside=True)] == [("torch", "sin")]
    relu = {(owner, name) for owner, _, name, _ in places(F.relu, inside=True)}
    assert {("torch.nn.functional", "relu"), ("torch", "relu")} <= relu
    assert [(owner, name) for owner, _, name, _ in places(F.relu, inside=False)] == [("torch.nn.functional", "relu")]
    assert places(linear, inside=True) == []
