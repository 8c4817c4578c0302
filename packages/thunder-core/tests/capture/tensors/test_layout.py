# SPDX-License-Identifier: Apache-2.0
"""Views that strides do not allow: torch's error at trace time, and no error where torch has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from outcomes import message_and_notes
from torch.nn import functional as F

import thunder

PROGRAMS: list[Any] = [
    lambda x: x.t().view(-1),
    lambda x: x.t().view(3, 2),
    lambda x: x.t().view(3, 1, 2),
    lambda x: x.t()[:, :1].view(3),
    lambda x: x[:, ::2].view(-1),
    lambda x: x.expand(4, 2, 3).view(8, 3),
    lambda x: x.t().contiguous().view(-1),
    lambda x: x.t().contiguous().t().view(-1),
    lambda x: (x.t() * 2).t().view(-1),
    lambda x: (x * 2).t().view(6),
    lambda x: x.unsqueeze(1).view_as(x),
    lambda x: x.t().view_as(x),
    lambda x: x.view(1, 2, 3).transpose(0, 1).view(2, 3),
    lambda x: x.view(torch.int32).view(-1),
    lambda x: x[0].view(1, 3, -1),
    lambda x: x.relu().view(-1),
    lambda x: (x + torch.ones(3)).view(-1),
    lambda x: torch.where(x > 0, x, 0.0).view_as(torch.ones(6)),
    lambda x: x.to(torch.float64).view(6),
    lambda x: torch.cat([x, x]).view(-1),
    lambda x: torch.rand_like(x).mul(0).view(-1),
    lambda x: x.clone().add_(1).view(-1),
    lambda x: x.t().mm(x).t().relu().view(-1),
    lambda x: F.linear(x, torch.ones(2, 3)).view(4),
    lambda x: F.linear(x, torch.ones(2, 3)).t().sin().view(size=(4,)),
    lambda x: F.layer_norm(x.t(), (2,)).view(-1),
    lambda x: (torch.arange(6.0).view(3, 2).t() + 1).view(-1),
    lambda x: x.relu().view(dtype=torch.int16),
    lambda x: torch.view_as_complex(x[:, :2].sin()),
    lambda x: torch.view_as_complex(x.expand(2, 2, 3).sin().transpose(1, 2)),
    lambda x: F.scaled_dot_product_attention(*[x.expand(2, 4, 2, 3)] * 3).transpose(1, 2).view(2, 2, 12),
    lambda x: F.conv2d(x.expand(2, 3, 2, 3).to(memory_format=torch.channels_last), torch.ones(4, 3, 1, 1)).view(2, -1),
    lambda x: F.group_norm(x.expand(2, 4, 2, 3).to(memory_format=torch.channels_last), 2).view(2, -1),
]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("strided", [False, True])
def test_views(program: Any, strided: bool) -> None:
    """As in torch, for inputs that are laid out in the usual way and for others."""
    x = torch.randn(3, 2).t() if strided else torch.randn(2, 3)
    try:
        expected = program(x)
    except RuntimeError as error:
        with pytest.raises(RuntimeError) as found:
            thunder.trace()(program, x)
        assert str(found.value).startswith(str(error).partition(" (")[0])
        assert f"at {__file__}" in message_and_notes(found.value)
    else:
        assert torch.equal(thunder.jit(program)(x), expected)


STRIDES: list[Any] = [
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: F.conv2d(x.to(memory_format=torch.channels_last), torch.ones(6, 3, 1, 1)).relu(),
    lambda x: x.double(memory_format=torch.channels_last),
    lambda x: torch.zeros_like(x, memory_format=torch.channels_last),
    lambda x: F.conv2d(x, torch.ones(6, 3, 1, 1)),
    lambda x: F.conv_transpose2d(x, torch.ones(3, 6, 2, 2)),
    lambda x: F.batch_norm(x, torch.ones(3), torch.ones(3)),
    lambda x: F.batch_norm(x, None, None, training=True),
    lambda x: F.group_norm(x, 3),
    lambda x: F.group_norm(x[:1], 3),
    lambda x: F.layer_norm(x, (5,)),
    lambda x: F.max_pool2d(x, 2),
    lambda x: F.scaled_dot_product_attention(x, x, x),
    lambda x: torch.bmm(x[0], x[1].mT),
    lambda x: torch.addmm(x[0, 0, :, :4].t(), x[0, 0], x[1, 1].t()),
    lambda x: F.embedding(torch.zeros(2, 3, dtype=torch.int64).t(), torch.ones(4, 5)),
    lambda x: (x * torch.ones(5)).contiguous(),
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x.sin().to(torch.float64, memory_format=torch.channels_last) * 2,
    lambda x: F.conv2d(x, torch.ones(6, 3, 1, 1).to(memory_format=torch.channels_last)),
    lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    lambda x: F.pixel_shuffle(torch.cat([x, x[:, :1]], 1), 2),
    lambda x: F.channel_shuffle(x.transpose(0, 1), 2),
    lambda x: torch.einsum("abcd,abce->acde", x, x),
    lambda x: x.sort(1)[0],
]


@pytest.mark.parametrize("program", STRIDES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_strides(program: Any, layout: torch.memory_format) -> None:
    """What a program is told of a result's strides is what torch's kernels give."""
    x = torch.randn(2, 3, 4, 5).to(memory_format=layout)
    assert thunder.jit(lambda x: program(x).stride())(x) == program(x).stride()


def test_views_of_what_has_unknown_sizes() -> None:
    """A view asks for no number that the program does not have."""
    programs: list[Any] = [
        lambda x: x[x > 0].sum(0, keepdim=True).view(1, 1),
        lambda x: x[x[:, 0] > 0].relu().sum(0).view(3, 1),
        lambda x: x[x[:, 0] > 0].view(-1),
    ]
    x = torch.tensor([[1.0, -2.0, 3.0], [-1.0, 2.0, 3.0]])
    for program in programs:
        assert torch.equal(thunder.jit(program)(x), program(x))


def test_views_keep_sizes_symbolic() -> None:
    jitted = thunder.jit(lambda x: (x * 2).sum(0).view(3, 1), cache="symbolic values")
    for n in (2, 3, 4):
        assert jitted(torch.ones(n, 3)).shape == (3, 1)
    assert thunder.cache_misses(jitted) == 1


STRIDED: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: x.t().as_strided((3, 2), (2, 1)),
    "computed": lambda x: (x * 2).t().as_strided((2, 3), (1, 2), 1),
    "windows": lambda x: (x * 2).t().as_strided((5, 3), (2, 1)),
    "a part": lambda x: (x * 2)[1:].as_strided((2, 2), (3, 1)),
    "a part, from an element of memory": lambda x: (x * 2)[1:].as_strided((2, 2), (3, 1), 5),
    "dimensions of heads": lambda x: x.view(2, 2, 3).permute(2, 0, 1).as_strided((3, 3), (1, 3)),
    "with gaps": lambda x: (x.detach() * 2)[:, ::2].as_strided((2, 2), (4, 1)),
    "before it": lambda x: (x.detach() * 2)[2:].as_strided((2, 2), (3, 1), 1),
    "written to": lambda x: [y := (x * 2).t(), y.as_strided((4,), (2,)).mul_(10)],
    "written to with gaps": lambda x: [y := x.detach() * 2, y[:, ::2].as_strided((2, 2), (4, 1)).zero_()],
}


@pytest.mark.parametrize("name", STRIDED)
def test_as_strided(name: str) -> None:
    """It reads the memory that eager reads, whatever the order in which the tensor sees it."""
    f = STRIDED[name]

    def run(fn: Callable[[Any], Any]) -> Any:
        x = torch.arange(12.0, dtype=torch.float64).reshape(4, 3).requires_grad_()
        out = fn(x)
        out = out if isinstance(out, list) else [out]
        loss = sum((t * torch.arange(1.0, t.numel() + 1, dtype=t.dtype).view(t.shape)).sum() for t in out)
        if loss.requires_grad:
            loss.backward()
        return [t.detach() for t in out], x.grad

    torch.testing.assert_close(run(thunder.jit(f)), run(f), rtol=0, atol=0)


def test_as_strided_of_unknown_memory() -> None:
    """An input with gaps is read eagerly: the program may read what lies in them."""
    x = torch.arange(24.0).reshape(8, 3)[::2]
    for _ in range(3):
        torch.testing.assert_close(thunder.jit(lambda x: x.as_strided((2, 2), (4, 1)))(x), x.as_strided((2, 2), (4, 1)))


ONE_PIXEL: list[Any] = [
    lambda w, g: w * 2,
    lambda w, g: w.exp(),
    lambda w, g: w + w,
    lambda w, g: w * g,
    lambda w, g: g * w.square().sum((1, 2, 3), keepdim=True).rsqrt() * w,
    lambda w, g: w.double().float(),
    lambda w, g: torch.where(w > 0, w, -w),
    lambda w, g: (w.exp() + w.sin()) * g,
    lambda w, g: F.conv2d(torch.ones(2, 6, 4, 4), w * 2),
    lambda w, g: F.conv2d(torch.ones(2, 6, 4, 4), w * g),
    lambda w, g: F.conv2d(torch.ones(2, 6, 4, 4), w.exp()),
]


@pytest.mark.parametrize("program", ONE_PIXEL)
@pytest.mark.parametrize("layouts", ["channels-last", "contiguous", "mixed", "contiguous gains"])
def test_strides_of_images_of_one_pixel(program: Any, layouts: str) -> None:
    """They are contiguous in any case. The strides of dimensions of one element say whether they are channels-last."""
    w, g = torch.randn(4, 6, 1, 1), torch.randn(4, 1, 1, 1)
    if layouts in ("channels-last", "contiguous gains"):
        w = w.clone(memory_format=torch.channels_last)
    if layouts in ("channels-last", "mixed"):
        g = g.clone(memory_format=torch.channels_last)
    assert thunder.jit(lambda w, g: program(w, g).stride())(w, g) == program(w, g).stride()
