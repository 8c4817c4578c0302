# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters: at first nothing changes, only they are trained, state goes in and out in the original layout."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import thunder
from thunder.transforms import LoRATransform, QuantizationTransform


def model() -> nn.Sequential:
    """Two linear layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3, bias=False))


X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def trained(lora: LoRATransform, module: nn.Module) -> nn.Module:
    """A jitted module after a few steps."""
    fast = thunder.jit(module, transforms=[lora])
    optimizer = torch.optim.SGD([p for p in fast.parameters() if p.requires_grad], lr=0.5)
    for _ in range(3):
        fast(X).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return fast


def test_at_first_nothing_changes() -> None:
    """And the user's module never does."""
    module = model()
    fast = thunder.jit(module, transforms=[LoRATransform(rank=2)])
    torch.testing.assert_close(fast(X), module(X))
    assert all(p.requires_grad for p in module.parameters())
    trainable = [name for name, p in fast.named_parameters() if p.requires_grad]
    assert trainable == ["0.lora_a", "0.lora_b", "2.lora_a", "2.lora_b"]
    assert [tuple(p.shape) for p in fast.parameters() if p.requires_grad] == [(2, 6), (8, 2), (2, 8), (3, 2)]
    assert type(fast.get_submodule("0")).__name__ == "LoRALinear" and isinstance(fast.get_submodule("0"), nn.Linear)


def test_gradients() -> None:
    """Those of the formula, for the adapters alone."""
    module = model()
    fast = thunder.jit(module, transforms=[LoRATransform(rank=2, alpha=3.0, modules=["2"])])
    a, b = fast.get_submodule("2").lora_a, fast.get_submodule("2").lora_b
    with torch.no_grad():
        b.normal_(generator=torch.Generator().manual_seed(2))
    other_a, other_b = (p.detach().clone().requires_grad_() for p in (a, b))
    hidden = torch.tanh(module[0](X))
    expected = module[2](hidden) + hidden @ other_a.t() @ other_b.t() * 1.5
    found = fast(X)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close((a.grad, b.grad), (other_a.grad, other_b.grad))
    assert all(p.grad is None for name, p in fast.named_parameters() if "lora" not in name)
    assert not hasattr(fast.get_submodule("0"), "lora_a")


def test_training() -> None:
    """The loss falls, the base stays."""
    module = model()
    before = [p.detach().clone() for p in module.parameters()]
    fast = trained(LoRATransform(rank=3), module)
    assert fast(X).square().mean() < 0.9 * module(X).square().mean()
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), before))


def test_state_dict() -> None:
    """With the adapters in the weights: the original class loads it and computes the same; so does this one."""
    module, lora = model(), LoRATransform(rank=3)
    fast = trained(lora, module)
    expected = fast(X).detach()
    state = {name: value.clone() for name, value in fast.state_dict().items()}
    assert list(state) == list(module.state_dict())
    plain = model()
    plain.load_state_dict(state)
    torch.testing.assert_close(plain(X), expected)
    fast.load_state_dict(state)
    torch.testing.assert_close(fast(X), expected)
    assert not fast.get_submodule("0").lora_b.any()
    fast.load_state_dict(model().state_dict())
    torch.testing.assert_close(fast(X), model()(X))


def test_adapters() -> None:
    """Saved and loaded by themselves."""
    lora = LoRATransform(rank=3)
    fast = trained(lora, model())
    saved = lora.adapters(fast)
    assert sorted(saved) == ["0.lora_a", "0.lora_b", "2.lora_a", "2.lora_b"]
    other = thunder.jit(model(), transforms=[LoRATransform(rank=3)])
    lora.load_adapters(other, saved)
    torch.testing.assert_close(other(X), fast(X))
    with pytest.raises(KeyError, match=r"missing: \['0.lora_a'\]; unexpected: \['1.lora_a'\]"):
        lora.load_adapters(other, {name.replace("0.lora_a", "1.lora_a"): v for name, v in saved.items()})


def test_dropout() -> None:
    """On what goes into the adapter, in training only."""
    fast = trained(LoRATransform(rank=3, dropout=0.5), model())
    torch.manual_seed(3)
    one, two = fast(X), fast(X)
    assert not torch.equal(one, two)
    torch.manual_seed(3)
    torch.testing.assert_close(fast(X), one)
    fast.eval()
    torch.testing.assert_close(fast(X), fast(X))


def test_over_quantized_weights() -> None:
    """Adapters on int8: their gradients, their state, pickles and copies of them."""
    module = model()
    lora = LoRATransform(rank=2)
    fast = thunder.jit(module, transforms=[QuantizationTransform(), lora])
    assert type(fast.get_submodule("0")).__name__ == "LoRAInt8Linear"
    torch.testing.assert_close(fast(X), thunder.jit(module, transforms=[QuantizationTransform()])(X))
    fast(X).sum().backward()
    assert fast.get_submodule("2").lora_b.grad is not None
    assert list(fast.state_dict()) == list(module.state_dict())
    fast.load_state_dict(module.state_dict())
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        torch.testing.assert_close(other(X), fast(X))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank is a positive integer, not 0"),
        ({"rank": 2.5}, "rank is a positive integer, not 2.5"),
        ({"dropout": 1.0}, "dropout is at least 0 and less than 1, not 1.0"),
    ],
)
def test_options(options: dict[str, float], message: str) -> None:
    """They are checked when they are given."""
    with pytest.raises(ValueError, match=message):
        LoRATransform(**options)  # type: ignore[arg-type]


def test_names() -> None:
    """Nobody of that name, or an option that there is not."""
    with pytest.raises(
        ValueError, match=r"LoRATransform: no torch\.nn\.Linear is called 'q_proj'\. The available names are: 0, 2"
    ):
        thunder.jit(model(), transforms=[LoRATransform(modules=["q_proj"])])
    with pytest.raises(TypeError, match="unexpected keyword argument 'rnak'"):
        LoRATransform(rnak=2)  # type: ignore[call-arg]
