# SPDX-License-Identifier: Apache-2.0
"""With the torch executor, results and gradients equal eager's bit by bit.

The exceptions are listed in docs/compatibility.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import thunder
from thunder.tests.gradients import cotangent

Sizes = tuple[tuple[int, ...], ...]
LABELS = torch.arange(24) % 12

ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "celu": lambda x: F.celu(x, 0.7), "elu": lambda x: F.elu(x, 0.6), "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"), "glu": F.glu, "hardshrink": F.hardshrink,
    "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "hardtanh": F.hardtanh, "leaky_relu": F.leaky_relu,
    "logsigmoid": F.logsigmoid, "mish": F.mish, "relu": F.relu, "relu6": F.relu6, "selu": F.selu,
    "sigmoid": torch.sigmoid, "silu": F.silu, "softplus": lambda x: F.softplus(x, 2.0, 3.0),
    "softshrink": F.softshrink, "softsign": F.softsign, "tanh": torch.tanh, "tanhshrink": F.tanhshrink,
}  # fmt: skip

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "acos": lambda x: (x / 20).acos(), "acosh": lambda x: (x.abs() + 1.1).acosh(), "asinh": torch.asinh,
    "atan": torch.atan, "atan2": lambda x: torch.atan2(x, x * 2 + 1), "atanh": lambda x: (x / 20).atanh(),
    "cosh": torch.cosh, "erf": torch.erf, "exp2": torch.exp2, "expm1": torch.expm1,
    "hypot": lambda x: torch.hypot(x, x + 1), "log10": lambda x: x.abs().log10(), "log1p": lambda x: x.abs().log1p(),
    "log2": lambda x: x.abs().log2(), "number - x": lambda x: 1.7 - x,
    "x / x": lambda x: x / (x * x + 1), "pow": lambda x: x.abs() ** 2.5, "cube": lambda x: x**3,
    "x ** x": lambda x: x.abs() ** x, "number ** x": lambda x: 2.5**x, "rsqrt": lambda x: x.abs().rsqrt(),
    "sinc": torch.sinc, "sqrt": lambda x: x.abs().sqrt(), "tan": torch.tan,
    "addcdiv": lambda x: torch.addcdiv(x, x + 1, x.abs() + 1, value=0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x + 1, value=0.3), "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
}  # fmt: skip

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "amax": lambda x: x.amax(1), "cumprod": lambda x: x.cumprod(1), "logsumexp": lambda x: x.logsumexp(1),
    "log_softmax": lambda x: x.log_softmax(1), "mean": lambda x: x.mean(0), "norm": lambda x: x.norm(dim=1),
    "normalize": F.normalize, "prod": lambda x: x.prod(1), "prod of all": lambda x: (x * 0.1 + 1).prod(),
    "prod with zeros": lambda x: (x * (x > 0)).prod(0), "softmax": lambda x: x.softmax(1),
    "std": lambda x: x.std(1), "var": lambda x: x.var(0), "cross": lambda x: torch.linalg.cross(x[:, :3], x[:, 3:6]),
    "a broadcast factor": lambda x: (x.reshape(2, 12, 12) * x[0]).transpose(0, 1) * x[1],
}  # fmt: skip

LOSSES: dict[str, Callable[..., Any]] = {
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x.sigmoid(), (x > 0).to(x.dtype), x[0].detach().abs()),
    "with logits": lambda x: F.binary_cross_entropy_with_logits(x, (x > 0).to(x.dtype)),
    "pos_weight": lambda x: F.binary_cross_entropy_with_logits(x, (x > 0).to(x.dtype), pos_weight=x[0].detach().abs()),
    "cross_entropy": lambda x: F.cross_entropy(x, LABELS), "huber_loss": lambda x: F.huber_loss(x, x * 2),
    "label_smoothing": lambda x: F.cross_entropy(x, LABELS, label_smoothing=0.1),
    "mse_loss": lambda x: F.mse_loss(x, x * 2), "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x * 2),
}  # fmt: skip

NORMALIZATIONS: dict[str, Callable[..., Any]] = {
    "batch_norm": lambda x: F.batch_norm(x, None, None, x[0], x[1], True),
    "group_norm": lambda x: F.group_norm(x, 4, x[0], x[1]), "layer_norm": lambda x: F.layer_norm(x, (12,), x[0], x[1]),
    "rms_norm": lambda x: F.rms_norm(x, (12,), x[0], 1e-5), "rms_norm, no weight": lambda x: F.rms_norm(x, (12,)),
    "dropout": lambda x: F.dropout(x, 0.3),
}  # fmt: skip

ALL = {**ACTIVATIONS, **FUNCTIONS, **REDUCTIONS, **LOSSES, **NORMALIZATIONS}


def _made(*sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(size, generator=generator, dtype=torch.float64).to(dtype) for size in sizes]


def _run(call: Callable[..., Any], given: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [x.clone().requires_grad_() for x in given]
    torch.manual_seed(1)
    out = call(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, cotangent(out))]


def _is_equal(function: Callable[..., Any], given: list[torch.Tensor]) -> bool:
    ours, theirs = _run(thunder.jit(function, executors=["torch"]), given), _run(function, given)
    return all(torch.equal(a, b) for a, b in zip(ours, theirs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALL)
def test_equals_eager(name: str, dtype: torch.dtype) -> None:
    """The result and the gradient of a function of one tensor."""
    (x,) = _made((24, 12), dtype=dtype)
    assert _is_equal(ALL[name], [x * 3])


def _attention(**how: Any) -> Callable[..., Any]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **how)


QKV = ((2, 4, 9, 8),) * 3
HALF = ((2, 4, 9, 8), (2, 2, 9, 8), (2, 2, 9, 8))
MASK = torch.ones(9, 9).tril(-1).bool()
OF_SEVERAL: dict[str, tuple[Callable[..., Any], Sizes]] = {
    "addbmm": (lambda c, a, b: torch.addbmm(c, a, b, beta=0.2, alpha=0.6), ((5, 8), (3, 5, 7), (3, 7, 8))),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.2, alpha=0.6), ((8,), (5, 7), (7, 8))),
    "addmv": (lambda c, a, b: torch.addmv(c, a, b, alpha=0.6), ((5,), (5, 7), (7,))),
    "addr": (lambda c, a, b: torch.addr(c, a, b, alpha=0.6), ((5, 7), (5,), (7,))),
    "attention": (_attention(), QKV),
    "attention, dropout": (_attention(dropout_p=0.2), QKV),
    "attention, mask and dropout": (_attention(dropout_p=0.2, attn_mask=MASK), QKV),
    "attention, shared heads": (_attention(dropout_p=0.2, enable_gqa=True), HALF),
    "attention, three dimensions": (_attention(scale=0.7), ((4, 9, 8),) * 3),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1), ((2, 6, 20), (4, 6, 3), (4,))),
    "conv2d": (F.conv2d, ((2, 6, 9, 9), (4, 6, 3, 3), (4,))),
    "conv2d, groups": (lambda x, w, b: F.conv2d(x, w, b, groups=2), ((2, 6, 9, 9), (4, 3, 3, 3), (4,))),
    "conv_transpose2d": (lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2), ((2, 6, 5, 5), (6, 4, 3, 3), (4,))),
    "linear": (F.linear, ((3, 7, 9), (11, 9), (11,))),
    "matmul, heads": (lambda a, b: a.transpose(1, 2) @ b.transpose(1, 2).mT, ((3, 16, 4, 8), (3, 16, 4, 8))),
    "transposed gradients": (lambda a, w: (a * w).transpose(1, 2) @ a.transpose(1, 2).mT, ((3, 16, 4, 8), (8,))),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_SEVERAL)
def test_functions_of_several_tensors(name: str) -> None:
    """The result and all gradients."""
    function, sizes = OF_SEVERAL[name]
    assert _is_equal(function, _made(*sizes))


@pytest.mark.parametrize("operation", [torch.mul, torch.true_divide, torch.div])
def test_a_scalar_tensor_of_another_precision(operation: Callable[..., Any]) -> None:
    """torch's kernels do not round it to the precision of the other operand."""
    for x, y in (((24, 12), ()), ((1, 1), ())):
        a, b = _made(x, dtype=torch.bfloat16) + _made(y)
        assert _is_equal(operation, [a, b + 3])


