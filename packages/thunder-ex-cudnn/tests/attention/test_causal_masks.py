# SPDX-License-Identifier: Apache-2.0
"""Masks that are bands along the diagonal: which are found, and that the others stay masks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder

S, T, W = 8, 12, 3


def rows() -> torch.Tensor:
    """The numbers of the queries, of which the last is that of the last key."""
    return torch.arange(T - S, T)[:, None]


def columns() -> torch.Tensor:
    """The numbers of the keys."""
    return torch.arange(T)[None, :]


def as_transformers() -> torch.Tensor:
    """With dimensions for batch and heads, a neutral beginning, and numbers that were shifted."""
    q, k = torch.arange(S) + (T - S), torch.arange(T) + 0
    q, k = q[None, None, :, None], k[None, None, None, :]
    mask = q.new_ones((), dtype=torch.bool) & (k > q - W).to(q.device) & (k <= q)
    return mask.expand(2, -1, S, T)


def with_jumps(positions: torch.Tensor) -> torch.Tensor:
    """As transformers, where it asks besides for jumps in the numbers of tokens: they begin another sequence."""
    batch, q, k = torch.arange(2)[:, None, None, None], torch.arange(T)[:, None], torch.arange(T)[None]
    jumps = (torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    same = jumps[batch, q[None, None]] == jumps[batch, k[None, None]]
    return same & (positions[batch, k[None, None]] <= positions[batch, q[None, None]])


FOUND: list[tuple[Callable[[], torch.Tensor], Any]] = [
    (lambda: columns() <= rows(), "bottom-right"),
    (lambda: rows() >= columns(), "bottom-right"),
    (lambda: columns() < rows() + 1, "bottom-right"),
    (lambda: ~(columns() > rows()), "bottom-right"),
    (lambda: columns() <= torch.arange(S).unsqueeze(-1), "top-left"),
    (lambda: columns() - 4 <= torch.arange(S).view(S, 1), "bottom-right"),
    (lambda: (columns() <= rows()) & (columns() > rows() - W), ("bottom-right", W)),
    (lambda: torch.logical_and(columns() + W > rows(), columns() <= rows()), ("bottom-right", W)),
    (lambda: torch.ones(S, T, dtype=torch.bool).tril().triu(1 - W), ("top-left", W)),
    (lambda: torch.ones(S, T).triu(1 - W).tril().bool(), ("top-left", W)),
    (lambda: torch.ones(S, T).tril(0) * 1 != 0, None),
    (lambda: (columns() <= rows()) & (columns() > rows() - 12), "bottom-right"),
    (as_transformers, ("bottom-right", W)),
    (lambda: torch.where(columns() <= rows(), 0.0, -math.inf), "bottom-right"),
    (lambda: torch.where(columns() <= rows(), 0.0, torch.finfo(torch.bfloat16).min), "bottom-right"),
    (lambda: torch.zeros(S, T).masked_fill(columns() > rows(), -math.inf)[None], "bottom-right"),
]


def picked() -> list[tuple[Callable[[], torch.Tensor], bool]]:
    """Masks of squares, of numbers that are picked from others, and whether they are triangles."""

    def counted(first: int) -> torch.Tensor:
        return (torch.arange(T) + first)[None].expand(2, -1)

    return [
        (lambda: with_jumps(counted(0)), True), (lambda: with_jumps(counted(3)), True),
        (lambda: with_jumps(counted(0) * 2), False), (lambda: with_jumps(counted(0) % 5), False),
        (lambda: with_jumps(torch.cat([counted(0)[:, :5], counted(0)[:, :7]], 1)), False),
        (lambda: with_jumps(counted(0) + torch.arange(2)[:, None] * 4), False),
        (lambda: counted(0)[:1] <= counted(0)[0, torch.arange(T)][:, None], False),
        (lambda: torch.arange(T)[1:, None].new_zeros(T, 1) >= torch.arange(T)[None], False),
        (lambda: torch.arange(2 * T)[None, T:] <= torch.arange(T, 2 * T)[:, None], True),
        (lambda: torch.arange(2 * T)[..., :T] <= torch.arange(T).reshape(1, T, 1), True),
        (lambda: torch.arange(T)[None].bool() <= torch.arange(T)[:, None].bool(), False),
        (lambda: torch.arange(T)[None] <= torch.arange(T)[:, None] + torch.ones(T, 1).long(), False),
        (lambda: torch.arange(T)[None] <= torch.arange(T)[:, None] + torch.zeros(T, 1).long(), True),
    ]  # fmt: skip


def no_band() -> list[Callable[[], torch.Tensor]]:
    """What looks like one."""
    order = torch.tensor([1, 0, *range(2, S)])

    def written() -> torch.Tensor:
        mask = torch.ones(S, T, dtype=torch.bool).tril()
        mask[0, 5] = True
        return mask

    def rounded() -> torch.Tensor:
        return torch.arange(300, 300 + T).bfloat16()[None] <= torch.arange(300, 300 + S).bfloat16()[:, None]

    return [
        lambda: torch.full((S, T), -1).tril(T - S) > 0, lambda: torch.full((S, T), 2).tril(T - S) == 1,
        lambda: (columns() <= rows())[order], lambda: columns() <= rows()[order], written, rounded,
        lambda: (columns() <= rows()).flip(0), lambda: columns() <= rows() * 2, lambda: columns() <= rows() + 1,
        lambda: columns() <= columns().new_full((S, 1), 5), lambda: (columns() <= rows()) | (columns() == 7),
        lambda: (columns() <= rows()) & (columns() != 2), lambda: columns() * 2 <= rows(),
        lambda: torch.arange(0, 2 * T, 2)[None] <= rows(), lambda: (columns() > rows()) | (columns() < 3),
        lambda: torch.where(columns() <= rows(), 0.0, -5.0), lambda: torch.where(columns() <= rows(), 1.0, -math.inf),
        lambda: (columns() <= rows()) & (torch.arange(2)[:, None, None, None] < 1) | (columns() == 0),
    ]  # fmt: skip


def tensors(s: int = S, t: int = T) -> list[torch.Tensor]:
    """Query, key and value."""
    torch.manual_seed(0)
    return [torch.randn(2, 3, n, 16, dtype=torch.bfloat16, requires_grad=True) for n in (s, t, t)]


def check(mask: Callable[[], torch.Tensor], executor: Any, cudnn: Any, length: int = S) -> str:
    """The line of the attention. Its results, by what was found, are those of the mask."""
    cudnn.refuses = True  # so they are computed in steps

    def f(q: Any, k: Any, v: Any) -> Any:
        m = mask()
        return F.scaled_dot_product_attention(q, k, v, m if m.dtype is torch.bool else m.to(q.dtype))

    args = tensors(length)
    jitted = thunder.jit(f, executors=[executor])
    out, expected = jitted(*args), f(*args)
    g = torch.randn_like(out)
    pairs = zip((out, *torch.autograd.grad(out, args, g)), (expected, *torch.autograd.grad(expected, args, g)))
    for a, b in pairs:
        torch.testing.assert_close(a, b, atol=4e-2, rtol=3e-2)
    lines = str(thunder.last_traces(jitted)[-1]).splitlines()
    return next(line for line in lines if "cudnn_attention_forward(" in line and "=" in line)


@pytest.mark.parametrize(("mask", "said"), FOUND, ids=map(str, range(len(FOUND))))
def test_bands_are_found(mask: Callable[[], torch.Tensor], said: Any, executor: Any, cudnn: Any) -> None:
    """In comparisons and in triangles, whichever way they are written."""
    line = check(mask, executor, cudnn)
    assert (f"None, {said!r}, 0.25)" in line) == (said is not None)


@pytest.mark.parametrize("mask", no_band(), ids=map(str, range(len(no_band()))))
def test_what_is_no_band_stays_a_mask(mask: Callable[[], torch.Tensor], executor: Any, cudnn: Any) -> None:
    """Rows in another order, numbers that were rounded or multiplied, elements that were written to."""
    assert "-left'" not in (line := check(mask, executor, cudnn)) and "-right'" not in line


@pytest.mark.parametrize(("mask", "triangle"), picked(), ids=map(str, range(len(picked()))))
def test_numbers_that_follow_from_places(mask: Any, triangle: bool, executor: Any, cudnn: Any) -> None:
    """Through slices, differences, sums and indices; and what only looks like it."""
    assert ("None, 'top-left', 0.25)" in check(mask, executor, cudnn, T)) == triangle


@pytest.mark.parametrize("seed", range(12))
def test_random_masks(seed: int, executor: Any, cudnn: Any) -> None:
    """Whatever is made of what comparisons, triangles, and their opposites say, results are those of the mask."""
    choice = random.Random(seed)

    def leaf() -> Callable[[], torch.Tensor]:
        n = choice.randrange(-3, 7)
        return choice.choice([
            lambda: columns() <= rows() + n, lambda: columns() > rows() - n, lambda: rows() < columns() + n,
            lambda: rows() + n >= columns(), lambda: torch.ones(S, T, dtype=torch.bool).tril(n),
            lambda: torch.ones(S, T).triu(n) == 0, lambda: torch.ones(S, T).triu(-n) != 0,
        ])  # fmt: skip

    def tree(depth: int) -> Callable[[], torch.Tensor]:
        if depth == 0:
            return leaf()
        a, b = tree(depth - 1), tree(depth - 1)
        return choice.choice(
            [lambda: a() & b(), lambda: ~a(), lambda: a().tril(4), lambda: torch.logical_and(b(), a())]
        )

    made = tree(2)
    check(lambda: made() | (columns() == T - S), executor, cudnn)  # a row that sees nothing is NaN in eager
    if bool(made().any(1).all()):
        check(made, executor, cudnn)


def test_windows_and_symbolic_lengths(executor: Any, cudnn: Any) -> None:
    """One program for all lengths."""
    cudnn.refuses = True

    def f(q: Any, k: Any, v: Any) -> Any:
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
        return F.scaled_dot_product_attention(q, k, v, (j <= i) & (j > i - W))

    jitted = thunder.jit(f, executors=[executor], cache="symbolic values")
    for n in (9, 11, 14):
        args = tensors(n, n)
        torch.testing.assert_close(jitted(*args), f(*args), atol=3e-2, rtol=2e-2)
    assert thunder.cache_misses(jitted) == 1
    assert "('top-left', 3), 0.25)" in str(thunder.last_traces(jitted)[-1])


def test_how_cudnn_is_told(executor: Any, cudnn: Any) -> None:
    """Its left bound is the number of keys that are seen."""
    args = tensors()
    jitted = thunder.jit(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, as_transformers()), executors=[executor]
    )
    jitted(*args)
    ((_, _, how),) = cudnn.graphs[0].calls
    assert how["diagonal_alignment"] == "bottom right" and "bias" not in how
    assert (how["diagonal_band_left_bound"], how["diagonal_band_right_bound"]) == (W, 0)
