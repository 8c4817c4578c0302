# SPDX-License-Identifier: Apache-2.0
"""Linear layers in fp8: which are taken, what they give, and what their gradients are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder
from thunder_ex_te import reference

RECIPES = ("Float8CurrentScaling", "DelayedScaling", "Float8BlockScaling")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def _make(device: str, *shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def _expected(recipe: str, x: Any, w: Any, bias: Any, g: Any) -> tuple[Any, ...]:
    """Result and gradients by the definition: fp8 factors, multiplied in double precision."""
    if recipe == "Float8BlockScaling":
        kinds, power_2 = ("e4m3 1x128", "e4m3 128x128", "e4m3 1x128"), True
    else:
        kinds, power_2 = ("e4m3", "e4m3", "e5m2"), False

    def fp8(t: Any, kind: str) -> tuple[Any, Any]:
        if recipe == "DelayedScaling":  # in its first step all scales are one
            a, s, b, u = reference.quantize_by_scale(t, kind, torch.ones(1, device=t.device))
        else:
            a, s, b, u = reference.quantize(t, kind, power_2)
        return (a, s, kind), (b, u, kind)

    (x0, x1), (w0, w1), (g0, g1) = map(fp8, (x, w, g), kinds)
    out = reference.multiply(*x0, *w0, x.dtype, bias)
    of_bias = None if bias is None else g.double().sum(tuple(range(g.ndim - 1))).to(g.dtype)
    return out, reference.multiply(*g0, *w1, x.dtype), reference.multiply(*g1, *x1, w.dtype), of_bias


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal but for the order of additions, of which Hopper's kernels keep fewer bits."""
    return _distance(a, b) < (2e-2 if a.is_cuda or a.dtype is not torch.float32 else 1e-5)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_forward_and_backward(recipe: str, dtype: torch.dtype, bias: bool, device: str, recipes: Any) -> None:
    """Each product is of the factors that the recipe says, also with leading dimensions."""
    layer = torch.nn.Linear(144, 48, bias=bias, device=device, dtype=dtype)
    x = _make(device, 2, 80, 144, dtype=dtype).requires_grad_()
    g = _make(device, 2, 80, 48, dtype=dtype, seed=1)
    f = thunder.jit(layer, te_recipe=getattr(recipes, recipe)())
    out = f(x)
    out.backward(g)
    found = out.detach(), x.grad, layer.weight.grad, layer.bias.grad if bias else None
    wanted = _expected(recipe, x.detach(), layer.weight.detach(), layer.bias.detach() if bias else None, g)
    for a, b in zip(found, wanted):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.shape == b.shape and a.dtype is b.dtype and _close(a, b)
    assert _distance(out, F.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)) < 0.06


def test_the_trace(device: str, recipes: Any) -> None:
    """What is kept for backward are transposes in fp8; nothing is computed that nobody reads."""
    layer = torch.nn.Linear(32, 16, bias=False, device=device, dtype=torch.bfloat16)
    f = thunder.jit(layer, te_recipe=recipes.Float8CurrentScaling())
    f(_make(device, 48, 32)).sum().backward()
    text, backward = str(thunder.last_traces(f)[-1]), str(thunder.last_backward_traces(f)[-1])
    assert "te_quantize(input, 'e4m3', rows=True, columns=True)" in text
    assert "te_quantize(t_weight, 'e4m3', keep=True, rows=True, columns=False)" in text  # nobody asks for input's
    assert "ui8[32, 48]" in text.partition("# saved for backward")[2] and "bf16" not in text.partition("# saved")[2]
    assert "'e5m2', rows=False, columns=True)" in backward and backward.count("te_matmul") == 1
    with torch.no_grad():
        f(_make(device, 48, 32))
    assert str(thunder.last_traces(f)[-1]).count("columns=False") == 2


