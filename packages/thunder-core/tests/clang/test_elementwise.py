# SPDX-License-Identifier: Apache-2.0
"""The core language on numbers, on mixed operands and on scalars of another device."""

from __future__ import annotations

import cmath
import math
from typing import Any

import pytest
import torch

from thunder import clang
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace


def proxy(dtype: torch.dtype, *shape: int, device: str = "cpu") -> TensorProxy:
    """A proxy with a fresh name."""
    return TensorProxy(shape=shape, device=device, dtype=dtype)


def recorded(fn: Any, *args: Any) -> list[str]:
    """The primitives that a call records, by name."""
    trace = Trace("program")
    with tracectx(trace):
        fn(*[proxy(*a) if isinstance(a, tuple) else a for a in args])
    return [bsym.sym.name for bsym in trace.bound_symbols]


def test_numbers_give_numbers() -> None:
    """As Python computes them."""
    for fn, args, expected in (
        (clang.add, (2, 3.5), 5.5),
        (clang.sub, (2, 3), -1),
        (clang.true_divide, (3, 2), 1.5),
        (clang.floor_divide, (-7, 2), -4),
        (clang.trunc_divide, (-7, 2), -3),
        (clang.trunc_divide, (7, -2), -3),
        (clang.trunc_divide, (-7.5, 2), -3.0),
        (clang.remainder, (-7, 3), 2),
        (clang.fmod, (-7, 3), -1.0),
        (clang.pow, (2, 10), 1024),
        (clang.maximum, (2, 3), 3),
        (clang.gcd, (12, 18), 6),
        (clang.lt, (2, 3), True),
        (clang.bitwise_xor, (5, 1), 4),
        (clang.logical_and, (2, 0), False),
        (clang.logical_not, (0.0,), True),
        (clang.neg, (3,), -3),
        (clang.abs, (3 - 4j,), 5.0),
        (clang.sign, (-2.5,), -1),
        (clang.round, (2.5,), 2),
        (clang.floor, (-1.5,), -2),
        (clang.real, (2 + 3j,), 2.0),
        (clang.conj, (2 + 3j,), 2 - 3j),
        (clang.isnan, (math.nan,), True),
        (clang.isinf, (-math.inf,), True),
        (clang.isfinite, (math.inf,), False),
        (clang.sqrt, (4,), 2.0),
        (clang.sqrt, (-1 + 0j,), 1j),
        (clang.rsqrt, (4,), 0.5),
        (clang.exp2, (3,), 8.0),
        (clang.reciprocal, (4,), 0.25),
        (clang.log, (math.e,), 1.0),
        (clang.angle, (1j,), cmath.pi / 2),
        (clang.where, (True, 1, 2), 1),
    ):
        found = fn(*args)
        assert found == expected and type(found) is type(expected), f"{fn.__name__}{args} gave {found!r}"


def test_only_what_is_needed_is_recorded() -> None:
    """No conversion and no broadcast that changes nothing; cheap powers."""
    f32, i32 = (torch.float32, 2, 3), (torch.int32, 3)
    assert recorded(clang.add, f32, f32) == ["add"]
    assert recorded(clang.add, f32, 2) == ["add"]
    assert recorded(clang.mul, f32, i32) == ["broadcast_in_dim", "convert_element_type", "mul"]
    assert recorded(clang.exp, i32) == ["convert_element_type", "exp"]
    assert recorded(clang.pow, f32, 2) == ["mul"]
    assert recorded(clang.pow, f32, 0.5) == ["sqrt"]
    assert recorded(clang.pow, (torch.bfloat16, 2), 3) == ["pow"]
    assert recorded(clang.real, f32) == recorded(clang.conj, f32) == []


def test_numbers_come_second_in_comparisons() -> None:
    """Which is how torch takes them."""
    for fn, swapped in ((clang.lt, "gt"), (clang.le, "ge"), (clang.gt, "lt"), (clang.ge, "le"), (clang.eq, "eq")):
        trace = Trace("program")
        with tracectx(trace):
            fn(2, proxy(torch.float32, 3))
        (bsym,) = trace.bound_symbols
        assert bsym.sym.name == swapped and bsym.args[1] == 2.0


def test_scalars_of_the_cpu_are_moved() -> None:
    """To the device of what they are computed with; others are refused."""
    with tracectx(Trace("program")):
        a, scalar = proxy(torch.float32, 2, 3, device="cuda:0"), proxy(torch.float64)
        for out in (clang.add(a, scalar), clang.mul(scalar, a), clang.where(clang.gt(a, scalar), scalar, a)):
            assert (str(out.device), out.shape, out.dtype) == ("cuda:0", (2, 3), torch.float32)
        with pytest.raises(RuntimeError, match="at least two devices, cpu and cuda:0"):
            clang.add(a, proxy(torch.float32, 3))


def test_shapes_that_do_not_broadcast() -> None:
    """torch's message."""
    with tracectx(Trace("program")), pytest.raises(RuntimeError) as error:
        clang.add(proxy(torch.float32, 2, 3), proxy(torch.float32, 4))
    assert str(error.value) == (
        "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1"
    )
