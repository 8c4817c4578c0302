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
from thunder.toolkit.testing import FakeEnv, fallbacks_raise, gpu, is_ready, registered


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
