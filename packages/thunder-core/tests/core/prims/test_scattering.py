# SPDX-License-Identifier: Apache-2.0
"""Scatter primitives check shapes as torch's kernels do."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace


def _accepted(fn: Any) -> bool:
    try:
        fn()
    except (RuntimeError, IndexError):
        return False
    return True


@pytest.mark.parametrize("shape", [(), (1,), (2,), (2, 3)])
def test_shapes_are_checked_as_torch_does(shape: tuple[int, ...]) -> None:
    """Over all small indices and sources: what torch takes is taken, the rest is refused."""
    small = [(), (1,), (2,), (0,), (1, 1), (2, 3), (3, 2), (1, 4), (0, 3)]
    a = torch.zeros(shape)
    with tracectx(Trace()):
        proxy = TensorProxy(shape=shape, device="cpu", dtype=torch.float32)
        for index_shape, src_shape in itertools.product(small, small):
            index, src = torch.zeros(index_shape, dtype=torch.int64), torch.zeros(src_shape)
            i = TensorProxy(shape=index_shape, device="cpu", dtype=torch.int64)
            s = TensorProxy(shape=src_shape, device="cpu", dtype=torch.float32)
            expected = _accepted(lambda: a.scatter_add(0, index, src))
            assert _accepted(lambda: prims.scatter_add(proxy, 0, i, s)) == expected, (index_shape, src_shape)
            expected = _accepted(lambda: a.gather(0, index))
            assert _accepted(lambda: prims.gather(proxy, 0, i)) == expected, index_shape
