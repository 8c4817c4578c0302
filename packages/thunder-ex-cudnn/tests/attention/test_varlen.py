# SPDX-License-Identifier: Apache-2.0
"""Sequences that lie one after the other, by torch's own function."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder.extend import get_default_executors

varlen_attn = pytest.importorskip("torch.nn.attention.varlen").varlen_attn
ON_GPU = "cudnn" in [ex.name for ex in get_default_executors()]
PARAMETERS = inspect.signature(varlen_attn).parameters
LENGTHS = ([5, 1, 7], [3, 4, 9])
ALL, CAUSAL = (-1, -1), (-1, 0)


def starts(lengths: list[int], device: str) -> torch.Tensor:
    """Where sequences begin, and the end."""
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=device)


def expected(q: Any, k: Any, v: Any, lengths: Any, window: tuple[int, int]) -> torch.Tensor:
    """Each sequence by itself, in double precision; rows that see nothing are zeros."""
    out, i, j = [], 0, 0
    left, right = (math.inf if n < 0 else n for n in window)
    for n, m in zip(*lengths):
        away = torch.arange(m, device=q.device) - torch.arange(m - n, m, device=q.device)[:, None]
        seen = (away >= -left) & (away <= right)
        parts = [x[a : a + w].double().transpose(0, 1)[None] for x, a, w in ((q, i, n), (k, j, m), (v, j, m))]
        times = q.shape[1] // k.shape[1]
        parts[1:] = [x.repeat_interleave(times, 1) for x in parts[1:]]
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            found = F.scaled_dot_product_attention(*parts, seen if seen.any(1).all() else seen | ~seen.any(1)[:, None])
        out.append((found[0] * seen.any(1)[:, None]).transpose(0, 1))
        i, j = i + n, j + m
    return torch.cat(out)


def compare(f: Any, lengths: Any, window: Any, heads: int, device: str) -> None:
    """Results and gradients of attention of sequences."""
    torch.manual_seed(0)
    shapes = ((sum(lengths[0]), 4, 16), (sum(lengths[1]), heads, 16), (sum(lengths[1]), heads, 16))
    tensors = [torch.randn(s, dtype=torch.bfloat16, device=device).requires_grad_() for s in shapes]
    out = f(*tensors)
    g = torch.randn_like(out)
    found = torch.autograd.grad(out, tensors, g)
    wide = [x.detach().double().requires_grad_() for x in tensors]
    truth = expected(*wide, lengths, window)
    torch.testing.assert_close(out.double(), truth, atol=3e-2, rtol=2e-2)
    for a, b in zip(found, torch.autograd.grad(truth, wide, g.double())):
        torch.testing.assert_close(a.double(), b, atol=6e-2, rtol=3e-2)


def sequences(lengths: Any, window: tuple[int, int], heads: int, device: str, executor: Any) -> Any:
    """A program with such an attention."""
    q_starts = starts(lengths[0], device)
    k_starts = q_starts if lengths[0] is lengths[1] else starts(lengths[1], device)
    how: dict[str, Any] = {}
    if "window_size" in PARAMETERS:
        how = {"window_size": window}
    elif window != ALL:  # as an older torch says it
        how = {"is_causal": True} if window == CAUSAL else pytest.skip("this torch has no windows")
    if heads != 4:
        if "enable_gqa" not in PARAMETERS:
            pytest.skip("this torch shares no heads here")
        how["enable_gqa"] = True

    def f(q: Any, k: Any, v: Any) -> Any:
        return varlen_attn(q, k, v, q_starts, k_starts, max(lengths[0]), max(lengths[1]), **how)

    return thunder.jit(f, executors=[executor])


CASES: list[Any] = [
    (LENGTHS, ALL, 4), (LENGTHS, ALL, 2), ((LENGTHS[0],) * 2, CAUSAL, 4), ((LENGTHS[0],) * 2, ALL, 1),
    (LENGTHS, CAUSAL, 4), (([5, 1, 7], [0, 4, 3]), CAUSAL, 4), (([5, 0, 7], [5, 4, 9]), CAUSAL, 2),
    (([1, 1, 1], [3, 40, 9]), CAUSAL, 4), (([1, 1, 1], [1, 1, 1]), ALL, 4), (([5, 6], [1, 1]), ALL, 4),
    ((LENGTHS[0],) * 2, (2, 0), 4), (([5, 1, 30], [40, 4, 30]), (6, 0), 4), (([5, 9], [9, 5]), (2, 1), 4),
    (LENGTHS, (3, -1), 4),
]  # fmt: skip


@pytest.mark.skipif(ON_GPU, reason="the kernels are tested below")
@pytest.mark.parametrize(("lengths", "window", "heads"), CASES)
def test_programs(lengths: Any, window: Any, heads: int, executor: Any, cudnn: Any) -> None:
    """One line in each direction, with the results of torch where cuDNN has no plan."""
    cudnn.refuses = True
    f = sequences(lengths, window, heads, "cpu", executor)
    compare(f, lengths, window, heads, "cpu")
    assert "cudnn_varlen_forward(" in str(thunder.last_traces(f)[-1])
    assert "cudnn_varlen_backward(" in str(thunder.last_backward_traces(f)[-1])


@pytest.mark.skipif(not ON_GPU, reason="the executor cannot run on this machine")
@pytest.mark.parametrize(
    ("lengths", "window", "heads"),
    [*CASES, (([100, 1, 37, 64],) * 2, CAUSAL, 2), (([100, 1, 37], [300, 200, 20]), CAUSAL, 4)],
)
def test_on_a_gpu(lengths: Any, window: Any, heads: int, caplog: Any) -> None:
    """cuDNN's results and gradients."""
    f = sequences(lengths, window, heads, "cuda", "cudnn")
    compare(f, lengths, window, heads, "cuda")
    assert "cudnn_varlen_backward(" in str(thunder.last_backward_traces(f)[-1])
    assert not caplog.records


