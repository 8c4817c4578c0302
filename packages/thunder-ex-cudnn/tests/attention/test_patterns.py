# SPDX-License-Identifier: Apache-2.0
"""Attention that programs spell out: what is found, what it becomes, and what is left alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder

B, H, S, T, D = 2, 4, 8, 8, 16
KEEP = torch.ones(1, 1, 12, 12).tril()


def repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    """As transformers repeats heads."""
    b, h, s, d = x.shape
    return x[:, :, None, :, :].expand(b, h, times, s, d).reshape(b, h * times, s, d)


def plain(q: Any, k: Any, v: Any, m: Any) -> Any:
    """The textbook's."""
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(D), -1) @ v


def added(q: Any, k: Any, v: Any, m: Any) -> Any:
    """A mask that is added, and softmax in single precision."""
    w = torch.matmul(q, k.mT) * 0.25 + m
    return torch.matmul(F.softmax(w, dim=-1, dtype=torch.float32).to(q.dtype), v).transpose(1, 2).contiguous()


def buffered(q: Any, k: Any, v: Any, m: Any) -> Any:
    """A triangle that is kept in a buffer, and a factor for query and key."""
    w = (q * 0.5) @ (k * 0.5).transpose(2, 3)
    w = w.masked_fill(KEEP[:, :, :S, :T] == 0, float("-inf"))
    return w.softmax(-1) @ v


def triangle(q: Any, k: Any, v: Any, m: Any) -> Any:
    """A triangle that the program makes."""
    mask = torch.tril(torch.ones(S, T, dtype=torch.bool))
    w = torch.where(mask, torch.einsum("bhqd,bhkd->bhqk", q, k) * 0.25, torch.finfo(torch.float32).min)
    return torch.einsum("bhqk,bhkd->bhqd", torch.softmax(w, -1), v)


