# SPDX-License-Identifier: Apache-2.0
"""What proxies tell of themselves in the torch language, without leaving anything in the trace."""

from __future__ import annotations

import pytest
import torch

from thunder.core.errors import TracingError
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64], ids=str)
def test_they_are_torchs(dtype: torch.dtype) -> None:
    """Each answer is what a tensor would give."""
    real = torch.zeros(2, 3, dtype=dtype)
    trace = Trace()
    with tracectx(trace):
        a = TensorProxy("a", shape=(2, 3), device="cpu", dtype=dtype)
        for name in ("dim", "ndimension", "numel", "nelement", "size", "is_floating_point", "is_complex", "is_signed",
                     "element_size", "get_device"):  # fmt: skip
            assert getattr(a, name)() == getattr(real, name)(), name
        for name in (
            "itemsize",
            "nbytes",
            "is_cpu",
            "is_cuda",
            "is_meta",
            "layout",
            "is_sparse",
            "is_quantized",
            "ndim",
        ):
            assert getattr(a, name) == getattr(real, name), name
        assert (a.size(1), a.size(-2), len(a)) == (3, 2, 2)
        assert a.is_same_size(a)
        with pytest.raises(IndexError, match="Dimension out of range"):
            a.size(2)
    assert not trace.bound_symbols


def test_values_are_not_known() -> None:
    """item, tolist and numpy name the way out."""
    with tracectx(Trace()):
        a = TensorProxy("a", shape=(), device="cpu", dtype=torch.float32)
        for name in ("item", "tolist", "numpy"):
            with pytest.raises(TracingError, match=rf"{name} needs the value of the tensor a.*torch\.where"):
                getattr(a, name)()
