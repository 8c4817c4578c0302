# SPDX-License-Identifier: Apache-2.0
"""The guide for contributors: its examples written from outside, as a contributor would, and what it says of them."""

from __future__ import annotations

import enum
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from numbers import Number
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.clang import clangop, maybe_broadcast, maybe_convert_to_dtype
from thunder.core import devices, dtypes, prims, utils
from thunder.core.langctx import get_langctx, set_langctx
from thunder.core.prims import OpTags, make_prim
from thunder.core.prims import PrimIDs as pids
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace
from thunder.core.transforms import get_grad, grad, put_grad, register_grad
from thunder.executors.torchex import (
    _always_executable,
    _register_implementation,
    _register_torch_operation,
    to_torch_device,
    to_torch_dtype,
)
from thunder.torch import torchctx, torchsymbol

pytestmark = pytest.mark.usefixtures("undeclared")


class OurIDs(enum.Enum):
    """Ids of primitives that are declared outside of thunder."""

    UNFOLD = enum.auto()
    FULL = enum.auto()
    TOPK = enum.auto()
    EXPM1_OF_TWICE = enum.auto()


# -- a primitive, and how torch runs it -------------------------------------------------------------------------------
def unfold_meta(a: TensorProxy, /, dim: int, size: int, step: int) -> TensorProxy:
    """The guide's meta function."""
    dim = utils.canonicalize_dim(a.ndim, dim)
    max_size = 1 if a.ndim == 0 else a.shape[dim]

    utils.check(
        size <= max_size, lambda: f"Maximum size for tensor at dimension {dim} is {max_size} but size is {size}"
    )
    utils.check(size >= 0, lambda: f"Size is {size} but must be >= 0")
    utils.check(step > 0, lambda: f"Step is {step} but must be > 0")

    shape = list(a.shape)
    shape.append(size)
    if a.ndim:  # of a single number the only window is the number itself
        shape[dim] = (shape[dim] - size) // step + 1

    return TensorProxy(like=a, shape=shape)


@pytest.fixture(scope="module")
def outside(undeclared_by_module: None) -> SimpleNamespace:
    """The guide's primitives, declared."""
    unfold_prim = make_prim(OurIDs.UNFOLD, "unfold", meta=unfold_meta, tags=(OpTags.SHAPE_OP,))
    unfold = _register_torch_operation("unfold", module=torch.Tensor)
    _register_implementation(unfold_prim, unfold, checker=_always_executable)

    def full_meta(shape: Sequence[int], fill_value: Number, *, device: Any, dtype: Any) -> TensorProxy:
        return TensorProxy(shape=shape, device=device, dtype=dtype)

    full_prim = make_prim(OurIDs.FULL, "full", meta=full_meta)
    full = _register_torch_operation("full")

    def _full_transform(
        shape: Sequence[int], fill_value: Number, *, device: devices.Device | None, dtype: dtypes.dtype | None
    ) -> TensorProxy:
        torch_device: torch.device | None = to_torch_device(device)
        torch_dtype: torch.dtype | None = to_torch_dtype(dtype)

        return full(shape, fill_value, device=torch_device, dtype=torch_dtype)

    _register_implementation(full_prim, checker=_always_executable, execution_transform=_full_transform)
    return SimpleNamespace(unfold=unfold_prim, unfold_operation=unfold, full=full_prim)


UNFOLD_CASES = (((), 0, 1, 3), ((), -1, 0, 5), ((0,), 0, 0, 1), ((8,), 0, 2, 1), ((6, 2), 0, 2, 2))
UNFOLD_ERRORS = (
    ((), 0, 2, 1, RuntimeError, "Maximum size for tensor at dimension 0 is 1 but size is 2"),
    ((0,), 0, 0, -1, RuntimeError, "Step is -1 but must be > 0"),
    ((8,), 1, 2, 1, IndexError, r"Dimension out of range \(expected to be in range of \[-1, 0\], but got 1\)"),
    ((8,), 0, -5, 1, RuntimeError, "Size is -5 but must be >= 0"),
    ((8,), 0, 10, 1, RuntimeError, "Maximum size for tensor at dimension 0 is 8 but size is 10"),
)


