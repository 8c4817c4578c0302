# SPDX-License-Identifier: Apache-2.0
"""Passes that replace operations: what they write makes the same values, under the names that are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder import plugins
from thunder.core.verify import verify
from thunder.extend import BoundSymbol, Trace, recording, rewrite


def run(fn: Callable[..., Any], replace: Callable[[BoundSymbol], Any], *args: Any) -> tuple[Any, str, list[bool]]:
    """What a function gives with operations replaced, its trace, and whether the pass gave another one."""
    changed: list[bool] = []

    class Pass(thunder.Transform):
        def transform_computation(self, trace: Trace, context: Any) -> Trace:
            out = rewrite(trace, "Replaced", replace)
            verify(out)
            changed.append(out is not trace)
            return out

    f = thunder.jit(fn, transforms=[Pass()], executors=["torch"])
    found = f(*args)
    return found, str(thunder.last_traces(f)[-1]), changed


def of(name: str, make: Callable[[BoundSymbol], Any]) -> Callable[[BoundSymbol], Any]:
    """Replaces the operations of that name only."""
    return lambda op: make(op) if op.sym.id == f"torch.{name}" else None


def test_an_operation_becomes_others() -> None:
    """Their last result has the name of the one that they stand for, and the user's line."""
    x = torch.randn(3)
    found, text, changed = run(lambda x: torch.tanh(x) + 1, of("tanh", lambda op: ltorch.sin(op.args[0]) * 2), x)
    torch.testing.assert_close(found, torch.sin(x) * 2 + 1)
    assert changed == [True] and "tanh" not in text


def test_nothing_to_replace() -> None:
    """The same trace comes back."""
    x = torch.randn(3)
    found, _, changed = run(lambda x: x + 1, of("tanh", lambda op: ltorch.sin(op.args[0])), x)
    assert changed == [False]
    torch.testing.assert_close(found, x + 1)


def test_what_was_only_looked_at_leaves_nothing() -> None:
    """A function that calls operations and then says no has recorded nothing."""
    x = torch.randn(3)
    _, text, changed = run(lambda x: torch.tanh(x), of("tanh", lambda op: (ltorch.sin(op.args[0]), None)[1]), x)
    assert changed == [False] and "sin" not in text


def test_an_input_takes_the_place_of_a_result() -> None:
    """Later operations, and the output, read the input."""
    x = torch.randn(3)
    found, text, _ = run(lambda x: (torch.tanh(x), torch.tanh(x) + 1), of("tanh", lambda op: op.args[0]), x)
    torch.testing.assert_close(found[0], x)
    torch.testing.assert_close(found[1], x + 1)
    assert "tanh" not in text


def test_one_value_for_two_results() -> None:
    """Both are read under one name."""
    x = torch.randn(4)
    found, _, _ = run(lambda x: torch.aminmax(x), of("aminmax", lambda op: (ltorch.sum(op.args[0]),) * 2), x)
    torch.testing.assert_close(tuple(found), (x.sum(), x.sum()))


def test_a_result_that_nobody_reads() -> None:
    """None stands for it."""
    x = torch.randn(4)
    found, _, _ = run(lambda x: torch.aminmax(x)[1], of("aminmax", lambda op: (None, ltorch.amax(op.args[0]))), x)
    torch.testing.assert_close(found, x.amax())


def test_too_few_results() -> None:
    """The error names the operation."""
    with pytest.raises(RuntimeError, match="the replacement of aminmax returned 1 values instead of 2"):
        run(lambda x: torch.aminmax(x)[1], of("aminmax", lambda op: ltorch.amax(op.args[0])), torch.randn(4))


def test_recording_means_torch() -> None:
    """Operators on proxies are torch's, whatever language is current; what is recorded is not in the trace."""
    f = thunder.jit(lambda x: x + 1)
    f(torch.ones(2))
    trace = thunder.last_traces(f)[0].derive()
    (x,) = thunder.last_traces(f)[0].args
    with recording(trace) as operations:
        x * 2
    assert [op.sym.id for op in operations] == ["torch.mul"] and not trace.bound_symbols
    assert "before_grad" in plugins.PHASES