def test_what_several_layers_take_is_quantized_once(device: str, recipes: Any, calls: list[str]) -> None:
    """Query, key and value of one input, forward; their gradients are three."""
    layers = torch.nn.ModuleList([torch.nn.Linear(32, 32, device=device, dtype=torch.bfloat16) for _ in range(3)])

    def attention_inputs(x: Any) -> Any:
        q, k, v = (layer(x) for layer in layers)
        return q * k + v

    for recipe in RECIPES:
        f = thunder.jit(attention_inputs, te_recipe=getattr(recipes, recipe)(), te_keep_weights=False)
        calls.clear()
        out = f(_make(device, 16, 32).requires_grad_())
        assert calls.count("quantize") == 4 and calls.count("product") == 3
        out.sum().backward()
        assert calls.count("quantize") == 7 and calls.count("product") == 9
        with torch.no_grad():
            calls.clear()
            f(_make(device, 16, 32))
            assert calls.count("quantize") == 4


def _why(fn: Callable[..., Any], *args: Any, **options: Any) -> str:
    return str(thunder.examine(thunder.jit(fn, **options), *args))


def test_what_is_left_to_others(device: str, recipes: Any) -> None:
    """Odd sizes and types run as without a recipe, and the report says why."""
    recipe = recipes.Float8CurrentScaling()
    for x, w, b, why in (
        (_make(device, 16, 24), _make(device, 16, 24), None, "multiples of 16, but the sizes are 24 inputs"),
        (_make(device, 8, 32), _make(device, 24, 32), None, "sizes are 8 rows, 24 outputs"),
        (_make(device, 32), _make(device, 16, 32), None, "1 rows"),
        (_make(device, 16, 32), _make(device, 32), None, "supports only a weight with two dimensions"),
        (_make(device, 0, 32), _make(device, 16, 32), None, "have no elements"),
        (_make(device, 16, 32), _make(device, 16, 32), _make(device, 1), "a bias with one element per output"),
        (_make(device, 16, 32).double(), _make(device, 16, 32).double(), None, "not float64"),
    ):
        f = thunder.jit(lambda x, w, b: F.linear(x, w, b), te_recipe=recipe)
        torch.testing.assert_close(f(x, w, b), F.linear(x, w, b))
        assert "te_matmul" not in str(thunder.last_traces(f)[-1])
        assert why in str(thunder.examine(f, x, w, b))
    f = thunder.jit(lambda x, w: F.linear(x, w), te_recipe=recipe)
    row = thunder.examine(f, _make(device, 16, 32), _make(device, 16, 32)).operations[0]
    assert row.executor == "te"


def test_frozen_weights(device: str, recipes: Any, calls: list[str]) -> None:
    """Of a frozen weight no gradient is computed, and nothing is kept for it."""
    layer = torch.nn.Linear(32, 16, device=device, dtype=torch.bfloat16).requires_grad_(False)
    f = thunder.jit(layer, te_recipe=recipes.Float8CurrentScaling())
    x = _make(device, 16, 32).requires_grad_()
    f(x).sum().backward()
    assert calls.count("product") == 2 and x.grad is not None and layer.weight.grad is None
    assert "te_quantize(input, 'e4m3', rows=True, columns=False)" in str(thunder.last_traces(f)[-1])


@pytest.mark.parametrize("recipe", RECIPES)
def test_autocast(recipe: str, device: str, recipes: Any, calls: list[str]) -> None:
    """Parameters in float32 under autocast are quantized as they are, once a step; their gradients are float32."""
    layer = torch.nn.Linear(32, 16, device=device)
    f = thunder.jit(layer, te_recipe=getattr(recipes, recipe)())
    x, eager = _make(device, 16, 32, dtype=torch.float32), copy.deepcopy(layer)
    for quantized in (3, 2):
        calls.clear()
        with torch.autocast(device, torch.bfloat16):
            out = f(x)
        out.float().square().sum().backward()
        assert calls.count("quantize") == quantized and out.dtype is torch.bfloat16
    assert "te_quantize(t_weight, " in str(thunder.last_traces(f)[-1]) or "te_quantize_scaled(t_weight, " in str(
        thunder.last_traces(f)[-1]
    )
    with torch.autocast(device, torch.bfloat16):
        eager(x).float().square().sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.dtype is torch.float32
    assert eager.weight.grad is not None and _distance(layer.weight.grad, 2 * eager.weight.grad) < 0.12


