# SPDX-License-Identifier: Apache-2.0
"""What a region reads and hands out, without views at its border, and at a compiler's level."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder
from thunder.core.errors import ThunderError
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace
from thunder.passes.region import Region, flattened, without_views


def acquired(fn: Any, *shapes: tuple[int, ...]) -> Trace:
    """The program of `fn`."""
    return thunder.trace()(fn, *[torch.randn(shape) for shape in shapes])


def whole(trace: Trace) -> Region:
    """All its operations but the return as one region."""
    body = [op for op in trace.bound_symbols[:-1] if op.sym.name != "unpack_trivial"]
    read: dict[str, int] = {}
    for op in trace.bound_symbols:
        for name in set(op.arg_names):
            read[name] = read.get(name, 0) + 1
    return Region(body, None, read)


def names(operations: list[BoundSymbol]) -> list[str]:
    """Of the operations."""
    return [op.sym.name for op in operations]


def test_inputs_and_outputs() -> None:
    """In the order of their first use, each once; what nobody outside reads is not handed out."""
    region = whole(acquired(lambda a, b: ((b * a).sin() + b, b.cos()), (3,), (3,)))
    assert [p.name for p in region.inputs] == ["b", "a"]
    assert len(region.outputs) == 2 and len(region) == 4
    assert repr(region) == "<Region of 4: mul, sin, add, cos>"


def test_views_of_inputs_and_of_results() -> None:
    """Before and after the region; one that is read inside too stays there as well."""

    def fn(a: Any) -> Any:
        t = a.t()
        y = t.exp()
        return t, y.t()[0], y.sum()

    before, inner, after = without_views(whole(acquired(fn, (2, 3))))
    assert names(before) == ["t"]
    assert names(inner.operations) == ["t", "exp", "sum"]
    assert names(after) == ["t", "getitem"]
    assert [p.name for p in inner.inputs] == ["a"]
    assert len(inner.outputs) == 2


def test_made_in_the_shape_that_others_read() -> None:
    """What is only seen in another shape is made in it, but nothing that shares memory with what else is read."""

    def fn(a: Any) -> Any:
        once, twice, turned, whole = a.exp(), a.sin(), a.cos(), a.neg()
        rows = once.view(6).reshape(3, 2)
        return rows, once.sum(), twice.view(6), twice.view(-1, 1), turned.t(), whole, whole.view(6)

    before, inner, after = without_views(whole(acquired(fn, (2, 3))))
    assert not before and names(after) == ["view", "view", "t", "view"]
    assert names(inner.operations) == ["exp", "sin", "cos", "neg", "view", "reshape", "sum"]
    assert sorted(tuple(p.shape) for p in inner.outputs) == [(), (2, 3), (2, 3), (2, 3), (3, 2)]


def test_reshaped_after_a_permutation() -> None:
    """The region makes the copy, unless what is permuted is read otherwise, too."""

    def fn(a: Any) -> Any:
        windows, rows, turned, seen = a.exp(), a.sin(), a.cos(), a.neg()
        t = seen.transpose(0, 1)
        moved = windows.view(2, 3, 2).transpose(0, 1).reshape(6, 2)
        return moved, rows.permute(1, 0).flatten(), turned.transpose(0, 1), t, t.reshape(-1)

    before, inner, after = without_views(whole(acquired(fn, (4, 3))))
    assert not before and names(after) == ["transpose", "transpose", "reshape"]
    inside = ["exp", "sin", "cos", "neg", "view", "transpose", "reshape", "permute", "flatten"]
    assert sorted(names(inner.operations)) == sorted(inside)
    assert sorted(tuple(p.shape) for p in inner.outputs) == [(4, 3), (4, 3), (6, 2), (12,)]


def test_no_views() -> None:
    """Nothing to take out."""
    region = whole(acquired(lambda a: a.sin().cos(), (3,)))
    before, inner, after = without_views(region)
    assert not before and not after and names(inner.operations) == ["sin", "cos"]


def test_levels() -> None:
    """Whole where it is taken, else by parts; without what returns its input."""
    operations = whole(acquired(lambda a: torch.nn.functional.silu(a.float()).sum(0), (2, 3))).operations
    assert names(flattened(operations, lambda op: op.sym.name in ("silu", "sum"))) == ["silu", "sum"]
    prims = flattened(operations, lambda op: op.sym.is_prim)
    assert all(op.sym.is_prim for op in prims) and len(prims) > 2
    with pytest.raises(ThunderError, match="is in a region of a compiler that does not support it"):
        flattened(operations, lambda op: op.sym.name == "sum" and not op.sym.is_prim)
