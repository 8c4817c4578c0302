# SPDX-License-Identifier: Apache-2.0
"""The operators: what their metadata says is what they give."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thunder.extend import TensorProxy, Trace, to_device, to_dtype, tracectx
from thunder_ex_te import operators

KINDS = ("e4m3", "e5m2", "e4m3 1x128", "e4m3 128x128")


def _proxy(x: torch.Tensor) -> TensorProxy:
    return TensorProxy("x", shape=x.shape, device=to_device(x.device), dtype=to_dtype(x.dtype))


def _same(found: Any, told: Any) -> None:
    assert (found is None) == (told is None)
    if found is not None:
        assert tuple(found.shape) == tuple(told.shape) and to_dtype(found.dtype) is told.dtype and found.is_contiguous()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(16, 32), (2, 72, 144), (256, 400)], ids=str)
@pytest.mark.parametrize("asked", [(True, True), (True, False), (False, True)], ids=str)
def test_quantize(kind: str, shape: tuple[int, ...], asked: tuple[bool, bool], device: str) -> None:
    """Bytes and scales, of the tensor and of its transpose, where they are asked for."""
    x = torch.randn(shape, device=device, dtype=torch.bfloat16)
    rows, columns = asked
    with tracectx(Trace()):
        told = operators.quantize_meta(_proxy(x), kind, rows=rows, columns=columns)
    for found, expected in zip(operators.quantize(x, kind, True, rows=rows, columns=columns), told):
        _same(found, expected)


def test_multiply(device: str) -> None:
    """Leading dimensions of the first factor stay, its last becomes the rows of the second."""
    x, w = (torch.randn(s, device=device, dtype=torch.bfloat16) for s in ((2, 16, 32), (48, 32)))
    for a_kind, b_kind in (("e4m3", "e4m3"), ("e4m3 1x128", "e4m3 128x128")):
        a, a_scale, *_ = operators.quantize(x, a_kind, True)
        b, b_scale, *_ = operators.quantize(w, b_kind, True)
        for dtype in (torch.bfloat16, torch.float32):
            found = operators.multiply(a, a_scale, a_kind, b, b_scale, b_kind, dtype, split=True)
            with tracectx(Trace()):
                told = operators.multiply_meta(
                    _proxy(a), _proxy(a_scale), a_kind, _proxy(b), _proxy(b_scale), b_kind, dtype
                )
            _same(found, told)
            expected = x.double() @ w.double().T
            assert float((found - expected).norm() / expected.norm()) < 0.06


def test_what_is_not_in_order_in_memory(device: str) -> None:
    """Strides make no difference."""
    x = torch.randn(32, 48, device=device, dtype=torch.bfloat16)
    for one, other in zip(operators.quantize(x.t(), "e4m3"), operators.quantize(x.t().contiguous(), "e4m3")):
        assert torch.equal(one, other)
    wide = operators.quantize(x[:1].expand(16, 48), "e4m3")
    assert torch.equal(wide[0], operators.quantize(x[:1].repeat(16, 1), "e4m3")[0])
