# SPDX-License-Identifier: Apache-2.0
"""Sums of products: factors of all kinds, input that is spread, truth values, half precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch

CALLS = {
    "addmm": ((3, 5), (3, 4), (4, 5)),
    "addmv": ((3,), (3, 4), (4,)),
    "addr": ((3, 4), (3,), (4,)),
    "baddbmm": ((2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "addbmm": ((3, 5), (2, 3, 4), (2, 4, 5)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("spread", [False, True], ids=["full", "spread"])
def test_gradients(as_eager: Any, randn: Any, name: str, spread: bool) -> None:
    """Of the input and both factors; as a method too."""
    shape, *factors = CALLS[name]
    tensors = randn(*([1] * len(shape) if spread else shape)), *(randn(*s) for s in factors)
    for options in ({}, {"beta": 0.5, "alpha": 3}, {"beta": 0}, {"alpha": 0}):
        as_eager(lambda c, a, b: getattr(torch, name)(c, a, b, **options), *tensors)
    if not spread:
        as_eager(lambda c, a, b: getattr(c, name)(a, b), *tensors)


def test_integers_and_truth_values(by_primitives: Any) -> None:
    """Factors are cut to whole numbers; truth values are combined as such."""
    ints = [torch.randint(0, 5, s) for s in CALLS["addmm"]]
    assert torch.equal(by_primitives(ltorch.addmm, *ints, beta=2, alpha=3), torch.addmm(*ints, beta=2, alpha=3))
    bools = [torch.rand(s) > 0.5 for s in CALLS["addr"]]
    for beta, alpha in ((True, True), (False, True), (True, False)):
        expected = torch.addr(*bools, beta=beta, alpha=alpha)
        assert torch.equal(by_primitives(ltorch.addr, *bools, beta=beta, alpha=alpha), expected)


def test_input_that_does_not_fit() -> None:
    """Said before anything is multiplied."""
    with pytest.raises(RuntimeError, match="must match the existing size"):
        thunder.jit(torch.addmm)(torch.ones(2, 5), torch.ones(2, 3), torch.ones(3, 4))
