# SPDX-License-Identifier: Apache-2.0
"""The memory size of values."""

from __future__ import annotations

import math
from typing import Any

from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symint.numbers import SymbolicNumber

__all__ = ["bytes_of", "in_bytes", "known_shape"]


def known_shape(p: TensorProxy) -> tuple[int, ...]:
    """Return a tensor's shape with symbolic sizes replaced by their hints, and unbacked sizes by 1."""
    shape: list[int] = []
    for size in p.shape:
        known: Any = size
        if type(known) is int:
            pass
        elif isinstance(known, NumberProxy):
            known = known.value
        elif isinstance(known, SymbolicNumber):
            known = known.hint
        shape.append(1 if known is None else int(known))
    return tuple(shape)


def bytes_of(p: Proxy) -> int:
    """Return the size of a tensor's elements in bytes (see `known_shape`), or 0 for any other value."""
    return math.prod(known_shape(p)) * p.dtype.bytes if isinstance(p, TensorProxy) else 0


def in_bytes(n: int) -> str:
    """Format a number of bytes: `24 bytes`, `1.5 MiB`."""
    if n < 10_000:
        return f"{n} bytes"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n / 1024:.1f} KiB"
