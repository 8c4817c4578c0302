# SPDX-License-Identifier: Apache-2.0
"""Copies of the operands of attention: which are removed or shared, and the strides of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder_ex_cudnn.attention import run

B, H, S, D = 2, 4, 8, 16
WIDTH = H * D
VIEW, DENSE = [S * WIDTH, D, WIDTH, 1], [S * WIDTH, S * D, D, 1]  # heads of a projection, and copies of them


def heads(x: torch.Tensor) -> torch.Tensor:
    """Split a projection into heads, which are copied."""
    return x.view(B, S, H, D).transpose(1, 2).contiguous()


def projected(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
    """The heads of queries, keys and values."""
    return [heads(F.linear(x, w)) for w in weights]


def layer(x: Any, q: Any, k: Any, v: Any, o: Any) -> Any:
    """Attention between projections."""
    out = F.scaled_dot_product_attention(*projected(x, q, k, v))
    return F.linear(out.transpose(1, 2).contiguous().reshape(B, S, WIDTH), o)


def tensors() -> list[torch.Tensor]:
    """An input and four weights."""
    found = [torch.randn(B, S, WIDTH), *(torch.randn(WIDTH, WIDTH) / 8 for _ in range(4))]
    return [x.bfloat16() for x in found]


def names(jitted: Any) -> list[str]:
    """The operations of the last program."""
    return [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]


@pytest.fixture
def layouts(cudnn: Any) -> Callable[[], list[Any]]:
    """The strides in the graphs of attention so far. Results are torch's."""
    cudnn.refuses = True
    return lambda: [
        tuple(x.said["stride"] for x in args)
        for graph in cudnn.graphs
        for name, args, _ in graph.calls
        if name == "sdpa"
    ]


def test_heads_are_views_of_projections(executor: Any, layouts: Any) -> None:
    """Forward and backward. The next projection reads the result as it is."""
    jitted, inputs = thunder.jit(layer), tensors()
    with torch.no_grad():
        torch.testing.assert_close(jitted(*inputs), layer(*inputs), rtol=2e-2, atol=2e-2)
    assert layouts() == [(VIEW, VIEW, VIEW)]
    assert names(jitted).count("contiguous") == 1  # that of the result, which has nothing to do

    inputs = [x.requires_grad_() for x in inputs]
    jitted(*inputs).float().square().sum().backward()
    assert layouts()[1:] == [(VIEW, VIEW, VIEW)]
    found = [x.grad for x in inputs]
    for x in inputs:
        x.grad = None
    layer(*inputs).float().square().sum().backward()
    for mine, x in zip(found, inputs):
        torch.testing.assert_close(mine, x.grad, rtol=4e-2, atol=4e-2 * float(x.grad.abs().max()))


RESULTS: dict[str, Callable[[Any], Any]] = {
    "returned": lambda out: out,
    "transposed": lambda out: out.transpose(1, 2),
    "added to": lambda out: out + 1,
    "viewed by strides": lambda out: out.as_strided((2,), (1,)).sum(),
}


@pytest.mark.parametrize("how", RESULTS)
def test_results_keep_their_strides(how: str, executor: Any, cudnn: Any, layouts: Any) -> None:
    """A result has the order of the queries, so the copy of these stays if the program shows it."""

    def f(x: Any, q: Any, k: Any, v: Any, o: Any) -> Any:
        return RESULTS[how](F.scaled_dot_product_attention(*projected(x, q, k, v)))

    cudnn.refuses = False  # results have cuDNN's strides, and no values
    jitted = thunder.jit(f)
    with torch.no_grad():
        found = jitted(*tensors())
    assert layouts() == [(DENSE, VIEW, VIEW)]
    assert found.stride() == RESULTS[how](torch.empty(B, H, S, D)).stride()


