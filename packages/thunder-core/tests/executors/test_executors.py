# SPDX-License-Identifier: Apache-2.0
"""What `thunder.executors` offers: the built-in executors and the short way to add one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.errors import PluginLoadError
from thunder.core.proxies import TensorProxy
from thunder.executors import PYTHON, TORCH, add_operator_executor
from thunder.extend import deregister_executor, get_default_executors, get_executor


@pytest.fixture
def name() -> Iterator[str]:
    """An executor's name, forgotten afterwards."""
    yield "executors_test"
    deregister_executor("executors_test")


def test_the_built_in_ones() -> None:
    """By their names."""
    assert (TORCH.name, PYTHON.name) == ("torch", "python")
    assert TORCH.version == torch.__version__


def test_a_map_of_operators(name: str) -> None:
    """Ids to (name, checker, implementation); the checker sees proxies, the implementation tensors."""
    seen: list[Any] = []

    def checker(a: Any, b: Any) -> bool:
        seen.append((a, b))
        return a.ndim == 1

    def implementation(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        assert isinstance(a, torch.Tensor)
        return a * b + 1

    add_operator_executor(name, {"torch.mul": ("acme_mul", checker, implementation)})
    assert get_executor(name) in get_default_executors()
    f = thunder.jit(lambda a, b: a * b)
    assert f(torch.ones(2), torch.ones(2)).tolist() == [2, 2]
    assert f(torch.ones(2, 1), torch.ones(2, 1)).tolist() == [[1], [1]]
    assert all(isinstance(p, TensorProxy) for pair in seen for p in pair)
    assert "acme_mul(a, b)" not in str(thunder.last_traces(f)[-1])
    f(torch.ones(2), torch.ones(2))
    assert "acme_mul(a, b)" in str(thunder.last_traces(f)[-1])


def test_not_among_the_defaults(name: str) -> None:
    """It is used when it is named."""
    add_operator_executor(
        name, {prims.sin: ("acme_sin", lambda a: True, lambda a: a.sin() + 1)}, add_to_default_executors=False
    )
    x = torch.zeros(2)
    assert thunder.jit(torch.sin)(x).tolist() == [0, 0]
    assert thunder.jit(torch.sin, executors=[name])(x).tolist() == [1, 1]
    only_torch_calls_the_whole = thunder.jit(ltorch.sin, executors=["torch", name])
    assert only_torch_calls_the_whole(x).tolist() == [0, 0]


def test_an_unknown_operator(name: str) -> None:
    """Nothing is registered then."""
    with pytest.raises(ValueError, match=r"no operation with the id 'torch.nothing'"):
        add_operator_executor(name, {"torch.nothing": ("x", None, abs)})
    with pytest.raises(PluginLoadError, match=name):
        get_executor(name)