def test_gradients_add_up_over_micro_batches(device: str, recipes: Any) -> None:
    """Two halves of a batch give what they give one by one."""
    layer = torch.nn.Linear(32, 16, device=device, dtype=torch.float32)
    f = thunder.jit(layer, te_recipe=recipes.Float8CurrentScaling())
    one = []
    for seed in (0, 1):
        f(_make(device, 16, 32, dtype=torch.float32, seed=seed)).square().sum().backward()
        assert layer.weight.grad is not None
        one.append(layer.weight.grad.clone())
        layer.weight.grad = None
    for seed in (0, 1):
        f(_make(device, 16, 32, dtype=torch.float32, seed=seed)).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, one[0] + one[1])


def test_it_trains(device: str, recipes: Any) -> None:
    """A small network learns in fp8 what it learns without."""
    torch.manual_seed(0)
    first = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)).to(device)
    x = _make(device, 64, 32, dtype=torch.float32)
    target = torch.tanh(_make(device, 64, 16, dtype=torch.float32, seed=3))
    losses = {}
    for name in ("eager", *RECIPES):
        model = copy.deepcopy(first)
        f = model if name == "eager" else thunder.jit(model, te_recipe=getattr(recipes, name)())
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(30):
            loss = F.mse_loss(f(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[name] = float(loss)
    begin = float(F.mse_loss(first(x), target))
    for name in RECIPES:
        assert losses[name] < 0.6 * begin and abs(losses[name] - losses["eager"]) < 0.1 * losses["eager"]


def test_checkpointing(device: str, recipes: Any) -> None:
    """What is computed again in backward is what it was, and gradients are those without it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(3)]).to(device)
    x = _make(device, 16, 32, dtype=torch.float32)
    for recipe in RECIPES:
        found = []
        for again in (False, True):
            this = copy.deepcopy(model)

            def run(x: Any, this: Any = this, again: bool = again) -> Any:
                return torch.utils.checkpoint.checkpoint(this, x, use_reentrant=False) if again else this(x)

            f = thunder.jit(run, te_recipe=getattr(recipes, recipe)())
            for _ in range(3):
                f(x).square().sum().backward()
            found.append([p.grad for p in this.parameters()])
        for a, b in zip(*found):
            torch.testing.assert_close(a, b)


def test_a_gradient_of_a_gradient_is_refused(device: str, recipes: Any) -> None:
    """Rounding has no derivative: it is an error, and not one without the layer."""
    f = thunder.jit(lambda x, w: F.linear(x, w).square().sum(), te_recipe=recipes.Float8CurrentScaling())
    x, w = (_make(device, 16, 16, dtype=torch.float32, seed=s).requires_grad_() for s in (0, 1))
    (g,) = torch.autograd.grad(f(x, w), x, create_graph=True)
    with pytest.raises(Exception, match=r"te_quantize has no gradient rule"):
        g.sum().backward()
    torch.testing.assert_close(thunder.grad(f)(x.detach(), w.detach()), g.detach())


def test_symbolic_sizes(device: str, recipes: Any) -> None:
    """One program for all numbers of rows that can be taken."""
    layer = torch.nn.Linear(32, 16, device=device, dtype=torch.bfloat16)
    f = thunder.jit(layer, te_recipe=recipes.Float8CurrentScaling(), cache="symbolic values")
    for rows in (32, 48, 64):
        out = f(_make(device, rows, 32))
        assert _distance(out, layer(_make(device, rows, 32))) < 0.06
        out.sum().backward()
        assert "te_matmul" in str(thunder.last_traces(f)[-1])
    torch.testing.assert_close(f(_make(device, 17, 32)), layer(_make(device, 17, 32)))
