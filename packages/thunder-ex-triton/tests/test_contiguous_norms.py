# SPDX-License-Identifier: Apache-2.0
"""Normalization of contiguous images, forward and backward, against eager mode in double precision."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thunder
from thunder_ex_triton import contiguous_norms
from thunder_ex_triton.fusion.region import FusedRegion

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISION = {torch.float16: 2e-3, torch.float32: 5e-6, torch.float64: 1e-11}


def batches(rank: int, channels: int, **options: Any) -> nn.Module:
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[rank]
    return kind(channels, **options)


def prepared(m: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a module whose parameters and statistics are not those of a new one."""
    for i, x in enumerate([*m.parameters(), *[b for b in m.buffers() if b.is_floating_point()]]):
        x.data += torch.linspace(0.1, 0.5 + i, len(x))
    return m.to(DEVICE, dtype)


def regions(trace: Any) -> list[FusedRegion]:
    return [op.sym.fn for op in trace.bound_symbols if isinstance(op.sym.fn, FusedRegion)]


def norms_left(jitted: Any) -> list[str]:
    traces = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    return [op.sym.name for trace in traces for op in trace.bound_symbols if "_norm" in op.sym.name]


def templates(jitted: Any, size: int) -> list[list[str]]:
    """Return the templates of the kernels that read images, in forward and in backward."""
    traces = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    return [[fn.template for fn in regions(trace) if fn.space.size == size] for trace in traces]


def check(
    m: nn.Module, x: torch.Tensor, act: Callable[[Any], Any] = F.silu, error: float | None = None, **options: Any
) -> Any:
    """Check results, gradients and statistics of `act(m(x * 2)) + r`. Return the jitted function."""
    generator = torch.Generator().manual_seed(1)
    r, g = (torch.randn(x.shape, generator=generator).to(x) for _ in range(2))
    mine, exact = copy.deepcopy(m), copy.deepcopy(m).double()
    jitted = thunder.jit(lambda x, r: act(mine(x * 2)) + r, executors=["triton"], **options)
    results: list[Any] = []
    for n, fn, dtype in ((mine, jitted, x.dtype), (exact, lambda x, r: act(exact(x * 2)) + r, torch.double)):
        given = [p.detach().to(dtype).requires_grad_() for p in (x, r)]
        out = fn(*given)
        results.append([out, *torch.autograd.grad(out, [*given, *n.parameters()], g.to(dtype)), *n.buffers()])
    bound = PRECISION[x.dtype] if error is None else error
    for found, right in zip(*results):
        assert found.stride() == right.stride()
        assert (found - right).double().norm() <= bound * (right.double().norm() + 1), (found, right)
    return jitted


def images(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) + 1).to(DEVICE, dtype)


