# SPDX-License-Identifier: Apache-2.0
"""Functions of torch that the user replaces: traced programs call the replacements, compiled operations do not."""

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
from thunder.runtime.torch_originals import namespaces, original_torch, places, prevents_tracing, replacements

sin, select, linear = torch.sin, torch.index_select, torch.nn.Linear(3, 3)

# What is replaced, with what, and a program that it changes.
CASES: dict[str, tuple[Any, str, Any, Callable[..., Any]]] = {
    "function": (torch, "sin", torch.cos, lambda x: torch.sin(x)),
    "function that tracing does not call": (
        torch,
        "index_select",
        lambda *args: select(*args) * 2,
        lambda x: torch.index_select(x, 0, torch.tensor([1])),
    ),
    "another function": (torch, "sinc", torch.erf, lambda x: torch.sinc(x)),
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
# Those that are compiled with the replacement.
COMPILED = {"functional", "function that tracing does not call", "another function"}


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
    traced = prevents_tracing(replacements()) is None
    for _ in range(3):
        compared(fn, jfn)
    assert thunder.cache_misses(jfn) == int(traced)
    assert thunder.cache_hits(jfn) == (2 if case in COMPILED else 0)
    monkeypatch.undo()
    assert not replacements()
    before = thunder.cache_hits(jfn)
    compared(fn, jfn)
    compared(fn, jfn)
    assert thunder.cache_hits(jfn) > before  # it is compiled


@pytest.mark.filterwarnings("ignore::thunder.FallbackWarning")
@pytest.mark.parametrize("case", CASES)
def test_replaced_between_calls(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, new, fn = CASES[case]
    jfn = thunder.jit(fn)
    compared(fn, jfn)
    monkeypatch.setattr(owner, name, new)
    compared(fn, jfn)
    monkeypatch.undo()
    before = thunder.cache_hits(jfn)
    compared(fn, jfn)
    assert thunder.cache_hits(jfn) == before + 1


def test_a_function_that_torch_calls_inside_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operation `celu` stands for torch's own code, which would call the replacement."""
    monkeypatch.setattr(torch, "celu", lambda x, alpha: sin(x))
    jfn = thunder.jit(lambda x: F.celu(x))
    with pytest.warns(thunder.FallbackWarning, match=r"torch\.celu has been replaced, and torch's own function celu"):
        found = jfn(torch.ones(3))
    assert torch.equal(found, sin(torch.ones(3)))


def test_replaced_between_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, requires_grad=True)
    y = thunder.jit(lambda x: torch.sin(x))(x)
    monkeypatch.setattr(torch, "cos", torch.exp)
    monkeypatch.setattr(torch, "mul", torch.add)
    (found,) = torch.autograd.grad(y.sum(), x)
    monkeypatch.undo()
    torch.testing.assert_close(found, x.detach().cos())


def test_the_warning_names_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "sin", torch.Tensor.cos)
    jfn = thunder.jit(lambda x: x.sin())
    with pytest.warns(thunder.FallbackWarning, match=r"torch\.Tensor\.sin has been replaced"):
        jfn(torch.ones(3))
    assert "torch.Tensor.sin has been replaced" in thunder.explain(jfn)


@pytest.mark.parametrize("options", [{"sharp_edges": "error"}, {"fullgraph": True}])
def test_an_error_where_eager_mode_is_not_allowed(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "sin", torch.Tensor.cos)
    with pytest.raises(TracingError, match=r"torch\.Tensor\.sin has been replaced"):
        thunder.jit(lambda x: x.sin(), **options)(torch.ones(3))


def test_a_library_replaces_a_function_before_thunder_is_loaded() -> None:
    """The replacement is traced, and the operations of the program call torch's own function."""
    program = """
import torch, warnings
warnings.simplefilter("error")
original = torch.select
def select(x, dim, index):
    return original(x, dim, index) * 2
torch.select = select
import thunder
f = lambda x: torch.select(x, 0, 1)
jfn = thunder.jit(f)
for _ in range(3):
    assert torch.equal(jfn(torch.ones(3, 2)), f(torch.ones(3, 2)))
assert thunder.cache_hits(jfn) == 2
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("new", ["torch.cos", "torch.Tensor.cos"])
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


def test_functions_not_on_tensors_replaced_before_thunder_is_loaded() -> None:
    """Lightning replaces `torch.compile` when it is imported."""
    program = """
import torch, warnings
compile, load = torch.compile, torch.load
torch.compile, torch.load = lambda *args, **kwargs: compile(*args, **kwargs), lambda *args: load(*args)
import thunder
warnings.simplefilter("error")
f = thunder.jit(lambda x: torch.sin(x))
assert torch.equal(f(torch.ones(3)), torch.ones(3).sin()) and thunder.cache_misses(f) == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_nothing_of_torch_counts_as_replaced() -> None:
    assert not replacements()


def test_other_attributes_of_torch_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "sine", torch.cos, raising=False)
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda x: "x")
    assert not replacements()
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
