# SPDX-License-Identifier: Apache-2.0
"""The functions of warm calls, with stand-ins for what only a GPU has; and how work is cut into tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton

from thunder_ex_triton import launch
from thunder_ex_triton.binaries import Binary
from thunder_ex_triton.fusion import launcher_codegen
from thunder_ex_triton.fusion.iteration_space import Space
from thunder_ex_triton.fusion.launcher_codegen import Step, warm_call
from thunder_ex_triton.fusion.templates import KernelSource
from thunder_ex_triton.fusion.tiles import Gpu, tilings

PART = ((3, 4), (4, 1), torch.float32)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What would be launched."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        launcher_codegen, "new_tensor", lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype)
    )
    monkeypatch.setattr(launcher_codegen, "current_cuda_device", lambda: 0)
    monkeypatch.setattr(launcher_codegen, "current_stream", lambda device: 77)
    monkeypatch.setattr(launch, "direct", lambda compiled: (lambda *args: found.append(args), (compiled, None)))
    return found


def function(layouts: Any) -> Callable[..., Any]:
    """A warm call of two inputs, an output and two scratch arrays, in two launches."""
    steps = [Step("main", (5, 2), (0, 1, 2, 3, 4), (64,)), Step("finish", (1, 1), (3, 4, 2), (8, 16))]
    output = ((4, 4), (4, 1), torch.float32)
    return warm_call("Triton0", 2, layouts, [output], [PART, PART], [2], steps, 0, lambda *inputs: "otherwise")


def test_launches(launched: list[tuple[Any, ...]]) -> None:
    """Each launch has its grid, the stream, what the launcher wants, addresses and numbers."""
    a, b = torch.zeros(4, 4), torch.zeros(4, 4).t()
    (made,) = function([None, (1, 4)])(a, b)
    main, finish = launched
    assert main[:6] == (5, 2, 1, 77, "main", None) and finish[:6] == (1, 1, 1, 77, "finish", None)
    assert main[6:9] == (a.data_ptr(), b.data_ptr(), made.data_ptr()) and main[11:] == (64,)
    assert finish[6:] == (*main[9:11], made.data_ptr(), 8, 16)
    first, second = main[9:11]
    assert second - first >= 48 and not (second - first) % 128, "scratch arrays lie apart, and aligned"


def test_binaries_are_launched_without_triton(launched: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants are no arguments, and memory that the kernel does not need is None."""
    monkeypatch.setattr(launcher_codegen, "launch_cubin", lambda *args: launched.append(args))
    binary = Binary("main", 4, 1024, "OOiOO", (0, 2, 4), 2)
    steps = [Step(binary, (5, 2), (0, 1, 2), (64, 7))]
    output = ((4, 4), (4, 1), torch.float32)
    call = warm_call("Triton0", 2, [None, None], [output], [], [2], steps, 0, lambda *inputs: "otherwise")
    a, b = torch.zeros(4, 4), torch.zeros(4, 4)
    (made,) = call(a, b)
    assert launched == [("main", 5, 2, 1, 4, 1024, "OOiOO", (a.data_ptr(), made.data_ptr(), 7, None, None), 77)]
    assert call(a, b.t()) == call(a, torch.zeros(17)[1:].view(4, 4)) == "otherwise"


def unusual(case: str) -> Iterator[Any]:
    """Inputs for which the function was not written."""
    a, b = torch.zeros(4, 4), torch.zeros(4, 4).t()
    yield from {
        "the first is not contiguous": (b, b), "the second has other strides": (a, a),
        "an address is no multiple of 16": (torch.zeros(17)[1:].view(4, 4), b),
    }[case]  # fmt: skip


CASES = ["the first is not contiguous", "the second has other strides", "an address is no multiple of 16"]


@pytest.mark.parametrize("case", CASES)
def test_what_it_was_not_written_for(launched: list[tuple[Any, ...]], case: str) -> None:
    """Is left to the general way, and nothing is launched."""
    assert function([None, (1, 4)])(*unusual(case)) == "otherwise"
    assert not launched


def test_profilers_see_launches(launched: list[tuple[Any, ...]]) -> None:
    """With a hook in Triton every launch is Triton's own."""
    a = torch.zeros(4, 4)
    call = function(None)
    hook = triton.knobs.runtime.launch_enter_hook
    hook.add(print)
    try:
        assert call(a, a) == "otherwise"
    finally:
        hook.remove(print)
    assert len(call(a, a)) == 1


