# SPDX-License-Identifier: Apache-2.0
"""Views of views as one: when, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import thunder


def calls(fn: Callable[..., Any], *args: Any) -> list[str]:
    """What a program runs; its results are eager's."""
    jitted = thunder.jit(fn, executors=["torch"])
    with torch.no_grad():
        found, expected = jitted(*args), fn(*args)
    for x, y in zip(found, expected):
        torch.testing.assert_close(x, y)
        assert x.stride() == y.stride()
    left_out = ("unpack_trivial", "python_del", "python_return")
    return [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.name not in left_out]


X, W = torch.randn(2, 5, 6), torch.randn(24, 6)


def test_heads_of_a_projection() -> None:
    """Each in one call, of the memory that the projection wrote."""

    def heads(x: Any, w: Any) -> Any:
        return [y.view(2, 5, 2, 4).transpose(1, 2) + 1 for y in F.linear(x, w).split(8, -1)]

    assert calls(heads, X, W) == ["linear", *["as_strided", "add"] * 3]

    def kept(x: Any, w: Any) -> Any:
        return [y.view(2, 5, 2, 4).transpose(1, 2) for y in F.linear(x, w).split(8, -1)]

    jitted = thunder.jit(kept)
    first, _, last = jitted(X, W.clone().requires_grad_())
    assert first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()


def test_what_others_read_stays() -> None:
    """A view that is needed itself is what the next one is taken of."""

    def fn(x: Any, w: Any) -> Any:
        rows = (x @ w.t()).view(5, 3, 8)
        return rows.transpose(0, 1) * 2, rows + 1

    assert calls(fn, X[0], W) == ["t", "matmul", "reshape", "transpose", "mul", "add"]


def test_where_the_layout_is_not_known() -> None:
    """Of an input, and of a product that torch may lay out as it likes."""

    def fn(x: Any, w: Any) -> Any:
        return x.transpose(0, 1)[1:] + 1, torch.matmul(x, w.t()).transpose(0, 1)[1:] + 1

    assert "as_strided" not in calls(fn, X, W)
    assert "as_strided" not in calls(fn, X.transpose(0, 2).contiguous().transpose(0, 2), W)


def test_where_torch_copies() -> None:
    """What is copied is no view; what is taken of the copy is as it was."""

    def fn(x: Any, w: Any) -> Any:
        y = F.linear(x, w).transpose(0, 1).reshape(-1, 8)
        return y[1:].t() + 1, y * 2

    assert calls(fn, X, W)[:3] == ["linear", "transpose", "reshape"]


def test_views_that_strides_do_not_tell() -> None:
    """Conjugates, and other types."""

    def fn(x: Any, w: Any) -> Any:
        y = torch.mm(x, w)
        return y.t().conj()[1:] + 1, torch.view_as_real(y.t())[1:] + 1, y.t()[1:].imag + 1

    calls(fn, torch.randn(3, 4, dtype=torch.complex64), torch.randn(4, 3, dtype=torch.complex64))


def test_writes_to_views() -> None:
    """They reach what they are views of."""

    def fn(x: Any, w: Any) -> Any:
        y = F.linear(x, w)
        head = y.view(2, 5, 2, 12).transpose(1, 2)[:, 1]
        head.mul_(2)
        return y + 1, head

    w = W.clone().requires_grad_()
    fn(X, w)[0].square().sum().backward()
    jitted, mine = thunder.jit(fn), W.clone().requires_grad_()
    jitted(X, mine)[0].square().sum().backward()
    torch.testing.assert_close(mine.grad, w.grad)


def test_modes_do_not_hear_of_it() -> None:
    """What is looked at while compiling is no operation of the program."""
    heard: list[str] = []

    class Listening(TorchDispatchMode):
        """To the devices of results."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            heard.extend(x.device.type for x in (out if isinstance(out, (tuple, list)) else [out]))
            return out

    jitted = thunder.jit(lambda x, w: F.linear(x, w).view(2, 5, 2, 12).transpose(1, 2) + 1)
    with Listening():
        jitted(X, W)
    assert "as_strided" in str(thunder.last_traces(jitted)[-1])
    assert heard and "meta" not in heard


def test_lengths_that_change() -> None:
    """With symbolic sizes nothing is known."""

    def fn(x: Any, w: Any) -> Any:
        return F.linear(x, w).view(x.shape[0], x.shape[1], 2, 12).transpose(1, 2) + 1

    jitted = thunder.jit(fn, cache="symbolic values")
    for n in (2, 3, 5):
        x = torch.randn(n, 4, 6)
        torch.testing.assert_close(jitted(x, W), fn(x, W))
