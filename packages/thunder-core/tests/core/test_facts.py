# SPDX-License-Identifier: Apache-2.0
"""Facts of operations: what is declared, and what follows from tags."""

from __future__ import annotations

from typing import Any

import pytest

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.facts import Facts
from thunder.core.symbol import OpTags, Symbol
from thunder.torch.base import torchsymbol


def meta(a: Any) -> Any:
    """Nothing."""
    return a


@pytest.mark.parametrize(
    ("tags", "view", "cost"),
    [
        ((), "never", "as its parts"),
        ((OpTags.ELEMENTWISE_OP,), "never", "cheap"),
        ((OpTags.SHAPE_OP, OpTags.VIEW_OP), "always", "cheap"),
        ((OpTags.MATMUL_OP,), "never", "expensive"),
        ((OpTags.ELEMENTWISE_OP, OpTags.RANDOM_OP), "never", "expensive"),
    ],
)
def test_what_follows_from_tags(tags: tuple[OpTags, ...], view: str, cost: str) -> None:
    """All else is unknown."""
    facts = Symbol("op", meta, tags=tags).facts
    assert facts == Facts(view=view, cost=cost)  # type: ignore[arg-type]
    assert not any((facts.autocast, facts.returns_input, facts.keeps_order, facts.casts, facts.commutative))
    assert facts.layout == "unknown"


def test_declared_with_the_operation() -> None:
    """By keywords, which are checked; one autocast policy is that of all devices."""

    @torchsymbol(id="test.facts", is_method=False, autocast="lower", commutative=True)
    def op(a: Any, b: Any) -> Any:
        return a + b

    assert op.facts == Facts(autocast={"cpu": "lower", "cuda": "lower"}, commutative=True)
    op.declare(autocast={"cpu": "float32"}, cost="cheap")
    assert op.facts == Facts(autocast={"cpu": "float32"}, commutative=True, cost="cheap")
    with pytest.raises(TypeError, match="comutative"):
        op.declare(comutative=True)  # type: ignore[call-arg]


def test_of_operations() -> None:
    """Some of each kind, on both floors."""
    assert ltorch.linear.facts.autocast == {"cpu": "lower", "cuda": "lower"}
    assert ltorch.exp.facts.autocast == {"cuda": "float32"}
    assert ltorch.avg_pool3d.facts.autocast == {"cpu": "float32"}
    assert not ltorch.avg_pool2d.facts.autocast
    assert ltorch.conv_transpose2d.facts.autocast["cuda"] == "lower"
    assert (ltorch.reshape.facts.view, ltorch.view.facts.view, ltorch.relu.facts.view) == ("maybe", "always", "never")
    assert ltorch.flatten.facts.returns_input
    assert not ltorch.view.facts.returns_input
    assert prims.squeeze.facts.keeps_order
    assert not prims.transpose.facts.keeps_order
    assert (ltorch.mm.facts.layout, ltorch.softmax.facts.layout) == ("contiguous", "contiguous on gpu")
    assert ltorch.add.facts.commutative
    assert prims.add.facts.commutative
    assert not ltorch.sub.facts.commutative
    assert (prims.add.facts.cost, prims.exp.facts.cost, prims.matmul.facts.cost) == ("light", "cheap", "expensive")
    assert ltorch.float.facts.casts
