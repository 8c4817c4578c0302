# SPDX-License-Identifier: Apache-2.0
"""torch's implementations where the layout of memory matters."""

from __future__ import annotations

import pytest
import torch

import thunder
from thunder.runtime.kernels.shape import as_strided, broadcast_in_dim, pad, stride_order


def test_as_strided_wants_memory_in_order() -> None:
    """A trace does not know strides: what would read other elements than torch is an error that says what to do."""
    x = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(as_strided(x, (2, 2), (4, 1), 1), x.as_strided((2, 2), (4, 1), 1))
    with pytest.raises(RuntimeError, match=r"call \.contiguous\(\) before it"):
        as_strided(x.T, (2, 2), (4, 1), 0)
    with pytest.raises(RuntimeError, match="starts at element 4"):
        as_strided(x[1:], (2, 2), (4, 1), 0)


def test_a_view_of_what_another_executor_laid_out() -> None:
    """view runs as reshape: it copies where a fused result has other strides than torch's own."""
    x = torch.randn(3, 4).T
    out = thunder.jit(lambda x: x.view(12))(x.contiguous())
    assert torch.equal(out, x.reshape(12))


def test_padding_with_complex_numbers_and_gaps() -> None:
    """torch's own pad takes real numbers only."""
    x = torch.arange(1, 4).to(torch.complex64)
    assert pad(x, 2j, ((1, -1, 0),)).tolist() == [2j, 1, 2]
    assert pad(x, 2j, ((0, 1, 1),)).tolist() == [1, 2j, 2, 2j, 3, 2j]
    assert pad(x, 1 + 0j, ((1, 0, 0),)).tolist() == [1, 1, 2, 3]


def test_nothing_to_pad_is_a_copy() -> None:
    """Since pad never gives a view."""
    x = torch.zeros(3)
    assert pad(x, 0.0, ((0, 0, 0),)).data_ptr() != x.data_ptr()


def test_broadcasting_and_layout_give_views_where_they_can() -> None:
    """No memory is touched that need not be."""
    x = torch.randn(3, 1)
    out = broadcast_in_dim(x, [2, 3, 4], (1, 2))
    assert out.data_ptr() == x.data_ptr()
    assert torch.equal(out, x.expand(2, 3, 4))
    assert stride_order(x, (1, 0)) is x
