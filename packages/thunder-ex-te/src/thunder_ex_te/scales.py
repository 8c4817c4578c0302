# SPDX-License-Identifier: Apache-2.0
"""Storage of delayed scales, which are computed from the amax of earlier steps (DelayedScaling).

A `Slot` holds the scale and the amax history of one tensor of one linear layer. Slots are part of the state of the
jitted function (`_extra_state`). The name of a slot is derived from the weight's name, so all programs of that function
share the slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.extend import ThunderError
from thunder_ex_te.probe import kernels
from thunder_ex_te.recipes import Delayed

__all__ = ["STATE", "Slot", "kept", "update"]

STATE = "te"  # the key in the state of the jitted function
_KEPT = ("scale", "amax_history", "before")


def kept(state: dict[str, Any], name: str) -> dict[str, torch.Tensor]:
    """Return the state of one tensor of a layer in a jitted function. Raise if the state is invalid."""
    scales = state.setdefault(STATE, {})
    found = scales.setdefault(name, {}) if isinstance(scales, dict) else None
    if not isinstance(found, dict) or (found and not _fits(found)):
        raise ThunderError(
            f"_extra_state[{STATE!r}][{name!r}] is invalid: DelayedScaling needs a `scale` in float32[1] and an "
            "`amax_history` in float32[length, 1]. Load the `_extra_state` of a function jitted with DelayedScaling"
        )
    return found


def _fits(found: dict[Any, Any]) -> bool:
    scale, history = found.get("scale"), found.get("amax_history")
    if not isinstance(scale, torch.Tensor) or not isinstance(history, torch.Tensor):
        return False
    kinds = scale.dtype is history.dtype is torch.float32
    return kinds and tuple(scale.shape) == (1,) and history.ndim == 2 and history.shape[1] == 1


class Slot:
    """The scale of one tensor, in a dict of tensors: `scale`, `amax_history` and `before`, the previous scale."""

    __slots__ = ("group", "how", "kind", "known", "name", "tensors")

    def __init__(self, name: str, tensors: dict[str, torch.Tensor], kind: str, how: Delayed, group: Any):
        self.name = name
        self.tensors = tensors
        self.kind = kind
        self.how = how
        self.group = group
        self.known: tuple[torch.Tensor, ...] = ()  # the state, the newest amax, and a dummy amax

    def at(self, device: torch.device, note: bool, again: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scale to quantize with, and the tensor that receives the amax, on a device.

        With `again`, return the previous scale. Without `note`, the amax is a dummy.
        """
        found, known = self.tensors, self.known
        if not known or known[0].device != device or any(a is not found.get(key) for a, key in zip(known, _KEPT)):
            found = self.on(device)
            parts = [found[key] for key in _KEPT]
            known = self.known = *parts, parts[1][0], torch.zeros_like(parts[0])
        return known[2 if again else 0], known[3 if note else 4]

    def on(self, device: torch.device) -> dict[str, torch.Tensor]:
        """Return the slot's tensors on a device. The first call creates them."""
        found = self.tensors
        if "scale" not in found:
            found["scale"] = torch.ones(1, device=device)
            found["amax_history"] = torch.zeros(self.how.length, 1, device=device)
        elif found["scale"].device != device:
            for key, x in found.items():
                found[key] = x.to(device)
        if len(found["amax_history"]) != self.how.length:  # the state comes from a run with another history length
            history = torch.zeros(self.how.length, 1, device=device)
            n = min(len(history), len(found["amax_history"]))
            history[:n] = found["amax_history"][:n]
            found["amax_history"] = history
        if "before" not in found:
            found["before"] = found["scale"].clone()
        return found

    @property
    def __name__(self) -> str:  # the name of the slot in traces
        return f"scale_of_{self.name.replace('.', '_')}"

    def __repr__(self) -> str:
        return f"<scale of {self.name}>"


def update(slots: Sequence[Slot]) -> None:
    """End a step: push the amax of each tensor into its history, and compute the new scales."""
    alike: dict[Any, list[Slot]] = {}
    for slot in slots:
        alike.setdefault((slot.kind, slot.how), []).append(slot)
    for each in alike.values():
        _update(each)


def _update(slots: Sequence[Slot]) -> None:
    """Update the slots of one format and one recipe."""
    first = slots[0]
    found = [slot.tensors for slot in slots]
    histories, scales = [x["amax_history"] for x in found], [x["scale"] for x in found]
    torch._foreach_copy_([x["before"] for x in found], scales)
    amax = torch.cat([slot.at(x["scale"].device, True, False)[1] for slot, x in zip(slots, found)])
    if first.how.reduce and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(amax, op=torch.distributed.ReduceOp.MAX, group=first.group)
    kernels().update_scales(amax, histories, scales, first.how.algorithm, first.kind, first.how.margin)
