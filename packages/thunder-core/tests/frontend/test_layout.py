# SPDX-License-Identifier: Apache-2.0
"""Views that strides do not allow: torch's error at trace time, and no error where torch has none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder

PROGRAMS: list[Any] = [
    lambda x: x.t().view(-1),
    lambda x: x.t().view(3, 2),
    lambda x: x.t().view(3, 1, 2),
    lambda x: x.t()[:, :1].view(3),
    lambda x: x[:, ::2].view(-1),
    lambda x: x.expand(4, 2, 3).view(8, 3),
    lambda x: x.t().contiguous().view(-1),
    lambda x: x.t().contiguous().t().view(-1),
    lambda x: (x.t() * 2).t().view(-1),
    lambda x: (x * 2).t().view(6),
    lambda x: x.unsqueeze(1).view_as(x),
    lambda x: x.t().view_as(x),
    lambda x: x.view(1, 2, 3).transpose(0, 1).view(2, 3),
    lambda x: x.view(torch.int32).view(-1),
    lambda x: x[0].view(1, 3, -1),
]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("strided", [False, True])
def test_views(program: Any, strided: bool) -> None:
    """As in torch, for inputs that are laid out in the usual way and for others."""
    x = torch.randn(3, 2).t() if strided else torch.randn(2, 3)
    try:
        expected = program(x)
    except RuntimeError as error:
        with pytest.raises(RuntimeError) as found:
            thunder.jit(program)(x)
        assert str(found.value).startswith(str(error).partition(" (")[0])
        assert f"at {__file__}" in str(found.value)
    else:
        assert torch.equal(thunder.jit(program)(x), expected)
