# SPDX-License-Identifier: Apache-2.0
"""Programs with convolutions: their layout inside, and values, strides and gradients outside."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thunder
from thunder_ex_triton.channels_last import OPTION

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.float16  # Triton's interpreter rounds bfloat16 differently
CHANNELS = 16


class Block(nn.Module):
    """Two convolutions, one normalized, one with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(CHANNELS)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.first(x)) + self.second(x))


def image(*shape: int, mean: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) + mean).to(DEVICE, HALF)


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    found = nn.Sequential(Block(), Block())
    with torch.no_grad():
        for p in found.parameters():
            if p.ndim == 1:
                p.add_(torch.rand_like(p))
    return found.to(DEVICE, HALF)


def ordered(jitted: Any) -> int:
    """Count the operations that set a layout, before a CUDA graph replaces them."""
    counts = [sum(op.sym.name == "stride_order" for op in t.bound_symbols) for t in thunder.last_traces(jitted)]
    return max(counts)


def orders_of(jitted: Any) -> list[tuple[int, ...]]:
    """Return the orders of memory that operations of the program set."""
    return [op.args[1] for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.name == "stride_order"]


def compare(fn: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> Any:
    """Compare results and gradients with eager mode: strides exactly, values by their distance to float64."""
    jitted = thunder.jit(copy.deepcopy(fn), **options)
    wide = copy.deepcopy(fn).double() if isinstance(fn, nn.Module) else fn
    runs = []
    for f, dtype in ((jitted, HALF), (copy.deepcopy(fn), HALF), (wide, torch.float64)):
        given = [x.detach().to(dtype).requires_grad_() for x in inputs]
        out = f(*given)
        out.backward(torch.linspace(-1, 1, out.numel(), device=DEVICE, dtype=dtype).reshape(out.shape))
        parameters = list(f.parameters()) if isinstance(fn, nn.Module) else []
        buffers = [b for b in f.buffers() if b.ndim] if isinstance(fn, nn.Module) else []
        runs.append([out.detach(), *buffers, *[p.grad for p in (*given, *parameters)]])
    for ours, eager, exact in zip(*runs):
        assert ours.stride() == eager.stride()
        limit = 1.5 * (eager.double() - exact).norm() + 2e-3 * exact.norm()
        assert (ours.double() - exact).norm() <= limit
    return jitted


def test_training() -> None:
    """Forward and backward as separate programs."""
    jitted = compare(model(), image(3, CHANNELS, 7, 5))
    assert ordered(jitted) > 0
    wide = [
        p
        for traces in (thunder.last_traces(jitted), thunder.last_backward_traces(jitted))
        for op in traces[-1].bound_symbols
        for p in op.flat_outs
        if getattr(p, "ndim", 0) == 4 and p.dtype is thunder.dtypes.float32
    ]
    assert not wide  # no kernel writes an image in float32 for another kernel


def test_training_step() -> None:
    """One program, with running statistics and an update."""
    losses = []
    for jit in (False, True):
        net, head = model(), nn.Linear(CHANNELS, 4).to(DEVICE, HALF)
        with torch.no_grad():
            head.weight.fill_(0.1).mul_(torch.arange(4, device=DEVICE)[:, None])
            head.bias.zero_()
        optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(head(net(x).mean((2, 3))), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = thunder.jit(step) if jit else step
        y = torch.arange(3, device=DEVICE) % 4
        losses.append([run(image(3, CHANNELS, 7, 5), y).item() for _ in range(4)])
        strides = [p.grad.stride() for p in net.parameters()]
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)
    assert strides == [p.stride() for p in net.parameters()]
    assert ordered(run) > 0


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("of_weights", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("of_image", [torch.contiguous_format, torch.channels_last])
def test_gradients_are_ordered_like_inputs(of_image: Any, of_weights: Any, autocast: bool) -> None:
    """Nobody copies them afterwards: neither autograd for parameters, nor what computed a channels-last image."""
    net = model().to(torch.float32 if autocast else HALF, memory_format=of_weights)
    x = image(3, CHANNELS, 7, 5).to(memory_format=of_image).requires_grad_()
    jitted = thunder.jit(net, cuda_graphs="never")
    wrt = [x, *net.parameters()]
    runs = []
    for f in (jitted, net):
        with torch.autocast(DEVICE, HALF, enabled=autocast):
            out = f(x)
        runs.append(torch.autograd.grad(out.float().square().mean(), wrt))
    for ours, eager, p in zip(*runs, wrt):
        assert ours.stride() == p.stride()
        torch.testing.assert_close(ours, eager, rtol=5e-2, atol=2e-2)


class ReadsStrides(torch.autograd.Function):
    """The identity, whose backward returns the elements of the gradient in the order of memory."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return torch.as_strided(g, (4 * CHANNELS, 3), (3, 1)).reshape(g.shape)


def gradients(fn: Callable[..., Any], *inputs: torch.Tensor, **how: Any) -> list[tuple[Any, ...]]:
    """Return gradients as in eager mode, and jitted."""
    runs = []
    for f in (fn, thunder.jit(fn, triton_channels_last=True, cuda_graphs="never")):
        out = f(*inputs)
        runs.append(
            torch.autograd.grad(out, inputs, torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out), **how)
        )
    torch.testing.assert_close(*runs, rtol=2e-2, atol=2e-2)
    return runs


def test_gradients_of_weights_that_something_reads() -> None:
    """They have eager mode's order, on which an operation may depend; so has what is computed from them."""
    x = image(2, CHANNELS, 5, 5).requires_grad_()
    flat, of_weights = image(4, CHANNELS, 3, 1, mean=0.0).requires_grad_(), torch.channels_last
    ordered_weight = image(4, CHANNELS, 3, 1, mean=0.5).to(memory_format=of_weights).requires_grad_()
    gradients(lambda x, v, w: F.conv2d(x, ReadsStrides.apply(v) + w), x, flat, ordered_weight)
    eager, ours = gradients(lambda x, v, w: F.conv2d(x, v + w), x, flat, ordered_weight)
    assert [g.stride() for g in ours] == [g.stride() for g in eager]


def test_one_gradient_of_two_images() -> None:
    """Its layout is neither the first one's nor the second one's if they differ."""
    x, w = image(2, CHANNELS, 5, 5).requires_grad_(), image(4, CHANNELS, 3, 3, mean=0.0).requires_grad_()
    other = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    for images in ((x, other), (other, x)):
        _, ours = gradients(lambda x, y, w: F.conv2d(x + y, w), *images, w)
        assert ours[0].stride() == ours[1].stride() == x.stride()


def test_second_derivatives() -> None:
    """First ones that are differentiated again have the layout of their inputs, too."""
    for channels in (CHANNELS, 1):
        x = image(2, channels, 5, 4).to(memory_format=torch.channels_last).requires_grad_()
        w = image(4, channels, 3, 3, mean=0.0).requires_grad_()
        found = gradients(lambda x, w: F.conv2d(x, w).sin(), x, w, create_graph=True)
        assert found[1][0].stride() == x.stride()
        twice = [torch.autograd.grad(g.float().square().mean(), (x, w)) for g, _ in found]
        torch.testing.assert_close(*twice, rtol=5e-2, atol=2e-2)


def test_inference() -> None:
    """Running statistics, and results with eager mode's strides for inputs in either layout."""
    net = model().eval()
    jitted = thunder.jit(net)
    for x in (image(2, CHANNELS, 6, 6), image(2, CHANNELS, 6, 6).to(memory_format=torch.channels_last)):
        with torch.no_grad():
            out, expected = jitted(x), net(x)
        assert out.stride() == expected.stride()
        torch.testing.assert_close(out, expected, rtol=1e-2, atol=1e-2)
        assert ordered(jitted) > 0


def test_large_mean() -> None:
    """The variance of values far from zero does not cancel."""
    net = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False), nn.BatchNorm2d(CHANNELS)).to(DEVICE, HALF)
    nn.init.dirac_(net[0].weight)
    compare(net, image(4, CHANNELS, 8, 8, mean=200.0))


