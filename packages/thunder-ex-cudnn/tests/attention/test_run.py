# SPDX-License-Identifier: Apache-2.0
"""Which graph a call on real tensors describes, and with what its plan is run."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from thunder.toolkit.testing import deterministic_algorithms
from thunder_ex_cudnn import plans
from thunder_ex_cudnn.attention import fallback, run


def heads(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """(batch, heads, length, width) as a projection makes it: heads beside their widths."""
    b, h, s, d = shape
    return torch.randn(b, s, h, d, dtype=dtype).transpose(1, 2)


def test_a_forward_graph(cudnn: Any) -> None:
    """Its tensors have the shapes, strides and types of what it is run with; the result lies in memory as the query."""
    q, k = heads(2, 4, 16, 64), heads(2, 2, 24, 64)
    v = torch.randn(2, 2, 24, 32, dtype=torch.bfloat16)
    out, sums = run.attention_forward(q, k, v, None, "top-left", 0.125)
    (graph,) = cudnn.graphs
    ((name, args, how),) = graph.calls
    assert name == "sdpa"
    assert [x.said["dim"] for x in args] == [[2, 4, 16, 64], [2, 2, 24, 64], [2, 2, 24, 32]]
    assert [x.said["stride"] for x in args] == [list(x.stride()) for x in (q, k, v)]
    assert {x.said["data_type"] for x in args} == {"bfloat16"}
    assert how == {
        "generate_stats": True,
        "attn_scale": 0.125,
        "diagonal_alignment": "top left",
        "diagonal_band_right_bound": 0,
    }
    assert graph.how["intermediate_data_type"] == graph.how["compute_data_type"] == "float"
    assert out.shape == (2, 4, 16, 32) and out.stride() == (16 * 4 * 32, 32, 4 * 32, 1)
    assert sums.shape == (2, 4, 16) and sums.dtype is torch.float32
    ((buffers, workspace, handle, uids),) = graph.executions
    assert [x.data_ptr() for x in buffers] == [x.data_ptr() for x in (q, k, v, out, sums)]
    assert uids == (1, 2, 3, 4, 5) and workspace is None and handle.stream == 7


def test_a_backward_graph(cudnn: Any) -> None:
    """Gradients lie in memory as what they are of; the gradient that arrives may lie as it likes."""
    q, k, v, out = heads(2, 4, 16, 64), heads(2, 4, 24, 64), heads(2, 4, 24, 64), heads(2, 4, 16, 64)
    grad, sums = torch.randn(2, 4, 16, 64, dtype=torch.bfloat16), torch.randn(2, 4, 16)
    bias = torch.randn(1, 4, 16, 24, dtype=torch.bfloat16)
    cudnn.workspace = 100
    made = run.attention_backward(grad, q, k, v, out, sums, bias, None, 0.5, True)
    (graph,) = cudnn.graphs
    ((name, args, how),) = graph.calls
    assert name == "sdpa_backward"
    assert [x.said["stride"] for x in args[:5]] == [list(x.stride()) for x in (q, k, v, out, grad)]
    assert args[5].said["dim"] == [2, 4, 16, 1] and args[5].said["data_type"] == "float"
    assert how["dBias"].said["dim"] == how["bias"].said["dim"] == [1, 4, 16, 24]
    assert "use_deterministic_algorithm" not in how
    assert [x.stride() for x in made] == [q.stride(), k.stride(), v.stride(), bias.stride()]
    ((buffers, workspace, _, uids),) = graph.executions
    assert [x.data_ptr() for x in buffers] == [x.data_ptr() for x in (q, k, v, out, grad, sums, bias, *made)]
    assert len(set(uids)) == len(buffers) and workspace.numel() == 100


def test_addresses_are_handed_over_where_the_frontend_takes_them(cudnn: Any) -> None:
    """In the order of its numbers, which a bias's gradient does not have that is described before the others."""
    cudnn.by_address = True
    q, grad = heads(1, 2, 16, 64), heads(1, 2, 16, 64)
    sums, bias = torch.randn(1, 2, 16), torch.randn(1, 1, 16, 16, dtype=torch.bfloat16)
    for _ in range(2):
        made = run.attention_backward(grad, q, q, q, q, sums, bias, None, 0.5, True)
    (graph,) = cudnn.graphs
    of_q, of_k, of_v, of_bias = made
    numbered = (q, q, q, q, grad, sums, bias, of_bias, of_q, of_k, of_v)
    assert [x.said["name"] for x in graph.tensors[-4:]] == ["of_bias", *(f"sdpa_backward {i}" for i in range(3))]
    assert graph.executions[-1] == ([x.data_ptr() for x in numbered], 0, 5, 3)


