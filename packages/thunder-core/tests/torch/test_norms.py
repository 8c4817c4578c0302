# SPDX-License-Identifier: Apache-2.0
"""Layer, root mean square and group normalization: types, what is saved, and eager's numbers bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
import thunder.torch as ltorch

HALF = (torch.bfloat16, torch.float16)
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layer_norm_is_torchs(as_eager: Any, randn: Any, dtype: torch.dtype) -> None:
    """With weights and without, over one dimension and two, of batches and of one."""
    for shape, over in (((6, 5), (5,)), ((2, 3, 5), (3, 5)), ((5,), (5,)), ((0, 5), (5,))):
        x, w, b = randn(*shape, dtype=dtype), randn(*over, dtype=dtype), randn(*over, dtype=dtype)
        as_eager(lambda x, w, b: F.layer_norm(x, over, w, b), x, w, b, exactly=True)
        as_eager(lambda x: F.layer_norm(x, over), x, exactly=True)
        as_eager(lambda x, w: F.layer_norm(x, over, w), x, w, exactly=True)
        as_eager(lambda x, b: F.layer_norm(x, over, None, b), x, b, exactly=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_group_norm_is_torchs(as_eager: Any, randn: Any, dtype: torch.dtype) -> None:
    """Of any layout, with the channels last too."""
    w, b = randn(4, dtype=dtype), randn(4, dtype=dtype)
    as_eager(lambda x, w, b: F.group_norm(x, 2, w, b), randn(2, 4, 3, 5, dtype=dtype), w, b, exactly=True)
    as_eager(lambda x: F.group_norm(x, 4), randn(2, 4, 3, dtype=dtype), exactly=True)
    as_eager(lambda x: F.group_norm(x.transpose(2, 3), 2), randn(2, 4, 3, 5, dtype=dtype), exactly=True)
    image = randn(2, 4, 3, 5, dtype=dtype).detach().to(memory_format=torch.channels_last).requires_grad_()
    loose = {"rtol": 0.02, "atol": 0.02} if dtype in HALF else {}
    as_eager(lambda x, w, b: F.group_norm(x, 2, w, b), image, w, b, **loose)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex128], ids=str)
def test_rms_norm(as_eager: Any, randn: Any, dtype: torch.dtype) -> None:
    """torch has no backward kernel for it on the CPU; ours rounds once."""

    def make(*shape: int) -> torch.Tensor:
        if not dtype.is_complex:
            return randn(*shape, dtype=dtype)
        return torch.complex(randn(*shape).detach(), randn(*shape).detach()).requires_grad_()

    loose = {"rtol": 0.02, "atol": 0.02} if dtype in HALF else {}
    as_eager(lambda x, w: F.rms_norm(x, (5,), w), make(6, 5), make(5), **loose)
    as_eager(lambda x, w: F.rms_norm(x, (3, 5), w, 1e-3), make(2, 3, 5), make(3, 5), **loose)
    as_eager(lambda x: F.rms_norm(x, (5,)), make(6, 5), **loose)
    as_eager(lambda x, w: F.rms_norm(x, (5,), w), make(5), make(5), **loose)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_by_primitives(by_primitives: Any, randn: Any, name: str, dtype: torch.dtype) -> None:
    """Computed in float32 and rounded once."""
    x, w = randn(5, 300, dtype=dtype).detach(), randn(300, dtype=dtype).detach()
    expected = getattr(F, name)(x, (300,), w)
    actual = by_primitives(getattr(ltorch, name), x, (300,), w)
    torch.testing.assert_close(actual, expected, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_weights_in_float32(as_eager: Any, randn: Any) -> None:
    """A bfloat16 activation with float32 weights, as mixed precision has it."""
    x = randn(6, 5, dtype=torch.bfloat16)
    w, b = (randn(5, dtype=torch.float32) for _ in range(2))
    as_eager(lambda x, w, b: F.layer_norm(x, (5,), w, b), x, w, b, exactly=True)
    as_eager(lambda x, w: F.rms_norm(x, (5,), w), x, w, rtol=0.02, atol=0.02)
    w, b = (randn(4, dtype=torch.float32) for _ in range(2))
    as_eager(lambda x, w, b: F.group_norm(x, 2, w, b), randn(2, 4, 6, dtype=torch.bfloat16), w, b, exactly=True)


@pytest.mark.parametrize(
    ("fn", "statistics"),
    [
        (lambda x, w, b: F.layer_norm(x, (6,), w, b), [(2, 6, 1), (2, 6, 1)]),
        (lambda x, w, b: F.rms_norm(x, (6,), w), [(2, 6, 1)]),
        (lambda x, w, b: F.group_norm(x, 3, w, b), [(2, 3), (2, 3)]),
    ],
    ids=["layer", "rms", "group"],
)
def test_little_is_saved(randn: Any, fn: Any, statistics: list[tuple[int, ...]]) -> None:
    """The input, the weights and the statistics."""
    jitted = thunder.jit(fn)
    jitted(randn(2, 6, 6), randn(6), randn(6))
    saved = [p.shape for p in thunder.last_backward_traces(jitted)[-1].args[:-1]]
    assert sorted(s for s in saved if s not in ((2, 6, 6), (6,))) == sorted(statistics)


def test_local_response(as_eager: Any, randn: Any) -> None:
    """Neighbouring channels, even and odd numbers of them."""
    as_eager(lambda x: F.local_response_norm(x, 3, 0.2, 0.6, 2.0), randn(2, 5, 4))
    as_eager(lambda x: F.local_response_norm(x, 4), randn(2, 5, 4, 3))
    with pytest.raises(ValueError, match="Expected 3D or higher dimensionality"):
        thunder.jit(lambda x: F.local_response_norm(x, 2))(torch.ones(2, 3))


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: F.layer_norm(x, (4,)), r"Given normalized_shape=\[4\], expected input with shape \[\*, 4\]"),
        (lambda x: F.layer_norm(x, ()), "Expected normalized_shape to be at least 1-dimensional"),
        (lambda x: F.rms_norm(x, (4,)), r"Given normalized_shape=\[4\], expected input with shape \[\*4\]"),
        (lambda x: F.group_norm(x, 2), "Expected number of channels in input to be divisible by num_groups"),
        (lambda x: F.layer_norm(x, (3,), x[0, :2]), r"got weight of shape \[2\] and normalized_shape = \[3\]"),
    ],
)
def test_errors(fn: Any, message: str) -> None:
    """torch's words."""
    for call in (fn, thunder.jit(fn)):
        with pytest.raises(RuntimeError, match=message):
            call(torch.ones(2, 3))


def test_group_norm_of_weights_with_gaps(as_eager: Any, randn: Any) -> None:
    """torch's kernel reads weights as if they were contiguous."""
    x, w, b = randn(2, 6, 3), randn(12)[::2].detach().requires_grad_(), randn(12)[1::2].detach().requires_grad_()
    as_eager(lambda x, w, b: F.group_norm(x, 2, w, b), x, w, b, exactly=True)
