# SPDX-License-Identifier: Apache-2.0
"""torch's implementation of sorting takes every combination of arguments."""

from __future__ import annotations

import itertools

import torch

from thunder.runtime.kernels.sorting import sort


def test_all_combinations() -> None:
    """torch's own function wants `stable` and the dimension both by name."""
    x = torch.tensor([[2.0, 1.0, 2.0], [0.0, 0.0, 3.0]])
    for dim, descending in itertools.product((0, 1, -1), (False, True)):
        values, indices = sort(x, dim, descending, True)
        expected = torch.sort(x, dim=dim, descending=descending, stable=True)
        assert torch.equal(values, expected.values)
        assert torch.equal(indices, expected.indices)
