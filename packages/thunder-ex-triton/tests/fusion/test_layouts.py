# SPDX-License-Identifier: Apache-2.0
"""Fusions of operands with different innermost dimensions, cyclic shifts, and sums over separate dimensions."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder
from thunder_ex_triton.fusion import iteration_space
from thunder_ex_triton.fusion.index import Group, Index
from thunder_ex_triton.fusion.iteration_space import Space
from thunder_ex_triton.fusion.region import FusedRegion
from thunder_ex_triton.fusion.templates import KernelSource
from thunder_ex_triton.fusion.tiles import Gpu, tilings

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float32, torch.float64, torch.bfloat16]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuse sums of small tensors."""
    monkeypatch.setattr(iteration_space, "MIN_ENTRY", 0)
    monkeypatch.setattr(iteration_space, "MIN_REPEATS", 2)


def whole_numbers(chance: random.Random, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of small whole numbers, whose dimensions have a random order in memory."""
    order = chance.sample(range(len(shape)), len(shape))
    x = torch.randint(-3, 4, [shape[d] for d in order]).to(DEVICE, chance.choice(DTYPES))
    return x.permute([order.index(d) for d in range(len(shape))])


def ends(chance: random.Random, count: int) -> list[int]:
    """Some first and some last dimensions, but not all."""
    first = chance.randrange(1, count - 1)
    return [*range(first), *range(chance.randrange(first + 1, count), count)]


class Program:
    """A function of tensors of one shape, in several orders of memory."""

    def __init__(self, seed: int):
        chance = random.Random(seed)
        torch.manual_seed(seed)
        self.copies = seed >= 40
        self.shape = chance.choice([(3, 70, 66), (70, 2, 130), (2, 35, 3, 66), (4, 14, 21, 8), (65, 67), (2, 3, 4, 33)])
        count = len(self.shape)
        kept = chance.randrange(count)
        broadcast = tuple(n if d == kept else 1 for d, n in enumerate(self.shape))
        self.inputs = [*(whole_numbers(chance, self.shape) for _ in range(3)), whole_numbers(chance, broadcast)]
        self.steps: list[Callable[[list[Any]], Any]] = [self.step(chance, i + 4) for i in range(chance.randrange(2, 7))]
        self.last = [self.end(chance) for _ in range(chance.randrange(1, 3))]

    def step(self, chance: random.Random, made: int) -> Callable[[list[Any]], Any]:
        """A value of the same shape."""
        a, b = chance.choice([made - 1, chance.randrange(made)]), chance.randrange(made)
        dim, shift = chance.randrange(len(self.shape)), chance.randrange(-3, 4)
        steps: list[Callable[[list[Any]], Any]] = [
            lambda v: (v[a] + v[b]).clamp(-9, 9), lambda v: (v[a] * v[b]).clamp(-9, 9), lambda v: (v[a] - v[b]).relu(),
            lambda v: v[a].expand(self.shape).roll(shift, dim), lambda v: v[a].expand(self.shape).roll(3, -1),
            lambda v: v[a] + v[a].expand(self.shape).roll((shift, 1), (dim, 0)), lambda v: v[a] - v[a].amax(-1, True),
        ]  # fmt: skip
        if self.copies:
            steps += 4 * [lambda v: v[a].expand(self.shape).transpose(0, dim).contiguous().transpose(0, dim)]
        return chance.choice(steps)

    def end(self, chance: random.Random) -> Callable[[Any], Any]:
        """A result of another shape."""
        count = len(self.shape)
        order, dims = chance.sample(range(count), count), ends(chance, count) if count > 2 else [0]
        choices: list[Callable[[Any], Any]] = [
            lambda x: x, lambda x: x.sum(dims), lambda x: x.sum(dims, keepdim=True) * 2, lambda x: x.sum(0),
            lambda x: x.permute(order).reshape(-1, self.shape[order[-1]]), lambda x: x.transpose(0, -1).flatten() + 1,
            lambda x: (x.sum(dims), x * 2), lambda x: (x.permute(order).flatten(0, 1), x.flatten().sum()),
        ]  # fmt: skip
        if self.copies:
            choices += 2 * [lambda x: x.permute(order).contiguous(), lambda x: (x.contiguous(), x.mT.contiguous())]
        return chance.choice(choices)

    def __call__(self, *inputs: Any) -> list[Any]:
        values = list(inputs)
        for step in self.steps:
            values.append(step(values))
        x = values[-1].expand(self.shape)
        out: list[Any] = []
        for end in self.last:
            found = end(x)
            out += found if isinstance(found, tuple) else [found]
        return [*out, values[-2] * 1]


@pytest.mark.parametrize("seed", range(60))
def test_random_layouts(seed: int) -> None:
    """Results and gradients of whole numbers are those of eager."""
    program = Program(seed)
    inputs = [x.requires_grad_() for x in program.inputs]
    found, expected = thunder.jit(program, executors=["triton"])(*inputs), program(*inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    factors = [torch.randint(-1, 2, y.shape, device=DEVICE).to(y.dtype) for y in expected]
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    mine, right = (torch.autograd.grad(list(out), inputs, factors, **options) for out in (found, expected))
    torch.testing.assert_close(mine, right, rtol=2e-2, atol=0.5) if any(
        x.dtype is torch.bfloat16 for x in inputs
    ) else torch.testing.assert_close(mine, right)


def regions(jitted: Any) -> list[FusedRegion]:
    """The regions of the last program."""
    found = [op.sym.fn for op in thunder.last_traces(jitted)[-1].bound_symbols]
    return [fn for fn in found if isinstance(fn, FusedRegion)]


def test_operands_with_different_innermost_dimensions_are_read_in_tiles() -> None:
    """Only those: a channels-last program, or a broadcast operand, has one innermost dimension."""
    x, z, d = torch.randn(2, 70, 66), torch.randn(2, 66, 70), torch.randn(70)
    x, z, d = x.to(DEVICE), z.to(DEVICE), d.to(DEVICE)
    gated = thunder.jit(lambda x, z, d: x * d[:, None] * torch.sigmoid(z.mT), executors=["triton"])
    torch.testing.assert_close(gated(x, z, d), x * d[:, None] * torch.sigmoid(z.mT))
    assert [fn.template for fn in regions(gated)] == ["tiles"]
    turned = thunder.jit(lambda x, z, d: (x * 2 + z).mT + d, executors=["triton"])
    torch.testing.assert_close(turned(x, z.mT, d), (x * 2 + z.mT).mT + d)
    same = thunder.jit(lambda x, z, d: x.mT * d * torch.sigmoid(z), executors=["triton"])
    lying = {"x": x.mT.contiguous().mT, "z": z, "d": d}
    torch.testing.assert_close(same(**lying), x.mT * d * torch.sigmoid(z))
    [fn] = regions(same)
    assert [k.template for k in fn._sources([lying[p.name].stride() for p in fn.inputs])] == ["elements"]


def test_norm_shift_and_windows_are_one_kernel() -> None:
    """A kernel stores the results of rows where a cyclic shift and a permutation move them."""

    def windows(x: Any, w: Any) -> Any:
        y = F.layer_norm(x, w.shape, w).roll((-3, 2), (1, 2))
        return y.view(2, 2, 7, 2, 7, 5).transpose(2, 3).reshape(-1, 49, 5)

    x, w = torch.randn(2, 14, 14, 5).to(DEVICE), torch.randn(5).to(DEVICE)
    jitted = thunder.jit(windows, executors=["triton"])
    found, expected = jitted(x, w), windows(x, w)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    [fn] = regions(jitted)
    assert fn.template == "rows" and fn.source.count("tl.load(x_ptr") == 1


@pytest.mark.parametrize("shifts, dims", [(0, 0), (-6, 1), ((3, 1), (0, 1)), ((0, 1), (1, 2))])
def test_a_shift_by_a_multiple_of_the_size_is_contiguous(shifts: Any, dims: Any) -> None:
    """A shift by nothing has no slices to concatenate, but torch's result is contiguous nevertheless."""
    x = torch.randn(5, 3, 6).permute(1, 2, 0).to(DEVICE)
    jitted = thunder.jit(lambda x: (x * 2).roll(shifts, dims), executors=["triton"])
    found, expected = jitted(x), (x * 2).roll(shifts, dims)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert found.stride() == expected.stride() and len(regions(jitted)) == 1


@pytest.mark.parametrize("padding", [(0, 0), (0, 0, 0, 0, 1, 0)])
def test_copies_are_parts_of_fusions(padding: tuple[int, ...]) -> None:
    """The kernel that computes a tensor stores it in the other order; the kernel that reads a copy reads the tensor.

    Padding by nothing is a copy, too, and moves no elements between rows.
    """

    def windows(x: Any, w: Any, r: Any) -> Any:
        y = F.pad(F.layer_norm(x, w.shape, w), padding).view(2, -1, 7, 2, 7, 8).transpose(2, 3).contiguous()
        z = (y.view(-1, 49, 8) @ r).view(2, -1, 2, 7, 7, 8).transpose(2, 3).contiguous()
        return z.view(2, -1, 14, 8) * 2

    x, w, r = torch.randn(2, 14 - (len(padding) > 2), 14, 8), torch.randn(8), torch.randn(8, 8)
    x, w, r = x.to(DEVICE), w.to(DEVICE), r.to(DEVICE)
    jitted = thunder.jit(windows, executors=["triton"])
    found, expected = jitted(x, w, r), windows(x, w, r)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    names = [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]
    assert "contiguous" not in names
    assert len(regions(jitted)) == 2 + (len(padding) > 2)


def test_tensors_in_the_right_order_are_not_copied() -> None:
    """A fusion would store them again. Whether a result of unknown strides is copied, is left to torch."""

    def program(x: Any, y: Any) -> Any:
        a = x.exp()
        b = a.contiguous()
        return a, b * 2, (y.sort(0)[0].contiguous() + 1).mT.contiguous()

    jitted = thunder.jit(program, executors=["triton"])
    x, y = torch.randn(6, 5, device=DEVICE), torch.randn(6, 10, device=DEVICE)[:, ::2]
    for ours, eager in zip(jitted(x, y), program(x, y), strict=True):
        torch.testing.assert_close(ours, eager)
        assert ours.stride() == eager.stride()
    assert [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols].count("contiguous") == 2


def test_a_copy_of_a_result_is_another_tensor() -> None:
    """Also if a fusion makes it."""

    def program(x: Any) -> Any:
        a = x.exp()
        return a, a.mT.contiguous(), a.contiguous()

    a, copied, same = thunder.jit(program, executors=["triton"])(torch.randn(6, 5, device=DEVICE))
    a.zero_()
    assert copied.abs().sum() > 0 and same.data_ptr() == a.data_ptr()


SLICES = [
    (slice(1, None, 2), slice(0, None, 3)),
    (slice(2, 8, 3), slice(None, None, 2)),
    (slice(None), slice(1, None, 2), slice(0, None, 2)),
    (slice(-1, None), slice(0, 7, 5), slice(1, 2)),
]


@pytest.mark.parametrize("which", range(len(SLICES)))
def test_gradients_of_strided_slices_are_parts_of_fusions(which: int) -> None:
    """Their elements have zeros between them, which the kernel that adds them up does not read."""

    def program(x: Any, c: Any) -> Any:
        parts = SLICES[which], tuple(slice(part.start, part.stop, 1) for part in SLICES[which])
        return [(x[key] * c).exp() for key in parts], (x * 2)[SLICES[which]]

    x, c = torch.randn(9, 10, 6, device=DEVICE, requires_grad=True), torch.randn((), device=DEVICE)
    jitted = thunder.jit(program, executors=["triton"])
    found, expected = ([*a, b] for a, b in (jitted(x, c), program(x, c)))
    torch.testing.assert_close(found, expected)
    factors = [torch.randn_like(y) for y in expected]
    (mine,), (right,) = (torch.autograd.grad(out, x, factors) for out in (found, expected))
    torch.testing.assert_close(mine, right)
    assert mine.stride() == right.stride()
    [fn] = [op.sym.fn for op in thunder.last_backward_traces(jitted)[-1].bound_symbols if op.out_names][1:]
    assert isinstance(fn, FusedRegion)


def test_sums_over_first_and_last_dimensions_are_partial_sums_of_tiles() -> None:
    """The kernel of elements computes them; only large ones, because a second kernel adds up the partial sums."""

    def f(x: Any, bias: Any) -> Any:
        y = torch.tanh(x + bias[:, None])
        return y, y.sum((0, 2)) * 2

    x, bias = torch.randn(3, 5, 1100).to(DEVICE), torch.randn(5).to(DEVICE)
    jitted = thunder.jit(f, executors=["triton"])
    torch.testing.assert_close(jitted(x, bias), f(x, bias), rtol=1e-5, atol=1e-4)
    assert [fn.template for fn in regions(jitted)] == ["tiles, finish"]


@pytest.mark.parametrize("shape", [(9, 3, 5, 7), (40, 11, 49), (4, 2, 1, 33), (5, 1, 6)])
def test_sums_over_samples_are_computed_where_rows_are_reduced(shape: tuple[int, ...]) -> None:
    """The gradients of a softmax and of a bias that all samples have in common, in any part of the rows."""
    s, bias = torch.randn(shape, dtype=torch.float64).to(DEVICE), torch.randn(shape[1:], dtype=torch.float64).to(DEVICE)
    s, bias = s.requires_grad_(), bias.requires_grad_()

    def f(s: Any, bias: Any) -> Any:
        return F.softmax(s + bias, -1)

    jitted = thunder.jit(f, executors=["triton"])
    g = torch.randn_like(s)
    mine, right = (torch.autograd.grad(fn(s, bias), (s, bias), g) for fn in (jitted, f))
    torch.testing.assert_close(mine, right)
    found = [op.sym.fn for op in thunder.last_backward_traces(jitted)[-1].bound_symbols]
    [fn] = [fn for fn in found if isinstance(fn, FusedRegion)]
    assert fn.template == "columns, finish" and fn.space.period == torch.Size(shape[1:-1]).numel()


def test_small_sums_over_first_and_last_dimensions_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    jitted = thunder.jit(lambda x: (x * 2).sum((0, 2)), executors=["triton"])
    x = torch.randn(3, 5, 110).to(DEVICE)
    torch.testing.assert_close(jitted(x), (x * 2).sum((0, 2)))
    assert "sum" in [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]


def test_shifts_of_an_index_cancel() -> None:
    """A shift back returns the index before it, also after a reshape in between."""
    index = Index([Group("x", (6, 8)), Group("r", (5,))])
    there = index.rolled(1, 3)
    assert there.dims()[1].expression == "(((x % 8) + 3) % 8)"
    assert there.rolled(1, -3).key == index.key != there.key
    split = there.reshaped((6, 2, 4, 5)).transposed((0, 2, 1, 3)).transposed((0, 2, 1, 3)).reshaped((6, 8, 5))
    assert split.rolled(1, 5).key == index.key
    assert index.rolled(1, 3).rolled(1, 2).key == index.rolled(1, 5).key


def test_tiles_have_segments_of_memory_along_the_innermost_dimensions() -> None:
    def numbers(rows: int, columns: int, across: bool) -> tuple[int, ...]:
        source = KernelSource("k", "", (), (), "tiles", {}, across=across)
        tiling = tilings(source, Space(rows, columns, batch=2, tiled=True), Gpu(), 0)[0]
        tall, wide = tiling.numbers
        assert tiling.programs == (2 * -(-rows // tall) * -(-columns // wide), 1)
        return tiling.numbers

    assert numbers(1536, 2048, True) == (64, 64)
    assert numbers(3, 4096, True) == (4, 1024) and numbers(4096, 3, True) == (1024, 4)
    assert numbers(512, 15999, False) == (1, 2048) and numbers(512, 784, False) == (16, 128)