def test_deterministic_algorithms(cudnn: Any) -> None:
    """torch's switch is asked at each call."""
    q = heads(1, 1, 8, 8)
    args = (q, q, q, q, q, torch.zeros(1, 1, 8), None, None, 1.0, False)
    run.attention_backward(*args)
    torch.use_deterministic_algorithms(True)
    try:
        run.attention_backward(*args)
    finally:
        torch.use_deterministic_algorithms(False)
    run.attention_backward(*args)
    assert [g.calls[0][2].get("use_deterministic_algorithm") for g in cudnn.graphs] == [None, True]
    assert [len(g.executions) for g in cudnn.graphs] == [2, 1]


@pytest.mark.parametrize("why", ["the gradient of a bias", "an older GPU"])
def test_what_cudnn_adds_in_any_order(why: str, cudnn: Any, caplog: Any) -> None:
    """Is computed by torch if deterministic algorithms are chosen, also if they are chosen after forward."""
    q, bias = heads(1, 2, 8, 8), torch.randn(1, 2, 8, 8, dtype=torch.bfloat16)
    out, sums = fallback.forward(q, q, q, bias, None, 1.0)
    args = (q, q, q, q, out, sums, bias, None, 1.0, why != "an older GPU")
    if why == "an older GPU":
        cudnn.capability = (8, 9)
    with deterministic_algorithms():
        found = run.attention_backward(*args)
        run.attention_backward(*args)
        with pytest.raises(plans.Unsupported, match="attention with dropout"):
            run.dropout_backward(*args[:6], None, *args[6:9], 0.5, args[9])
    assert [g.executions for g in cudnn.graphs] == [[]] * len(cudnn.graphs)
    assert "cuDNN has no deterministic" in caplog.text
    for a, b in zip(found, fallback.backward(*args), strict=True):
        assert torch.equal(a, b)
    run.attention_backward(*args)
    assert len(cudnn.graphs[-1].executions) == 1


def test_a_plan_is_made_once_for_shapes_strides_and_flags(cudnn: Any) -> None:
    """And kept: the second call only runs it."""
    q, k = heads(2, 4, 16, 64), heads(2, 4, 16, 64)
    for _ in range(3):
        run.attention(q, k, k, None, None, 0.1)
    assert len(cudnn.graphs) == 1 and len(cudnn.graphs[0].executions) == 3
    run.attention(q, k, k, None, "top-left", 0.1)
    run.attention(q, k, k, None, None, 0.2)
    run.attention(q.contiguous(), k, k, None, None, 0.1)
    run.attention(q.half(), k.half(), k.half(), None, None, 0.1)
    run.attention_forward(q, k, k, None, None, 0.1)
    assert len(cudnn.graphs) == 6


