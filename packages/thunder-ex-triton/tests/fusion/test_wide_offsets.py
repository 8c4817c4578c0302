# SPDX-License-Identifier: Apache-2.0
"""Tensors whose offsets need 64 bits: views into a large memory, of which only their own pages are touched."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import thunder
from thunder_ex_triton.fusion import region
from thunder_ex_triton.fusion.templates import kernels_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FAR = 1 << 31
_NO_RESERVE = 0x4000  # Linux's MAP_NORESERVE: pages count when they are touched
LONG = 1 << 15  # more columns than fit in a tile


class Case(NamedTuple):
    """A program, and shapes and strides of its tensors."""

    fn: Callable[..., Any]
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    template: str  # of the kernel that reads the tensors


def far(*shape: int, dim: int, step: int | None = None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a shape, and strides that are large in one dimension and otherwise those of a contiguous tensor."""
    step = FAR // (shape[dim] - 1) // 64 * 64 + 64 if step is None else step
    strides, size = [0] * len(shape), 1
    for i in reversed(range(len(shape))):
        strides[i] = step if i == dim else size
        size *= 1 if i == dim else shape[i]
    return shape, tuple(strides)


CASES = {
    "elements": Case(lambda x: x * 1.5, (far(20, 16, dim=0),), "elements"),
    "transposed elements": Case(lambda x: x * 1.5, (far(40, 20, dim=1),), "elements"),
    "tiles": Case(lambda x, y: x * 1.5 + y.mT, (far(64, 40, dim=0), far(40, 64, dim=0)), "tiles"),
    "rows": Case(lambda x: (x * 1.5).sum(-1), (far(20, 64, dim=0),), "rows"),
    "rows along a large stride": Case(lambda x: (x * 1.5).sum(-1), (far(5, 40, dim=1),), "rows"),
    "softmax along a large stride": Case(lambda x: x.softmax(-1), (far(5, 40, dim=1),), "rows"),
    "long rows along a large stride": Case(
        lambda x: (x * 1.5).sum((-2, -1)), (far(2, 17, LONG // 16, dim=1),), "long"
    ),
    "long unaligned rows, and others": Case(
        lambda x, y: (x.exp() * y).sum((-2, -1)), (far(20, 3, LONG // 3, dim=0), far(20, 3, LONG // 3, dim=1)), "long"
    ),
    "columns": Case(lambda x: (x * 1.5).sum(0), (far(40, 64, dim=0),), "columns"),
    "columns along a large stride": Case(lambda x: (x * 1.5).sum(0), (far(8, 40, dim=1),), "columns"),
    "a number for each batch entry": Case(
        lambda x: (x - x[:, :1]).sum((0, 1)), (far(20, 512, 256, dim=0),), "columns"
    ),
    "sums of tiles": Case(lambda x: (x * 1.5).sum((0, 2)), (far(20, 64, 256, dim=0),), "tiles"),
    "rows, and columns of periods": Case(lambda x: x.softmax(-1).sum(0), (far(20, 64, 256, dim=0),), "columns"),
    "columns of a batch": Case(lambda x: (x * 1.5).sum(1), (far(20, 64, 32, dim=0),), "columns"),
    "rows that follow sums of columns": Case(
        lambda x, y: (x * 1.5).sum(0) * y, (far(8, 40, dim=0, step=64), far(40, dim=0)), "finish"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def memory() -> torch.Tensor:
    """Return memory of which offsets of 32 bits, which wrap around, reach other parts."""
    if DEVICE == "cuda":
        return torch.empty(3 * FAR, dtype=torch.float16, device=DEVICE)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    return torch.frombuffer(mmap.mmap(-1, 3 * FAR * 2, flags=flags), dtype=torch.float16)


@pytest.mark.parametrize("name", CASES)
def test_offsets_of_64_bits(memory: torch.Tensor, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are those of a small copy."""
    case, templates = CASES[name], set()

    def note(*args: Any) -> Any:
        kernels = kernels_of(*args)
        templates.update(kernel.template for kernel in kernels)
        return kernels

    monkeypatch.setattr(region, "kernels_of", note)
    given = []
    for i, (shape, strides) in enumerate(case.shapes):
        view = memory.as_strided(shape, strides, FAR + (i << 20))
        torch.manual_seed(i)
        given.append(view.copy_(torch.randn(shape, device=DEVICE) + 1))
        assert sum((d - 1) * s for d, s in zip(shape, strides)) >= FAR or case.template == "finish"
    jitted = thunder.jit(lambda *xs: case.fn(*[x.float() for x in xs]))
    with torch.no_grad():
        found, expected = jitted(*given), case.fn(*[x.contiguous().double() for x in given])
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)
    assert case.template in templates
