# SPDX-License-Identifier: Apache-2.0
"""A callback after each line, with its values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder
from thunder.transforms import debug


def test_lines_and_values() -> None:
    """Forward and backward, in the order in which they run, with the user's lines."""
    seen: list[tuple[str, dict[str, Any]]] = []

    def note(operation: Any, values: dict[str, Any]) -> None:
        seen.append((operation.sym.name, {name: value.clone() for name, value in values.items()}))
        assert operation.source is None or operation.source.filename == __file__
        assert str(operation).partition(" = ")[0] in values

    f = thunder.jit(lambda a: torch.exp(torch.sin(a)) * 2, transforms=[debug(note)])
    a = torch.randn(3, requires_grad=True)
    out = f(a)
    assert [name for name, _ in seen] == ["sin", "exp", "mul"]
    (_, first), (_, second), _ = seen
    torch.testing.assert_close(first, {"a": a.detach(), "t0": a.sin().detach()})
    assert list(second) == ["t0", "t1"]
    forward = len(seen)
    out.sum().backward()
    assert len(seen) > forward
    torch.testing.assert_close(a.grad, 2 * a.sin().exp().detach() * a.cos().detach())


def test_some_lines() -> None:
    """Those that are asked for; the trace shows the calls, and its text runs."""
    values: list[Any] = []
    transform = debug(lambda op, found: values.append(found), only=lambda op: op.sym.name == "exp")
    f, a = thunder.jit(lambda a: a.sin().exp(), transforms=[transform]), torch.randn(3)
    expected = f(a)
    assert len(values) == 1
    trace = thunder.last_traces(f)[-1]
    assert [op.sym.name for op in trace.bound_symbols].count("debug") == 1
    namespace = trace.python_ctx()
    exec(str(trace), namespace)
    assert torch.equal(namespace["computation"](a), expected)
    assert len(values) == 2


def test_an_error_in_the_callback() -> None:
    """It is the caller's."""

    def stop(operation: Any, values: Any) -> None:
        if any(v.isnan().any() for v in values.values()):
            raise FloatingPointError(f"{operation.sym.name} at {operation.source}")

    f = thunder.jit(lambda a: a.log() + 1, transforms=[debug(stop)])
    f(torch.ones(2))
    with pytest.raises(FloatingPointError, match=r"log at .*test_debugging.py"):
        f(-torch.ones(2))


def test_a_callback_is_a_function() -> None:
    """Anything else is refused."""
    with pytest.raises(TypeError, match="debug requires a function"):
        debug(3)  # type: ignore[arg-type]
