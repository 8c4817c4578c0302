# SPDX-License-Identifier: Apache-2.0
"""The shapes of nested Python data."""

from __future__ import annotations

import pytest
import torch

from thunder.core import prims
from thunder.core.devices import cpu
from thunder.core.dtypes import float32, int64


def test_sequences() -> None:
    """Numbers, empty ones, tuples in lists."""
    made = prims.tensor_from_sequence([(1, 2), (3, 4), (5, 6)], device=cpu, dtype=float32)
    assert torch.equal(made, torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert prims.tensor_from_sequence([[], []], device=cpu, dtype=int64).shape == (2, 0)
    assert prims.tensor_from_sequence(4, device=cpu, dtype=int64).shape == ()
    with pytest.raises(ValueError, match=r"item 0 has \(1,\), but item 2 has \(2,\)"):
        prims.tensor_from_sequence([[1], [2], [3, 4]], device=cpu, dtype=int64)


def test_counting() -> None:
    """Forwards, backwards and on the spot, in every integer type."""
    for dtype in ("uint8", "int32", "uint64"):
        kind = getattr(__import__("thunder.core.dtypes", fromlist=[dtype]), dtype)
        assert prims.iota(4, start=9, step=-3, device=cpu, dtype=kind).tolist() == [9, 6, 3, 0]
        assert prims.iota(3, start=2, step=0, device=cpu, dtype=kind).tolist() == [2, 2, 2]
        assert prims.iota(0, start=2, step=1, device=cpu, dtype=kind).tolist() == []
