# SPDX-License-Identifier: Apache-2.0
"""How much memory values take."""

from __future__ import annotations

import math
from typing import Any

from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symint.numbers import SymbolicNumber

__all__ = ["bytes_of", "in_bytes", "known_shape"]


def known_shape(p: TensorProxy) -> tuple[int, ...]:
    """A tensor's shape, with unknown sizes as they are in the call that was traced."""
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
    """The bytes of a tensor's elements, 0 for any other value; unknown sizes count as in the call that was traced."""
    return math.prod(known_shape(p)) * p.dtype.bytes if isinstance(p, TensorProxy) else 0


def in_bytes(n: int) -> str:
    """A number of bytes as people read it: `24 bytes`, `1.5 MiB`."""
    if n < 10_000:
        return f"{n} bytes"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n / 1024:.1f} KiB"
