# SPDX-License-Identifier: Apache-2.0
"""Random numbers are eager's, in eager's order, and no draw is merged with another or left out."""

from __future__ import annotations

from typing import Any

import torch

import thunder
from thunder.core import prims
from thunder.core.dtypes import float32
from thunder.core.symbol import OpTags


def test_every_draw_is_marked() -> None:
    """So that passes leave it where it is."""
    family = [sym for sym in prims.all_prims().values() if sym.meta.__module__ == "thunder.core.prims.random"]
    assert len(family) > 10
    assert all(OpTags.RANDOM_OP in sym.tags for sym in family)


def test_equal_draws_are_two_draws() -> None:
    """Common subexpressions are not common here."""

    def program(x: torch.Tensor) -> Any:
        torch.rand(3)  # unused, and drawn all the same
        return torch.rand(3), torch.rand(3), x + torch.randn_like(x)

    x = torch.ones(4)
    torch.manual_seed(3)
    expected = program(x)
    torch.manual_seed(3)
    for ours, theirs in zip(thunder.jit(program)(x), expected):
        assert torch.equal(ours, theirs)


def test_primitives_draw_what_torch_draws() -> None:
    """The torch executor fills an empty tensor, which is what torch.rand and the others do."""
    where = {"device": thunder.core.devices.cpu, "dtype": float32}
    pairs = (
        (lambda: prims.uniform((5,), 0.0, 1.0, **where), lambda: torch.rand(5)),
        (lambda: prims.normal((20,), 0.0, 1.0, **where), lambda: torch.randn(20)),
        (lambda: prims.randint((5,), 2, 9, **where), lambda: torch.randint(2, 9, (5,), dtype=torch.float32)),
        (lambda: prims.bernoulli((9,), 0.3, **where), lambda: torch.empty(9).bernoulli_(0.3)),
        (lambda: prims.randperm(7, device=where["device"]), lambda: torch.randperm(7)),
    )
    for ours, theirs in pairs:
        torch.manual_seed(5)
        found = ours()
        torch.manual_seed(5)
        assert torch.equal(found, theirs())
