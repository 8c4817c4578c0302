# SPDX-License-Identifier: Apache-2.0
"""Bytes of values, and how they are written."""

from __future__ import annotations

from thunder.core import dtypes
from thunder.core.nbytes import bytes_of, in_bytes, known_shape
from thunder.core.proxies import NumberProxy, TensorProxy


def test_bytes_of_values() -> None:
    """Of tensors those of their elements; sizes that are numbers of the trace count as they are in the call."""
    a = TensorProxy("a", shape=(2, 3), device="cpu", dtype=dtypes.float64)
    assert (known_shape(a), bytes_of(a)) == ((2, 3), 48)
    assert bytes_of(TensorProxy("b", shape=(), device="cpu", dtype=dtypes.bool8)) == 1
    assert bytes_of(TensorProxy("c", shape=(0, 9), device="cpu", dtype=dtypes.float32)) == 0
    size = NumberProxy(5, name="n")
    assert bytes_of(TensorProxy("d", shape=(size, 2), device="cpu", dtype=dtypes.bfloat16)) == 20  # type: ignore[arg-type]
    assert bytes_of(size) == 0


def test_how_bytes_are_written() -> None:
    """Exactly while they are few."""
    assert [in_bytes(n) for n in (0, 9_999, 10_240, 3 << 20, 5 << 29)] == [
        "0 bytes", "9999 bytes", "10.0 KiB", "3.0 MiB", "2.5 GiB",
    ]  # fmt: skip
