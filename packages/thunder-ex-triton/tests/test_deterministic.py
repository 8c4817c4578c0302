# SPDX-License-Identifier: Apache-2.0
"""With deterministic algorithms, results and gradients of the executors' kernels repeat bit by bit."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder
import thunder_ex_triton
from thunder.toolkit.testing import repeats

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# On a GPU there are enough rows that many programs add to each sum.
ROWS = 16384 if DEVICE == "cuda" else 40


def made(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE).requires_grad_()


INDICES = torch.arange(ROWS, device=DEVICE) % 7

CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "sums of columns": (lambda x, w: (torch.sigmoid(x) * w).sum(0), (made(ROWS, 33), made(33))),
    "layer norm": (lambda x, w: F.layer_norm(x, w.shape, w, w), (made(ROWS, 64), made(64))),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), (made(ROWS // 8, 8, 5),)),
    "a broadcast": (lambda x, b: torch.exp(x + b).sum(), (made(ROWS, 16), made(1, 1))),
    "embedding": (lambda w: F.embedding(INDICES.repeat(80), w) * 2.0, (made(7, 40),)),
    "cross-entropy": (lambda x: F.cross_entropy(x, INDICES), (made(ROWS, 50),)),
    "interpolate": (
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
        (made(2, 3, ROWS // 8, 9),),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_repeated_calls(name: str) -> None:
    """Sums over many programs are added in a fixed order."""
    f, inputs = CASES[name]
    jitted = thunder.jit(f, executors=["triton", "triton_crossentropy"])
    assert repeats(jitted, *inputs, times=5 if DEVICE == "cuda" else 2)


def test_no_kernel_uses_atomics() -> None:
    """The order in which programs add by atomics differs between runs. What needs them must ask for the setting."""
    package = Path(thunder_ex_triton.__file__).parent
    found = [
        path.name
        for path in package.rglob("*.py")
        if re.search(r"\batomic_|\b(atom|red)\.(global|shared|add)", path.read_text())
    ]
    assert found == []
