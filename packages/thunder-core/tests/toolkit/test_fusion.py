# SPDX-License-Identifier: Apache-2.0
"""What fusion executors share: which values they can hold, regions by device, shapes without data."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thunder.extend import FusionExecutor, NumberProxy, TensorProxy, devices, dtypes
from thunder.toolkit.fusion import by_device, reject_values, without_data

CUDA = devices.to_device("cuda:0")


def tensor(shape: tuple[int, ...] = (2, 3), dtype: Any = dtypes.float32, device: Any = CUDA) -> TensorProxy:
    """A tensor of a trace."""
    return TensorProxy("a", shape=shape, dtype=dtype, device=device)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([tensor()], None),
        ([tensor(), NumberProxy(2.0, name="n")], "has a data-dependent number"),
        ([2.0], "uses a value that is not a tensor"),
        ([tensor((1,) * 5)], "has more than 4 dimensions"),
        ([tensor(dtype=dtypes.float16)], "acme has no type float16"),
        ([tensor(device=devices.cpu)], "needs a GPU"),
        ([tensor(), tensor(device=devices.to_device("cuda:1"))], "uses several devices"),
    ],
)
def test_values(values: list[Any], reason: str | None) -> None:
    """The first that a compiler cannot hold gives the reason."""
    found = reject_values(
        values, "acme", {dtypes.float32: "f"}.get, lambda d: None if d.type == "cuda" else "needs a GPU",
        max_dimensions=4,
    )  # fmt: skip
    assert found == reason


def test_regions_by_device() -> None:
    """What can be fused is put together by its device; what makes nothing, or is not taken, stays by itself."""
    import thunder
    from thunder import prims

    f = thunder.jit(lambda x: torch.tanh(x) * 2)
    f(torch.ones(2))
    operations = [part for op in thunder.last_traces(f)[0].bound_symbols for part in (op, *op.subsymbols)]
    fuser = FusionExecutor("acme")
    fuser.register_supported(prims.tanh)
    key = by_device(fuser)
    assert {op.sym.name: key(op) for op in operations if op.sym.name in ("tanh", "mul", "python_return")} == {
        "tanh": devices.cpu, "mul": None, "python_return": None,
    }  # fmt: skip


def test_without_data() -> None:
    """Strides are computed, and no memory is taken."""
    with without_data():
        x = torch.empty_strided((1 << 20, 1 << 20), (1, 1 << 20))
        y = (x + 1).t()
    assert y.stride() == (1 << 20, 1)