WEIGHTS = {
    "same": ((CHANNELS, CHANNELS, 3, 3), {"padding": "same"}),
    "strided": ((32, CHANNELS, 3, 3), {"stride": 2, "padding": 1}),
    "grouped": ((CHANNELS, 4, 3, 3), {"groups": 4}),
    "depthwise": ((CHANNELS, 1, 3, 3), {"groups": CHANNELS, "padding": 1}),
    "dilated": ((CHANNELS, CHANNELS, 3, 3), {"dilation": 2}),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_convolutions(kind: str, bias: bool) -> None:
    """All kinds of convolutions, and of their gradients."""
    shape, how = WEIGHTS[kind]
    given = [image(2, CHANNELS, 9, 8), image(*shape, mean=0.0), *([image(shape[0])] if bias else [])]
    jitted = compare(lambda x, w, b=None: F.conv2d(x, w, b, **how), *given, **{OPTION: True})
    assert ordered(jitted) > 0


def test_transposed_and_single() -> None:
    """Transposed convolutions, and an image without a batch."""
    given = image(2, CHANNELS, 5, 4), image(CHANNELS, CHANNELS, 3, 3, mean=0.0), image(CHANNELS)
    compare(lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2), *given)
    compare(lambda x, w, b: F.conv2d(x[0], w, b), *given)


