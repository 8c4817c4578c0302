# SPDX-License-Identifier: Apache-2.0
"""The order of tokens by expert is torch's stable one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_ex_triton.routing.counting_sort import route

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def check(ids: torch.Tensor, experts: int) -> None:
    found, order, inverse, ends = route(ids, experts)
    values, indices = ids.sort(stable=True)
    assert torch.equal(found, values) and found.dtype is ids.dtype
    assert torch.equal(order, indices)
    assert torch.equal(inverse[order], torch.arange(len(ids), device=ids.device))
    assert torch.equal(ends, torch.bincount(ids, minlength=experts).cumsum(0, dtype=torch.int32))


@settings(max_examples=15)
@given(ids=st.lists(st.integers(0, 6), max_size=40), more=st.integers(0, 90), dtype=st.sampled_from(["int32", "int64"]))
def test_any_ids(ids: list[int], more: int, dtype: str) -> None:
    """Also of experts without tokens, and no ids at all."""
    check(torch.tensor(ids, dtype=getattr(torch, dtype), device=DEVICE), 7 + more)


@pytest.mark.parametrize(("count", "experts"), [(512, 8), (1100, 64), (1537, 256), (1025, 2)])
def test_several_blocks(count: int, experts: int) -> None:
    generator = torch.Generator().manual_seed(count)
    check(torch.randint(0, experts, (count,), generator=generator).to(DEVICE), experts)
    check(torch.full((count,), experts - 1, device=DEVICE), experts)


def test_strides() -> None:
    check(torch.randint(0, 8, (40, 3), generator=torch.Generator().manual_seed(0)).to(DEVICE)[:, 1], 8)