@pytest.mark.parametrize(("shape", "dim", "size", "step"), [case for case in UNFOLD_CASES if case[0]])
def test_a_primitive_from_outside(outside: SimpleNamespace, shape: Any, dim: int, size: int, step: int) -> None:
    """It is recorded under its name, runs as torch's method, and gives what that gives."""
    a = torch.randn(shape)
    jitted = thunder.jit(lambda a: outside.unfold(a, dim, size, step))
    torch.testing.assert_close(jitted(a), a.unfold(dim, size, step), rtol=0, atol=0)
    printed = str(thunder.last_traces(jitted)[-1])
    assert f"t0 = Tensor.unfold(a, {dim}, {size}, {step})  # t0: " in printed
    assert f"    # t0 = unfold(a, {dim}, {size}, {step})" in printed
    assert "from torch import Tensor\n" in printed


@pytest.mark.parametrize("theirs", [True, False], ids=["from outside", "thunder's own"])
@pytest.mark.parametrize(("shape", "dim", "size", "step", "error", "message"), UNFOLD_ERRORS)
def test_errors_of_a_meta_function(
    outside: SimpleNamespace, theirs: bool, shape: Any, dim: int, size: int, step: int, error: Any, message: str
) -> None:
    """What the guide's meta function and thunder's own refuse, in the guide's words, with the user's line below."""
    symbol = outside.unfold if theirs else prims.unfold
    with pytest.raises(error, match=f"^{message}\n  at .*test_contributing.py:") as raised:
        thunder.jit(lambda a: symbol(a, dim, size, step))(torch.randn(shape))
    assert "symbol(a, dim, size, step)" in str(raised.value)


def test_symbols_of_primitives(outside: SimpleNamespace) -> None:
    """A primitive has the id, name and tags it was made with; an operation of torch's executor is tied to torch."""
    for symbol, id, name in ((outside.unfold, OurIDs.UNFOLD, "unfold"), (prims.unfold, pids.UNFOLD, "unfold")):
        assert (symbol.id, symbol.name, symbol.is_prim) == (id, name, True)
        assert OpTags.SHAPE_OP in symbol.tags
    assert outside.unfold_operation.fn is torch.Tensor.unfold
    with pytest.raises(AttributeError, match="torch has no 'no_such_operation'"):
        _register_torch_operation("no_such_operation")


def test_an_execution_transform_converts_dtypes_and_devices(outside: SimpleNamespace) -> None:
    """The primitive has thunder's dtype and device, torch's function gets torch's."""
    jitted = thunder.jit(lambda a: a + outside.full((2, 2), 3, device=devices.Device("cpu"), dtype=dtypes.float32))
    torch.testing.assert_close(jitted(torch.ones(2, 2)), torch.full((2, 2), 4.0))
    printed = str(thunder.last_traces(jitted)[-1])
    assert 'torch.full((2, 2), 3, device=torch.device("cpu"), dtype=torch.float32)  # t0: "cpu f32[2, 2]"' in printed
    assert to_torch_dtype(dtypes.float32) is torch.float32
    assert to_torch_dtype(torch.float16) is torch.float16
    assert to_torch_device(devices.Device("cpu")) == torch.device("cpu")
    assert to_torch_dtype(None) is to_torch_device(None) is None


def test_a_checker_decides_whether_the_association_holds(undeclared: None) -> None:
    """Where the checker says no, the next way is taken; where there is none, the error names the operation."""
    twice = make_prim(OurIDs.EXPM1_OF_TWICE, "expm1_of_twice", meta=lambda a: TensorProxy(like=a))
    jitted = thunder.jit(twice)
    with pytest.raises(RuntimeError, match="Could not find executor for bound symbol t0 = expm1_of_twice\\(a\\)"):
        jitted(torch.ones(3))
    only_vectors = partial(lambda rank, a: a.ndim == rank, 1)
    _register_implementation(twice, checker=only_vectors, execution_transform=lambda a: prims.expm1(a * 2))
    torch.testing.assert_close(jitted(torch.ones(3)), torch.expm1(torch.full((3,), 2.0)))
    with pytest.raises(RuntimeError, match="Could not find executor"):
        jitted(torch.ones(3, 1))


def test_expm1_is_a_primitive() -> None:
    """It could be written with exp, less accurately."""
    assert prims.expm1.is_prim
    small = torch.tensor([1e-7])
    torch.testing.assert_close(thunder.jit(torch.expm1)(small), torch.expm1(small), rtol=0, atol=0)


