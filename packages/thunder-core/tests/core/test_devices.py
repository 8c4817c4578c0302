# SPDX-License-Identifier: Apache-2.0
"""Devices: one object each, torch's spelling, any backend's name."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder.core.devices import Device, DeviceType, cpu, meta, to_device, to_torch_device

NAMES = ("cpu", "meta", "cuda:0", "cuda:7", "xpu:1", "mps:0", "hpu:3")


@pytest.mark.parametrize("name", NAMES)
def test_interned_and_torchs_both_ways(name: str) -> None:
    """Equal devices are one object, however they are written, and torch's device of that name."""
    device = Device(name)
    kind, _, number = name.partition(":")
    assert device is Device(name) is to_device(name) is to_device(torch.device(name)) is to_device(device)
    assert (
        device is Device(DeviceType(kind), int(number) if number else None) is Device(kind.upper() + name[len(kind) :])
    )
    assert to_torch_device(device) == torch.device(name)
    assert device.type == torch.device(name).type
    assert device.index == (int(number) if number else None)
    assert str(device) == name
    assert repr(device) == f'devices.Device("{name}")'


@pytest.mark.parametrize("name", NAMES)
def test_pickle_and_copy_keep_identity(name: str) -> None:
    """So that `is` works everywhere."""
    device = Device(name)
    assert pickle.loads(pickle.dumps(device)) is device
    assert copy.deepcopy(device) is device
    assert pickle.loads(pickle.dumps(device.devicetype)) is device.devicetype


def test_equal_to_torchs() -> None:
    """From either side, and to no other."""
    for a in NAMES:
        for b in NAMES:
            assert (Device(a) == torch.device(b)) is (a == b)
            assert (Device(a) == Device(b)) is (a == b)
            assert (Device(a) != torch.device(b)) is (a != b)
    assert torch.device("cpu") == cpu
    assert cpu != "cpu"
    assert len({Device(n) for n in NAMES} | {Device(n) for n in NAMES}) == len(NAMES)


def test_where_there_is_one_an_index_says_nothing() -> None:
    """`cpu:0` is the cpu."""
    assert Device("cpu:0") is cpu is to_device(torch.device("cpu", 0)) is Device("cpu", 0)
    assert to_device("meta:0") is meta


def test_without_an_index_it_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's `cuda` is whichever is current; where there is none, the first."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert to_device("cuda") is Device("cuda:3") is to_device(torch.device("cuda"))
    assert to_device("cuda:1") is Device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert to_device("cuda") is Device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert to_device("cuda") is Device("cuda:0")


def test_none_stays_none() -> None:
    """No device asked for is none given."""
    assert to_device(None) is None
    assert to_torch_device(None) is None
    assert to_torch_device("cuda:1") == torch.device("cuda:1")


@pytest.mark.parametrize("wrong", ["nonsense", "cuda:x", "cuda:-1", "", "cpu:cpu"])
def test_a_bad_string_gets_torchs_error(wrong: str) -> None:
    """torch knows its devices' names best."""
    with pytest.raises(RuntimeError, match=r"[Dd]evice"):
        to_device(wrong)


@pytest.mark.parametrize("wrong", [1.5, [], object(), True])
def test_what_is_no_device(wrong: object) -> None:
    """The error says what would have been one."""
    with pytest.raises(ValueError, match="is not a device: use a string such as"):
        to_device(wrong)


def test_an_index_twice_or_no_number() -> None:
    """Our own constructor checks what it is given."""
    with pytest.raises(ValueError, match="contains an index, and index=1 was passed too"):
        Device("cuda:0", 1)
    with pytest.raises(ValueError, match="invalid device string 'cuda:one'"):
        Device("cuda:one")


@given(st.sampled_from(["cuda", "xpu", "acme"]), st.integers(0, 200))
def test_any_backend_any_number(kind: str, index: int) -> None:
    """Types are open: a vendor's name needs no change here."""
    device = Device(kind, index)
    assert device is Device(f"{kind}:{index}")
    assert device.devicetype is DeviceType(kind.upper())
    assert (device.type, device.index, str(device)) == (kind, index, f"{kind}:{index}")


def test_the_usual_types() -> None:
    """As attributes, printing as such."""
    assert (
        cpu.devicetype,
        Device("cuda:0").devicetype,
        meta.devicetype,
    ) == (DeviceType.CPU, DeviceType.CUDA, DeviceType.META)
    assert repr(DeviceType.CUDA) == "DeviceType.CUDA"
    assert str(DeviceType("xpu")) == "xpu"
