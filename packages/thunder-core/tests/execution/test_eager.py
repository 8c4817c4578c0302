# SPDX-License-Identifier: Apache-2.0
"""Symbols called on real tensors, outside any trace: they just run."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

import thunder.torch as ltorch
from thunder.core import devices, dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.state import current_trace
from thunder.core.symbol import Symbol
from thunder.extend import OperatorExecutor


def test_primitives_and_the_torch_language() -> None:
    """With numbers, keywords, dtypes of either kind and lists of tensors."""
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    assert torch.equal(prims.add(a, b), a + b)
    assert torch.equal(ltorch.add(a, other=b, alpha=2), a + 2 * b)
    assert torch.equal(ltorch.mul(2, b), 2 * b)
    assert torch.equal(prims.convert_element_type(a, dtypes.float64), a.double())
    assert torch.equal(ltorch.full((2,), 3.0, dtype=torch.float64), torch.full((2,), 3.0, dtype=torch.float64))
    assert torch.equal(prims.full((2,), 1, device=devices.cpu, dtype=dtypes.int32), torch.ones(2, dtype=torch.int32))
    assert torch.equal(prims.cat([a, b], 0), torch.cat([a, b]))


def test_several_results() -> None:
    """As the operation gives them."""
    values, indices = prims.topk(torch.tensor([1.0, 3.0, 2.0]), 2, 0, True, True)
    assert (values.tolist(), indices.tolist()) == ([3.0, 2.0], [1, 2])


def test_composites_declared_anywhere() -> None:
    """By what they decompose into."""
    sym = Symbol("mine", lambda a, scale=2: {"out": prims.mul(prims.sin(a), float(scale)), "n": scale})
    a = torch.randn(3)
    out = sym(a, scale=5)
    assert out["n"] == 5
    torch.testing.assert_close(out["out"], a.sin() * 5)


def test_an_executors_operator_runs_its_own_function() -> None:
    """On what it is given, whatever that is."""
    seen: list[Any] = []
    op = OperatorExecutor("eager_test").register_operator(
        "eager_op", meta=lambda a, k: TensorProxy(like=a), fn=lambda a, k: seen.append(k) or a
    )
    a, k = torch.randn(2), object()
    assert op(a, k) is a
    assert seen == [k]


def test_errors_are_the_operations() -> None:
    """A wrong call is refused before anything runs."""
    with pytest.raises(RuntimeError, match="must match the size"):
        ltorch.add(torch.ones(2), torch.ones(3))
    with pytest.raises(TypeError, match=r"add\(\) got an unexpected keyword argument 'beta'"):
        ltorch.add(torch.ones(2), 1, beta=2)
    assert current_trace() is None


def test_gradients_flow_as_torchs() -> None:
    """What runs is torch."""
    a = torch.randn(3, requires_grad=True)
    ltorch.mul(ltorch.sin(a), 2).sum().backward()
    torch.testing.assert_close(a.grad, 2 * a.detach().cos())


def test_the_first_symbol_called_in_a_process_runs_too() -> None:
    """Nothing has to be imported for it."""
    code = "import torch; from thunder.core import prims; assert prims.sin(torch.zeros(2)).tolist() == [0, 0]"
    subprocess.run([sys.executable, "-c", code], check=True)
