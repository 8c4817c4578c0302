# SPDX-License-Identifier: Apache-2.0
"""Normalization of channels-last images, against torch's in half and in double precision."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thunder
from thunder.extend import bytes_of
from thunder_ex_triton.fusion import iteration_space
from thunder_ex_triton.fusion.region import FusedRegion

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
C = 16


class WideGroupNorm(nn.GroupNorm):
    """Normalizes in single precision."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w, b = (None if p is None else p.float() for p in (self.weight, self.bias))
        return F.group_norm(x.float(), self.num_groups, w, b, self.eps).type(x.dtype)


class Block(nn.Module):
    """A block of a U-Net."""

    def __init__(self, norm: Any):
        super().__init__()
        self.n, self.c = norm(), nn.Conv2d(C, C, 3, padding=1)
        self.m, self.d = norm(), nn.Conv2d(C, C, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.d(F.silu(self.m(self.c(F.silu(self.n(x))))))


NORMS: dict[str, Any] = {
    "four groups": lambda: nn.GroupNorm(4, C),
    "one group": lambda: nn.GroupNorm(1, C),
    "a group for each channel": lambda: nn.GroupNorm(C, C),
    "without weights": lambda: nn.GroupNorm(2, C, affine=False, eps=1e-3),
    "single precision": lambda: WideGroupNorm(4, C),
    "batches": lambda: nn.BatchNorm2d(C),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuse small images."""
    monkeypatch.setattr(iteration_space, "MIN_ENTRY", 512)


def model(norm: Any) -> nn.Module:
    torch.manual_seed(0)
    found = nn.Sequential(nn.Conv2d(C, C, 3, padding=1), nn.AvgPool2d(2, 1), Block(norm))
    for p in found.parameters():
        p.data += torch.randn_like(p) * 0.05
    return found.to(DEVICE, torch.float16)


def images(n: int = 3, size: int = 12) -> torch.Tensor:
    return torch.randn(n, C, size, size, generator=torch.Generator().manual_seed(n)).to(DEVICE, torch.float16) + 3


def step_of(m: nn.Module) -> Any:
    def step(x: torch.Tensor) -> torch.Tensor:
        m.zero_grad()
        out = m(x)
        ((out.double() ** 2).mean() * 100).backward()
        return out.detach()

    return step


def compare(run: Any, mine: nn.Module, m: nn.Module, x: torch.Tensor) -> None:
    """Check results and gradients: they are as close to those in double precision as those of torch are."""
    exact = copy.deepcopy(m).double()
    results = [run(x), step_of(m)(x), step_of(exact)(x.double())]
    everything = zip(*[(r, *[p.grad for p in q.parameters()]) for r, q in zip(results, (mine, m, exact))])
    for found, eager, right in everything:
        assert found.stride() == eager.stride()
        error, usual = ((x - right).square().mean().sqrt() for x in (found, eager))
        assert error <= 1.5 * usual + 1e-3 * right.abs().max() + 2e-3


def regions(trace: Any) -> list[FusedRegion]:
    return [op.sym.fn for op in trace.bound_symbols if isinstance(op.sym.fn, FusedRegion)]


def check_kernels(*traces: Any) -> None:
    """Check that no normalization is left to torch, and that kernels write images in half precision only."""
    for trace in traces:
        assert "group_norm" not in str(trace) and "batch_norm" not in str(trace)
        for fn in regions(trace):
            assert all(bytes_of(p) <= 2 * 3 * C * 12 * 12 for p in fn.outputs)
            assert all(p.dtype.bytes == 2 for p in fn.outputs if p.ndim == 4 and 1 not in p.shape), fn.source


@pytest.mark.parametrize("norm", NORMS)
def test_a_step_of_training(norm: str) -> None:
    m = model(NORMS[norm])
    mine = copy.deepcopy(m)
    jitted = thunder.jit(step_of(mine), triton_channels_last=True)
    compare(jitted, mine, m, images())
    check_kernels(thunder.last_traces(jitted)[-1])


@pytest.mark.parametrize("norm", ["four groups", "without weights", "batches"])
def test_a_backward_program_of_its_own(norm: str) -> None:
    m = model(NORMS[norm])
    mine = copy.deepcopy(m)
    jitted = thunder.jit(mine, triton_channels_last=True)

    def run(x: torch.Tensor) -> torch.Tensor:
        mine.zero_grad()
        out = jitted(x)
        ((out.double() ** 2).mean() * 100).backward()
        return out.detach()

    compare(run, mine, m, images())
    check_kernels(thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1])


def test_a_single_image_and_odd_sizes() -> None:
    m = model(NORMS["four groups"])
    for n, size in ((1, 12), (3, 13)):
        mine = copy.deepcopy(m)
        jitted = thunder.jit(step_of(mine), triton_channels_last=True)
        exact = copy.deepcopy(m).double()
        x = images(n, size)
        error = (jitted(x) - step_of(exact)(x.double())).abs().max()
        assert error < 2e-2
        assert "group_norm" not in str(thunder.last_traces(jitted)[-1])


def test_inference() -> None:
    m = model(NORMS["four groups"]).eval().requires_grad_(False)
    jitted = thunder.jit(m, triton_channels_last=True, cuda_graphs="never")
    x = images()
    torch.testing.assert_close(jitted(x), m(x), rtol=1e-2, atol=1e-2)
    check_kernels(thunder.last_traces(jitted)[-1])
    statistics = [fn for fn in regions(thunder.last_traces(jitted)[-1]) if fn.space.batch == 3]
    assert [fn.template for fn in statistics] == ["columns, finish"] * 2


@pytest.mark.parametrize("norm", ["four groups", "batches"])
def test_results_of_the_program(norm: str) -> None:
    """They have torch's strides."""
    m = nn.Sequential(nn.Conv2d(C, C, 3), NORMS[norm]()).to(DEVICE, torch.float16).eval()
    jitted = thunder.jit(m, triton_channels_last=True)
    x = images()
    with torch.no_grad():
        found, expected = jitted(x), m(x)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
    assert found.stride() == expected.stride()
    check_kernels(thunder.last_traces(jitted)[-1])


def test_variances_of_large_means() -> None:
    """Sums of squares would cancel."""
    m = nn.Sequential(nn.Conv2d(C, C, 1), nn.GroupNorm(4, C)).to(DEVICE, torch.float16).requires_grad_(False)
    m[0].weight.copy_(torch.eye(C)[:, :, None, None])
    m[0].bias.zero_()
    x = (images() - 3) * 0.5 + 1000
    jitted = thunder.jit(m, triton_channels_last=True)
    right = copy.deepcopy(m).double()(x.double())
    assert (jitted(x) - right).abs().max() < 5e-3
    check_kernels(thunder.last_traces(jitted)[-1])


def test_nan_stays_in_its_group() -> None:
    m = nn.Sequential(nn.Conv2d(C, C, 1, groups=4), nn.GroupNorm(4, C)).to(DEVICE, torch.float16)
    x = images().requires_grad_()
    x.data[0, 1, 2, 3] = float("nan")
    x.data[1, 5, 2, 3] = float("inf")
    jitted = thunder.jit(m, triton_channels_last=True)
    found, expected = jitted(x), m(x)
    assert torch.equal(found.isnan(), expected.isnan())
    g = images(3)
    mine, right = (torch.autograd.grad(out, x, g)[0] for out in (found, expected))
    assert torch.equal(mine.isnan(), right.isnan())


def test_small_images_are_left_to_torch() -> None:
    """A program for each of them would have too little to do."""
    m = model(NORMS["four groups"])[2]
    jitted = thunder.jit(m, triton_channels_last=True)
    x = images(size=4)
    torch.testing.assert_close(jitted(x), m(x), rtol=1e-2, atol=1e-2)
    assert "group_norm" in str(thunder.last_traces(jitted)[-1])


def test_backward_computes_normalized_images_again() -> None:
    """Saved are the images that are normalized, and not the results, which activations read."""
    m = model(NORMS["four groups"])
    jitted = thunder.jit(m, triton_channels_last=True, cuda_graphs="never")
    jitted(images()).sum().backward()
    _, saved = thunder.last_traces(jitted)[-1].output
    shape = (3, C, 11, 11)
    assert sum(tuple(p.shape) == shape for p in saved) == 2  # of the pooling and of the first convolution
