# SPDX-License-Identifier: Apache-2.0
"""Retention of saved tensors, for results that are differentiated one after the other without `retain_graph`.

In eager mode, a backward pass frees only the saved tensors of the operations that it executes. Results that share no
such operation can be differentiated one after the other. A compiled program is one node for all results, and torch
frees the saved tensors of this node after the first pass. Before that, further nodes therefore save again the tensors
that only other results need. The program's node retains these nodes. torch still frees their tensors after use, and
still detects in-place modifications.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.runtime.autograd.saved_tensors import load, save
from thunder.runtime.autograd.staged_backward import as_node
from thunder.runtime.torch_private import clear_saved_tensors, function_transform_active

__all__ = ["SavedTensorRetention"]


class SavedTensorRetention:
    """The saved tensors that the node of a program retains for later passes.

    `tensors` contains the indices of saved values that are tensors. A set of outputs is an int with one bit for each
    output: first the `returned` results, then saved values that second derivatives flow through. `needs` returns the
    saved values that each group of outputs needs. It is called once, at the first partial pass.
    """

    def __init__(self, returned: int, needs: Callable[[], dict[int, set[int]]], tensors: Sequence[int]):
        self._returned = returned
        self._needs = needs
        self._tensors = tensors
        # Groups of outputs that are differentiated together, with the indices of the saved tensors that they need.
        self._groups: dict[int, list[int]] = {}

    def arriving(self, present: Sequence[bool]) -> int | None:
        """Return the outputs whose gradients arrive at a node, as bits, or None if there is nothing to retain."""
        if all(present[: self._returned]):
            return None
        if not self._groups:
            self._groups = {
                bits: [at for at, i in enumerate(self._tensors) if i in needed]
                for bits, needed in self._needs().items()
            }
        return sum(1 << j for j, there in enumerate(present) if there) if len(self._groups) > 1 else None

    def take(self, node: Any, arriving: int) -> list[Any]:
        """Return the saved tensors of a node for the gradients that arrive, with None for tensors not needed."""
        try:
            tensors = load(node)
        except RuntimeError:
            retained: dict[int, Any] = getattr(node, "retained", {})
            asked = [bits for bits, needed in self._groups.items() if bits & arriving and needed]
            if arriving >> self._returned or not all(bits in retained for bits in asked):
                raise
            tensors = [None] * len(self._tensors)
            for bits in asked:
                kept = retained[bits].grad_fn
                for i, x in zip(self._groups[bits], load(kept)):
                    tensors[i] = x
                clear_saved_tensors(kept)
            return tensors
        clear_saved_tensors(node)
        others = {bits: needed for bits, needed in self._groups.items() if needed and not bits & arriving}
        if others and _freed(node) and not function_transform_active():
            node.retained = {bits: _retain([tensors[i] for i in needed]) for bits, needed in others.items()}
        return tensors


def _freed(node: Any) -> bool:
    try:
        return node.saved_tensors is None
    except RuntimeError:
        return True


def _keep(ctx: Any, link: torch.Tensor, tensors: Sequence[Any]) -> torch.Tensor:
    save(ctx, tensors)
    return link.detach()


_keeping = as_node("ThunderRetained", _keep, _keep, _keep)  # it only saves tensors: its backward never runs


def _retain(tensors: Sequence[torch.Tensor]) -> Any:
    """Return a tensor whose node saves `tensors`. They are detached, because their graph would be a reference cycle."""
    with torch.enable_grad():
        link = torch.empty(0, device="cpu", requires_grad=True)
        return _keeping(link, [x.detach() for x in tensors])
