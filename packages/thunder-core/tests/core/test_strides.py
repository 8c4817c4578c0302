# SPDX-License-Identifier: Apache-2.0
"""Strides of dense tensors, and the order of strides."""

from __future__ import annotations

import itertools

import pytest
import torch

from thunder.core.strides import contiguous_strides, dense_strides, order_of, ordered_strides


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 1, 4), (1, 1, 1), (0, 2, 3)])
def test_an_order_of_strides_gives_them_back(shape: tuple[int, ...]) -> None:
    """For each permutation of a dense tensor."""
    for order in itertools.permutations(range(3)):
        strides = ordered_strides(shape, order)
        x = torch.empty_strided(shape, strides)
        assert x.permute(sorted(range(3), key=lambda d, order=order: -order[d])).is_contiguous()
        assert ordered_strides(shape, order_of(strides)) == strides or 1 in shape or 0 in shape
        assert dense_strides(shape, ordered_strides(shape, order_of(strides))) == dense_strides(shape, strides)


def test_a_contiguous_tensor_is_in_descending_order() -> None:
    for shape in ((2, 3, 4), (3, 1), (1, 3), ()):
        assert order_of(torch.empty(shape).stride()) == tuple(reversed(range(len(shape))))
        assert dense_strides(shape, torch.empty(shape).stride()) == contiguous_strides(shape)