def upper(q: Any, k: Any, v: Any, m: Any) -> Any:
    """A triangle of what is not seen, in a sum; heads beside widths."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    mask = torch.triu(torch.full((S, T), -math.inf, dtype=q.dtype), diagonal=1)[None, None]
    w = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) / 4 + mask, dim=3)
    return torch.einsum("bhqk,bkhd->bqhd", w, v)


def two_masks(q: Any, k: Any, v: Any, m: Any) -> Any:
    """A triangle and a mask."""
    blocked = torch.triu(torch.ones(S, T), 1).bool()
    return ((q @ k.mT).div(4).masked_fill(blocked, -1e9) + m).softmax(-1).matmul(v)


def repeated_heads(q: Any, k: Any, v: Any, m: Any) -> Any:
    """Heads that are repeated as transformers does."""
    return added(q, repeated(k[:, :2], 2), repeated(v[:, :2], 2), m)


def interleaved_heads(q: Any, k: Any, v: Any, m: Any) -> Any:
    """Heads that are repeated by torch, before attention that is called."""
    k, v = k[:, :1].repeat_interleave(4, dim=1), torch.repeat_interleave(v[:, :1], 4, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def batched(q: Any, k: Any, v: Any, m: Any) -> Any:
    """Batch and heads as one dimension."""
    q, k, v = (x.reshape(B * H, -1, D) for x in (q, k, v))
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.25, dim=2), v)


def called(q: Any, k: Any, v: Any, m: Any) -> Any:
    """A triangle that is handed to attention as a mask."""
    return F.scaled_dot_product_attention(q, k, v, ~torch.triu(torch.ones(S, T, dtype=torch.bool), 1), scale=0.3)


def without_batch(q: Any, k: Any, v: Any, m: Any) -> Any:
    """Heads alone, and a mask for each."""
    return F.scaled_dot_product_attention(q[0], k[0], v[0], m.expand(H, S, T))


def shared_without_batch(q: Any, k: Any, v: Any, m: Any) -> Any:
    """Fewer heads of keys, and a triangle."""
    return F.scaled_dot_product_attention(q[1], k[1, :2], v[1, :2], is_causal=True, enable_gqa=True)


FOUND: dict[Callable[..., Any], tuple[str, tuple[int, int]]] = {
    plain: ("None, None, 0.25)", (4, 4)),
    added: ("None, 0.25)", (4, 4)),
    buffered: ("None, 0.25)", (4, 4)),
    triangle: ("None, 'top-left', 0.25)", (4, 4)),
    upper: ("None, 'top-left', 0.25)", (4, 4)),
    two_masks: ("None, 0.25)", (4, 4)),
    repeated_heads: ("None, 0.25)", (4, 2)),
    interleaved_heads: ("None, 'top-left', 0.25)", (4, 1)),
    batched: ("None, None, 0.25)", (1, 1)),
    called: ("None, 'top-left', 0.3)", (4, 4)),
    without_batch: ("None, 0.25)", (4, 4)),
    shared_without_batch: ("None, 'top-left', 0.25)", (4, 2)),
}


def tensors() -> list[torch.Tensor]:
    """Query, key, value, mask."""
    torch.manual_seed(0)
    made = [torch.randn(B, H, n, D, dtype=torch.bfloat16, requires_grad=True) for n in (S, T, T)]
    return [*made, torch.randn(S, T, dtype=torch.bfloat16, requires_grad=True)]


def forward_of(jitted: Any) -> str:
    """What it runs, without what its lines stand for."""
    return "\n".join(line for line in str(thunder.last_traces(jitted)[-1]).splitlines() if "    #" not in line)


@pytest.mark.parametrize("f", FOUND, ids=lambda f: f.__name__)
def test_it_is_found(f: Any, executor: Any, cudnn: Any) -> None:
    """One attention stands in its place, results and gradients stay, and nothing of the scores is left."""
    cudnn.refuses = True
    ending, heads = FOUND[f]
    args = tensors()
    jitted = thunder.jit(f, executors=[executor])
    out = jitted(*args)
    text = forward_of(jitted)
    (line,) = [line for line in text.splitlines() if "cudnn_attention_forward(" in line]
    assert line.partition("  #")[0].endswith(ending), line
    assert "softmax" not in text and "matmul" not in text and "einsum" not in text and "bmm" not in text
    with torch.no_grad():
        jitted(*args)
    run = thunder.last_traces(jitted)[-1]
    (op,) = [op for op in run.bound_symbols if op.sym.name == "cudnn_attention"]
    assert (op.args[0].shape[1], op.args[1].shape[1]) == heads
    g = torch.randn(out.shape, dtype=out.dtype)
    wide = [x.detach().double().requires_grad_() for x in args]
    expected = f(*wide)
    torch.testing.assert_close(out.double(), expected, atol=3e-2, rtol=2e-2)
    found = torch.autograd.grad(out, args, g, allow_unused=True)
    for a, b in zip(found, torch.autograd.grad(expected, wide, g.double(), allow_unused=True)):
        assert (a is None or not a.any()) if b is None else torch.allclose(a.double(), b, atol=6e-2, rtol=4e-2)


def test_dropout(executor: Any, cudnn: Any) -> None:
    """Is attention's own."""

    def f(q: Any, k: Any, v: Any, m: Any) -> Any:
        return F.dropout(F.softmax(q @ k.mT * 0.25, -1), 0.3, True) @ v

    jitted = thunder.jit(f, executors=[executor])
    jitted(*tensors())
    assert "cudnn_attention_dropout_forward(q, k, v, None, None, 0.25, 0.3)" in forward_of(jitted)


