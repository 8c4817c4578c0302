# SPDX-License-Identifier: Apache-2.0
"""The declaration of elementwise operations, and what their primitives refuse: they neither promote nor broadcast."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import thunder
import thunder.clang.base
import thunder.core.prims.base
import thunder.torch as ltorch
import thunder.torch.base
from thunder.clang.base import clang_ops, clangctx
from thunder.core import prims
from thunder.core.prims import elementwise_base
from thunder.core.prims.elementwise_base import INEXACT, KIND, conjugated, differentiable, elementwise
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace


def proxy(dtype: torch.dtype, *shape: int, device: str = "cpu") -> TensorProxy:
    """A proxy with a fresh name."""
    return TensorProxy(shape=shape, device=device, dtype=dtype)


def test_dtypes_that_mean_nothing() -> None:
    """torch's own type of error, which names the operation, the dtype and what it takes."""
    with tracectx(Trace("program")):
        i, b, f, c = (proxy(d, 2) for d in (torch.int32, torch.bool, torch.float32, torch.complex64))
        for call, message in (
            (lambda: prims.sin(i), '"sin" not implemented for int32: it accepts floating point and complex tensors'),
            (lambda: prims.erf(c), '"erf" not implemented for complex64: it accepts floating point tensors'),
            (lambda: prims.floor(b), '"floor" not implemented for bool: it accepts integer and floating point tensors'),
            (
                lambda: prims.lt(c, c),
                '"lt" not implemented for complex64: it accepts bool and integer and floating point',
            ),
            (lambda: prims.bitwise_and(f, f), '"bitwise_and" not implemented for float32: it accepts bool and integer'),
            (lambda: prims.gcd(b, b), '"gcd" not implemented for bool: it accepts integer tensors'),
            (lambda: prims.div(b, b), '"div" not implemented for bool'),
            (lambda: prims.pow(b, b), '"pow" not implemented for bool'),
        ):
            with pytest.raises(NotImplementedError) as error:
                call()
            assert str(error.value).startswith(message)


def test_operands_that_do_not_fit() -> None:
    """Shapes, dtypes, devices and things that are no operands."""
    with tracectx(Trace("program")):
        a = proxy(torch.float32, 2, 3)
        with pytest.raises(RuntimeError, match=r"add: the tensors must have one shape, but have \(2, 3\), \(3,\)"):
            prims.add(a, proxy(torch.float32, 3))
        with pytest.raises(RuntimeError, match="mul: the tensors must have one dtype, but have float32, float64"):
            prims.mul(a, proxy(torch.float64, 2, 3))
        with pytest.raises(RuntimeError, match="the complex 1j does not fit a tensor of dtype float32"):
            prims.mul(a, 1j)
        with pytest.raises(RuntimeError, match="at least two devices, cpu and cuda:0"):
            prims.sub(a, proxy(torch.float32, 2, 3, device="cuda:0"))
        with pytest.raises(TypeError, match="expected tensors and numbers, but got str: 'x'"):
            prims.maximum(a, "x")
        with pytest.raises(TypeError, match="needs at least one tensor"):
            prims.add(1, 2)


def test_a_scalar_on_the_cpu_goes_along() -> None:
    """As in torch, where it becomes an argument of the kernel."""
    with tracectx(Trace("program")):
        a, b = proxy(torch.float32, device="cuda:0"), proxy(torch.float32)
        assert str(prims.add(b, a).device) == str(prims.add(a, b).device) == "cuda:0"


def test_in_gradient_rules() -> None:
    """What is conjugated, and what has a gradient at all."""
    with tracectx(Trace("program")):
        a, c, i = (proxy(d, 2) for d in (torch.float32, torch.complex64, torch.int64))
        assert conjugated(a) is a
        assert conjugated(2 + 3j) == 2 - 3j
        assert conjugated(2.5) == 2.5
        assert str(ltorch.conj(c).dtype) == str(conjugated(c).dtype) == "complex64"
        assert [differentiable(x) for x in (a, c, i, 2.5)] == [True, True, False, False]


@pytest.fixture
def undeclared() -> Iterator[None]:
    """What a test declares is taken back."""
    base, core, language = thunder.core.prims.base, thunder.clang.base, thunder.torch.base
    tables = [base._prims, base.PrimIDs._ids, core.clang_ops, core.elementwise_functions, core.clangctx.methods]
    tables += [language._symbols, language._function_map, language.language.methods]
    before, declared = [table.copy() for table in tables], len(elementwise_base._declared)
    yield
    for table, content in zip(tables, before):
        table.clear()
        table.update(content)
    del elementwise_base._declared[declared:]


def test_a_block_from_outside(undeclared: None) -> None:
    """All floors know the operation, as soon as it is declared, under its name and the names of torch's functions."""
    airy = elementwise(
        "airy_ai",
        "Return the Airy function of each element, exp({a}) here.",
        categories=INEXACT,
        promotion=KIND.INT_TO_FLOAT,
        number_fn="exp",
        vjp=lambda g, out, a: g * out,
        torch="torch.special.airy_ai",
        method=True,
        domain={"low": 0},
    )
    sym = ltorch.torch_function_map()[torch.special.airy_ai]
    assert airy.module is None and sym.module is None
    assert (sym.name, sym.id, sym.reference) == ("airy_ai", "torch.special.airy_ai", torch.special.airy_ai)
    assert airy.__doc__ == "Return the Airy function of each element, exp(a) here."
    assert sym.__doc__ == "Return the Airy function of each element, exp(input) here."
    core = clang_ops["airy_ai"]
    assert clangctx.methods["airy_ai"] is core
    assert core(0.0) == 1.0
    with tracectx(Trace("program")):
        assert str(sym(proxy(torch.int32, 2)).dtype) == "float32"
    x = torch.linspace(0, 1, 5, requires_grad=True)
    thunder.jit(torch.special.airy_ai)(x).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.special.airy_ai(x.detach()))


def test_a_declaration_with_a_slip() -> None:
    """An unknown field is an error, and so is a name that is taken."""
    with pytest.raises(TypeError, match="domian"):
        elementwise("nothing", "Return nothing.", domian={"low": 0})  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="the primitive SIN is already declared"):
        elementwise("sin", "Return the sine of each element.")


def test_samples_of_languages() -> None:
    """The torch language has the primitive's samples, then its own."""
    from thunder.tests.make_tensor import TensorMaker

    make = TensorMaker("cpu", torch.float32)
    for name in ("sin", "fmod", "eq", "maximum"):
        lower, upper = getattr(prims, name), getattr(ltorch, name)
        shapes = [
            [[getattr(a, "shape", a) for a in s.args] for s in sym.sample_generator(make)] for sym in (lower, upper)
        ]
        assert shapes[1][: len(shapes[0])] == shapes[0]
        assert len(shapes[1]) > len(shapes[0]) or name == "sin"
