# SPDX-License-Identifier: Apache-2.0
"""Views in programs: writes reach what they are views of; printed forms; what the suite's samples do not cover."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.core.symbol import Symbol
from thunder.tests.opinfos import opinfo_of

_PROPERTIES = {"T", "mT", "H", "mH", "real", "imag"}
# Of overlapping windows torch's result depends on the order of its loop; we refuse the write.
_OVERLAPPING = {"unfold"}
VIEWS = [
    pytest.param(sym, id=sym.name)
    for sym in ltorch.all_torchsymbols().values()
    if sym.view_scatter_rule is not None and (sym.reference is not None or sym.name in _PROPERTIES)
]


def _function(sym: Symbol) -> Any:
    if sym.name in _PROPERTIES:
        return lambda x, *args, **kwargs: getattr(x, sym.name)
    return sym.reference


def _outcome(fn: Any, *args: Any) -> tuple[Any, type[Exception] | None]:
    try:
        return fn(*args), None
    except Exception as error:
        return None, type(error)


def test_there_are_views() -> None:
    """Operations say so themselves; some give a view or a copy, depending on strides."""
    assert len(VIEWS) > 35
    symbols = ltorch.all_torchsymbols().values()
    assert {"reshape", "flatten", "contiguous"} <= {s.name for s in symbols if s.facts.view == "maybe"}
    assert {"permute", "unsqueeze", "expand"} <= {s.name for s in symbols if s.facts.view == "always"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("sym", VIEWS)
def test_writes_go_both_ways(sym: Symbol, dtype: torch.dtype) -> None:
    """A write to a view is seen in the base and in other views, one to the base in the view: for every sample."""
    make_view = _function(sym)

    def as_tuple(x: Any) -> tuple[torch.Tensor, ...]:
        return tuple(x) if isinstance(x, (tuple, list)) else (x,)

    def writes_views(x: torch.Tensor, args: Any, kwargs: Any) -> Any:
        y = x * 1
        views = as_tuple(make_view(y, *args, **kwargs))
        for i, view in enumerate(views):
            view.mul_(i + 3)
        return y, views, y + 1

    def writes_base(x: torch.Tensor, args: Any, kwargs: Any) -> Any:
        y = x * 1
        views = as_tuple(make_view(y, *args, **kwargs))
        y.mul_(2)
        return y, views

    for sample in opinfo_of(sym.name).sample_inputs("cpu", dtype):
        if sym.name.startswith("atleast") and len(sample.args) > 1:
            continue  # views of several tensors at once are not followed
        for program in (writes_views, writes_base):
            if program is writes_views and sym.name in _OVERLAPPING and sample.args[2] > sample.args[3]:
                continue
            args = (sample.args[0], sample.args[1:], sample.kwargs)
            expected, error = _outcome(program, *args)
            actual, ours = _outcome(thunder.jit(program), *args)
            assert ours is error, (sample, program)
            if error is None:
                flat = zip(torch.utils._pytree.tree_leaves(actual), torch.utils._pytree.tree_leaves(expected))
                assert all(torch.equal(x, y) for x, y in flat), (sample, program)


def test_copies_are_no_views() -> None:
    """What torch answers by a copy, though nothing changes, is not the input under another name."""

    def program(x: torch.Tensor) -> Any:
        y = x * 1
        copies = (
            y.flip(()), y.roll(0, 0), y.tile((1, 1)), y.repeat(1, 1), torch.nn.functional.pad(y, (0, 0)), y.clone(),
            y.rot90(0), torch.diff(y, 0), y.repeat_interleave(1, 0), y[[0, 1]], y.contiguous().clone(),
        )  # fmt: skip
        for copy in copies:
            copy.add_(1)
        return y, copies

    x = torch.randn(2, 3)
    (y, copies), (expected, others) = thunder.jit(program)(x), program(x)
    assert torch.equal(y, expected)
    assert all(torch.equal(a, b) for a, b in zip(copies, others))


def test_chains_of_views() -> None:
    """Writes go through several steps, splits among them, and back."""

    def program(x: torch.Tensor) -> Any:
        y = x * 1
        left, right = y.T.reshape(2, 2, 3).split(1)
        right[0, :, 1:].zero_()
        left.squeeze(0).diagonal().add_(5)
        y.view(-1)[::4] *= 2
        return y, left, right

    x = torch.randn(3, 4)
    for actual, expected in zip(thunder.jit(program)(x), program(x)):
        assert torch.equal(actual, expected)


def test_expanded_memory_is_not_written_to() -> None:
    """As in torch."""
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers to a single memory"):
        thunder.jit(lambda x: (x * 1).expand(2, 3).add_(1))(torch.randn(3))


def _line(fn: Any, *args: Any) -> list[str]:
    jitted = thunder.jit(fn)
    jitted(*args)
    return str(thunder.last_traces(jitted)[0]).splitlines()


def test_printed_forms() -> None:
    """Lists for unsqueeze, tuples for expand, and the memory format that contiguous was called with."""
    lines = _line(lambda x: x.unsqueeze(0).expand([4, -1, 3]), torch.randn(2, 3))
    assert any("prims.broadcast_in_dim(x, [1, 2, 3], [1, 2])" in line for line in lines)
    assert any("ltorch.expand(t0, [4, -1, 3])" in line for line in lines)
    assert any("prims.broadcast_in_dim(t0, (4, 2, 3), (0, 1, 2))" in line for line in lines)
    lines = _line(lambda x: x.contiguous(), torch.randn(3, 2).t())
    assert any("ltorch.contiguous(x, memory_format=_torch_memory_format_0)" in line for line in lines)
    assert any("prims.stride_order(x, (1, 0))" in line for line in lines)


def test_strides_are_torchs() -> None:
    """Where a program asks for them."""

    def program(x: torch.Tensor) -> Any:
        parts = (x.T, x.mT.contiguous(), x[:, 1:], x.T.reshape(12), x.flip(0), x.unfold(0, 2, 1), x.T[[0, 1]], x.real)
        return [p.stride() for p in parts], [p.is_contiguous() for p in parts]

    x = torch.randn(3, 4)
    assert thunder.jit(program)(x) == program(x)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_memory_formats(memory_format: torch.memory_format) -> None:
    """Results lie in memory as they were asked to."""
    x = torch.randn(2, 3, 4, 5).transpose(1, 3)
    for fn in (
        lambda x: x.contiguous(memory_format=memory_format),
        lambda x: x.to(memory_format=memory_format),
        lambda x: x.clone(memory_format=memory_format),
    ):
        assert thunder.jit(fn)(x).stride() == fn(x).stride()
