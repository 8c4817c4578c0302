# SPDX-License-Identifier: Apache-2.0
"""Random tensors: every dtype, the range that was asked for, the layout, and the same ones under the same seed."""

from __future__ import annotations

import pytest
import torch

from thunder.core import devices, dtypes
from thunder.tests.make_tensor import TensorMaker, make_tensor
from thunder.tests.target import FULL_DTYPES


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_dtype(dtype: torch.dtype) -> None:
    """Of any dtype, shape and layout; values are finite and not all the same."""
    for shape in ((), (0,), (3, 0, 2), (4, 5)):
        out = make_tensor(shape, dtype=dtype, requires_grad=True)
        assert (out.shape, out.dtype, out.device.type) == (shape, dtype, "cpu")
        assert out.requires_grad is (dtype.is_floating_point or dtype.is_complex)
        assert out.is_leaf
    wide = torch.view_as_real(make_tensor(20, 5, dtype=dtype).to(torch.complex64))
    assert torch.isfinite(wide).all()
    assert len(wide[..., 0].unique()) > 1


def test_packed_float4() -> None:
    """Two numbers a byte: any byte will do."""
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.fail("this torch is older than the oldest one that is supported")
    assert make_tensor(3, 4, dtype=torch.float4_e2m1fn_x2).shape == (3, 4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_floats_are_inside_of_the_range(dtype: torch.dtype) -> None:
    """The end is open even where rounding would reach it, since operators are not defined there."""
    out = make_tensor(5000, dtype=dtype, low=-1, high=1)
    assert out.min() >= -1
    assert out.max() < 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.int8, torch.uint16], ids=str)
def test_integers_are_inside_of_the_range(dtype: torch.dtype) -> None:
    """The end is not included; what a dtype cannot hold is left out of the range."""
    values = set(make_tensor(500, dtype=dtype, low=-2, high=3).tolist())
    assert values == set(range(-2 if dtype.is_signed else 0, 3))
    assert set(make_tensor(500, dtype=dtype, low=0.5, high=2.5).tolist()) == {1, 2}
    assert set(make_tensor(50, dtype=dtype, low=4, high=4).tolist()) == {4}


def test_zero_can_be_left_out() -> None:
    """For divisors."""
    for dtype in (torch.int64, torch.bool, torch.float32):
        assert (make_tensor(300, dtype=dtype, low=-1, high=2, exclude_zero=True) != 0).all()


def test_a_range_the_wrong_way_round() -> None:
    """Is said to be one."""
    with pytest.raises(ValueError, match="low=3 is above high=1"):
        make_tensor(2, low=3, high=1)


def test_noncontiguous() -> None:
    """There are gaps between elements; one element or none cannot have any."""
    assert not make_tensor(3, 4, noncontiguous=True).is_contiguous()
    assert make_tensor(3, 4, noncontiguous=True).shape == (3, 4)
    assert make_tensor((), noncontiguous=True).shape == ()


def test_the_seed_decides() -> None:
    """The same seed, the same values."""
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(make_tensor(4, 4))
    assert torch.equal(*drawn)


def test_the_maker_of_samples() -> None:
    """It knows device, dtype and requires_grad, ours or torch's, and takes others for a single tensor."""
    make = TensorMaker(devices.cpu, dtypes.float64, requires_grad=True)
    assert make(2, 3).dtype is torch.float64
    assert make((2, 3)).requires_grad
    assert make(2, dtype=torch.int64, low=0, high=2).dtype is torch.int64
    assert not make(2, requires_grad=False).requires_grad
    assert repr(make) == "TensorMaker('cpu', torch.float64, requires_grad=True)"
