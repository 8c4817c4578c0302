# SPDX-License-Identifier: Apache-2.0
"""Tables of whole numbers that kernels read from a device, e.g. the addresses of many tensors.

A CUDA graph cannot contain their copies from the host, which would read the host's memory again at each launch. The
tables of a graph are therefore parts of memory that was allocated before the capture. They are written after it, once,
and are kept as long as the graph. A function that makes tables declares their sizes (attribute `table_sizes`).

The functions import torch when they are called: `thunder.extend` exports them, and does not load torch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["GraphTables", "device_table", "is_capturing_graph"]

_ALIGNED = 32  # tables begin at multiples of 256 bytes, as torch's allocations do: kernels are compiled for it


class _Capturing(threading.local):
    """The tables of the graph that this thread captures."""

    tables: GraphTables | None = None


_capturing = _Capturing()


class GraphTables:
    """The tables of a graph. In this context, `device_table` makes them."""

    def __init__(self, device: torch.device, sizes: Sequence[int]):
        import torch

        self.memory = torch.empty(sum(map(_room, sizes)), dtype=torch.int64, device=device)
        self._values: list[int] = []

    def __enter__(self) -> None:
        _capturing.tables = self

    def __exit__(self, kind: type | None, error: BaseException | None, where: TracebackType | None) -> None:
        _capturing.tables = None

    def make(self, values: list[int]) -> torch.Tensor:
        """Return a table with values that `write` copies to the device."""
        first = len(self._values)
        room = _room(len(values))
        if first + room > len(self.memory):
            raise RuntimeError("a graph has more tables than its operations have declared")
        self._values += values + [0] * (room - len(values))
        return self.memory[first : first + len(values)]

    def write(self) -> None:
        """Copy the values to the device."""
        import torch

        if self._values:
            self.memory[: len(self._values)] = torch.tensor(self._values, device="cpu")


def _room(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def is_capturing_graph() -> bool:
    """Check whether this thread captures a graph, to which new tables belong."""
    return _capturing.tables is not None


def device_table(device: torch.device, values: Iterable[int]) -> torch.Tensor:
    """Return whole numbers on a device, without waiting for it."""
    if _capturing.tables is not None:
        return _capturing.tables.make([*values])
    import torch

    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a table is copied from the host, which a CUDA graph would not repeat")
    pinned = device.type == "cuda"
    found = torch.tensor([*values], dtype=torch.int64, device="cpu", pin_memory=pinned)
    return found.to(device, non_blocking=True)