# -- the core language, and language contexts -------------------------------------------------------------------------
def _elementwise_binary_wrapper(
    a: Any, b: Any, *, prim: Any, type_promotion_kind: Any = utils.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
) -> Any:
    computation_dtype, result_dtype = utils.elementwise_type_promotion(a, b, type_promotion_kind=type_promotion_kind)

    a, b = maybe_broadcast(a, b)
    a, b = maybe_convert_to_dtype(a, computation_dtype), maybe_convert_to_dtype(b, computation_dtype)

    result = prim(a, b)
    return maybe_convert_to_dtype(result, result_dtype)


def test_a_core_language_operation(undeclared: None) -> None:
    """Broadcasting and type promotion over a primitive; with a method name it is a method of the language."""

    @clangop(method_name="sum_of")
    def sum_of(a: Any, b: Any) -> Any:
        return _elementwise_binary_wrapper(a, b, prim=prims.add)

    @torchsymbol(id="ours.sums", is_method=False)
    def sums(a: Any, b: Any) -> Any:
        with set_langctx("clang"):
            by_method = a.sum_of(b)
        return sum_of(a, b), by_method

    floats, integers = torch.ones(2, 1), torch.ones(3, dtype=torch.int32)
    for a, b in ((floats, integers), (integers, integers.long()), (integers, torch.ones((), dtype=torch.float16))):
        for found in thunder.jit(sums)(a, b):
            torch.testing.assert_close(found, a + b, rtol=0, atol=0)
    for found in thunder.jit(lambda a: sums(a, 2.5))(integers):
        torch.testing.assert_close(found, integers + 2.5, rtol=0, atol=0)


def test_the_language_decides_what_an_attribute_means() -> None:
    """`a.size` is a method in torch, and a number in NumPy; so it is for operators."""
    trace = Trace("f")
    with tracectx(trace):
        a = TensorProxy("a", shape=(2, 3), device="cpu", dtype=dtypes.float32)
        assert get_langctx().name == "torch"
        assert (a.size(), a.size(1)) == ((2, 3), 3)
        a + a
        with set_langctx("numpy"):
            assert a.size == 6
            a + a
    assert [bsym.sym.id for bsym in trace.bound_symbols] == ["torch.add", "numpy.add"]


# -- tests of operations ----------------------------------------------------------------------------------------------
CONTRIBUTION = """
from functools import partial

import pytest
import torch

import thunder.clang as clang
import thunder.torch as ltorch
from thunder.core import devices
from thunder.core import dtypes as datatypes
from thunder.tests.opinfos import (
    DecorateInfo, OpInfo, SampleInput, _elementwise_unary_torch, elementwise_unary_generator, elementwise_unary_ops,
    make_tensor, shape_ops,
)


def unfold_sample_generator(op, device, dtype, requires_grad, **kwargs):
    make = partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad)

    for shape, dim, size, step in CASES:
        yield SampleInput(make(shape), dim, size, step)


def unfold_error_generator(op, device, dtype=torch.float32, **kwargs):
    make = partial(make_tensor, device=device, dtype=dtype)

    for shape, dim, size, step, err_type, err_msg in ERRORS:
        yield SampleInput(make(shape), dim, size, step), err_type, err_msg


unfold_opinfo = OpInfo(
    clang.unfold,
    sample_input_generator=unfold_sample_generator,
    error_input_generator=unfold_error_generator,
    torch_reference=torch.Tensor.unfold,
)

shape_ops.append(unfold_opinfo)

acos_opinfo = OpInfo(
    ltorch.acos,
    domain=(-1, 1),
    sample_input_generator=elementwise_unary_generator,
    torch_reference=_elementwise_unary_torch(torch.acos),
    test_directives=(
        DecorateInfo(
            pytest.mark.xfail,
            "test_core_vs_torch_consistency",
            dtypes=(datatypes.float16, datatypes.complex32),
            devicetypes=(devices.DeviceType.CPU,),
        ),
    ),
)
elementwise_unary_ops.append(acos_opinfo)
"""


@pytest.fixture(scope="module")
def contribution() -> str:
    """The guide's OpInfos, as a module that a pytest run of the suite can load."""
    cases = [(*case[:4],) for case in UNFOLD_CASES]
    errors = ", ".join(f"({s!r}, {d}, {n}, {k}, {e.__name__}, {m!r})" for s, d, n, k, e, m in UNFOLD_ERRORS)
    return f"CASES = {cases!r}\nERRORS = ({errors},)\n{CONTRIBUTION}"


@pytest.fixture(scope="module")
def opinfos(undeclared_by_module: None, contribution: str) -> SimpleNamespace:
    """The guide's OpInfos, appended to the lists of this process."""
    namespace: dict[str, Any] = {}
    exec(contribution, namespace)
    return SimpleNamespace(**namespace)


