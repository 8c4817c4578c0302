# SPDX-License-Identifier: Apache-2.0
"""Masks of attention: where fusions store them with aligned rows, and where they are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder
from thunder.extend import OpTags

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
B, H, S, T, D = 2, 3, 5, 7, 8
ALIGNED = 16


def attend(x: Any, mask: Any) -> Any:
    """Attention of some queries to all keys."""
    return F.scaled_dot_product_attention(x[:, :, :S], x, x, mask)


def gathered(table: Any) -> Any:
    """A bias for each distance, which the heads have together in memory."""
    places = torch.arange(T, device=DEVICE)
    return table[(places[:S, None] - places).abs()].permute(2, 0, 1).contiguous().unsqueeze(0)


def shared(x: Any, table: Any) -> Any:
    """Two layers with one mask."""
    mask = gathered(table) * 2
    return attend(x + attend(x, mask).sum(), mask)


FOUND: dict[str, Callable[[Any, Any], Any]] = {
    "gathered": lambda x, table: attend(x, gathered(table)),
    "computed": lambda x, table: attend(x, gathered(table) + x[:, :1, :S, :T]),
    "reshaped": lambda x, table: attend(x, (gathered(table) + x[:, :1, :S, :T]).view(1, B, H, S, T).squeeze(0)),
    "flat": lambda x, table: attend(x, (gathered(table) + 1).flatten().view(1, H, S, T)),
    "shared": shared,
}


def _returned(x: Any, table: Any) -> Any:
    mask = gathered(table) + 1
    return attend(x, mask), mask


def _read(x: Any, table: Any) -> Any:
    mask = gathered(table) + 1
    return attend(x, mask) + mask.mean()


LEFT_ALONE: dict[str, Callable[[Any, Any], Any]] = {
    "returned": _returned,
    "read elsewhere": _read,
    "an input": lambda x, table: attend(x, table),
    "broadcast": lambda x, table: attend(x, (x[:1, :1, :S, :T] + 1).expand(B, H, S, T)),
    "boolean": lambda x, table: attend(x, gathered(table) > 0),
    "aligned": lambda x, table: attend(x.repeat(1, 1, 16, 1), gathered(table).repeat(1, 1, 1, 16) + 1),
    "double": lambda x, table: attend(x.double(), gathered(table).double() + 1),
}


def tensors(kind: str = "") -> list[torch.Tensor]:
    """Queries, keys and values, and a table of biases (or a mask)."""
    shape = (S, T) if kind == "an input" else (T, H)
    return [torch.randn(B, H, T, D, device=DEVICE), torch.randn(shape, device=DEVICE)]


def lengths(traces: Any) -> list[int]:
    """The lengths of rows in memory of the masks that attention reads."""
    made = {name: op for op in traces[-1].bound_symbols for name in op.out_names}
    found = []
    for op in traces[-1].bound_symbols:
        if "attention" in op.sym.name:
            mask = next(p for p in op.flat_args if p.shape[-2:] == (S, T))
            cut = made.get(mask.name)
            is_cut = cut is not None and OpTags.VIEW_OP in cut.sym.tags and cut.args[0].shape[:-1] == mask.shape[:-1]
            found.append(cut.args[0].shape[-1] if is_cut else T)
    return found


@pytest.mark.parametrize("kind", FOUND)
def test_fusions_store_aligned_rows(kind: str) -> None:
    """The kernel that computes a mask stores it as the kernel of attention reads it."""
    f, inputs = FOUND[kind], tensors()
    jitted = thunder.jit(f)
    torch.testing.assert_close(jitted(*inputs), f(*inputs))
    assert lengths(thunder.last_traces(jitted)) == [ALIGNED] * (2 if kind == "shared" else 1)
    names = [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]
    assert not {"pad", "contiguous"} & set(names)


@pytest.mark.parametrize("kind", LEFT_ALONE)
def test_other_masks_are_left_alone(kind: str) -> None:
    """Those that others read, those that no fusion stores, and those that need no copy."""
    f, inputs = LEFT_ALONE[kind], tensors(kind)
    jitted = thunder.jit(f)
    for mine, eager in zip(*[out if isinstance(out, tuple) else (out,) for out in (jitted(*inputs), f(*inputs))]):
        torch.testing.assert_close(mine, eager)
        assert mine.stride() == eager.stride()
    assert "Rows of masks" not in [trace.provenance.name for trace in thunder.last_traces(jitted) if trace.provenance]


def test_gradients_read_the_same_mask() -> None:
    """The saved mask has aligned rows, too."""

    def f(x: Any, table: Any) -> Any:
        return attend(x, gathered(table) + 1)

    x, table = tensors()
    x.requires_grad_()
    jitted = thunder.jit(f)
    out, expected = jitted(x, table), f(x, table)
    torch.testing.assert_close(out, expected)
    g = torch.randn_like(out)
    torch.testing.assert_close(torch.autograd.grad(out, x, g), torch.autograd.grad(expected, x, g))
    assert lengths(thunder.last_traces(jitted)) == [ALIGNED]
