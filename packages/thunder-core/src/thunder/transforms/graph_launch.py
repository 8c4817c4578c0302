# SPDX-License-Identifier: Apache-2.0
"""`Launch`: a captured graph, what is copied to its memory before a launch, and what becomes of its results."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from thunder.transforms.graph_capture import Graph, Pools
from thunder.transforms.lent_results import LentResults, can_be_lent

__all__ = ["Launch", "by_kind"]

_Tensors = list[tuple[list[int], list[torch.Tensor]]]


class Launch:
    """A graph, with the static memory of its inputs and what becomes of each of its results.

    A result that is memory of an input is returned as such. Of the others, those at the indices `lent` are read where
    the graph wrote them, and the rest is copied. Of the results at the indices `returned`, those that share memory with
    another one are copied, too: autograd may make each of them a gradient that is changed in place.
    """

    __slots__ = (
        "__weakref__", "_aliases", "_copied", "_launch", "_tables", "_where_lent", "device", "lent", "number",
        "pools", "results", "static",
    )  # fmt: skip

    def __init__(
        self,
        graph: Graph,
        given: Sequence[Any] = (),
        lent: Sequence[int] = (),
        static: Sequence[int] = (),
        returned: Sequence[int] = (),
        pools: Pools | None = None,
    ):
        self._launch, self._tables = graph.launch, graph.tables
        self.device = graph.device
        self.pools = pools
        self.number = 0  # in the order of captures
        self.static: _Tensors = []
        storages = {
            x.untyped_storage()._cdata: i
            for i, x in enumerate(given)
            if isinstance(x, torch.Tensor) and i not in static and x.numel()
        }
        outputs = dict(enumerate(graph.outputs))
        self._aliases = {  # no tensors, which would keep the memory of inputs alive
            k: (i := storages[cdata], x.shape, x.stride(), x.storage_offset() - given[i].storage_offset())
            for k, x in outputs.items()
            if x.numel() and (cdata := x.untyped_storage()._cdata) in storages
        }
        own = {k: x for k, x in outputs.items() if k not in self._aliases}
        count = collections.Counter(x.untyped_storage()._cdata for x in own.values())
        shared = {k for k, x in own.items() if k in returned and count[x.untyped_storage()._cdata] > 1}
        may_be_lent = {*lent} - shared
        self._where_lent = [k for k, x in own.items() if k in may_be_lent and x.numel() and can_be_lent(x)]
        self.lent = LentResults([own[k] for k in self._where_lent])
        self._copied = {k: x for k, x in own.items() if k not in self._where_lent}
        like = {k: torch.empty_like(x, device="meta") for k, x in self._copied.items()}
        self.results: _Tensors = by_kind(self._copied, like)

    def is_free(self) -> bool:
        """Check whether nobody reads the results of the last launch any more."""
        return self.lent.are_unused() and not self.lent.resized

    @property
    def nbytes(self) -> int:
        """The bytes that stay allocated between launches, without the pool's memory that graphs share."""
        return self.lent.nbytes + sum(x.nbytes for _, group in (*self.static, *self.results) for x in group)

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Launch the graph, and return its results."""
        for which, memory in self.static:
            torch._foreach_copy_(memory, [inputs[i] for i in which])
        results: dict[int, Any] = {k: torch.empty_like(x) for k, x in self._copied.items()}
        self._launch()
        for which, memory in self.results:
            torch._foreach_copy_([results[k] for k in which], memory)
        results.update(zip(self._where_lent, self.lent.hand_out()))
        for k, (i, *view, behind) in self._aliases.items():
            x = inputs[i]
            same = not behind and [x.shape, x.stride()] == view
            results[k] = x if same else x.as_strided(*view, x.storage_offset() + behind)
        return tuple([results[k] for k in range(len(results))])


def by_kind(tensors: dict[int, torch.Tensor], others: Mapping[int, torch.Tensor]) -> _Tensors:
    """Group tensors such that one kernel can copy each group to or from `others`. Return positions and tensors.

    For this, all tensors of a group must have equal dtypes and the same strides as their counterparts. Otherwise, torch
    copies each tensor separately.
    """
    found: dict[tuple[torch.dtype, bool], tuple[list[int], list[torch.Tensor]]] = {}
    for i, x in tensors.items():
        places, same = found.setdefault((x.dtype, x.stride() == others[i].stride()), ([], []))
        places.append(i)
        same.append(x)
    return list(found.values())