@pytest.mark.parametrize("kind", ["read elsewhere", "loose rows", "of unknown strides"])
def test_copies_that_stay(kind: str, executor: Any, layouts: Any) -> None:
    """Those that others read, too, and those that cuDNN may need."""

    def f(x: Any, q: Any, k: Any, v: Any, o: Any) -> Any:
        if kind == "loose rows":
            found = [F.linear(x, w).view(B, S, D, H).permute(0, 3, 1, 2).contiguous() for w in (q, k, v)]
        elif kind == "of unknown strides":
            found = [(x * w[0]).view(B, S, H, D).transpose(1, 2).contiguous() for w in (q, k, v)]
        else:
            found = projected(x, q, k, v)
        out = F.scaled_dot_product_attention(*found)
        return out + sum(found) if kind == "read elsewhere" else out

    jitted, inputs = thunder.jit(f), tensors()
    inputs[0] = inputs[0].repeat_interleave(2, -1)[..., ::2]
    with torch.no_grad():
        torch.testing.assert_close(jitted(*inputs), f(*inputs), rtol=4e-2, atol=4e-2)
    assert layouts() == [(DENSE, DENSE, DENSE)]


def distances(table: torch.Tensor) -> torch.Tensor:
    """A bias of each head for each distance, as T5 computes it: the numbers of all heads lie together."""
    places = torch.arange(S)
    return F.embedding((places[:, None] - places).abs(), table).permute(2, 0, 1)[None]


BIASES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "distances": (distances, 1),
    "distances and a mask": (lambda table: torch.where(torch.ones(S, S).tril() > 0, distances(table), -1e4), 1),
    "dense": (lambda table: distances(table).contiguous() + 1, 0),
    "of all heads": (lambda table: distances(table).sum(1, keepdim=True).expand(-1, H, -1, -1), 0),
}


def test_operands_by_name(executor: Any, layouts: Any) -> None:
    def f(x: Any, q: Any, k: Any, v: Any) -> Any:
        query, key, value = projected(x, q, k, v)
        return F.scaled_dot_product_attention(query=query, value=value, key=key) * 2

    jitted, inputs = thunder.jit(f), tensors()[:4]
    with torch.no_grad():
        torch.testing.assert_close(jitted(*inputs), f(*inputs), rtol=4e-2, atol=4e-2)
    assert layouts() == [(DENSE, VIEW, VIEW)]


@pytest.mark.parametrize("shape", [(S,), ()])
def test_biases_without_rows(shape: tuple[int, ...], executor: Any, cudnn: Any) -> None:
    cudnn.refuses = True
    x, bias = torch.randn(B, H, S, D).bfloat16(), torch.randn(shape).bfloat16()
    found = thunder.jit(lambda x, m: F.scaled_dot_product_attention(x, x, x, m))(x, bias)
    wide = x.double()
    expected = F.scaled_dot_product_attention(wide, wide, wide, bias.double().expand(S, S))
    torch.testing.assert_close(found.double(), expected, rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize("kind", BIASES)
@pytest.mark.parametrize("grad", [False, True])
def test_biases_are_copied_once(kind: str, grad: bool, executor: Any, cudnn: Any, monkeypatch: Any) -> None:
    """By the program, for all layers, if cuDNN does not read their rows. Broadcast ones are not copied."""
    bias, copies = BIASES[kind]

    def f(x: Any, table: Any) -> Any:
        mask = bias(table)
        for _ in range(3):
            x = F.scaled_dot_product_attention(x, x, x, mask)
        return x

    cudnn.refuses = True
    copied = []
    monkeypatch.setattr(run, "_copies", lambda tensors, bias, found: copied.append(found) or (*tensors, bias))
    jitted = thunder.jit(f, cuda_graphs="never")
    given = [torch.randn(B, H, S, D).bfloat16(), torch.randn(S, H).bfloat16()]
    given = [x.requires_grad_(grad) for x in given]
    wide = [x.detach().double().requires_grad_(grad) for x in given]
    out, expected = jitted(*given), f(*wide)
    torch.testing.assert_close(out.double(), expected, rtol=4e-2, atol=4e-2)
    added = [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols].count("contiguous")
    assert added - (kind == "dense") == copies
    if grad:
        g = torch.randn(out.shape).bfloat16()
        found, right = torch.autograd.grad(out, given, g), torch.autograd.grad(expected, wide, g.double())
        for mine, exact in zip(found, right):
            assert (mine.double() - exact).norm() <= 4e-2 * exact.norm()
    assert not copied
