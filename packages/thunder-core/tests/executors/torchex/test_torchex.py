# SPDX-License-Identifier: Apache-2.0
"""What contributors add to the torch executor piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import thunder
from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.executors.torchex import _always_executable, _register_implementation, _register_torch_operation
from thunder.executors.torchex import ex as TORCH


@pytest.fixture
def sym() -> Iterator[Any]:
    """A primitive of somebody's own, forgotten afterwards."""
    out = prims.make_prim("torchex_test.cbrt", "cbrt", meta=lambda a: TensorProxy(like=a))
    yield out
    TORCH.implmap.pop("torchex_test.cbrt", None)
    prims.base._prims.pop("torchex_test.cbrt")


def test_a_function_of_torch(sym: Any) -> None:
    """By its name, from torch or another module, as the executor's operator."""
    op = _register_torch_operation("abs")
    assert (op.name, op.fn, op.executor) == ("abs", torch.abs, TORCH)
    assert _register_torch_operation("gelu", module=torch.nn.functional).fn is torch.nn.functional.gelu
    with pytest.raises(AttributeError, match="torch has no 'cbrt' to create an operator from"):
        _register_torch_operation("cbrt")
    _register_implementation(sym, op, checker=_always_executable)
    f = thunder.jit(sym)
    assert f(torch.tensor([-1.0])).item() == 1
    assert "= torch.abs(a)" in thunder.last_traces(f)[-1].python(depth=0)


def test_a_transform_with_a_checker(sym: Any) -> None:
    """It rewrites the calls that the checker takes; the others find nobody."""

    def transform(a: Any) -> Any:
        return a.abs().pow(1 / 3) * a.sign()

    _register_implementation(
        sym, checker=lambda a: True if a.ndim == 1 else "only vectors", execution_transform=transform
    )
    f = thunder.jit(sym)
    torch.testing.assert_close(f(torch.tensor([-27.0])), torch.tensor([-3.0]))
    with pytest.raises(RuntimeError, match="Could not find executor for bound symbol t0 = cbrt"):
        f(torch.ones(2, 2))
    assert TORCH.implmap["torchex_test.cbrt"].execution_transform is transform


def test_always() -> None:
    """Whatever the arguments."""
    assert _always_executable(1, 2, k=3) is True
