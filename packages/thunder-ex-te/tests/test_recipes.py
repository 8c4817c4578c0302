# SPDX-License-Identifier: Apache-2.0
"""What is made of TransformerEngine's recipes, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder
from thunder.extend import ThunderError
from thunder_ex_te.recipes import Quantization, scheme_of


def test_schemes(recipes: Any) -> None:
    """Types, blocks and ways of adding up, as the recipe has them."""
    current = scheme_of(recipes.Float8CurrentScaling())
    assert (current.input.kind, current.weight.kind, current.grad.kind) == ("e4m3", "e4m3", "e5m2")
    assert current.split == (False, True, True) and current.delayed is None
    assert scheme_of(recipes.Float8CurrentScaling(fp8_format=recipes.Format.E4M3)).grad.kind == "e4m3"
    blocks = scheme_of(recipes.Float8BlockScaling())
    assert blocks.input == Quantization("e4m3 1x128", True) and blocks.weight == Quantization("e4m3 128x128", True)
    assert blocks.grad == blocks.input and blocks.split == (True, True, True)
    delayed = scheme_of(recipes.DelayedScaling(amax_history_len=8, margin=1, amax_compute_algo="most_recent"))
    assert delayed.grad.kind == "e5m2" and delayed.delayed == (8, "most_recent", 1, True)


def _refused(recipe: Any, match: str) -> None:
    x, w = torch.randn(16, 16), torch.randn(16, 16)
    with pytest.raises(ThunderError, match=match):
        thunder.jit(lambda x, w: F.linear(x, w), te_recipe=recipe)(x, w)


def test_what_is_refused(recipes: Any) -> None:
    """What cannot be followed is an error that says what can, not a program in another precision."""
    _refused(recipes.MXFP8BlockScaling(), r"compute capability 10\.0 or newer.*Recipes that run there are Float8Curr")
    _refused(recipes.NVFP4BlockScaling(), r"te_recipe=NVFP4BlockScaling: this format needs")
    _refused(recipes.Float8CurrentScaling(backward_override="dequantized"), "leave out backward_override")
    _refused(recipes.Float8CurrentScaling(fp8_dpa=True), "attention does not")
    _refused(recipes.DelayedScaling(amax_compute_algo=lambda h: h[0]), "custom functions are not supported")
    _refused("current", r"must be one of TransformerEngine's recipes, such as Float8CurrentScaling\(\)")
    _refused(recipes.CustomRecipe(lambda *_: None), "te_recipe=CustomRecipe is not supported")


def test_a_recipe_without_its_executor(recipes: Any) -> None:
    """Asking for fp8 of others is an error too."""
    x, w = torch.randn(16, 16), torch.randn(16, 16)
    f = thunder.jit(lambda x, w: F.linear(x, w), executors=["torch"], te_recipe=recipes.Float8CurrentScaling())
    with pytest.raises(ThunderError, match=r"the executor 'te', which is not among the enabled executors \(torch, "):
        f(x, w)