def test_opinfos(opinfos: SimpleNamespace) -> None:
    """They generate samples with and without errors, in their domain, and are in the lists."""
    from thunder.tests.opinfos import all_opinfos, elementwise_unary_ops, shape_ops

    unfold, acos = opinfos.unfold_opinfo, opinfos.acos_opinfo
    assert shape_ops[-1] is unfold
    assert elementwise_unary_ops[-1] is acos
    assert {unfold, acos} < set(all_opinfos())
    for sample in unfold.sample_inputs("cpu", torch.float64, requires_grad=True):
        a, *rest = sample.args
        assert (a.dtype, a.requires_grad) == (torch.float64, True)
        torch.testing.assert_close(thunder.jit(torch.Tensor.unfold)(a, *rest), unfold.torch_reference(a, *rest))
    for sample, error, message in unfold.error_inputs():
        with pytest.raises(error, match=message):
            thunder.jit(torch.Tensor.unfold)(*sample.args)
    for sample in acos.sample_inputs("cpu", torch.float32):
        assert not sample.args[0].numel() or sample.args[0].abs().max() <= 1
    assert acos.torch_reference(0.5) == pytest.approx(1.0471975, abs=1e-6)


@pytest.mark.parametrize(
    ("test", "dtype", "device", "expected"),
    [
        ("test_core_vs_torch_consistency", torch.float16, "cpu", ["xfail"]),
        ("test_core_vs_torch_consistency", torch.complex32, "cpu", ["xfail"]),
        ("test_core_vs_torch_consistency", torch.float32, "cpu", []),
        ("test_core_vs_torch_consistency", torch.float16, "cuda:0", []),
        ("test_grad_vs_torch", torch.float16, "cpu", []),
    ],
)
def test_directives(opinfos: SimpleNamespace, test: str, dtype: Any, device: str, expected: list[str]) -> None:
    """A directive marks the tests that it names, in the dtypes and on the types of device that it names."""
    assert [mark.name for mark in opinfos.acos_opinfo.marks(test, "torch", device, dtype)] == expected


