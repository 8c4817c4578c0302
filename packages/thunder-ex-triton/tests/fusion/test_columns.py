# SPDX-License-Identifier: Apache-2.0
"""Sums over leading dimensions, and over dimensions between a batch and columns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import thunder
from thunder import prims
from thunder.extend import TensorProxy, Trace, dtypes, tracectx
from thunder_ex_triton.fusion import iteration_space, region, tiles
from thunder_ex_triton.fusion.errors import Unfit
from thunder_ex_triton.fusion.iteration_space import Space, reduces
from thunder_ex_triton.fusion.region import FusedRegion
from thunder_ex_triton.fusion.tiles import Gpu
from thunder_ex_triton.launch import MOST_BLOCKS, blocks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuse small tensors, with several programs for each batch entry."""
    monkeypatch.setattr(iteration_space, "MIN_ENTRY", 1)
    monkeypatch.setattr(region, "gpu_of", lambda device: Gpu(7))


def make(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


def regions(jitted: Any) -> list[FusedRegion]:
    found = [op.sym.fn for op in thunder.last_traces(jitted)[-1].bound_symbols]
    return [fn for fn in found if isinstance(fn, FusedRegion)]


def compare(f: Any, *args: torch.Tensor, **options: Any) -> Any:
    """Check results against those in double precision, and return the jitted function."""
    jitted = thunder.jit(f, executors=["triton"], **options)
    expected = f(*[x.double() for x in args])
    for found, right in zip(jitted(*args), expected, strict=True):
        half = found.dtype is torch.float16
        torch.testing.assert_close(found.double(), right, rtol=2e-3 if half else 1e-5, atol=2e-2 if half else 1e-4)
    return jitted


def statistics(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Results of the size of the image, of the columns of a batch entry, and of an image of those."""
    y = x * w[:, None]
    total, squares = y.sum(1, dtype=w.dtype), (y * y).sum(1, dtype=w.dtype)
    return total, (squares - total * total / x.shape[1]) * 2 + w[0], x * 3


SHAPES = [(1, 1, 1), (2, 1, 3), (3, 17, 37), (2, 300, 16), (3, 64, 130), (4, 1000, 1), (2, 3, 600), (9, 3, 8)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_between_batch_and_columns(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    batch, _, columns = shape
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    jitted = compare(statistics, make(*shape, dtype=dtype), make(batch, columns, dtype=wide))
    assert [fn.template for fn in regions(jitted)] == ["columns, finish"] if columns > 1 else True


@settings(max_examples=15, deadline=None)
@given(
    outer=st.lists(st.integers(1, 4), min_size=0, max_size=2),
    summed=st.lists(st.integers(1, 9), min_size=1, max_size=2),
    inner=st.lists(st.integers(1, 9), min_size=1, max_size=2),
    order=st.randoms(use_true_random=False),
)
def test_any_adjacent_dimensions(outer: list[int], summed: list[int], inner: list[int], order: Any) -> None:
    """Of tensors in any layout."""
    shape = [*outer, *summed, *inner]
    dims = list(range(len(outer), len(outer) + len(summed)))
    placed = list(range(len(shape)))
    order.shuffle(placed)
    x = make(*[shape[d] for d in placed]).permute([placed.index(d) for d in range(len(shape))])
    compare(lambda x: ((x * x).sum(dims).exp2() * 2, x + 1), x * 0.1)


def test_sizes_may_be_symbolic() -> None:
    jitted = thunder.jit(statistics, executors=["triton"], cache="symbolic values")
    for shape in ((3, 17, 37), (5, 19, 33), (2, 40, 64)):
        args = make(*shape), make(shape[0], shape[2])
        for found, right in zip(jitted(*args), statistics(*args)):
            torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-4)
    assert thunder.cache_misses(jitted) == 1
    assert [fn.space.batch != 1 for fn in regions(jitted)] == [True]


@pytest.mark.parametrize(("rows", "uniform"), [(512, True), (500, False)])
def test_operands_of_batch_entries_are_read_once_per_tile(rows: int, uniform: bool) -> None:
    """If no tile of rows reaches into the next entry. Tiles of 16 columns have 256 rows."""

    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x * w[:, None] + w[:, None].exp()
        return y, y.sum((0, 1), dtype=w.dtype)

    jitted = compare(f, make(3, rows, 16), make(3, 16))
    [fn] = [fn for fn in regions(jitted) if fn.template == "columns, finish"]
    assert (f"(row // {rows})" in fn.source) == uniform
    assert (f"(rows // {rows})" in fn.source) != uniform


def test_sums_of_a_batch_after_sums_of_its_entries() -> None:
    def f(x: torch.Tensor) -> Any:
        each = (x * x).sum(1)
        return each.sum(0), each.reshape(x.shape[0], 4, -1).mean(2)

    jitted = compare(f, make(3, 50, 20))
    assert len(regions(jitted)) == 3


def test_the_printed_program_runs() -> None:
    x, w = make(3, 300, 24), make(3, 24)
    jitted = compare(statistics, x, w)
    [fn] = regions(jitted)
    assert "3 x 300 x 24" in fn.source
    printed = getattr(region.load(fn.source), fn.name)
    for found, right in zip(printed(*[x if p.ndim == 3 else w for p in fn.inputs]), statistics(x, w)):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "dims", "expected"),
    [
        ((2, 3, 4), (2,), Space(6, 4, by_row=True)),
        ((2, 3, 4), (0, 1), Space(6, 4, by_column=True)),
        ((2, 3, 4), (1,), Space(3, 4, by_column=True, batch=2)),
        ((2, 3, 4, 5), (2, 1), Space(12, 5, by_column=True, batch=2)),
        ((1, 3, 4), (1,), Space(3, 4, by_column=True)),
        ((2, 3, 4, 5), (0, 2), None),
    ],
)
def test_spaces(shape: tuple[int, ...], dims: tuple[int, ...], expected: Space | None) -> None:
    a = TensorProxy("a", shape=shape, device="cpu", dtype=dtypes.float32)
    assert reduces(SimpleNamespace(sym=prims.sum, args=(a, dims))) == expected


def test_small_entries_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program for each would have too little to do."""
    monkeypatch.setattr(iteration_space, "MIN_ENTRY", 64)
    jitted = thunder.jit(lambda x: x.sum(1) * 2, executors=["triton"])
    jitted(make(50, 3, 4))
    assert all(fn.template == "elements" for fn in regions(jitted))
    jitted(make(50, 16, 4))
    assert [fn.template for fn in regions(jitted)] == ["columns, finish"]


def test_more_columns_than_a_grid_has_blocks_for() -> None:
    """Tiles are wider if there are many columns, and sums of even more are torch's."""
    for columns in (8_400_000, 27_000_000, 27_027_027, MOST_BLOCKS * 1024):
        assert blocks(columns, tiles._exact(columns)) <= MOST_BLOCKS
    for columns, fits in ((MOST_BLOCKS * 1024, True), (MOST_BLOCKS * 1024 + 1, False)):
        x = TensorProxy("x", shape=(2, columns), device=DEVICE, dtype=dtypes.float32)
        trace = Trace("sums")
        with tracectx(trace):
            prims.sum(x, (0,))
        if fits:
            assert iteration_space.space_of(trace.bound_symbols).columns == columns
            continue
        with pytest.raises(Unfit, match="more than a grid has blocks for"):
            iteration_space.space_of(trace.bound_symbols)
