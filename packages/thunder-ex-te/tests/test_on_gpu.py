# SPDX-License-Identifier: Apache-2.0
"""With the library itself: what `te.Linear` computes, bit for bit, step after step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import thunder


@pytest.fixture
def gpu(device: str) -> str:
    """A GPU."""
    if device != "cuda":
        pytest.skip("needs TransformerEngine and a Hopper GPU")
    return device


@pytest.mark.parametrize("recipe", ["Float8CurrentScaling", "DelayedScaling", "Float8BlockScaling"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_as_the_librarys_own_layer(recipe: str, bias: bool, gpu: str, recipes: Any) -> None:
    """Results and gradients of four steps, while the weight and the scales change."""
    import transformer_engine.pytorch as te

    torch.manual_seed(0)
    made = getattr(recipes, recipe)()
    theirs = te.Linear(256, 384, bias=bias, params_dtype=torch.bfloat16)
    layer = torch.nn.Linear(256, 384, bias=bias, device=gpu, dtype=torch.bfloat16)
    layer.load_state_dict({k: v for k, v in theirs.state_dict().items() if k in ("weight", "bias")})
    f = thunder.jit(layer, te_recipe=made)
    for step in range(4):
        x = torch.randn(2, 64, 256, device=gpu, dtype=torch.bfloat16) * (step + 1)
        g = torch.randn(2, 64, 384, device=gpu, dtype=torch.bfloat16) / (step + 1)
        found = []
        for run, parameters in ((theirs, theirs), (f, layer)):
            this = x.clone().requires_grad_()
            if run is theirs:
                with te.autocast(recipe=made):
                    out = run(this)
            else:
                out = run(this)
            out.backward(g)
            found.append([out.detach(), this.grad, parameters.weight.grad.clone()])
            with torch.no_grad():
                parameters.weight.sub_(parameters.weight.grad, alpha=1e-3)
            parameters.zero_grad()
        for a, b in zip(*found):
            assert torch.equal(a, b), f"step {step}: {float((a.double() - b.double()).norm() / a.double().norm())}"


def test_graphs_follow_the_parameter(gpu: str, recipes: Any) -> None:
    """A captured program quantizes the weight each time that it runs."""
    layer = torch.nn.Linear(64, 32, device=gpu, dtype=torch.bfloat16)
    x = torch.randn(16, 64, device=gpu, dtype=torch.bfloat16)
    f = thunder.jit(
        layer, transforms=[thunder.transforms.CUDAGraphTransform()], te_recipe=recipes.Float8CurrentScaling()
    )
    plain = thunder.jit(copy.deepcopy(layer), te_recipe=recipes.Float8CurrentScaling())
    with torch.no_grad():
        for _ in range(5):
            assert torch.equal(f(x), plain(x))
            layer.weight.mul_(-0.5)
            plain.weight.mul_(-0.5)


def test_products_run_in_fp8(gpu: str, recipes: Any) -> None:
    """By the kernels' own names."""
    from torch.profiler import ProfilerActivity, profile

    layer = torch.nn.Linear(1024, 1024, bias=False, device=gpu, dtype=torch.bfloat16)
    f = thunder.jit(layer, te_recipe=recipes.Float8CurrentScaling())
    x = torch.randn(1024, 1024, device=gpu, dtype=torch.bfloat16, requires_grad=True)
    f(x).sum().backward()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        f(x).sum().backward()
        torch.cuda.synchronize()
    names = [row.key for row in seen.key_averages()]
    assert any("e4m3" in name for name in names), names
