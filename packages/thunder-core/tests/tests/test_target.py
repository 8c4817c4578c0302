# SPDX-License-Identifier: Apache-2.0
"""What is under test: executors by name, profiles, the tiers of dtypes, devices that are there."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.extend import OperatorExecutor, deregister_executor, get_executor, register_executor
from thunder.plugins import ConformanceProfile
from thunder.plugins.sources import hash_of_sources
from thunder.tests import target as targets
from thunder.tests.opinfos import OpInfo, elementwise_unary_generator
from thunder.tests.target import (
    FULL_DTYPES,
    QUICK_DTYPES,
    BadTarget,
    device_is_there,
    operators_without_samples,
    place_of,
    target_of,
    targets_of,
)


@pytest.fixture
def executor() -> Iterator[OperatorExecutor]:
    made = register_executor(OperatorExecutor("for_targets"))
    yield made
    deregister_executor(made)


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives every executor this profile."""

    def give(**content: Any) -> None:
        monkeypatch.setattr(targets, "conformance_profile", lambda name: ConformanceProfile(**content))

    return give


def test_without_a_profile() -> None:
    """The CPU, one dtype of each kind, the suite's tolerances, no known failures."""
    target = target_of(get_executor("torch"))
    assert (target.name, target.devices, target.dtypes) == ("torch", ("cpu",), QUICK_DTYPES)
    assert target.every_dtype == FULL_DTYPES
    assert target.takes_everything
    assert target.known_failures == ()
    assert target.tolerance(target.opinfos[0], torch.float32) == (1.3e-6, 1e-5)


def test_tiers() -> None:
    """Quick, full, or what the run names."""
    torch_executor = get_executor("torch")
    assert target_of(torch_executor, full=True).dtypes == FULL_DTYPES
    named = target_of(torch_executor, dtypes=["float64", " torch.int8"])
    assert named.dtypes == (torch.float64, torch.int8)
    with pytest.raises(BadTarget, match="there is no dtype 'float63' to test; the known dtypes are bool, "):
        target_of(torch_executor, dtypes=["float63"])


def test_a_profile(executor: OperatorExecutor, profile: Any) -> None:
    """Its dtypes bound those of the run; its operators come with it; its tolerances are the operator's first."""
    op = executor.register_operator("own", like=lambda a: -a, fn=torch.neg)
    info = OpInfo(op, sample_input_generator=elementwise_unary_generator, torch_reference=torch.neg)
    tolerances = {"own:float32": (0.5, 0.5), "float32": (0.1, 0.1)}
    profile(dtypes=("float32", "float64"), tolerances=tolerances, opinfos=lambda: [info])
    target = target_of(executor)
    assert target.dtypes == (torch.float32,)
    assert target.every_dtype == (torch.float32, torch.float64)
    assert target.opinfos[-1] is info
    assert target.own_operators == {"own"}
    assert target.tolerance(info, torch.float32) == (0.5, 0.5)
    assert target.tolerance(target.opinfos[0], torch.float32) == (0.1, 0.1)
    assert target.tolerance(info, torch.float64) == (1e-7, 1e-7)
    assert operators_without_samples(target) == []


def test_what_a_run_leaves_out(executor: OperatorExecutor, profile: Any) -> None:
    """Devices that are absent or not selected, dtypes and tests of the full tier, families."""
    profile(devices=("cpu", "no_such_device"), dtypes=("float32", "float64"))
    full = "second-order gradients and finite differences (--thunder-full)"
    dtypes = "float64 (--thunder-full tests every dtype)"
    assert target_of(executor).not_tested == ("no_such_device (this machine has none)", dtypes, full)
    assert target_of(executor, full=True).not_tested == ("no_such_device (this machine has none)",)
    selected = target_of(executor, devices=["meta"], dtypes=["float32", "float64"], families=["shape"])
    others = "other families than shape"
    assert selected.not_tested[0] == "cpu (not selected)" and selected.not_tested[2:] == (full, others)