def test_sums_of_several_gradients() -> None:
    """The gradients that flow into one value are added in eager's order."""

    def used_often(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return (y * x).cos() * y.exp() + y.tanh() * x + (y + x) / (y * y + 1.0)

    assert _is_equal(used_often, _made((40, 12)))


class _Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.group, self.batch = nn.GroupNorm(2, 8), nn.BatchNorm2d(8)
        self.norm, self.head = nn.RMSNorm(8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.group(self.first(x)))
        x = F.elu(self.batch(self.second(x))) + torch.sigmoid(x) * x
        x = self.norm(F.dropout(F.softplus(x), 0.1).mean((2, 3)))
        return F.cross_entropy(self.head(x), labels)


def test_a_training_run() -> None:
    """The losses and all parameters after steps of SGD."""
    images, labels = torch.randn(4, 3, 8, 8), torch.arange(4)

    def train(jitted: bool) -> tuple[list[float], list[torch.Tensor]]:
        torch.manual_seed(0)
        network = _Network()
        call = thunder.jit(network, executors=["torch"]) if jitted else network
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = call(images, labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, [x.detach() for x in network.state_dict().values()]

    (losses, state), (expected, expected_state) = train(True), train(False)
    assert losses == expected
    assert all(torch.equal(a, b) for a, b in zip(state, expected_state))


# torch has no second derivative of hardsigmoid.
@pytest.mark.parametrize("name", [*sorted({*ACTIVATIONS} - {"hardsigmoid"}), "prod", "cumprod", "rms_norm", "cross"])
def test_second_derivatives(name: str) -> None:
    """A kernel is differentiated through the gradient rule that it stands for."""
    function = ALL[name]
    (x,) = _made((6, 6), dtype=torch.float64)
    if name == "rms_norm":
        function = lambda x: F.rms_norm(x, (6,), x[0], 1e-5)  # noqa: E731

    def second(call: Callable[..., Any]) -> torch.Tensor:
        leaf = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(call(leaf).sin().sum(), leaf, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), leaf)[0]

    torch.testing.assert_close(second(thunder.jit(function, executors=["torch"])), second(function))


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "elu", "glu", "prod", "cumprod"])
def test_kernels_under_vmap_and_jvp(name: str) -> None:
    """Both transform the decomposition."""
    function = ALL[name]
    (x,) = _made((3, 6, 6), dtype=torch.float64)

    def gradients(x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(torch.func.grad(lambda row: function(row).sin().sum()))(x)

    def tangent(x: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(torch.func.grad(lambda a: function(a).sin().sum()), (x[0],), (x[1],))[1]

    for call in (gradients, tangent):
        torch.testing.assert_close(thunder.jit(call, executors=["torch"])(x), call(x))
