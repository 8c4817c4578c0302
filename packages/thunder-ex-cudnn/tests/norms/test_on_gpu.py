# SPDX-License-Identifier: Apache-2.0
"""Norms by cuDNN, on a GPU: against torch in double precision, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder.extend import get_default_executors
from thunder.toolkit.testing import repeats

pytestmark = pytest.mark.skipif(
    "cudnn" not in [ex.name for ex in get_default_executors()], reason="the executor cannot run on this machine"
)

NEAR = {torch.bfloat16: 1.5e-2, torch.float16: 2e-3, torch.float32: 1e-5}


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("dtype", list(NEAR))
@pytest.mark.parametrize("shape", [(512, 1024), (2, 100, 4096), (7, 5), (1, 768), (33, 2, 20000)])
@pytest.mark.parametrize("wide_weight", [True, False])
def test_norms(name: str, dtype: torch.dtype, shape: Any, wide_weight: bool, caplog: Any) -> None:
    """Results and gradients; the sums over rows that are gradients of weights too."""
    x = torch.randn(shape, device="cuda", dtype=dtype).requires_grad_()
    kind = torch.float32 if wide_weight else dtype
    w, b = (torch.randn(shape[-1], device="cuda", dtype=kind).requires_grad_() for _ in range(2))

    def f(x: Any, w: Any, b: Any) -> Any:
        return F.rms_norm(x, w.shape, w, 1e-5) if name == "rms_norm" else F.layer_norm(x, w.shape, w, b, 1e-5)

    found = thunder.jit(f, executors=["cudnn"])
    args = (x, w) if name == "rms_norm" else (x, w, b)
    out = found(x, w, b)
    taken = f"cudnn_{name}_forward(" in str(thunder.last_traces(found)[-1])
    g = torch.randn_like(out)
    grads = torch.autograd.grad(out, args, g)
    wide = [t.detach().double().requires_grad_() for t in (x, w, b)]
    truth = f(*wide)
    expected = torch.autograd.grad(truth, wide[: len(args)], g.double())
    for a, b_ in ((out, truth), *zip(grads, expected)):
        worst = (a.double() - b_).abs().max().item()
        assert worst <= NEAR[a.dtype if a.dtype is not torch.float32 else dtype] * max(b_.abs().max().item(), 1.0)
    assert taken and not caplog.records


@pytest.mark.parametrize("norm", [F.rms_norm, F.layer_norm])
def test_deterministic_algorithms(norm: Any) -> None:
    """Results and gradients repeat bit by bit."""
    x = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    jitted = thunder.jit(lambda x, w: norm(x, w.shape, w, *([w] if norm is F.layer_norm else [])), executors=["cudnn"])
    assert repeats(jitted, x, w)
