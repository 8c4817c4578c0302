# SPDX-License-Identifier: Apache-2.0
"""With the library itself: what `te.Linear` computes, bit for bit, step after step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import thunder
from thunder.toolkit.testing import repeats


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


def _steps(theirs: Any, run: Any, ours: Any, names: dict[str, str], recipe: Any, inputs: int) -> Any:
    """Results and gradients of the library's module and of ours, step after step; `names`: ours by theirs."""
    import transformer_engine.pytorch as te

    f = thunder.jit(ours, te_recipe=recipe, te_fuse_norms=True, te_group_layers=True)
    mine = dict(ours.named_parameters())
    with torch.no_grad():
        for their, our in names.items():
            mine[our].copy_(theirs.get_parameter(their))
    for step in range(4):
        x = torch.randn(256, inputs, device="cuda", dtype=torch.bfloat16) * (step + 1)
        g = None
        found = []
        for module, get in ((theirs, theirs.get_parameter), (ours, lambda name: mine[names[name]])):
            this = x.clone().requires_grad_()
            if module is theirs:
                with te.autocast(recipe=recipe):
                    out = run(this)
            else:
                out = f(this)
            g = torch.randn_like(out) / (step + 1) if g is None else g
            out.backward(g)
            found.append({"out": out.detach(), "x": this.grad, **{n: get(n).grad.clone() for n in names}})
            with torch.no_grad():
                for name in names:
                    get(name).sub_(get(name).grad, alpha=1e-3)
            module.zero_grad()
        yield step, f, *found
        with torch.no_grad():  # what differs in a bit is no other weight in the next step
            for their, our in names.items():
                mine[our].copy_(theirs.get_parameter(their))


@pytest.mark.parametrize("recipe", ["Float8CurrentScaling", "DelayedScaling", "Float8BlockScaling"])
@pytest.mark.parametrize("kind", ["RMSNorm", "LayerNorm"])
def test_as_the_librarys_own_layer_with_a_norm(recipe: str, kind: str, gpu: str, recipes: Any) -> None:
    """To the bit, but for the gradients of the norm, which are thunder's."""
    import transformer_engine.pytorch as te

    torch.manual_seed(0)
    theirs = te.LayerNormLinear(512, 384, normalization=kind, bias=False, params_dtype=torch.bfloat16)
    norm = getattr(torch.nn, kind)(512, eps=1e-5)
    ours = torch.nn.Sequential(norm, torch.nn.Linear(512, 384, bias=False)).to(gpu, torch.bfloat16)
    names = {"layer_norm_weight": "0.weight", "weight": "1.weight"}
    if kind == "LayerNorm":
        names["layer_norm_bias"] = "0.bias"
    for step, f, a, b in _steps(theirs, theirs, ours, names, getattr(recipes, recipe)(), 512):
        assert "te_quantize_norm(" in str(thunder.last_traces(f)[-1])
        for name in a:
            if name in ("out", "weight"):
                assert torch.equal(a[name], b[name]), f"{name} of step {step}: {_distance(a[name], b[name])}"
            else:
                assert _distance(a[name], b[name]) < 1e-2, f"{name} of step {step}"


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / a.double().norm())


class _Experts(torch.nn.Module):
    def __init__(self, bias: bool, sizes: list[int]):
        super().__init__()
        self.each = torch.nn.ModuleList([torch.nn.Linear(256, 384, bias=bias) for _ in sizes])
        self.sizes = sizes

    def forward(self, x: Any) -> Any:
        return torch.cat([layer(piece) for layer, piece in zip(self.each, torch.split(x, self.sizes))])


@pytest.mark.parametrize("recipe", ["Float8CurrentScaling", "DelayedScaling", "Float8BlockScaling"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_as_the_librarys_own_grouped_layer(recipe: str, bias: bool, gpu: str, recipes: Any) -> None:
    """To the bit, but for the biases' gradients, which are added up by another kernel."""
    import transformer_engine.pytorch as te

    torch.manual_seed(0)
    sizes = [64, 144, 48]
    theirs = te.GroupedLinear(3, 256, 384, bias=bias, params_dtype=torch.bfloat16)
    ours = _Experts(bias, sizes).to(gpu, torch.bfloat16)
    names = {f"weight{i}": f"each.{i}.weight" for i in range(3)}
    if bias:
        names.update({f"bias{i}": f"each.{i}.bias" for i in range(3)})
    splits = torch.tensor(sizes)
    made = getattr(recipes, recipe)()
    for step, f, a, b in _steps(theirs, lambda x: theirs(x, splits), ours, names, made, 256):
        assert "te_matmul_groups(" in str(thunder.last_traces(f)[-1])
        for name in a:
            if name.startswith("bias"):
                assert _distance(a[name], b[name]) < 1e-2, f"{name} of step {step}"
            else:
                assert torch.equal(a[name], b[name]), f"{name} of step {step}: {_distance(a[name], b[name])}"


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


class _Block(torch.nn.Module):
    """A norm that a layer reads, and experts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(64)
        self.layer = torch.nn.Linear(64, 256, bias=False)
        self.experts = _Experts(False, [32, 96])

    def forward(self, x: Any) -> Any:
        return self.experts(torch.relu(self.layer(self.norm(x))))


@pytest.mark.parametrize("recipe", ["Float8CurrentScaling", "DelayedScaling", "Float8BlockScaling"])
def test_graphs_of_training(recipe: str, gpu: str, recipes: Any) -> None:
    """Captured forward and backward give what they give otherwise, while weights and scales change."""
    torch.manual_seed(0)
    model = _Block().to(gpu, torch.bfloat16)
    how: dict[str, Any] = {"te_recipe": getattr(recipes, recipe)(), "te_fuse_norms": True}
    plain = thunder.jit(copy.deepcopy(model), **how)
    graphs = thunder.jit(model, transforms=[thunder.transforms.CUDAGraphTransform()], **how)
    for step in range(6):
        x, g = (torch.randn(128, n, device=gpu, dtype=torch.bfloat16) * (step + 1) for n in (64, 384))
        found = []
        for f in (plain, graphs):
            this = x.clone().requires_grad_()
            out = f(this)
            out.backward(g)
            found.append([out.detach().clone(), this.grad, *[p.grad.clone() for p in f.parameters()]])
            with torch.no_grad():
                for p in f.parameters():
                    p.sub_(p.grad, alpha=1e-3)
            f.zero_grad()
        for a, b in zip(*found):
            torch.testing.assert_close(b, a, rtol=1e-2, atol=1e-2 * float(a.abs().max()), msg=lambda m: f"{step}: {m}")


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


@pytest.mark.parametrize("recipe", ["Float8CurrentScaling", "Float8BlockScaling"])
def test_deterministic_algorithms(recipe: str, device: str, recipes: Any) -> None:
    """Results and gradients of norm and layer repeat bit by bit, with scales that depend only on the values."""
    torch.manual_seed(0)
    norm, layer = torch.nn.LayerNorm(256, device=device), torch.nn.Linear(256, 384, device=device)
    f = thunder.jit(
        lambda x, w: torch.nn.functional.linear(norm(x), w, layer.bias),
        te_recipe=getattr(recipes, recipe)(),
        te_fuse_norms=True,
    )
    x = torch.randn(2048, 256, device=device, requires_grad=True)
    assert repeats(f, x, layer.weight)
    assert "te_matmul" in str(thunder.last_traces(f)[-1])
