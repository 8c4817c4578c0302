# SPDX-License-Identifier: Apache-2.0
"""torch's implementations of index primitives."""

from __future__ import annotations

import torch

from thunder.runtime.kernels.indexing import index, index_put, setitem, slice_scatter


def test_they_leave_their_input_alone() -> None:
    """Primitives are functions."""
    a = torch.zeros(3, 2)
    slice_scatter(a, torch.ones(1, 2), (0, 0), (1, 2))
    index_put(a, (torch.tensor([1]),), torch.ones(1, 2))
    setitem(a, (slice(None), 0), 5)
    assert torch.equal(a, torch.zeros(3, 2))


def test_a_0d_position_picks_without_being_looked_at() -> None:
    """Nothing waits for the device to know its value."""
    a = torch.randn(3, 2)
    assert torch.equal(index(a, (None, torch.tensor(1))), a[:, 1])
    assert torch.equal(index(a, (torch.tensor(-1),)), a[-1])