def test_the_suite_picks_them_up(contribution: str, tmp_path: Path) -> None:
    """`pytest … -k unfold` runs the tests of what was appended, beside those of thunder's own."""
    (tmp_path / "our_operations.py").write_text(contribution, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")  # no settings of a project around it
    command = [sys.executable, "-m", "pytest", "-p", "our_operations", "--pyargs", "thunder.tests", "-q", "-rA"]
    command += ["--thunder-dtypes", "float16,float32", "-k", "unfold or acos"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = set(re.findall(r"^(PASSED|XPASS|XFAIL) \S*::(\S+)", done.stdout, re.MULTILINE))
    for name in ("unfold", "unfold.2"):
        for test in ("test_core_vs_torch_consistency", "test_grad_vs_torch", "test_meta_vs_torch", "test_errors"):
            assert any(found.startswith(f"{test}[{name}-torch-cpu") for _, found in told), (test, name, told)
    marked = {state for state, test in told if test == "test_core_vs_torch_consistency[acos.2-torch-cpu-float16]"}
    assert marked == {"XPASS"}  # torch has learnt it since: the mark is theirs, the result is right
    assert ("PASSED", "test_core_vs_torch_consistency[acos.2-torch-cpu-float32]") in told


# -- gradients --------------------------------------------------------------------------------------------------------
def _topk_prim_grad(topk: Any) -> Any:
    @torchctx
    def rule(a: TensorProxy, /, k: int, dim: int | None = None, largest: bool = True, sorted: bool = True) -> Any:
        fwd = topk(a, k, dim, largest, sorted)
        val, idx = fwd

        val_grad = get_grad(val)

        a_grad = ltorch.zeros_like(a)
        a_grad = ltorch.scatter_add(a_grad, dim, idx, val_grad)
        put_grad(a, a_grad)

        return fwd

    return rule


def test_a_gradient_of_a_primitive_from_outside(undeclared: None) -> None:
    """Without a rule it has no gradient, and the error says how to give it one; with the rule it has torch's."""

    def topk_meta(a: TensorProxy, /, k: int, dim: int | None = None, largest: bool = True, sorted: bool = True) -> Any:
        dim = utils.canonicalize_dim(a.ndim, -1 if dim is None else dim)
        shape = (*a.shape[:dim], k, *a.shape[dim + 1 :])
        return TensorProxy(like=a, shape=shape), TensorProxy(like=a, shape=shape, dtype=dtypes.int64)

    topk = make_prim(OurIDs.TOPK, "topk", meta=topk_meta)
    _register_implementation(topk, _register_torch_operation("topk"), checker=_always_executable)

    def f(a: Any) -> Any:
        values, _ = topk(a, 2, 1)
        return values * values

    _check_topk_gradient(f, topk, OurIDs.TOPK)


def test_a_gradient_of_one_of_our_primitives(undeclared: None) -> None:
    """`register_grad` with the id of a primitive of thunder's."""

    def f(a: Any) -> Any:
        values, _ = torch.topk(a, 2, 1)
        return values * values

    _check_topk_gradient(f, prims.topk, pids.TOPK)


def _check_topk_gradient(f: Any, topk: Any, id: Any) -> None:
    a = torch.tensor([[1.0, 5.0, 3.0], [9.0, 7.0, 8.0]], dtype=torch.float64)
    expected = torch.tensor([[0.0, 10.0, 6.0], [18.0, 0.0, 16.0]], dtype=torch.float64)
    if id is OurIDs.TOPK:
        with pytest.raises(RuntimeError, match=r"topk has no gradient rule.*register_grad"):
            grad(thunder.jit(f))(a)
    calls = []
    rule = _topk_prim_grad(topk)
    register_grad(id, lambda *args, **kwargs: calls.append(1) or rule(*args, **kwargs))
    differentiated = grad(thunder.jit(f))
    (found,) = differentiated(a)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert calls
    printed = str(thunder.last_traces(differentiated)[-1])
    assert "torch.topk(a, 2, 1)" in printed
    assert "scatter_add(" in printed
    b = a.clone().requires_grad_()
    thunder.jit(f)(b).sum().backward()
    torch.testing.assert_close(b.grad, expected, rtol=0, atol=0)


# -- the torch language -----------------------------------------------------------------------------------------------
def test_an_operation_of_the_torch_language(undeclared: None) -> None:
    """The guide's hardswish: torch's function maps to it, it refuses what it says, and is differentiated through."""

    @torchsymbol(torch.nn.functional.hardswish, id="torch.hardswish", is_method=False)
    def hardswish(a: TensorProxy, /, inplace: bool = False) -> Any:
        utils.check(not inplace, lambda: "hardswish only supports inplace=False", exception_type=NotImplementedError)
        utils.check(
            dtypes.is_float_dtype(a.dtype),
            lambda: f"hardswish only supports floating point dtypes, got {a.dtype}",
            exception_type=ValueError,
        )
        return a * ltorch.relu6(a + 3) / 6

    def f(a: Any) -> Any:
        return torch.nn.functional.hardswish(a)

    a = torch.linspace(-4, 4, 30, dtype=torch.float64, requires_grad=True)
    jitted = thunder.jit(f)
    torch.testing.assert_close(jitted(a), f(a))
    (found,) = torch.autograd.grad(jitted(a).sum(), a)
    (expected,) = torch.autograd.grad(f(a).sum(), a)
    torch.testing.assert_close(found, expected)
    (symbol,) = [b for b in thunder.trace()(f, a.detach()).bound_symbols if b.sym.id == "torch.hardswish"]
    assert symbol.sym is hardswish
    assert [part.sym.id for part in symbol.subsymbols] == ["torch.add", "torch.relu6", "torch.mul", "torch.true_divide"]
    with pytest.raises(NotImplementedError, match=r"^hardswish only supports inplace=False"):
        thunder.jit(lambda a: torch.nn.functional.hardswish(a, inplace=True))(a.detach())
    with pytest.raises(ValueError, match=r"^hardswish only supports floating point dtypes, got int64"):
        jitted(torch.arange(3))


def test_our_own_operations_are_not_limited_so() -> None:
    """What the guide's examples cannot do is no rule for thunder's own, which do what torch's do."""
    a = torch.linspace(-4, 4, 30)
    b = a.clone()
    torch.testing.assert_close(
        thunder.jit(lambda a: torch.nn.functional.hardswish(a, inplace=True) + a)(a),
        torch.nn.functional.hardswish(b, inplace=True) + b,
    )
    torch.testing.assert_close(a, b)
    half = torch.linspace(-1, 1, 9, dtype=torch.float16)
    torch.testing.assert_close(thunder.jit(torch.acos)(half), torch.acos(half), rtol=0, atol=0)