def test_made_contiguous() -> None:
    """An image that a program makes contiguous is ordered as convolutions read it, also for other operations."""
    given = image(2, 5, 4, CHANNELS), image(CHANNELS, CHANNELS, 3, 3, mean=0.0)

    def twice(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = x.permute(0, 3, 1, 2).contiguous()
        second = F.conv2d(first, w, padding=1).permute(0, 2, 3, 1).relu().permute(0, 3, 1, 2).contiguous()
        return first.flatten(2).transpose(1, 2) * 2, second.view(2, -1) * 2

    jitted = compare(lambda x, w: torch.cat([y.flatten() for y in twice(x, w)]), *given)
    assert orders_of(jitted) == [(3, 0, 2, 1)] * 3  # of both images and the weight
    compare(lambda x, w: F.conv2d(x.contiguous(), w) * 2, given[0].permute(0, 3, 1, 2), given[1])


@pytest.mark.parametrize("with_part", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_made_contiguous_and_returned(channels_last: bool, with_part: bool) -> None:
    """Results, and parts of them, have the strides and the memory that they have in eager mode."""
    x, w = image(2, CHANNELS, 5, 4), image(CHANNELS, CHANNELS, 3, 3, mean=0.0)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.contiguous()
        out = F.conv2d(y, w)
        y.add_(1)
        z = (x * 2).permute(0, 2, 3, 1).permute(0, 3, 1, 2).contiguous()
        return (out, y, z, z[:, 1:]) if with_part else (out, y, z, z.flatten(1))

    jitted = thunder.jit(f)
    runs = [(g, x.clone(memory_format=torch.preserve_format)) for g in (f, jitted)]
    with torch.no_grad():
        expected, found = [(*g(a, w), a) for g, a in runs]
    for right, ours in zip(expected, found):
        assert ours.stride() == right.stride()
        torch.testing.assert_close(ours, right, rtol=1e-2, atol=1e-2)
    for results in (expected, found):
        assert (results[1].data_ptr() == results[-1].data_ptr()) is not channels_last
        assert results[2].untyped_storage().data_ptr() == results[3].untyped_storage().data_ptr()
    assert ordered(jitted) > 0


@pytest.mark.parametrize("channels_last", [False, True])
def test_one_image(channels_last: bool) -> None:
    """A batch of one image: torch tells by the stride of its dimension whether results are channels-last."""
    x, w = image(1, CHANNELS, 5, 4), image(CHANNELS, CHANNELS, 3, 3, mean=0.0)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.conv2d(x, w)
        return y, F.conv2d(y, w, padding=1), y.relu().contiguous()

    jitted = thunder.jit(f)
    for ours, right in zip(jitted(x, w), f(x, w)):
        assert ours.stride() == right.stride()
    assert ordered(jitted) > 0


@pytest.mark.parametrize("batch", [1, 2])
def test_views_that_share_memory(batch: int) -> None:
    x, w = image(batch, CHANNELS, 5, 4), image(CHANNELS, CHANNELS, 3, 3, mean=0.0)

    def views(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.conv2d(x, w)
        return y.flatten(2), y.mT, y[0], y[0, CHANNELS // 2 :]

    def parts(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = F.conv2d(x, w).chunk(2, 1)
        first.add_(1)
        return first, second

    for f in (views, parts):
        jitted = thunder.jit(f)
        with torch.no_grad():
            found, expected = jitted(x, w), f(x, w)
        for ours, right in zip(found, expected):
            assert (ours.stride(), ours.storage_offset()) == (right.stride(), right.storage_offset())
            torch.testing.assert_close(ours, right, rtol=1e-2, atol=1e-2)
        assert len({y.untyped_storage().data_ptr() for y in found}) == 1


def test_operations_that_read_strides() -> None:
    """`as_strided` reads the elements that it reads in eager mode: nothing changes in such a program."""
    given = image(2, CHANNELS, 5, 4), image(CHANNELS, CHANNELS, 1, 1, mean=0.0)

    def strided(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w).as_strided((2, 7), (3, 1)) * 2

    assert ordered(compare(strided, *given)) == 0
    assert ordered(compare(lambda x, w: F.conv2d(x, w).transpose(1, 2).reshape(2, -1) * 2, *given)) > 0
    assert ordered(compare(lambda x, w: F.conv2d(x, w).view(2, -1)[:, ::3] * 2, *given)) > 0


def test_where_it_pays() -> None:
    """Only convolutions in half precision with enough channels, and never if the user declines."""
    many = image(2, CHANNELS, 5, 4), image(CHANNELS, CHANNELS, 3, 3, mean=0.0)
    few = image(2, 3, 5, 4), image(CHANNELS, 3, 3, 3, mean=0.0)

    def count(x: torch.Tensor, w: torch.Tensor, **options: Any) -> int:
        jitted = thunder.jit(lambda x, w: F.conv2d(x, w).relu(), **options)
        jitted(x, w)
        return ordered(jitted)

    assert count(*many) > 0 and count(*few) == 0
    assert count(*many, **{OPTION: False}) == 0 and count(*few, **{OPTION: True}) > 0
    assert count(*[x.float() for x in many], **{OPTION: True}) == 0
