# SPDX-License-Identifier: Apache-2.0
"""Which matrix multiplications are padded, and to which sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thunder_ex_triton.matmul.rule import Sizes, aligned, padded_sizes

TOKENS, HIDDEN, CLASSES = 4096, 768, 50257


def padded(m: int, n: int, k: int, dtype: Any = torch.bfloat16, device: str = "cuda", **how: Any) -> Any:
    found = padded_sizes(Sizes(m, n, k), dtype, device, **how)
    return found if found is None else tuple(found)


def test_head_of_a_language_model() -> None:
    """Forward, gradient of the input, gradient of the weight: only the dimension of the classes is padded."""
    wide = aligned(CLASSES)
    assert wide % 16 == 0 and 0 < wide - CLASSES < 16
    assert padded(TOKENS, CLASSES, HIDDEN, b_columns=True) == (TOKENS, wide, HIDDEN)
    assert padded(TOKENS, HIDDEN, CLASSES) == (TOKENS, HIDDEN, wide)
    assert padded(CLASSES, HIDDEN, TOKENS, a_columns=True) == (wide, HIDDEN, TOKENS)
    assert padded(CLASSES, HIDDEN, TOKENS, torch.float16, a_columns=True) == (wide, HIDDEN, TOKENS)


def test_left_alone() -> None:
    """Aligned rows, other dtypes and devices, few rows, small products, and products without elements."""
    assert padded(TOKENS, 50264, HIDDEN, b_columns=True) is None
    assert padded(4099, 50264, HIDDEN) is None  # no row in memory has the length m
    assert padded(TOKENS, CLASSES, HIDDEN, torch.float32, b_columns=True) is None
    assert padded(TOKENS, CLASSES, HIDDEN, device="cpu", b_columns=True) is None
    assert padded(8, CLASSES, HIDDEN, b_columns=True) is None  # the weight costs more than the product
    assert padded(100, 101, 102) is None
    assert padded(0, CLASSES, HIDDEN) is None and padded(TOKENS, CLASSES, HIDDEN, batch=0) is None


def test_every_row_in_memory_counts() -> None:
    """The stored rows of both operands and of the result decide."""
    assert padded(4099, 4098, 4097) == (4099, 4112, 4112)
    assert padded(4099, 4098, 4097, a_columns=True) == (4112, 4112, 4097)
    assert padded(4099, 4098, 4097, b_columns=True) == (4099, 4112, 4112)
    assert padded(4099, 4098, 4097, a_columns=True, b_columns=True) == (4112, 4112, 4112)
    assert padded(4104, 4097, 4104) == (4104, 4112, 4104)  # multiples of 8 are aligned
    assert padded(1021, 1021, 1024, batch=64) == (1021, 1024, 1024)


@pytest.mark.parametrize("tokens", [64, 1024, 16384])
def test_more_rows_pay_more(tokens: int) -> None:
    """Few tokens do not pay for the copy of the weight, many do."""
    found = padded(tokens, CLASSES, HIDDEN, b_columns=True)
    assert (found is not None) == (tokens >= 1024)
