# SPDX-License-Identifier: Apache-2.0
"""Modules built on the meta device get memory and values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import thunder
from thunder.transforms import LoRATransform, MaterializationTransform, QuantizationTransform


class Model(nn.Module):
    """With a tied weight and a buffer."""

    def __init__(self, table: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 10)
        self.head.weight = self.embed.weight
        if table:
            self.register_buffer("table", torch.arange(6.0), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens to logits."""
        x = self.norm(self.embed(tokens))
        return self.head(x + self.table if hasattr(self, "table") else x)


TOKENS = torch.tensor([1, 2, 3, 9])


def on_meta(*args: Any) -> Model:
    """Without memory."""
    with torch.device("meta"):
        return Model(*args).eval()


def jit(model: nn.Module, *transforms: Any) -> Any:
    """With these transforms."""
    return thunder.jit(model, transforms=list(transforms))


def test_from_a_state_dict() -> None:
    """The values are the state's; what was tied is tied; the user's module is still on meta."""
    torch.manual_seed(0)
    real, meta = Model().eval(), on_meta()
    fast = jit(meta, MaterializationTransform("cpu", state_dict=real.state_dict()))
    torch.testing.assert_close(fast(TOKENS), real(TOKENS))
    assert fast.head.weight is fast.embed.weight
    assert all(p.is_meta for p in meta.parameters())
    assert list(fast.state_dict()) == list(real.state_dict())
    assert all(p.requires_grad for p in fast.parameters())
    assert fast.embed.weight.data_ptr() != real.embed.weight.data_ptr()


def test_by_reset_parameters() -> None:
    """As if each module had been made here; nothing is left without a value."""
    fast = jit(on_meta(), MaterializationTransform())
    assert not any(t.is_meta for t in (*fast.parameters(), *fast.buffers()))
    assert torch.isfinite(fast(TOKENS)).all()
    assert fast.norm.running_var.eq(1).all() and fast.norm.weight.eq(1).all()
    assert fast.embed.weight.std() > 0.1 or fast.head.weight.std() > 0.1


def test_a_state_dict_for_a_part() -> None:
    """The state's where it has them, the module's own where not, with a warning; what is on the CPU already stays."""
    meta = on_meta()
    meta.norm = nn.BatchNorm1d(6).eval()
    nn.init.constant_(meta.norm.bias, 7.0)
    weight = torch.full((10, 6), 0.5)
    with pytest.warns(
        UserWarning, match=r"the state dict lacks head\.bias\. These tensors have the initial values of a new module"
    ):
        fast = jit(meta, MaterializationTransform(state_dict={"embed.weight": weight}))
    assert torch.equal(fast.head.weight, weight)
    assert fast.norm.bias.eq(7).all() and fast.norm.bias is meta.norm.bias
    assert torch.isfinite(fast.head.bias).all()


def test_what_has_no_value() -> None:
    """It is named."""
    with pytest.raises(
        ValueError, match=r"these tensors are not set by any reset_parameters: table\. Put them into state_dict"
    ):
        jit(on_meta(True), MaterializationTransform())
    fast = jit(on_meta(True), MaterializationTransform(state_dict={"table": torch.ones(6)}))
    assert fast.table.eq(1).all()
    fast = jit(on_meta(True), MaterializationTransform(initialize=lambda m: m.table.copy_(torch.arange(6.0))))
    assert fast.table.tolist() == [0, 1, 2, 3, 4, 5]


def test_what_does_not_fit() -> None:
    """A name that nobody has, another shape, the meta device itself."""
    with pytest.raises(KeyError, match=r"the module has no 'haed\.bias'"):
        jit(on_meta(), MaterializationTransform(state_dict={"haed.bias": torch.ones(1)}))
    with pytest.raises(
        ValueError, match=r"head.bias has the shape \(10,\), but in the state dict it has the shape \(3,\)"
    ):
        jit(on_meta(), MaterializationTransform(state_dict={"head.bias": torch.ones(3)}))
    with pytest.raises(ValueError, match="it must not be meta"):
        MaterializationTransform("meta")


def test_before_other_transforms() -> None:
    """Those that come later see the values; those that need values say so."""
    torch.manual_seed(0)
    real = Model().eval()
    given = MaterializationTransform(state_dict=real.state_dict())
    fast = jit(on_meta(), given, QuantizationTransform(), LoRATransform(rank=2))
    expected = jit(real, QuantizationTransform(), LoRATransform(rank=2))
    torch.testing.assert_close(fast(TOKENS), expected(TOKENS))
    with pytest.raises(
        ValueError, match="the weight of head is on the meta device: put MaterializationTransform before"
    ):
        jit(on_meta(), QuantizationTransform())
