# SPDX-License-Identifier: Apache-2.0
"""Functions that torch decomposes on a GPU if deterministic algorithms are chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._decomp.decompositions as decompositions
import torch.nn.functional as F

import thunder
from thunder.capture.dispatch import deterministic

BILINEAR = {
    "size": ({"size": (7, 9)}, ((7, 9), None)),
    "one factor": ({"scale_factor": 1.7}, (None, (1.7, 1.7))),
    "factors": ({"scale_factor": (2.0, 0.5)}, (None, (2.0, 0.5))),
    "recomputed": ({"scale_factor": 1.7, "recompute_scale_factor": True}, ((8, 10), None)),
}


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Choose deterministic algorithms, and treat tensors of the CPU as torch treats those of a GPU."""
    monkeypatch.setattr(deterministic, "_ALWAYS_DETERMINISTIC", frozenset())
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def same(fn: Any, reference: Any, x: torch.Tensor) -> None:
    """Compare results, strides and gradients of the jitted function with those of the decomposition, to the bit."""
    jitted = thunder.jit(fn)
    inputs = [x.detach().clone().requires_grad_() for _ in range(2)]
    out, expected = jitted(inputs[0]), reference(inputs[1])
    if isinstance(out, tuple):
        assert torch.equal(out[1], expected[1])
        out, expected = out[0], expected[0]
    assert torch.equal(out, expected) and out.stride() == expected.stride()
    g = torch.randn_like(expected)
    out.backward(g)
    expected.backward(g)
    assert torch.equal(inputs[0].grad, inputs[1].grad)
    assert thunder.cache_misses(jitted) == 1
    names = {op.sym.name for trace in thunder.last_traces(jitted) for op in trace.bound_symbols}
    assert not names & {"interpolate", "replication_pad3d", "max_pool3d", "max_pool3d_with_indices"}


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("how", BILINEAR)
def test_bilinear(how: str, memory_format: torch.memory_format) -> None:
    """Sizes and factors in every spelling, in both layouts."""
    given, (size, scales) = BILINEAR[how]
    for corners in (False, True):
        same(
            lambda x: F.interpolate(x, mode="bilinear", align_corners=corners, **given),
            lambda x: decompositions._upsample_linear_vec(x, size, corners, scales),
            torch.randn(2, 3, 5, 6).to(memory_format=memory_format),
        )


@pytest.mark.usefixtures("as_on_gpu")
def test_volumes() -> None:
    """Trilinear interpolation, padding with the last elements, and maxima with their positions."""
    x = torch.randn(2, 3, 4, 5, 6)
    same(
        lambda x: F.interpolate(x, 7, mode="trilinear"),
        lambda x: decompositions._upsample_linear_vec(x, (7, 7, 7), False, None),
        x,
    )
    pad = (1, 2, 0, 1, 2, 2)
    same(lambda x: F.pad(x, pad, "replicate"), lambda x: decompositions._replication_pad(x, pad), x)


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.skipif(not hasattr(decompositions, "max_pool3d_with_indices"), reason="torch 2.11 has no decomposition")
@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.max_pool3d_with_indices(x, 2, 1, 1),
        lambda x: F.max_pool3d(x, 2, 1, 1, return_indices=True),
        lambda x: F.max_pool3d(x, 2, 1, 1, 1, False, True),
        torch.nn.MaxPool3d(2, 1, 1, return_indices=True),
    ],
)
def test_maxima_of_volumes(pool: Any) -> None:
    """Every spelling of pooling with indices."""
    same(pool, lambda x: decompositions.max_pool3d_with_indices(x, 2, 1, 1), torch.randn(2, 3, 4, 5, 6))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.interpolate(x, 7, mode="bilinear"),
        lambda x: F.pad(x, (1, 1, 1, 1), "replicate"),
        lambda x: F.max_pool3d(x[None], 2),
    ],
)
def test_usual_kernels(fn: Any) -> None:
    """The CPU's kernels are deterministic."""
    torch.use_deterministic_algorithms(True)
    try:
        x = torch.randn(2, 3, 5, 6)
        assert torch.equal(thunder.jit(fn)(x), fn(x))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("as_on_gpu")
def test_the_choice_is_guarded() -> None:
    """A change of the setting compiles the function again."""
    jitted, x = thunder.jit(lambda x: F.interpolate(x, 7, mode="bilinear")), torch.randn(2, 3, 5, 6)
    decomposed = jitted(x)
    torch.use_deterministic_algorithms(False)
    assert torch.equal(jitted(x), F.interpolate(x, 7, mode="bilinear"))
    torch.testing.assert_close(decomposed, jitted(x))
    assert thunder.cache_misses(jitted) == 2


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize("size", [(3, 3, 3), None])
def test_errors(size: Any) -> None:
    """The same errors as without the setting."""
    with pytest.raises(ValueError, match=r"spatial dimensions|either size or scale_factor"):
        thunder.jit(lambda x: F.interpolate(x, size, mode="bilinear"))(torch.randn(2, 3, 5, 6))
