# SPDX-License-Identifier: Apache-2.0
"""Devices (`Device`) and their types (`DeviceType`), interned. This module does not import torch.

The set of device types is open: `DeviceType(name)` accepts the name of any backend, e.g. `"xpu"` or a vendor's name
for torch's `PrivateUse1`. An executor for other hardware therefore needs no change here.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = ["Device", "DeviceType", "cpu", "meta", "to_device", "to_torch_device"]


class DeviceType:
    """A type of device; `DeviceType.CPU`, `.CUDA` and `.META` are predefined, and any other name is allowed."""

    __slots__ = ("name",)
    _known: ClassVar[dict[str, DeviceType]] = {}
    CPU: ClassVar[DeviceType]
    CUDA: ClassVar[DeviceType]
    META: ClassVar[DeviceType]
    name: str

    def __new__(cls, name: str) -> DeviceType:
        name = name.lower()
        known = cls._known.get(name)
        if known is None:
            known = cls._known[name] = object.__new__(cls)
            known.name = name
        return known

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"DeviceType.{self.name.upper()}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (DeviceType, (self.name,))


DeviceType.CPU = DeviceType("cpu")
DeviceType.CUDA = DeviceType("cuda")
DeviceType.META = DeviceType("meta")

# Types with a single device, which has no index.
_WITHOUT_INDEX = {"cpu", "meta"}


class Device:
    """One device: `Device("cuda:0")`, `Device("cuda", 1)`, `Device("cpu")`; equal devices are the same object."""

    __slots__ = ("devicetype", "index")
    _known: ClassVar[dict[tuple[str, int | None], Device]] = {}
    devicetype: DeviceType
    index: int | None

    def __new__(cls, name: str | DeviceType, index: int | None = None) -> Device:
        if isinstance(name, DeviceType):
            name = name.name
        base, _, number = name.lower().partition(":")
        if number:
            if index is not None:
                raise ValueError(f"device {name!r} contains an index, and index={index} was passed too: pass only one")
            if not number.isdigit():
                raise ValueError(f"invalid device string {name!r}: the text after the colon must be a device index")
            index = int(number)
        if base in _WITHOUT_INDEX:
            index = None
        elif index is None:
            index = 0
        known = cls._known.get((base, index))
        if known is None:
            known = cls._known[(base, index)] = object.__new__(cls)
            known.devicetype = DeviceType(base)
            known.index = index
        return known

    @property
    def type(self) -> str:
        """The name of the device's type, like `torch.device.type`."""
        return self.devicetype.name

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f'devices.Device("{self}")'

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Device):
            return self is other
        # A torch.device of the same name is equal, so that checkers may compare with a device of thunder or of torch.
        return type(other).__module__ == "torch" and type(other).__name__ == "device" and to_device(other) is self

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Device, (self.type, self.index))


cpu = Device("cpu")
meta = Device("meta")

_FROM_TORCH: dict[Any, Device] = {}


def to_device(x: Any) -> Device | None:
    """Convert a torch.device, a string or an index (of the current accelerator) to a Device; return None for None."""
    if x is None or isinstance(x, Device):
        return x
    if isinstance(x, str):
        return _checked(x)
    import torch

    if isinstance(x, torch.device) and (known := _FROM_TORCH.get(x)) is not None:
        return known
    if isinstance(x, int) and not isinstance(x, bool):
        return to_device(torch.device(x))
    if isinstance(x, torch.device):
        index = x.index
        if index is None and x.type not in _WITHOUT_INDEX:
            index = _current_index(x.type)
            return Device(x.type, index)
        known = _FROM_TORCH[x] = Device(x.type, index)
        return known
    raise ValueError(f"{x!r} is not a device: use a string such as 'cuda:0', a torch.device or a thunder Device")


def _checked(name: str) -> Device:
    import torch

    return to_device(torch.device(name))  # type: ignore[return-value]  # torch's own error for a bad string


def _current_index(kind: str) -> int:
    import torch

    module = getattr(torch, kind, None)
    if module is not None and module.is_available():
        return int(module.current_device())
    return 0


def to_torch_device(x: Any) -> Any:
    """Convert a device of thunder or torch to a torch.device; return None for None."""
    if x is None:
        return None
    import torch

    return torch.device(str(x)) if isinstance(x, Device) else torch.device(x)
