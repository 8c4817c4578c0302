# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy of logits that a program casts to float32: the kernels read them before the cast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder
from thunder.executors.triton_crossentropy import triton_ex

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROGRAMS: dict[str, Any] = {
    "cast": lambda x, t: F.cross_entropy(x.float(), t),
    "cast and reshape": lambda x, t: F.cross_entropy(x.float().view(-1, x.shape[-1]), t.view(-1)),
    "reshape and cast": lambda x, t: F.cross_entropy(x.view(-1, x.shape[-1]).to(torch.float32), t.view(-1)),
    "losses of rows": lambda x, t: F.cross_entropy(x.float(), t, reduction="none"),
    "smoothed sum": lambda x, t: F.cross_entropy(x.float(), t, reduction="sum", label_smoothing=0.1),
    "ignored rows": lambda x, t: F.cross_entropy(x.float(), t, ignore_index=3),
    "weights": lambda x, t: F.cross_entropy(x.float(), t, torch.arange(1.0, 12.0, device=x.device)),
    "keywords": lambda x, t: F.cross_entropy(input=x.float(), target=t),
    "logits are returned": lambda x, t: (F.cross_entropy((x * 2).float(), t), x * 2)[0],
}
OTHERS: dict[str, Any] = {
    "the cast has another use": lambda x, t: F.cross_entropy((y := x.float()), t) + y.sin().sum(),
    "a wider cast": lambda x, t: F.cross_entropy(x.double(), t),
    "a narrower cast to float32": lambda x, t: F.cross_entropy((x.double() * 2).float(), t),
    "a narrower cast": lambda x, t: F.cross_entropy(x.float().half(), t),
    "two rows in one": lambda x, t: F.cross_entropy(x.float().view(3, 22), t[:3]),
    "probabilities": lambda x, t: F.cross_entropy(x.float(), torch.softmax(x.float(), -1)),
}


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = (4 * torch.randn(6, 11, generator=generator)).to(DEVICE, torch.float16).requires_grad_()
    return x, torch.randint(0, 11, (6,), generator=generator).to(DEVICE)


def results(f: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and the gradient of the logits."""
    x, t = inputs()
    loss = f(x, t)
    (gradient,) = torch.autograd.grad(loss, x, torch.ones_like(loss))
    return loss.detach(), gradient


@pytest.mark.parametrize("name", [*PROGRAMS, *OTHERS])
def test_loss_and_gradient_are_as_eager(name: str) -> None:
    f = (PROGRAMS | OTHERS)[name]
    jitted = thunder.jit(f, executors=[triton_ex])
    found, expected = results(jitted), results(f)
    assert found[0].dtype is expected[0].dtype and found[1].dtype is torch.float16
    rtol = 1e-5 if found[0].dtype.itemsize > 2 else 2e-3
    torch.testing.assert_close(found[0], expected[0], rtol=rtol, atol=1e-5)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-3, atol=1e-6)  # one rounding to float16
    with torch.no_grad():
        torch.testing.assert_close(jitted(*inputs()), expected[0], rtol=rtol, atol=1e-5)
    text = str(thunder.last_traces(jitted)[-1])
    assert ("'float32')" in text) is (name in PROGRAMS)
    assert ("torch.float32" not in text and "Tensor.to" not in text) or name not in PROGRAMS


def test_gradient_of_the_gradient() -> None:
    def twice(f: Any) -> torch.Tensor:
        x, t = inputs()
        (gradient,) = torch.autograd.grad(f(x, t), x, create_graph=True)
        return torch.autograd.grad(gradient.float().square().sum(), x)[0]

    f = PROGRAMS["cast"]
    torch.testing.assert_close(twice(thunder.jit(f, executors=[triton_ex])), twice(f), rtol=1e-2, atol=1e-4)