@pytest.fixture(params=["one program for each channel", "rows of pixels", "parts of rows"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Choose the kernels of large images for small ones."""
    if request.param != "one program for each channel":
        monkeypatch.setattr(contiguous_norms, "_ROW_OF_CHANNEL", 0)
    if request.param == "parts of rows":
        split_rows(monkeypatch)
    return str(request.param)


def split_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contiguous_norms, "_LONG_ROW", 8)
    monkeypatch.setattr(contiguous_norms, "_SHORT_ROW", 8)


SHAPES = [(3, 5, 8, 6), (1, 4, 3, 7), (2, 6, 2, 3, 4), (7, 12), (3, 4, 1, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batches(kernels: str, shape: tuple[int, ...]) -> None:
    jitted = check(prepared(batches(len(shape), shape[1])), images(*shape))
    assert not norms_left(jitted)
    if kernels == "one program for each channel" and math.prod(shape[2:]) > 1:
        assert templates(jitted, math.prod(shape)) == [["rows"], ["rows"]]


@pytest.mark.parametrize("options", [{"affine": False}, {"track_running_stats": False}, {"momentum": None}], ids=str)
def test_options_of_batches(options: dict[str, Any]) -> None:
    m = prepared(batches(4, 5, eps=1e-2, **options))
    assert not norms_left(check(m, images(3, 5, 4, 6), F.relu))
    assert not norms_left(check(m.eval(), images(3, 5, 4, 6), F.gelu))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("norm", [lambda: batches(4, 6), lambda: nn.GroupNorm(2, 6)], ids=["batches", "groups"])
def test_dtypes(kernels: str, norm: Any, dtype: torch.dtype) -> None:
    assert not norms_left(check(prepared(norm(), dtype), images(3, 6, 4, 6, dtype=dtype)))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    ("shape", "groups"), [((3, 6, 4, 6), 2), ((1, 6, 2, 3, 4), 1), ((3, 4, 7), 4), ((5, 6), 2)], ids=str
)
def test_groups(shape: tuple[int, ...], groups: int, split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if split:
        split_rows(monkeypatch)
    assert not norms_left(check(prepared(nn.GroupNorm(groups, shape[1])), images(*shape)))
    check(nn.GroupNorm(groups, shape[1], affine=False), images(*shape))


def test_few_instances_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    split_rows(monkeypatch)
    m = prepared(nn.InstanceNorm2d(3, affine=True, track_running_stats=True))
    jitted = check(m, images(2, 3, 8, 8))
    assert any(fn.space.rows == 2 * 3 * 8 for fn in regions(thunder.last_traces(jitted)[-1]))


def test_kernels_write_images_once() -> None:
    """The kernel of sums writes the gradient of what follows the norm, and the last kernel that of the image."""
    m = prepared(nn.GroupNorm(2, 6), torch.float16)
    jitted = check(m, images(3, 6, 4, 6, dtype=torch.float16))
    found = regions(thunder.last_backward_traces(jitted)[-1])
    assert len(found) == 4  # the sums, numbers of each channel, the image's gradient, and those of weight and bias
    for fn in found:
        assert all(p.dtype.bytes == 2 for p in fn.outputs if math.prod(p.shape) == 3 * 6 * 4 * 6), fn.source


def test_means_far_from_zero(kernels: str) -> None:
    """The rounding of such a mean is 3e-5 of a standard deviation of one."""
    x = images(4, 6, 5, 7) * 0.5 + 500
    for m in (batches(4, 6), nn.GroupNorm(2, 6)):
        assert not norms_left(check(prepared(m), x, error=3e-4))


def test_nan_stays_in_its_channel(kernels: str) -> None:
    x = images(3, 6, 4, 6)
    x[1, 2, 0, 0], x[1, 4, 3, 5] = math.nan, math.inf
    for norm in (batches(4, 6), nn.GroupNorm(2, 6)):
        m = prepared(norm)
        found: list[Any] = []
        for fn in (thunder.jit(lambda x, m=m: m(x), executors=["triton"]), m):
            given = x.clone().requires_grad_()
            out = fn(given)
            found.append((out.isnan(), torch.autograd.grad(out, given, x.nan_to_num(0, 0))[0].isnan()))
        assert all(torch.equal(a, b) for a, b in zip(*found))


@pytest.mark.parametrize("order", ["an input", "an intermediate value"])
def test_images_in_another_order_are_left_to_torch(order: str) -> None:
    """Kernels of rows would read each sector of memory several times."""
    m = prepared(batches(4, 16))
    x = images(3, 4, 6, 16).permute(0, 3, 1, 2) if order == "an input" else images(3, 4, 6, 16)
    jitted = thunder.jit(lambda x: m(x if order == "an input" else x.permute(0, 3, 1, 2)), executors=["triton"])
    jitted(x.requires_grad_()).sum().backward()
    assert norms_left(jitted) == ["batch_norm_forward", "batch_norm_backward"]


def test_channels_last_programs_stay_the_same() -> None:
    """Also where the backward program has no convolution."""
    m = nn.Sequential(nn.Conv2d(16, 16, 3).requires_grad_(False), batches(4, 16)).to(DEVICE, torch.float16)
    jitted = thunder.jit(m)
    x = images(2, 16, 6, 6, dtype=torch.float16)
    jitted(x).sum().backward()
    assert norms_left(jitted) == ["batch_norm_backward"]


def test_a_training_step() -> None:
    """Its trace has no backward program of its own."""
    m = prepared(batches(4, 6))
    mine = copy.deepcopy(m)

    def step(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = (F.relu(m(x)) ** 2).sum()
        loss.backward()
        return loss.detach()

    jitted = thunder.jit(lambda x: step(mine, x), executors=["triton"])
    x = images(3, 6, 4, 6)
    torch.testing.assert_close(jitted(x), step(m, x))
    torch.testing.assert_close([p.grad for p in mine.parameters()], [p.grad for p in m.parameters()])
    torch.testing.assert_close([*mine.buffers()], [*m.buffers()])
    assert not [op for op in thunder.last_traces(jitted)[-1].bound_symbols if "_norm" in op.sym.name]


def test_training_without_gradients() -> None:
    m = prepared(batches(4, 6))
    mine = copy.deepcopy(m)
    jitted = thunder.jit(lambda x: mine(x), executors=["triton"])
    with torch.no_grad():
        torch.testing.assert_close(jitted(images(3, 6, 4, 6)), m(images(3, 6, 4, 6)))
    torch.testing.assert_close([*mine.buffers()], [*m.buffers()])
    assert not [op for op in thunder.last_traces(jitted)[-1].bound_symbols if "_norm" in op.sym.name]


def test_second_derivatives() -> None:
    for norm in (batches(3, 4), nn.GroupNorm(2, 4)):
        m = prepared(norm, torch.float64)
        mine = copy.deepcopy(m)
        jitted = thunder.jit(lambda x, mine=mine: F.silu(mine(x)), executors=["triton"])
        results = []
        for fn, n in ((jitted, mine), (lambda x, m=m: F.silu(m(x)), m)):
            x = images(3, 4, 5, dtype=torch.float64).requires_grad_()
            (g,) = torch.autograd.grad((fn(x) ** 2).sum(), x, create_graph=True)
            results.append(torch.autograd.grad((g**2).sum(), [x, *n.parameters()]))
        torch.testing.assert_close(*results)


@pytest.mark.parametrize("norm", [lambda: batches(4, 6), lambda: nn.GroupNorm(2, 6)], ids=["batches", "groups"])
def test_sizes_may_be_symbolic(norm: Any) -> None:
    m = prepared(norm())
    mine = copy.deepcopy(m)
    jitted = thunder.jit(lambda x: F.silu(mine(x)), executors=["triton"], cache="symbolic values")
    for n, size in ((3, 4), (5, 6), (2, 9)):
        results = []
        for fn, own in ((jitted, mine), (lambda x: F.silu(m(x)), m)):
            x = images(n, 6, size, size).requires_grad_()
            out = fn(x)
            results.append([out, *torch.autograd.grad(out, [x, *own.parameters()], torch.ones_like(out))])
        torch.testing.assert_close(*results, rtol=1e-4, atol=2e-5)
        torch.testing.assert_close([*mine.buffers()], [*m.buffers()])
    assert thunder.cache_misses(jitted) == 1


def test_casts_are_part_of_the_kernels() -> None:
    """Kernels read images in half precision that are cast for the norm."""
    m = prepared(nn.GroupNorm(2, 6))
    x = images(3, 6, 4, 6, dtype=torch.float16).requires_grad_()
    jitted = thunder.jit(lambda x: F.silu(m(x.float())).half(), executors=["triton"])
    out = jitted(x)
    out.backward(torch.ones_like(out))
    for trace in (thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]):
        for fn in regions(trace):
            assert all(p.dtype.bytes == 2 for p in (*fn.inputs, *fn.outputs) if p.numel == 432), fn.source


@pytest.mark.parametrize("times", [1, 2])
def test_running_statistics_are_written_in_place(kernels: str, times: int) -> None:
    """Also by a norm that runs twice: its second run reads the statistics of the first."""
    m = prepared(batches(4, 6))
    mine = copy.deepcopy(m)

    def run(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for _ in range(times):
            x = F.relu(m(x))
        return x

    jitted = thunder.jit(lambda x: run(mine, x), executors=["triton"])
    x = images(3, 6, 4, 6)
    before = [b._version for b in mine.buffers()]
    for _ in range(2):
        torch.testing.assert_close(jitted(x), run(m, x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close([*mine.buffers()], [*m.buffers()])
    assert all(b._version > version for b, version in zip(mine.buffers(), before))
    assert "copy_" not in str(thunder.last_traces(jitted)[-1])
