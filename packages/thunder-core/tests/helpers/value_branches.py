# SPDX-License-Identifier: Apache-2.0
"""Branches on values of tensors, for tests: a function with three, inputs for its paths, a comparison to the bit."""

from __future__ import annotations

from typing import Any

import torch


def several(x: Any) -> Any:
    if x[0] > 0:
        x = x * 2
    if x[1] > 0:
        x = x.sin()
    return x if (x > 0).all() else x.abs()


INPUTS = (
    torch.tensor([1.0, -0.5, 0.25, 0.125, 0.5]), torch.tensor([-1.0, 0.5, -0.25, 4.0, 0.5]), -torch.ones(5),
    torch.tensor([3.0, 2.0, float("nan"), 0.0, 1.0]), torch.zeros(5), torch.full((5,), 7.0),
)  # fmt: skip


def same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
