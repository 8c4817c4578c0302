# SPDX-License-Identifier: Apache-2.0
"""The fp8 copies of parameters: when they are made, when anew, and that they go with the parameter."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder


@pytest.fixture
def layer(device: str) -> torch.nn.Linear:
    """A layer whose weight is quantized."""
    torch.manual_seed(0)
    return torch.nn.Linear(32, 16, bias=False, device=device)


def _step(f: Callable[..., Any], layer: Any) -> torch.Tensor:
    x = torch.ones(16, 32, device=layer.weight.device)
    out = f(x)
    out.square().sum().backward()
    return out.detach()


def _quantized(calls: list[str], f: Callable[..., Any], layer: Any) -> int:
    calls.clear()
    out = _step(f, layer)
    expected = layer(torch.ones(16, 32, device=layer.weight.device)).detach()
    assert float((out - expected).norm() / expected.norm()) < 0.06
    return calls.count("quantize")


@pytest.mark.parametrize("recipe", ["Float8CurrentScaling", "DelayedScaling", "Float8BlockScaling"])
def test_they_stay_until_the_parameter_changes(recipe: str, layer: Any, recipes: Any, calls: list[str]) -> None:
    """Input and gradient each time, the weight after each step of the optimizer and each write."""
    f = thunder.jit(layer, te_recipe=getattr(recipes, recipe)())
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)
    assert _quantized(calls, f, layer) == 3
    assert _quantized(calls, f, layer) == 2
    optimizer.step()
    assert _quantized(calls, f, layer) == 3
    with torch.no_grad():
        layer.weight.neg_()
    assert _quantized(calls, f, layer) == 3
    layer.weight.data = 0.9 * layer.weight.data
    assert _quantized(calls, f, layer) == 3
    layer.load_state_dict({"weight": 0.9 * layer.weight.detach().flip(0)})
    assert _quantized(calls, f, layer) == 3
    assert _quantized(calls, f, layer) == 2


def test_optimizers_that_write_past_torch(layer: Any, recipes: Any, calls: list[str]) -> None:
    """A step counts though its writes do not."""

    class Raw(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    p.data.neg_()

    f = thunder.jit(layer, te_recipe=recipes.Float8CurrentScaling())
    optimizer = Raw(layer.parameters(), {})
    _step(f, layer)
    optimizer.step()
    assert _quantized(calls, f, layer) == 3


def test_a_frozen_parameter_stays_while_others_train(layer: Any, recipes: Any, calls: list[str]) -> None:
    """It is quantized once."""
    layer.weight.requires_grad_(False)
    other = torch.nn.Parameter(torch.ones(32, device=layer.weight.device))
    f = thunder.jit(lambda x: layer(x * other), te_recipe=recipes.Float8CurrentScaling())
    _step(f, layer)
    torch.optim.SGD([other], lr=0.0).step()
    assert _quantized(calls, f, layer) == 2


def test_they_can_be_turned_off(layer: Any, recipes: Any, calls: list[str]) -> None:
    """For who writes to parameters in ways that nobody sees."""
    f = thunder.jit(layer, te_recipe=recipes.Float8CurrentScaling(), te_keep_weights=False)
    _step(f, layer)
    layer.weight.data.neg_()
    assert _quantized(calls, f, layer) == 3
    with pytest.raises(TypeError, match="'te_keep_weights' of plugin 'te' must be bool"):
        thunder.jit(layer, te_keep_weights="no")


def test_what_inference_made_is_completed_for_training(layer: Any, recipes: Any, calls: list[str]) -> None:
    """Forward alone wants no transposes; both kinds of programs share the copies."""
    f = thunder.jit(layer, te_recipe=recipes.Float8CurrentScaling())
    x = torch.ones(16, 32, device=layer.weight.device, requires_grad=True)
    with torch.no_grad():
        f(x)
        calls.clear()
        f(x)
        assert calls.count("quantize") == 1
    f(x).sum().backward()
    calls.clear()
    with torch.no_grad():
        f(x)
    assert calls.count("quantize") == 1
    with torch.inference_mode():
        made = torch.nn.Parameter(torch.ones(16, 32, device=x.device), requires_grad=False)
        layer.weight = made
        assert float(f(x)[0, 0]) == pytest.approx(32)


def test_a_graph_makes_its_own(layer: Any, recipes: Any, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is captured runs again later, when the parameter has changed."""
    from thunder_ex_te import weights

    f = thunder.jit(layer, te_recipe=recipes.Float8CurrentScaling())
    _step(f, layer)
    monkeypatch.setattr(weights, "_is_captured", lambda x: True)
    assert _quantized(calls, f, layer) == 3
    monkeypatch.undo()
    assert _quantized(calls, f, layer) == 2


def test_they_go_with_the_parameter(layer: Any, recipes: Any) -> None:
    """Nothing of a model that is dropped is kept."""
    from thunder_ex_te import weights

    gc.collect()
    before = len(weights._copies)
    f = thunder.jit(layer, te_recipe=recipes.Float8CurrentScaling())
    _step(f, layer)
    assert len(weights._copies) == before + 1
    layer.weight = torch.nn.Parameter(torch.randn(16, 32, device=layer.weight.device))
    gc.collect()
    assert len(weights._copies) == before


def test_two_recipes_of_one_parameter(layer: Any, recipes: Any, calls: list[str]) -> None:
    """Each has its own copies."""
    one = thunder.jit(layer, te_recipe=recipes.Float8CurrentScaling())
    other = thunder.jit(layer, te_recipe=recipes.Float8BlockScaling())
    for expected in (3, 2):
        assert _quantized(calls, one, layer) == expected
        assert _quantized(calls, other, layer) == expected
