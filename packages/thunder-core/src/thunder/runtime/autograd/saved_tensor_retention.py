# SPDX-License-Identifier: Apache-2.0
"""Results that are differentiated one after the other, without `retain_graph`.

In eager each result has operations of its own, and a pass frees what those that it passed have saved: results that
share none which has saved something can be differentiated in turn. Here all share a node, whose saved tensors torch
frees after the first pass. So what other results need, which that pass had nothing to do with, is left with the node
before: as what further nodes have saved, for torch to free it, and to see whether somebody has written to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.runtime.autograd.staged_backward import as_node
from thunder.runtime.torch_private import clear_saved_tensors, differentiated_otherwise

__all__ = ["SavedTensorRetention"]


class SavedTensorRetention:
    """What the node of a program leaves for later passes; `tensors` says which of what is saved are tensors.

    Outputs of the node, results and then saved values that gradients of gradients flow through, are bits. `needs` says
    which saved values the outputs that are differentiated together need; it is asked once, when first wanted.
    """

    def __init__(self, returned: int, needs: Callable[[], dict[int, set[int]]], tensors: Sequence[int]):
        self._returned = returned
        self._needs = needs
        self._tensors = tensors
        # Outputs that are differentiated together, with what they need: which of the saved tensors, by position.
        self._groups: dict[int, list[int]] = {}

    def arriving(self, present: Sequence[bool]) -> int | None:
        """Return the outputs whose gradients arrive at a node; None where there is nothing to leave."""
        if all(present[: self._returned]):
            return None
        if not self._groups:
            self._groups = {
                bits: [at for at, i in enumerate(self._tensors) if i in needed]
                for bits, needed in self._needs().items()
            }
        return sum(1 << j for j, there in enumerate(present) if there) if len(self._groups) > 1 else None

    def take(self, node: Any, arriving: int) -> list[Any]:
        """Return the tensors that a node has saved, for the gradients that arrive; None for others."""
        try:
            tensors = list(node.saved_tensors)
        except RuntimeError:
            left: dict[int, Any] = getattr(node, "left", {})
            asked = [bits for bits, needed in self._groups.items() if bits & arriving and needed]
            if arriving >> self._returned or not all(bits in left for bits in asked):
                raise
            tensors = [None] * len(self._tensors)
            for bits in asked:
                kept = left[bits].grad_fn
                for i, x in zip(self._groups[bits], kept.saved_tensors):
                    tensors[i] = x
                clear_saved_tensors(kept)
            return tensors
        clear_saved_tensors(node)
        others = {bits: needed for bits, needed in self._groups.items() if needed and not bits & arriving}
        if others and _freed(node) and not differentiated_otherwise():
            node.left = {bits: _left([tensors[i] for i in needed]) for bits, needed in others.items()}
        return tensors


def _freed(node: Any) -> bool:
    try:
        return node.saved_tensors is None
    except RuntimeError:
        return True


def _keep(ctx: Any, link: torch.Tensor, tensors: Sequence[Any]) -> torch.Tensor:
    ctx.to_save = tuple(tensors)
    return link.detach()


_keeping = as_node("ThunderLeft", _keep, _keep, _keep)  # to have saved is all that it is for


def _left(tensors: Sequence[torch.Tensor]) -> Any:
    """Return a tensor whose node has saved these, but not the graph that they are part of, which leads to who keeps
    them.
    """
    with torch.enable_grad():
        link = torch.empty(0, device="cpu", requires_grad=True)
        return _keeping(link, [x.detach() for x in tensors])
