# SPDX-License-Identifier: Apache-2.0
"""Functions by the exact names that programs use: all that executors print, and nothing else."""

from __future__ import annotations

import pkgutil

import pytest
import torch

import thunder
from thunder.executors.torchex import ex
from thunder.executors.torchex.base import MODULE
from thunder.runtime import kernels
from thunder.runtime.names import HELPERS, Kernels, resolve
from thunder.runtime.torch_originals import original_torch


def test_each_kernel_of_the_executor() -> None:
    """Programs that are loaded from texts find the function that the compiler calls."""
    families = {f"{kernels.__name__}.{module.name}" for module in pkgutil.iter_modules(kernels.__path__)}
    found = [impl.op for impl in ex.implmap.values() if impl.op is not None and impl.op.module == MODULE]
    assert len(found) > 100
    for op in found:
        assert resolve(f"torchex.{op.name}") is op.fn is getattr(thunder.executors.torchex, op.name)
        module = getattr(op.fn, "__module__", None)
        assert module in families or module in ("thunder.runtime.decisions", "torch._ops"), (
            f"{op.name} is not in thunder/runtime/kernels, so a program that was saved would not find it"
        )


def test_functions_of_torch_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if they have been replaced."""
    monkeypatch.setattr(torch, "sin", torch.cos)
    assert resolve("torch.sin") is original_torch.sin is not torch.cos
    assert resolve("torch.nn.functional.linear") is torch.nn.functional.linear
    assert resolve("Tensor.mul") is torch.Tensor.mul
    assert resolve("operator.eq")(1, 1)


def test_helpers() -> None:
    """The functions of prologues and epilogues, without a module."""
    assert all(resolve(name) is function for name, function in HELPERS.items())
    assert {"GuardFailed", "same_value", "set_attribute", "flatten_call", "current_device", "no_autocast"} <= {*HELPERS}


NO_OPERATIONS = [
    "torch.load", "torch.save", "torch.compile", "torch.from_file", "torch.set_num_threads", "torch.ops.load_library",
    "torch.hub.load", "torch.nn.functional", "torch.nn.functional._overload", "torch.classes", "Tensor.apply_",
    "Tensor.map_", "Tensor.register_hook", "Tensor.__class__", "Tensor.__reduce_ex__", "Tensor.__setstate__",
    "Tensor.shape", "torchex.no_autocast", "torchex.__dict__", "torchex.ex", "operator.call",
    "operator.attrgetter", "os.system", "eval", "__import__", "builtins.eval", "", ".", "torch", "torch.", ".sin",
    "torch.nn.functional.torch.load", "torch .sin", "TORCH.sin",
]  # fmt: skip


@pytest.mark.parametrize("name", NO_OPERATIONS)
def test_names_of_other_things(name: str) -> None:
    """They are no operations on tensors."""
    with pytest.raises(KeyError):
        resolve(name)


def test_the_namespace_of_kernels() -> None:
    """It has kernels as attributes, and nothing else."""
    torchex = Kernels()
    assert torchex.layer_norm_forward is torchex.layer_norm_forward is resolve("torchex.layer_norm_forward")
    with pytest.raises(AttributeError, match="the torch executor has no operation called 'ex'"):
        torchex.ex  # noqa: B018
