# SPDX-License-Identifier: Apache-2.0
"""Queries of a tensor's memory and flags: guarded for inputs, and computed or left to eager mode for other tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder

BASE = torch.arange(12.0)


def inputs() -> list[torch.Tensor]:
    """Tensors of one shape and dtype, which differ in their memory, versions and flags."""
    written = torch.ones(4)
    written.add_(1)
    return [BASE[:4], BASE[:4], BASE[4:8], written, torch.ones(4), torch._neg_view(torch.ones(4)), BASE[::3], BASE[:4]]


GUARDED: list[Callable[[Any], Any]] = [
    lambda x: x.storage_offset(),
    lambda x: x.view(-1).storage_offset(),
    lambda x: x[1:].storage_offset(),
    lambda x: x.detach()._version,
    lambda x: x[1:]._version,
    lambda x: (x * 2).add_(1).mul_(2)._version,
    lambda x: x._is_view(),
    lambda x: x.is_pinned(),
    lambda x: x.is_shared(),
    lambda x: x.is_neg(),
    lambda x: torch.is_neg(x),
    lambda x: x.is_conj(),
    lambda x: x.stride(),
    lambda x: x.is_contiguous(),
    lambda x: torch._neg_view(x).is_neg(),
    lambda x: torch._neg_view(x).resolve_neg().is_neg(),
    lambda x: x.resolve_neg().is_neg(),
    lambda x: torch.complex(x, x).conj().is_conj(),
    lambda x: torch.complex(x, x).conj().imag.is_neg(),
    lambda x: torch.complex(x, x).conj()[1:].is_conj(),
    lambda x: torch.complex(x, x).conj().conj().is_conj(),
    lambda x: torch.complex(x, x).conj().resolve_conj().is_conj(),
    lambda x: (torch.complex(x, x).conj() * 2).is_conj(),
    lambda x: torch.complex(x, x).conj_physical().is_conj(),
]
EAGER: list[Callable[[Any], Any]] = [
    lambda x: x.data_ptr() == BASE.data_ptr(),
    lambda x: x.untyped_storage().data_ptr() == BASE.untyped_storage().data_ptr(),
    lambda x: x.untyped_storage().nbytes(),
    lambda x: x[1:].data_ptr() - x.data_ptr(),
    lambda x: x.is_set_to(BASE),
    lambda x: x.view(-1).is_set_to(x),
    lambda x: x._base is BASE,
    lambda x: x[1:]._is_view(),
]


@pytest.mark.parametrize("query", GUARDED + EAGER)
@pytest.mark.filterwarnings("ignore")
def test_queries_answer_as_in_eager_mode(query: Callable[[Any], Any]) -> None:
    """For inputs that differ in nothing else."""

    def fn(x: Any) -> Any:
        return x * 2, query(x)

    jitted = thunder.jit(fn)
    for x in inputs() * 2:
        assert jitted(x)[1] == fn(x)[1]
    if query in GUARDED:
        assert thunder.cache_hits(jitted) >= 8


@pytest.mark.parametrize("make", [lambda: torch.ones(3, dtype=torch.complex64), torch.ones(3).to])
def test_conjugated_inputs(make: Any) -> None:
    """An input's flag is guarded."""

    def fn(x: Any) -> Any:
        return x.real * 2 if x.is_conj() else x.real

    jitted = thunder.jit(fn)
    plain = torch.complex(torch.ones(3), torch.ones(3))
    for x in (plain, plain.conj(), plain, plain.conj()):
        torch.testing.assert_close(jitted(x), fn(x))
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (2, 2)


# -- tensor objects ---------------------------------------------------------------------------------------------------
W = torch.ones(3)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.contiguous().view(-1),
        lambda x: x.contiguous().reshape(3),
        lambda x: x.contiguous().squeeze(),
        lambda x: x.contiguous()[:],
        lambda x: x.view(-1).contiguous(),
        lambda x: x.view(-1).contiguous().view(3),
        lambda x: x.contiguous().chunk(1)[0],
        lambda x: W.contiguous().view(-1),
        lambda x: W.contiguous(),
        lambda x: x.contiguous(),
        lambda x: x.flatten(),
        lambda x: x.view(-1),
        lambda x: x.detach(),
    ],
)
def test_a_result_is_the_input_only_where_it_is_in_eager_mode(fn: Callable[[Any], Any]) -> None:
    """`requires_grad_()` on a view of the input does not change the caller's tensor."""
    jitted = thunder.jit(fn)
    for _ in range(3):
        found = []
        for f in (fn, jitted):
            x = torch.ones(3)
            y = f(x)
            y.requires_grad_()
            found.append((y is x, y is W, x.requires_grad, W.requires_grad, y.tolist()))
            W.requires_grad_(False)
        assert found[0] == found[1]


def test_contiguous_of_a_tensor_that_the_program_does_not_create() -> None:
    """Is that tensor: what the program sets on it remains."""
    w = torch.ones(3)

    def fn(x: Any) -> Any:
        w.contiguous().name_of_user = 3
        return x * w

    jitted = thunder.jit(fn)
    for _ in range(2):
        w.__dict__.clear()
        jitted(torch.ones(3))
        assert w.name_of_user == 3