def test_places(executor: OperatorExecutor, profile: Any) -> None:
    """The line of the function that runs an operator: the kernel of an own operator, or the execution transform."""

    def kernel(a: Any) -> Any:
        return -a

    def execution(a: Any) -> Any:
        return own(a)

    own = executor.register_operator("own", like=lambda a: -a, fn=kernel)
    info = OpInfo(own, sample_input_generator=elementwise_unary_generator, torch_reference=torch.neg)
    executor.register_implementation(ltorch.neg, execution_transform=execution)
    profile(opinfos=lambda: [info])
    target = target_of(executor)
    by_name = {info.name: info for info in target.opinfos}
    assert place_of(target, info) == f"{__file__}:{kernel.__code__.co_firstlineno}"
    assert place_of(target, by_name["neg"]) == f"{__file__}:{execution.__code__.co_firstlineno}"
    assert place_of(target, by_name["abs"]) is None


def test_operators_without_samples(executor: OperatorExecutor) -> None:
    """One that stands for one of thunder's is tested by the samples of that one."""
    stands_for = executor.register_operator("acme_neg", like=lambda a: -a, fn=torch.neg)
    executor.register_implementation(ltorch.neg, stands_for)
    executor.register_operator("alone", like=lambda a: -a, fn=torch.neg)
    assert operators_without_samples(target_of(executor)) == ["alone"]
    assert operators_without_samples(target_of(get_executor("torch"))) == []


def test_devices(executor: OperatorExecutor, profile: Any) -> None:
    """Those of the profile that the machine has, or those that the run names."""
    assert device_is_there("cpu")
    assert device_is_there("meta")
    assert not device_is_there("no_such_device:0")
    profile(devices=("cpu", "no_such_device"))
    assert target_of(executor).devices == ("cpu",)
    profile(devices=("no_such_device",))
    assert target_of(executor, devices=["cpu"]).devices == ("cpu",)
    with pytest.raises(BadTarget, match="'for_targets' is tested on no_such_device, but this machine has none"):
        target_of(executor)
    with pytest.raises(BadTarget, match="this machine has no device no_such_device"):
        target_of(executor, devices=["cpu", "no_such_device"])


def test_sources(executor: OperatorExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of thunder-core for its executors, those of the plugin's package for its own, else none."""
    ours = hash_of_sources(Path(thunder.__file__).parent)
    assert target_of(get_executor("torch")).sources == f"thunder-core {thunder.__version__}, {ours}"
    assert target_of(executor).sources is None
    entry_point = EntryPoint("acme", "thunder.plugins.env:hooks", "thunder.executors.v1")
    owner = SimpleNamespace(source="thunder-ex-acme 1.0", entry_point=entry_point)
    monkeypatch.setattr(targets, "manager", lambda: SimpleNamespace(owner_of=lambda name: owner))
    assert target_of(executor).sources == f"thunder-ex-acme 1.0, {ours}"


def test_names(executor: OperatorExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several executors, and a plugin whose executor has another name."""
    assert [target.name for target in targets_of(["torch", "for_targets"])] == ["torch", "for_targets"]
    brought = SimpleNamespace(executors=(SimpleNamespace(name="for_targets"),))
    with pytest.raises((ValueError, RuntimeError), match="there is no executor"):
        targets_of(["a_plugin"])

    def unknown_at_first(name: str) -> Any:
        if name == "a_plugin":
            raise ValueError("there is no executor 'a_plugin'")
        return get_executor(name)

    monkeypatch.setattr(targets, "get_executor", unknown_at_first)
    monkeypatch.setattr(targets, "load_named", lambda name: brought)
    assert [target.name for target in targets_of(["a_plugin"])] == ["for_targets"]
    monkeypatch.setattr(targets, "load_named", lambda name: SimpleNamespace(executors=()))
    with pytest.raises(ValueError, match="there is no executor 'a_plugin'"):
        targets_of(["a_plugin"])
