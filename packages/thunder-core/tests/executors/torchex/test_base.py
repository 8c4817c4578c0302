# SPDX-License-Identifier: Apache-2.0
"""The torch executor: what its derived implementations are called with, and under which names traces call them."""

from __future__ import annotations

import importlib
import operator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import thunder
import thunder.torch as ltorch
from thunder.core import devices, dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace
from thunder.execution.claim import is_structural
from thunder.executors.torchex import ex as TORCH
from thunder.executors.torchex import no_autocast
from thunder.executors.torchex.base import qualified_name, to_torch_arguments, torch_impl, torch_operator

SIDES = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "eq", "ne", "lt", "le", "gt", "ge"]
BITS = ["and_", "or_", "xor", "lshift", "rshift"]


def last_text(f: Any) -> str:
    """The program that ran, without comments."""
    return thunder.last_traces(f)[-1].python(depth=0)


@given(
    st.sampled_from(SIDES + BITS),
    st.sampled_from([torch.float32, torch.int64, torch.float16, torch.bool, torch.uint8]),
    st.sampled_from([2, 3.5, True, 0, -1.0, 1]),
)
def test_a_number_in_front_of_a_tensor(name: str, dtype: torch.dtype, number: Any) -> None:
    """Exactly what Python's operator on torch gives, error for error."""
    fn = getattr(operator, name)
    x = torch.tensor([1, 2, 0, 3]).to(dtype)
    f = thunder.jit(lambda a: fn(number, a))
    try:
        expected = fn(number, x)
    except (RuntimeError, TypeError, ZeroDivisionError) as error:
        with pytest.raises((RuntimeError, TypeError)):
            f(x)
        assert error is not None
        return
    found = f(x)
    assert found.dtype is expected.dtype
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=0)


def test_thunders_dtypes_and_devices_become_torchs() -> None:
    """Wherever they stand among the arguments; all else stays."""
    given_ = (dtypes.float16, [devices.cpu, (dtypes.bool8, 2)], "text", None, slice(1))
    assert to_torch_arguments(given_) == (torch.float16, [torch.device("cpu"), (torch.bool, 2)], "text", None, slice(1))
    a = torch.ones(2)
    assert to_torch_arguments(a) is a


def test_dtype_and_device_arguments_run() -> None:
    """Given as torch's or as thunder's, in traces of either."""

    def f(a: Any) -> Any:
        b = a.to(torch.float64) + torch.ones(2, dtype=torch.int32, device="cpu")
        return (
            b.to("cpu"),
            a.to(torch.device("cpu"), torch.bfloat16),
            a.type_as(b),
            a.half(),
            torch.zeros_like(a, dtype=torch.bool),
        )

    x = torch.tensor([1.5, 2.5])
    jf = thunder.jit(f)
    found = jf(x)
    for got, expected in zip(found, f(x)):
        assert got.dtype is expected.dtype
        assert torch.equal(got, expected)
    assert "dtypes." not in last_text(jf)
    assert torch.equal(ltorch.to(x, dtypes.float64), x.double())
    assert torch.equal(prims.full((2,), 1.0, device=devices.cpu, dtype=dtypes.float64), torch.ones(2).double())


def test_torchs_functions_are_called_under_their_own_names() -> None:
    """So that a trace reads as torch."""
    namespaces = {"torch": torch, "torch.nn.functional": torch.nn.functional, "torch.Tensor": torch.Tensor}
    for module, namespace in namespaces.items():
        fn = namespace.sigmoid if module != "torch.nn.functional" else namespace.gelu
        assert qualified_name(fn) == (module, fn.__name__)
    assert qualified_name(lambda a: a) == (None, "<lambda>")
    f = thunder.jit(lambda a: torch.nn.functional.gelu(a) + 1)
    f(torch.ones(2))
    assert "torch.nn.functional.gelu(a)" in last_text(f)
    assert "= torch.add(t" in last_text(f)


def test_every_implementation_can_be_called_by_the_name_that_traces_give_it() -> None:
    """Two families may not have a function of one name: one would hide the other."""
    checked = 0
    for implementation in TORCH.implmap.values():
        op = implementation.op
        if op is None or op.module is None:
            continue
        module = importlib.import_module(op.module.removesuffix(".Tensor"))
        owner = torch.Tensor if op.module == "torch.Tensor" else module
        assert getattr(owner, op.name) is op.fn, op
        checked += 1
    assert checked > 20


def test_every_primitive_has_an_implementation() -> None:
    """The torch executor ends every list, so whatever is traced has to run there, or as it is printed."""
    of_gradients = {"get_grad", "put_grad", "missing_gradient"}
    missing = []
    for sym in prims.all_prims().values():
        if sym.name in of_gradients or sym.module != "thunder.core.prims":
            continue
        a = TensorProxy("a", shape=(2,), device="cpu", dtype=dtypes.float32)
        bsym = BoundSymbol(sym, (a,), {}, a)
        if not is_structural(bsym) and TORCH.implementation(bsym) is None:
            missing.append(sym.name)
    assert not missing


def test_an_implementation_that_is_added() -> None:
    """`@torch_impl` makes the function the executor's for that primitive."""
    from thunder.runtime.kernels.table import kernels

    sym = prims.make_prim("torchex_test.double", "double_it", meta=lambda a: TensorProxy(like=a))
    try:

        @torch_impl(sym, checker=lambda a: "too many dimensions" if a.ndim > 1 else True)
        def double_it(a: torch.Tensor) -> torch.Tensor:
            return a * 2

        f = thunder.jit(sym)
        assert f(torch.ones(2)).tolist() == [2, 2]
        assert f(torch.ones(2)).tolist() == [2, 2]
        with pytest.raises(RuntimeError, match="Could not find executor for bound symbol t0 = double_it"):
            f(torch.ones(2, 2))
    finally:
        TORCH.implmap.pop("torchex_test.double", None)
        kernels.pop("double_it", None)
        prims.base._prims.pop("torchex_test.double")


def test_torchs_operators_called_in_a_trace() -> None:
    """They decompose into what the torch language has for them; what it has not says so."""
    trace = Trace("f", args=[a := TensorProxy("a", shape=(2,), device="cpu", dtype=dtypes.float32)])
    with tracectx(trace):
        out = torch_operator(torch.add)(a, 2)
    assert out.shape == (2,)
    assert [sub.sym for sub in trace.bound_symbols[0].subsymbols] == [ltorch.add]

    def strange(a: Any) -> Any:
        return a

    with tracectx(trace), pytest.raises(TypeError, match=r"strange is not an operation of thunder\.torch"):
        torch_operator(strange)(a)


@pytest.mark.parametrize("raises", [False, True])
def test_no_autocast(raises: bool) -> None:
    """Off inside, as it was outside, errors or not."""
    seen = []

    @no_autocast
    def f(a: int, *, b: int = 2) -> int:
        """Adds."""
        seen.append(torch.is_autocast_enabled("cpu"))
        if raises:
            raise ValueError
        return a + b

    assert (f.__name__, f.__doc__) == ("f", "Adds.")
    for enabled in (False, True):
        with torch.autocast("cpu", enabled=enabled):
            if raises:
                with pytest.raises(ValueError):
                    f(1)
            else:
                assert f(1, b=3) == 4
            assert torch.is_autocast_enabled("cpu") is enabled
    assert seen == [False, False]
    assert not torch.is_autocast_enabled("cpu")