@pytest.mark.parametrize(
    ("make", "strides"),
    [
        (lambda: torch.randn(2, 4, 64, 16, dtype=torch.bfloat16).mT, (4096, 1024, 64, 1)),  # rows are not dense
        (lambda: torch.randn(2, 4, 16, 68, dtype=torch.bfloat16)[..., :64], (4096, 1024, 64, 1)),  # nor aligned
        (lambda: torch.randn(1, 4, 16, 64, dtype=torch.bfloat16).expand(2, 4, 16, 64), (4096, 1024, 64, 1)),
        (lambda: torch.randn(2 * 4096 + 1, dtype=torch.bfloat16)[1:].view(2, 4, 16, 64), (4096, 1024, 64, 1)),
    ],
)
def test_what_cannot_be_read_is_copied(make: Any, strides: tuple[int, ...], cudnn: Any) -> None:
    """Other tensors are handed over as they are."""
    q, k = make(), torch.randn(2, 4, 16, 64, dtype=torch.bfloat16)
    run.attention(q, k, k, None, None, 0.1)
    run.attention(q, k, k, None, None, 0.1)
    graph = cudnn.graphs[-1]
    assert len(graph.executions) == 2
    for buffers, *_ in graph.executions:
        assert buffers[0].data_ptr() != q.data_ptr() and buffers[0].data_ptr() % 16 == 0
        assert buffers[0].stride() == strides and torch.equal(buffers[0], q)
        assert buffers[1] is k


def test_a_bias_that_cannot_be_read_is_copied(cudnn: Any) -> None:
    """Its rows have to be dense, and it has to begin where cuDNN can read it."""
    q = heads(1, 1, 8, 8)
    for bias in (torch.randn(1, 1, 8, 8).mT, torch.randn(1, 1, 8, 1).expand(1, 1, 8, 8), torch.randn(65)[1:]):
        bias = bias.view(1, 1, 8, 8) if bias.ndim == 1 else bias
        run.attention(q, q, q, bias, None, 0.1)
        found = cudnn.graphs[-1].executions[-1][0][3]
        assert found.is_contiguous() and found.data_ptr() % 16 == 0 and torch.equal(found, bias)
        assert cudnn.graphs[-1].calls[0][2]["bias"].said["data_type"] == "float"
    rows = torch.randn(1, 1, 1, 8).expand(1, 1, 8, 8)
    run.attention(q, q, q, rows, None, 0.1)
    assert cudnn.graphs[-1].executions[-1][0][3] is rows


def test_strides_of_single_elements_mean_nothing(cudnn: Any) -> None:
    """A batch of one may say that it is any number of elements from the next."""
    q = torch.randn(1, 4, 16, 64, dtype=torch.bfloat16).as_strided((1, 4, 16, 64), (3, 1024, 64, 1))
    run.attention(q, q, q, None, None, 0.1)
    assert cudnn.graphs[0].calls[0][1][0].said["stride"] == [4096, 1024, 64, 1]


def test_the_table_of_plans_is_bounded(cudnn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest makes room."""
    monkeypatch.setattr(plans, "_MOST", 3)
    for length in (8, 16, 24, 32, 8):
        q = heads(1, 1, length, 8)
        run.attention(q, q, q, None, None, 0.1)
    assert len(cudnn.graphs) == 5 and len(plans.context(-1).plans) == 3


def test_each_thread_has_its_own(cudnn: Any) -> None:
    """A handle of cuDNN is for one thread."""
    q = heads(1, 1, 8, 8)
    handles = []

    def work() -> None:
        run.attention(q, q, q, None, None, 0.1)
        handles.append(plans.context(-1).handle)

    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handles[0] is not handles[1] and len(cudnn.graphs) == 2


def test_a_stream_is_set_when_it_changes(cudnn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call goes to the current stream."""
    q = heads(1, 1, 8, 8)
    run.attention(q, q, q, None, None, 0.1)
    run.attention(q, q, q, None, None, 0.1)
    monkeypatch.setattr(plans, "current_stream", lambda device: 9)
    run.attention(q, q, q, None, None, 0.1)
    assert cudnn.streams == [7, 9]


def test_without_a_plan_torch_computes(cudnn: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Which is logged once."""
    cudnn.refuses = True
    q = heads(1, 2, 8, 8)
    for _ in range(2):
        found = run.attention(q, q, q, None, "top-left", 0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.3)
    torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-2)
    (record,) = caplog.records
    assert "attention of (1, 2, 8, 8)" in record.message and "no plan" in record.message
    with pytest.raises(plans.Unsupported, match="dropout"):
        run.dropout_forward(q, q, q, None, None, 0.3, 0.1)
