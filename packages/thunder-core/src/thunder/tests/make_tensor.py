# SPDX-License-Identifier: Apache-2.0
"""Create random tensors of any dtype, device and layout, for samples.

Values depend on torch's current generator, so the same seed gives the same values. In the default range most functions
are neither saturated nor constant. Operators with a restricted domain pass `low=` and `high=`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from thunder.core.devices import to_torch_device
from thunder.core.dtypes import to_torch_dtype

__all__ = ["TensorMaker", "make_tensor", "seeded"]

# The default range: [LOW, HIGH] for integers, and [LOW, HIGH) for other dtypes.
LOW, HIGH = -9, 9


def make_tensor(
    *shape: Any,
    device: Any = "cpu",
    dtype: Any = torch.float32,
    requires_grad: bool = False,
    low: float | None = None,
    high: float | None = None,
    exclude_zero: bool = False,
    noncontiguous: bool = False,
) -> torch.Tensor:
    """Return a tensor of random values from `[low, high)`. The default range is from -9 to 9.

    `shape` is a tuple, or the sizes as separate arguments. For an unsigned dtype the range starts at 0. `requires_grad`
    is ignored for a dtype that cannot have gradients. `noncontiguous` leaves gaps between elements.
    """
    size = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else tuple(shape)
    kind, where = to_torch_dtype(dtype), to_torch_device(device)
    if low is not None and high is not None and low > high:
        raise ValueError(f"make_tensor: low={low} is above high={high}")
    if noncontiguous and size and math.prod(size) > 1:
        full = _values((*size[:-1], size[-1] * 2), kind, where, low, high, exclude_zero)
        out = full[..., ::2]
    else:
        out = _values(size, kind, where, low, high, exclude_zero)
    if requires_grad and (kind.is_floating_point or kind.is_complex):
        out = out.detach().requires_grad_(True)
    return out


def _values(
    size: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    low: float | None,
    high: float | None,
    exclude_zero: bool,
) -> torch.Tensor:
    if dtype is torch.bool:
        out = torch.ones(size, dtype=dtype) if exclude_zero else torch.randint(0, 2, size).to(dtype)
    elif dtype.is_complex:
        part = {torch.complex32: torch.float32, torch.complex64: torch.float32}.get(dtype, torch.float64)
        pair = [_floats(size, part, low, high, exclude_zero) for _ in range(2)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "ComplexHalf support is experimental")
            out = torch.complex(*pair).to(dtype)
    elif str(dtype) == "torch.float4_e2m1fn_x2":
        out = torch.randint(0, 256, size).to(torch.uint8).view(dtype)  # two numbers per byte, and any byte is valid
    elif dtype.is_floating_point:
        out = _floats(size, dtype, low, high, exclude_zero)
    else:
        out = _integers(size, dtype, low, high, exclude_zero)
    # Draw on the CPU for any device, so that the same seed gives the same samples everywhere.
    return out.to(device)


def _floats(
    size: tuple[int, ...], dtype: torch.dtype, low: float | None, high: float | None, exclude_zero: bool
) -> torch.Tensor:
    info = torch.finfo(dtype)
    lowest = max(LOW if low is None else low, info.min)
    highest = min(HIGH if high is None else high, info.max)
    lowest = min(lowest, highest)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    out = torch.rand(size, dtype=wide) * (highest - lowest) + lowest
    if exclude_zero:
        out = torch.where(out.abs() < 0.01, torch.full_like(out, min(0.01, highest)), out)
    out = out.to(dtype)
    if dtype is not wide and not str(dtype).startswith("torch.float8"):
        # Rounding to few bits may have reached the open end, which can be outside of the operator's domain.
        below = torch.nextafter(torch.tensor(highest, dtype=dtype), torch.tensor(-math.inf, dtype=dtype))
        out = torch.where(out >= highest, below, out) if highest > lowest else out
    return out


def _integers(
    size: tuple[int, ...], dtype: torch.dtype, low: float | None, high: float | None, exclude_zero: bool
) -> torch.Tensor:
    info = torch.iinfo(dtype)
    lowest = max(math.ceil(LOW if low is None else low), info.min)
    highest = min(HIGH + 1 if high is None else math.ceil(high), info.max)
    out = torch.randint(lowest, max(highest, lowest + 1), size, dtype=torch.int64)
    if exclude_zero:
        out = torch.where(out == 0, torch.ones_like(out), out)
    return out.to(dtype)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's random numbers within the context. Restore the generators' states afterwards.

    `torch.manual_seed` would also record the call, with a stack trace, for every uninitialised type of accelerator.
    """
    device = torch.accelerator.current_accelerator()
    module: Any = None if device is None else torch.get_device_module(device)
    if not getattr(module, "is_initialized", lambda: False)():
        module = None
    before = torch.default_generator.get_state()
    count = 0 if module is None else module.device_count()
    others = [module.get_rng_state(index) for index in range(count)]
    torch.default_generator.manual_seed(seed)
    if module is not None:
        module.manual_seed_all(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
        for index, state in enumerate(others):
            module.set_rng_state(state, index)


class TensorMaker:
    """`make_tensor` with fixed device, dtype and requires_grad: the `make` argument of sample generators."""

    __slots__ = ("device", "dtype", "requires_grad")

    def __init__(self, device: Any = "cpu", dtype: Any = torch.float32, requires_grad: bool = False):
        self.device = to_torch_device(device)
        self.dtype = to_torch_dtype(dtype)
        self.requires_grad = requires_grad

    def __call__(self, *shape: Any, **options: Any) -> torch.Tensor:
        given = {"device": self.device, "dtype": self.dtype, "requires_grad": self.requires_grad}
        return make_tensor(*shape, **{**given, **options})

    def constant(self, *shape: Any, **options: Any) -> torch.Tensor:
        """Create a tensor that does not require grad."""
        return self(*shape, **{"requires_grad": False, **options})

    def saved(self, *shape: Any, **options: Any) -> torch.Tensor:
        """Create a value that forward saves for backward.

        It has single or double precision, and does not require grad.
        """
        wide = torch.float64 if self.dtype is torch.float64 else torch.float32
        return self.constant(*shape, **{"dtype": wide, **options})

    def __repr__(self) -> str:
        return f"TensorMaker({str(self.device)!r}, {self.dtype}, requires_grad={self.requires_grad})"
