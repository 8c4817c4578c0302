# SPDX-License-Identifier: Apache-2.0
"""A plugin's tests without what it needs: a machine from tables, and hooks in use without a probe."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

import thunder
from thunder import plugins
from thunder.extend import OperatorExecutor, get_all_executors, get_default_executors
from thunder.toolkit.testing import (
    FakeEnv,
    deterministic_algorithms,
    fallbacks_raise,
    gpu,
    is_ready,
    registered,
    repeats,
)


def test_a_machine_from_tables() -> None:
    """Distributions, modules and GPUs are those that it was given."""
    machine = FakeEnv({"acme": "1.2"}, gpus=[gpu("V100", (7, 0))])
    assert machine.has_module("acme") and not machine.has_module("other")
    assert (machine.version_of("acme"), machine.version_of("other")) == ("1.2", None)
    assert "this machine has V100 (7.0)" in str(machine.lacks_gpu((8, 0)))
    assert not FakeEnv({"acme": "1.2"}, []).has_module("acme")
    assert FakeEnv().cuda_available and FakeEnv().lacks_gpu((9, 0)) is None
    for none in (FakeEnv(gpus=()), FakeEnv(cuda_error="no driver")):
        assert not none.cuda_available and not none.devices


def test_hooks_in_use() -> None:
    """Within it the executors and options are there, and afterwards they are gone."""
    hooks = ModuleType("hooks")

    def executors(registry: Any) -> None:
        registry.register_executor(OperatorExecutor("acme"), default=True)

    def options(registry: Any) -> None:
        registry.register_option("acme_level", default=1)

    hooks.thunder_register_executors = executors  # type: ignore[attr-defined]
    hooks.thunder_register_options = options  # type: ignore[attr-defined]
    with registered("acme", hooks) as found:
        assert found["acme"] in get_default_executors()
        assert "acme_level" in plugins.known_options()
        assert not is_ready("acme")
    assert "acme" not in [ex.name for ex in get_all_executors()]
    assert "acme_level" not in plugins.known_options()


def test_fallbacks_raise() -> None:
    """A program that is not compiled is an error, also of a function that has warned before; others run."""

    def addresses(x: torch.Tensor) -> torch.Tensor:
        return x + (x.data_ptr() > 0)

    x = torch.ones(2)
    with fallbacks_raise():
        assert torch.equal(thunder.jit(torch.sin)(x), x.sin())
        for _ in range(2):
            with pytest.raises(thunder.FallbackWarning, match="data_ptr"):
                thunder.jit(addresses)(x)
    with pytest.warns(thunder.FallbackWarning):
        thunder.jit(addresses)(x)


def test_deterministic_algorithms() -> None:
    """Chosen inside, and as before outside, also after an error."""
    with pytest.raises(ValueError, match="inside"), deterministic_algorithms():
        assert torch.are_deterministic_algorithms_enabled()
        raise ValueError("inside")
    assert not torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with deterministic_algorithms():
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_repeats() -> None:
    """Equal bits of results and gradients repeat, also NaN; another sign of zero does not."""
    x = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    assert repeats(torch.sqrt, x)
    assert repeats(lambda x: x.to(torch.bfloat16).sum(), x)
    calls: list[int] = []

    def alternating(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.detach() * 0.0 * (-1) ** len(calls)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.detach() + (x - x.detach()) * float(len(calls))

    assert not repeats(alternating, torch.ones(3))
    assert repeats(gradient, x.detach())
    assert not repeats(gradient, x)
