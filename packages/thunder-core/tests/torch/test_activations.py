# SPDX-License-Identifier: Apache-2.0
"""Activation functions in place, and as modules."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import thunder

_IN_PLACE = (
    "relu",
    "relu6",
    "elu",
    "selu",
    "celu",
    "silu",
    "mish",
    "hardswish",
    "hardsigmoid",
    "hardtanh",
    "leaky_relu",
)


@pytest.mark.parametrize("name", _IN_PLACE)
def test_in_place(name: str) -> None:
    """`inplace=True` writes to the tensor and to its views, and to no other value."""
    fn = getattr(F, name)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        before = y + 0
        z = fn(y[0], inplace=True)
        return before, y, z

    x = torch.linspace(-4, 4, 12).reshape(3, 4)
    for ours, theirs in zip(thunder.jit(program)(x), program(x)):
        torch.testing.assert_close(ours, theirs)
    assert torch.equal(x, torch.linspace(-4, 4, 12).reshape(3, 4))


@pytest.mark.parametrize(
    "module",
    [
        nn.GELU("tanh"), nn.ReLU(), nn.SiLU(), nn.ELU(0.5), nn.Hardtanh(-2, 2), nn.LeakyReLU(0.2), nn.PReLU(4),
        nn.PReLU(), nn.Softplus(2, 3), nn.GLU(), nn.LogSigmoid(), nn.Threshold(0.1, 5), nn.Hardshrink(),
        nn.Softshrink(), nn.CELU(2), nn.Tanhshrink(), nn.Softsign(), nn.Mish(), nn.RReLU().eval(), nn.Sigmoid(),
    ],
    ids=lambda m: type(m).__name__,
)  # fmt: skip
def test_modules(module: nn.Module) -> None:
    """With gradients, of parameters too."""
    x = torch.linspace(-4, 4, 24).reshape(2, 4, 3)[..., :2].contiguous()
    results = []
    for call in (module, thunder.jit(module)):
        leaf = x.clone().requires_grad_()
        out = call(leaf * 1)
        results.append([out, *torch.autograd.grad(out.sum(), [leaf, *module.parameters()])])
    for theirs, ours in zip(*results):
        torch.testing.assert_close(ours, theirs)


def test_training_rrelu_draws_as_eager_does() -> None:
    """The slopes are torch's, and so are the gradients."""
    x = torch.linspace(-4, 4, 12)
    results = []
    for call in (F.rrelu, thunder.jit(lambda x: F.rrelu(x, training=True))):
        leaf = x.clone().requires_grad_()
        torch.manual_seed(1)
        out = call(leaf, training=True) if call is F.rrelu else call(leaf)
        results.append((out, *torch.autograd.grad(out.sum(), leaf)))
    for theirs, ours in zip(*results):
        assert torch.equal(theirs, ours)


def test_the_trace_shows_the_composition() -> None:
    """hardswish is input * relu6(input + 3) / 6."""
    jitted = thunder.jit(F.hardswish)
    jitted(torch.ones(3))
    (bsym,) = [b for b in thunder.last_traces(jitted)[0].bound_symbols if b.sym.id == "torch.hardswish"]
    assert [str(sub.sym.id) for sub in bsym.subsymbols] == ["PrimIDs.ADD", "torch.relu6", "PrimIDs.MUL", "PrimIDs.DIV"]