@pytest.mark.skipif(ON_GPU, reason="needs the stand-in")
def test_a_graph(executor: Any, cudnn: Any) -> None:
    """Sequences are a batch of the longest, with offsets in elements and lengths of their own."""
    lengths = ([5, 1, 7],) * 2
    f = sequences(lengths, CAUSAL, 2, "cpu", executor)
    q, k = (torch.randn(13, h, 16, dtype=torch.bfloat16) for h in (4, 2))
    f(q, k, k)
    (graph,) = cudnn.graphs
    ((name, args, how),) = graph.calls
    assert name == "sdpa" and how["use_padding_mask"] and how["diagonal_band_right_bound"] == 0
    assert [x.said["dim"] for x in args] == [[3, 4, 7, 16], [3, 2, 7, 16], [3, 2, 7, 16]]
    assert args[0].said["stride"] == [7 * 64, 16, 64, 1]
    buffers = graph.executions[0][0]
    assert buffers[0].tolist() == [5, 1, 7] and buffers[0] is buffers[1]
    assert buffers[2].tolist() == [0, 5 * 64, 6 * 64, 13 * 64] and buffers[3].tolist() == [0, 5 * 32, 6 * 32, 13 * 32]
    assert buffers[6].tolist() == [0, 20, 24, 52]


@pytest.mark.skipif(ON_GPU, reason="needs the stand-in")
@pytest.mark.parametrize(
    ("window", "same", "said"),
    [
        (CAUSAL, True, {"right": 0, "side": "top left"}),
        (CAUSAL, False, {"right": 0, "side": "bottom right"}),
        ((4, 0), False, {"left": 5, "right": 0, "side": "bottom right"}),
        ((4, -1), True, {"left": 5, "side": "top left"}),
        (ALL, False, {}),
    ],
)
def test_windows(window: Any, same: bool, said: dict[str, Any], executor: Any, cudnn: Any) -> None:
    """How cuDNN is told what a query sees: its left bound counts the query's own key."""
    lengths = ([5, 1, 7],) * 2 if same else ([5, 1, 7], [6, 3, 7])
    f = sequences(lengths, window, 4, "cpu", executor)
    tensors = [torch.randn(sum(n), 4, 16, dtype=torch.bfloat16) for n in (lengths[0], lengths[1], lengths[1])]
    f(*tensors)
    ((_, _, how),) = cudnn.graphs[0].calls
    names = {"left": "diagonal_band_left_bound", "right": "diagonal_band_right_bound", "side": "diagonal_alignment"}
    assert {name: how[names[name]] for name in names if names[name] in how} == said


@pytest.mark.skipif(ON_GPU, reason="needs the stand-in")
def test_gradients_of_one_query_each(executor: Any, cudnn: Any) -> None:
    """The sums that they need would be missing without a word if the longest had one."""
    lengths = ([1, 1, 1], [3, 2, 4])
    f = sequences(lengths, ALL, 4, "cpu", executor)
    tensors = [torch.randn(n, 4, 16, dtype=torch.bfloat16, requires_grad=True) for n in (3, 9, 9)]
    f(*tensors).sum().backward()
    assert [graph.calls[0][1][0].said["dim"] for graph in cudnn.graphs] == [[3, 4, 2, 16]] * 2


@pytest.mark.skipif(ON_GPU, reason="needs the stand-in")
def test_what_is_not_taken(executor: Any, cudnn: Any) -> None:
    """Pages of a cache, and what says how the work is to be split."""
    from thunder_ex_cudnn.attention.varlen import _Arguments

    class Made:
        ndim, shape, name = 3, (13, 4, 16), "x"

    x: Any = Made()
    names = [("query", None), ("key", None), ("value", None), ("cu_seq_q", None), ("cu_seq_k", None), ("max_q", None)]
    names += [("max_k", None), ("window_size", None), ("block_table", None), ("num_splits", None)]
    assert "block_table" in str(_Arguments(names, (x, x, x, x, x, 7, 7), {"block_table": x}).why_not())
    assert "num_splits" in str(_Arguments(names, (x, x, x, x, x, 7, 7), {"num_splits": 1}).why_not())
    assert "windows" in str(_Arguments(names, (x, x, x, x, x, 7, 7), {"window_size": [-5, 0]}).why_not())
