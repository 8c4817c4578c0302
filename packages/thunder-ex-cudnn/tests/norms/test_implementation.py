# SPDX-License-Identifier: Apache-2.0
"""Which norms the executor takes, and what is handed to cuDNN."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder.toolkit.testing import deterministic_algorithms
from thunder_ex_cudnn import plans as cudnn_plans
from thunder_ex_cudnn.norms import run


def _rows(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def _rms(x: Any, w: Any, b: Any) -> Any:
    return F.rms_norm(x, w.shape, w, 1e-5)


def _layer(x: Any, w: Any, b: Any) -> Any:
    return F.layer_norm(x, w.shape, w, b, 1e-5)


@pytest.mark.parametrize(("f", "name"), [(_rms, "rms_norm"), (_layer, "layer_norm")])
def test_programs(f: Any, name: str, executor: Any, cudnn: Any) -> None:
    """Forward and backward are one line each; where cuDNN has no plan torch computes, with the same results."""
    cudnn.refuses = True
    args = _rows(2, 3, 8), _rows(8), _rows(8)
    jitted = thunder.jit(f, executors=[executor])
    out = jitted(*args)
    assert f"cudnn_{name}_forward(x, " in str(thunder.last_traces(jitted)[-1])
    g = torch.randn_like(out)
    found = torch.autograd.grad(out, args, g, allow_unused=True)
    assert f"cudnn_{name}_backward(" in str(thunder.last_backward_traces(jitted)[-1])
    expected = f(*args)
    torch.testing.assert_close(out, expected)
    for a, b in zip(found, torch.autograd.grad(expected, args, g, allow_unused=True)):
        assert (a is None) == (b is None)
        assert a is None or torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(("f", "name"), [(_rms, "rms_norm"), (_layer, "layer_norm")])
def test_deterministic_algorithms(f: Any, name: str, executor: Any, cudnn: Any) -> None:
    """Norms are torch's then; so is backward if they were chosen after forward."""
    args = _rows(2, 3, 8), _rows(8), _rows(8)
    jitted = thunder.jit(f, executors=[executor])
    cudnn.refuses = True
    out, expected = jitted(*args), f(*args)
    torch.autograd.grad(out, args, torch.ones_like(out), allow_unused=True, retain_graph=True)
    assert f"cudnn_{name}_backward(" in str(thunder.last_backward_traces(jitted)[-1])
    cudnn.refuses = False
    cudnn_plans._threads.contexts.clear()  # cuDNN would have a plan now
    made = len(cudnn.graphs)
    with deterministic_algorithms():
        found = torch.autograd.grad(out, args, torch.ones_like(out), allow_unused=True)
        for a, b in zip(found, torch.autograd.grad(expected, args, torch.ones_like(out), allow_unused=True)):
            assert (a is None) == (b is None)
            assert a is None or torch.allclose(a, b, atol=1e-5)
        torch.testing.assert_close(jitted(*args), expected)
        assert "cudnn_" not in str(thunder.last_traces(jitted)[-1])
    assert len(cudnn.graphs) == made


def test_what_is_not_taken(executor: Any, cudnn: Any) -> None:
    """Is left to others."""
    x, w = _rows(3, 8), _rows(8)
    for f in (
        lambda: F.layer_norm(x, (8,), w),
        lambda: F.rms_norm(x, (8,)),
        lambda: F.rms_norm(x.double(), (8,), w.double()),
        lambda: F.layer_norm(x[:0], (8,), w, w),
    ):
        jitted = thunder.jit(f, executors=[executor])
        torch.testing.assert_close(jitted(), f())
        assert "cudnn_" not in str(thunder.last_traces(jitted)[-1])


def test_graphs(cudnn: Any) -> None:
    """Rows are (N, C, 1, 1) with dense rows, statistics single precision, epsilon a number of the host."""
    x = torch.randn(2, 3, 8, dtype=torch.bfloat16)
    w, b = torch.randn(8), torch.randn(8)
    out, mean, rstd = run.layer_norm_forward(x, (8,), w, b, 0.5)
    (graph,) = cudnn.graphs
    ((name, _, how),) = graph.calls
    assert name == "layernorm" and how["norm_forward_phase"] == "training"
    assert how["input"].said["dim"] == [6, 8, 1, 1] and how["input"].said["stride"] == [8, 1, 8, 8]
    assert how["input"].said["data_type"] == "bfloat16" and how["scale"].said["data_type"] == "float"
    assert how["epsilon"].said["is_pass_by_value"] is True
    buffers = graph.executions[0][0]
    assert buffers[3].item() == 0.5 and buffers[3].device.type == "cpu"
    assert out.shape == x.shape and out.dtype is x.dtype
    assert mean.shape == rstd.shape == (2, 3, 1) and mean.dtype is torch.float32
    run.layer_norm_forward(x.transpose(0, 1), (8,), w, b, 0.25)
    assert len(cudnn.graphs) == 1 and graph.executions[1][0][3].item() == 0.25
    assert graph.executions[1][0][0].is_contiguous()
    of_x, of_w = run.rms_norm_backward(x, x, (8,), rstd, w)
    assert of_x.shape == x.shape and of_w.shape == w.shape and of_w.dtype is w.dtype
    assert cudnn.graphs[1].calls[0][2]["has_dbias"] is False