def test_a_triangle_in_the_other_corner(executor: Any, cudnn: Any) -> None:
    """The last query sees the last key."""
    cudnn.refuses = True

    def f(q: Any, k: Any, v: Any) -> Any:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(diagonal=k.shape[2] - q.shape[2])
        return F.scaled_dot_product_attention(q, k, v, mask)

    q, k, v, _ = tensors()
    q = q[:, :, :3].detach().requires_grad_()
    jitted = thunder.jit(f, executors=[executor])
    out = jitted(q, k, v)
    assert "None, 'bottom-right', 0.25)" in forward_of(jitted)
    torch.testing.assert_close(out, f(q, k, v), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(("rows", "columns"), [(3, 8), (8, 8), (8, 3)])
@pytest.mark.parametrize("kind", ["causal_upper_left", "causal_lower_right"])
@pytest.mark.parametrize("inside", [True, False])
def test_causal_biases(kind: str, rows: int, columns: int, inside: bool, executor: Any, cudnn: Any) -> None:
    """Those of torch.nn.attention.bias are the kernels' own triangles, where these have them."""
    cudnn.refuses = True
    make = getattr(pytest.importorskip("torch.nn.attention.bias"), kind)
    outside = make(rows, columns)

    def f(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, make(rows, columns) if inside else outside)

    q, k, v, _ = tensors()
    q, k, v = (x[:, :, :n].detach().requires_grad_() for x, n in ((q, rows), (k, columns), (v, columns)))
    jitted = thunder.jit(f, executors=[executor])
    out = jitted(q, k, v)
    corner = rows == columns or kind == "causal_upper_left"
    said = "None, 'top-left', 0.25)" if corner else "None, 'bottom-right', 0.25)" if rows < columns else ", None, 0.25)"
    assert said in forward_of(jitted)
    g = torch.randn_like(out)
    expected = f(q, k, v)
    for a, b in zip(
        (out, *torch.autograd.grad(out, (q, k, v), g)), (expected, *torch.autograd.grad(expected, (q, k, v), g))
    ):
        torch.testing.assert_close(a, b, atol=3e-2, rtol=2e-2)


def _returned(q: Any, k: Any, v: Any, m: Any) -> Any:
    w = torch.softmax(q @ k.mT, -1)
    return w @ v, w


def _scaled_mask(q: Any, k: Any, v: Any, m: Any) -> Any:
    return torch.softmax((q @ k.mT + m) * 0.25, -1) @ v


def _other_dim(q: Any, k: Any, v: Any, m: Any) -> Any:
    return torch.softmax(q @ k.mT, -2) @ v


def _filled_with_little(q: Any, k: Any, v: Any, m: Any) -> Any:
    return torch.softmax((q @ k.mT).masked_fill(m > 0, -5.0), -1) @ v


def _something_between(q: Any, k: Any, v: Any, m: Any) -> Any:
    return torch.softmax(torch.tanh(q @ k.mT / 20) * 20, -1) @ v


def _single_precision(q: Any, k: Any, v: Any, m: Any) -> Any:
    return torch.softmax(q.float() @ k.float().mT, -1) @ v.float()


def _not_a_triangle(q: Any, k: Any, v: Any, m: Any) -> Any:
    return torch.softmax(q @ k.mT, -1).tril() @ v


@pytest.mark.parametrize(
    "f",
    [_returned, _scaled_mask, _other_dim, _filled_with_little, _something_between, _single_precision, _not_a_triangle],
)
def test_it_is_left_alone(f: Any, executor: Any, cudnn: Any) -> None:
    """What is something else, or is read elsewhere, stays as it is."""
    jitted = thunder.jit(f, executors=[executor])
    args = tensors()
    torch.testing.assert_close(jitted(*args), f(*args))
    assert "cudnn_attention" not in str(thunder.last_traces(jitted)[-1])


def test_other_triangles_are_masks(executor: Any, cudnn: Any) -> None:
    """One that is shifted is handed over as it is."""

    def f(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, torch.ones(S, T, dtype=torch.bool).tril(2))

    q, k, v, _ = tensors()
    jitted = thunder.jit(f, executors=[executor])
    jitted(q, k, v)
    (line,) = [line for line in forward_of(jitted).splitlines() if "cudnn_attention_forward(" in line]
    assert "'top-left'" not in line and "'bottom-right'" not in line


def test_layers_with_one_mask(executor: Any, cudnn: Any) -> None:
    """What it adds is computed once."""
    cudnn.refuses = True

    def f(q: Any, k: Any, v: Any, m: Any) -> Any:
        for _ in range(3):
            q = F.scaled_dot_product_attention(q, k, v, m)
        return q

    q, k, v, m = tensors()
    m = m.detach() > -1
    jitted = thunder.jit(f, executors=[executor])
    torch.testing.assert_close(jitted(q, k, v, m), f(q, k, v, m), atol=2e-2, rtol=2e-2)
    assert forward_of(jitted).count("torch.where(") == 1
    assert forward_of(jitted).count("cudnn_attention_forward(") == 3


@pytest.mark.parametrize("f", [plain, lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m > 0)])
def test_symbolic_lengths(f: Any, executor: Any, cudnn: Any) -> None:
    """One program for all lengths; a plan for each is the kernels' affair."""
    cudnn.refuses = True
    jitted = thunder.jit(f, executors=[executor], cache="symbolic values")
    for n in (8, 10, 13):
        q, k, v = (torch.randn(2, 4, n, D, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        m = torch.randn(n, n)
        torch.testing.assert_close(jitted(q, k, v, m), f(q, k, v, m), atol=3e-2, rtol=2e-2)
    assert thunder.cache_misses(jitted) == 1


@pytest.mark.parametrize("wanted", [True, False])
def test_gradients_of_biases_that_nobody_wants(wanted: bool, executor: Any, cudnn: Any) -> None:
    """Are not computed."""
    cudnn.refuses = True
    q, k, v, m = tensors()
    m = m.detach().requires_grad_(wanted)
    jitted = thunder.jit(lambda *a: F.scaled_dot_product_attention(*a), executors=[executor])
    jitted(q, k, v, m).sum().backward()
    (op,) = [
        op for op in thunder.last_backward_traces(jitted)[-1].bound_symbols if op.sym.name == "cudnn_attention_backward"
    ]
    assert op.args[-1] is wanted
