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
    "instances": lambda: nn.InstanceNorm2d(C),
    "instances with running statistics": lambda: nn.InstanceNorm2d(C, affine=True, track_running_stats=True),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuse small images."""
    monkeypatch.setattr(iteration_space, "MIN_ENTRY", 512)


def model(norm: Any) -> nn.Module:
    torch.manual_seed(0)
    found = nn.Sequential(nn.Conv2d(C, C, 3, padding=1), Block(norm))
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


def check_error(found: torch.Tensor, eager: torch.Tensor, right: torch.Tensor) -> None:
    """Check that a result has eager's layout, and is as close to that in double precision as eager's is."""
    assert found.stride() == eager.stride()
    error, usual = ((x - right).square().mean().sqrt() for x in (found, eager))
    assert error <= 1.5 * usual + 1e-3 * right.abs().max() + 2e-3


def compare(run: Any, mine: nn.Module, m: nn.Module, x: torch.Tensor) -> None:
    """Check results and gradients: they are as close to those in double precision as those of torch are."""
    exact = copy.deepcopy(m).double()
    results = [run(x), step_of(m)(x), step_of(exact)(x.double())]
    everything = zip(*[(r, *[p.grad for p in q.parameters()]) for r, q in zip(results, (mine, m, exact))])
    for found, eager, right in everything:
        check_error(found, eager, right)
    for found, right in zip(mine.buffers(), exact.buffers()):
        assert (found - right).abs().max() <= 1e-3 * right.abs().max() + 2e-3


def regions(trace: Any) -> list[FusedRegion]:
    return [op.sym.fn for op in trace.bound_symbols if isinstance(op.sym.fn, FusedRegion)]


def check_kernels(*traces: Any) -> None:
    """Check that no normalization is left to torch, and that kernels write images in half precision only."""
    for trace in traces:
        assert not {name for name in ("group_norm", "batch_norm", "instance_norm") if name in str(trace)}
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


@pytest.mark.parametrize("norm", ["four groups", "without weights", "batches", "instances with running statistics"])
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


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("norm", ["four groups", "batches", "instances with running statistics"])
def test_a_norm_before_the_end_of_the_program(norm: str, training: bool) -> None:
    """The gradient comes from outside, in any layout. The image was saved channels-last."""
    m = nn.Sequential(nn.Conv2d(C, C, 3), NORMS[norm](), nn.SiLU()).to(DEVICE, torch.float16).train(training)
    mine = copy.deepcopy(m)
    jitted = thunder.jit(mine, triton_channels_last=True)

    def run(x: torch.Tensor) -> torch.Tensor:
        out = jitted(x)
        ((out.double() ** 2).mean() * 100).backward()
        return out.detach()

    compare(run, mine, m, images())
    for trace in (thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]):
        assert not [op for op in trace.bound_symbols if "_norm" in op.sym.name]


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("shape", [(2, 5, 7, 9), (3, 4, 11)], ids=str)
def test_instances_of_contiguous_images(shape: tuple[int, ...], training: bool) -> None:
    """Each row of a kernel is an instance, forward and backward, with what comes before and after."""
    kind = nn.InstanceNorm2d if len(shape) == 4 else nn.InstanceNorm1d
    generator = torch.Generator().manual_seed(0)
    x, r, g = (torch.randn(shape, generator=generator).to(DEVICE) for _ in range(3))
    for options in ({}, {"affine": True, "track_running_stats": True}):
        m = kind(shape[1], **options).to(DEVICE).train(training)
        for i, p in enumerate(m.parameters()):
            p.data += torch.linspace(-0.3, 0.4 + i, len(p), device=DEVICE)
        mine, exact = copy.deepcopy(m), copy.deepcopy(m).double()
        jitted = thunder.jit(lambda x, r: F.silu(mine(x * 3)) + r, executors=["triton"])
        results = []
        for n, fn, dtype in ((mine, jitted, x.dtype), (exact, lambda x, r: F.silu(exact(x * 3)) + r, torch.double)):
            given = [p.detach().to(dtype).requires_grad_() for p in (x, r)]
            out = fn(*given)
            results.append([out, *torch.autograd.grad(out, [*given, *n.parameters()], g.to(dtype)), *n.buffers()])
        for found, right in zip(*results):
            torch.testing.assert_close(found, right.to(found.dtype), rtol=2e-5, atol=2e-5)
        forward, backward = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
        for trace in (forward, backward):
            assert not [op for op in trace.bound_symbols if "_norm" in op.sym.name]
            assert len([fn for fn in regions(trace) if fn.space.size == x.numel()]) == 1


def test_instances_in_inference() -> None:
    """The running statistics are updated by kernels, too."""
    m = nn.Sequential(nn.Conv2d(C, C, 3), NORMS["instances with running statistics"]()).to(DEVICE, torch.float16)
    mine, exact = copy.deepcopy(m), copy.deepcopy(m).double()
    jitted = thunder.jit(mine, triton_channels_last=True, cuda_graphs="never")
    x = images()
    for training in (True, False):
        for n in (jitted, m, exact):
            n.train(training)
        with torch.no_grad():
            check_error(jitted(x), m(x), exact(x.double()))
        torch.testing.assert_close([*mine.buffers()], [*m.buffers()], rtol=2e-3, atol=2e-3)
        assert not [op for op in thunder.last_traces(jitted)[-1].bound_symbols if "_norm" in op.sym.name]


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
    m = nn.Sequential(model(NORMS["four groups"]), nn.AvgPool2d(2)).eval().requires_grad_(False)
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
    m = model(NORMS["four groups"])[1]
    jitted = thunder.jit(m, triton_channels_last=True)
    x = images(size=4)
    torch.testing.assert_close(jitted(x), m(x), rtol=1e-2, atol=1e-2)
    assert "group_norm" in str(thunder.last_traces(jitted)[-1])