@pytest.mark.parametrize("columns", [1, 7, 96, 768, 2304, 4096, 8192, 14336, 20000, 32768])
@pytest.mark.parametrize("template", ["elements", "rows", "columns", "finish"])
def test_tiles(template: str, columns: int) -> None:
    """Whatever the size, tiles are powers of two that cover what there is and fit into a multiprocessor."""
    source = KernelSource("k", "", (), (), template, {}, read=8, loaded=8, tensors=3, operations=40)
    for rows, by_row in ((1, True), (300, True), (100000, True), (5000, False)):
        space = Space(rows * columns, 1) if template == "elements" else Space(rows, columns, by_row, not by_row)
        found = tilings(source, space, Gpu(), 200)
        assert len(set(found)) == len(found) <= 4
        for programs, numbers, warps in found:
            assert min(programs) >= 1 and warps in (1, 2, 4, 8, 16, 32)
            tall, wide = (
                (numbers[0], 1) if template == "elements" else numbers[-2:] if template == "finish" else numbers[:2]
            )
            assert not tall & (tall - 1) and not wide & (wide - 1)
            if template == "elements" or template == "rows":
                assert programs[0] * tall >= space.rows
            if template == "columns":
                assert (numbers[2] - 1) * tall * wide * source.read <= 200 * 1024
            if template in ("rows", "columns") and space.by_row:
                assert wide >= columns
            if template == "columns" and not by_row:
                assert programs[1] * wide >= columns


@pytest.mark.parametrize(("columns", "tall"), [(64, 16), (60, 8), (128, 8), (33, 8)])
def test_short_rows_are_summed_within_a_warp(columns: int, tall: int) -> None:
    """Rows that fill their tile need half of the programs."""
    source = KernelSource("k", "", (), (), "rows", {}, read=2, loaded=2, tensors=2, operations=9)
    _, numbers, warps = tilings(source, Space(4096, columns, True), Gpu(), 0)[0]
    assert numbers == (tall, 64 if columns <= 64 else 128) and warps == 1


@pytest.mark.parametrize("moved", [(1, 1), (2, 2), (2, 4), (4, 4), (8, 4)])
@pytest.mark.parametrize("columns", [4097, 9001, 20001, 32001, 50257, 129281])
def test_rows_that_begin_anywhere(columns: int, moved: tuple[int, int]) -> None:
    """Check the warps and the chunk size: the rows in progress have to fit into the cache."""
    read, written = moved
    source = KernelSource("k", "", (), (), "long", {}, read=read, written=written, tensors=2, operations=40, passes=3)
    (_, (_, piece), warps), *others = tilings(source, Space(4096, columns, True), Gpu(), 0)
    assert piece == 256 * warps and 4 <= warps <= 32 and others
    assert warps == 32 or 132 * (32 // warps) * columns * sum(moved) <= 54 << 20
    assert warps == 4 or 132 * (64 // warps) * columns * sum(moved) > 54 << 20


@pytest.mark.parametrize("loaded", [4, 8, 16, 40])
def test_prefetched_rows_of_all_programs_fit(loaded: int) -> None:
    """Two programs of a multiprocessor share its memory, or one of them waits for the other."""
    source = KernelSource("k", "", (), (), "columns", {}, read=4, loaded=loaded)
    (programs, _), (tall, wide, stages), _ = tilings(source, Space(1 << 17, 64, by_column=True), Gpu(), 0)[0]
    assert programs == 2 * 132 and (stages == 3) == (loaded < 16)
    assert stages == 1 or 2 * (stages - 1) * tall * wide * loaded <= 200 * 1024


@pytest.mark.parametrize("columns", [64, 512, 4096, 8192])
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("read", [2, 8, 22])
@pytest.mark.parametrize("kilobytes", [100, 164, 228])
def test_prefetched_rows_fit_into_the_shared_memory_of_any_gpu(
    kilobytes: int, read: int, by_row: bool, columns: int
) -> None:
    """A program of an A100 may have 163 KB, and one of a GPU for workstations 99."""
    source = KernelSource("k", "", (), (), "columns", {}, read=read, loaded=read)
    for _, (tall, wide, stages), _ in tilings(
        source, Space(1 << 17, columns, by_row, not by_row), Gpu(108, kilobytes * 1024), 0
    ):
        assert stages == 1 or (stages - 1) * tall * wide * read <= (kilobytes - 28) * 1024


@pytest.mark.parametrize(
    ("tensors", "by_row", "columns", "warps"),
    [(12, True, 512, 2), (37, True, 512, 8), (13, True, 1024, 4), (19, False, 1024, 8), (200, False, 1024, 16)],
)
def test_warps_of_kernels_of_many_tensors(tensors: int, by_row: bool, columns: int, warps: int) -> None:
    """Values that do not fit into the registers of a thread would be stored and loaded again."""
    source = KernelSource("k", "", (), (), "columns", {}, read=2, loaded=2, tensors=tensors)
    assert tilings(source, Space(6272, columns, by_row, True), Gpu(), 0)[0].warps == warps


def test_elements_of_kernels_that_do_much() -> None:
    """Wide tiles are for kernels that leave them registers: vector loads are lost, or registers spilled, otherwise."""
    few = KernelSource("k", "", (), (), "elements", {}, read=2, tensors=3, operations=20)
    for source, block in (
        (few, 2048),
        (few._replace(tensors=5), 1024),
        (few._replace(tensors=6), 512),
        (few._replace(operations=400), 512),
    ):
        assert tilings(source, Space(1 << 24, 1), Gpu(), 0)[0].numbers == (block,)
