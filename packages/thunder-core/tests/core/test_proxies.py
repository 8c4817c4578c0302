# SPDX-License-Identifier: Apache-2.0
"""Proxies: what they know, what their operators do, and what they refuse."""

from __future__ import annotations

import math
import operator
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder.core import devices, dtypes
from thunder.core.errors import TracingError
from thunder.core.proxies import (
    OPERATORS,
    AnyProxy,
    DictProxy,
    NumberProxy,
    Proxy,
    TensorProxy,
    TupleProxy,
    number_type,
    number_value,
)
from thunder.core.state import tracectx
from thunder.core.trace import Trace


def tensor(name: str = "a", shape: Any = (2, 3), **options: Any) -> TensorProxy:
    """A float32 tensor on the cpu."""
    return TensorProxy(name, shape=shape, **{"device": "cpu", "dtype": dtypes.float32, **options})


# -- tensors ----------------------------------------------------------------------------------------------------------
def test_what_a_tensor_knows() -> None:
    """Its metadata, in thunder's terms, however they were given."""
    a = tensor(shape=[2, 3], device=torch.device("cpu"), dtype=torch.bfloat16, requires_grad=True)
    assert (a.name, a.shape, a.ndim, a.requires_grad) == ("a", (2, 3), 2, True)
    assert type(a.shape) is tuple
    assert a.device is devices.cpu
    assert a.dtype is dtypes.bfloat16
    assert a.type_string() == "cpu bf16[2, 3]"
    assert repr(a) == "<TensorProxy a: cpu bf16[2, 3]>"
    assert len(a) == 2
    assert a.numel() == 6
    assert tensor(shape=()).type_string() == "cpu f32[]"
    assert tensor(device="cuda:1", dtype=dtypes.bool8).type_string() == "cuda:1 b8[2, 3]"


def test_like_another() -> None:
    """What is not said is as that one's; whether it requires grad is its own."""
    a = tensor(requires_grad=True)
    b = TensorProxy("b", like=a, shape=(4,))
    assert (b.shape, b.device, b.dtype, b.requires_grad) == ((4,), a.device, a.dtype, False)
    c = TensorProxy("c", like=a, dtype=torch.int64, device="meta", requires_grad=True)
    assert (c.shape, c.device, c.dtype, c.requires_grad) == ((2, 3), devices.meta, dtypes.int64, True)
    assert TensorProxy("d", like=a, shape=()).ndim == 0


@pytest.mark.parametrize("missing", ["shape", "device", "dtype"])
def test_what_has_to_be_said(missing: str) -> None:
    """A tensor needs all three, or another to be like."""
    given_ = {"shape": (2,), "device": "cpu", "dtype": dtypes.float32}
    del given_[missing]
    with pytest.raises(TypeError, match="needs shape=, device= and dtype=, or like="):
        TensorProxy("a", **given_)


@pytest.mark.parametrize("make", [lambda: TensorProxy(shape=(), device="cpu", dtype=dtypes.int8), lambda: AnyProxy(1)])
def test_names_come_from_the_trace(make: Any) -> None:
    """Fresh ones; without a trace there is none to be had."""
    with pytest.raises(TracingError, match="without a name can only be created while tracing"):
        make()
    with tracectx(Trace()) as trace:
        names = {make().name, make().name}
    assert len(names) == 2
    assert names <= trace.names


def test_its_truth_is_not_known() -> None:
    """The error says what to write instead."""
    for use in (bool, lambda a: a and 1, lambda a: not a, lambda a: 1 if a else 2):
        with pytest.raises(TracingError, match=r"needs the value of the tensor a, .*torch\.where"):
            use(tensor())


def test_no_length_and_no_items_without_dimensions() -> None:
    """As torch."""
    with pytest.raises(TypeError, match=r"len\(\) of a 0-d tensor"):
        len(tensor(shape=()))
    with pytest.raises(TypeError, match="iteration over a 0-d tensor"):
        iter(tensor(shape=()))


def test_identity_decides_hashes() -> None:
    """== is an operation of the language, so hashing goes by identity."""
    a = tensor()
    assert hash(a) == hash(a)
    assert len({a: 1, tensor(): 2}) == 2
    assert weakref.ref(a)() is a


BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
INTEGER = {"and", "or", "xor", "lshift", "rshift"}


@pytest.mark.parametrize("name", BINARY + COMPARISONS)
def test_operators_of_two(name: str) -> None:
    """Each records the language's operation, on tensors and numbers, from either side, as torch computes it."""
    fn = getattr(operator, f"{name}_" if name in ("and", "or") else name)
    kind = torch.int64 if name in INTEGER else torch.float32
    x, y = torch.arange(1, 5).reshape(2, 2).to(kind), torch.tensor([[2, 1], [1, 2]]).to(kind)
    cases = [(x, y)] if name == "matmul" else [(x, y), (x, 2), (2, x)]
    for pair in cases:
        trace = Trace("f")

        def proxy(v: Any, trace: Trace = trace) -> Any:
            if not isinstance(v, torch.Tensor):
                return v
            trace.args.append(TensorProxy(trace.add_name("x"), shape=v.shape, device="cpu", dtype=v.dtype))
            return trace.args[-1]

        with tracectx(trace):
            out = fn(*map(proxy, pair))
        expected = fn(*pair)
        assert (out.shape, dtypes.to_torch_dtype(out.dtype)) == (tuple(expected.shape), expected.dtype), pair
        assert len(trace.bound_symbols) == 1
        assert out.name in trace.bound_symbols[0].out_names
        trace.output = out
        from thunder.core.prims import python_return

        with tracectx(trace):
            python_return(out)
        found = trace.python_callable()(*[v for v in pair if isinstance(v, torch.Tensor)])
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("neg", dtypes.float32), ("pos", dtypes.float32), ("abs", dtypes.float32), ("invert", dtypes.int64)],
)
def test_operators_of_one(name: str, kind: Any) -> None:
    """Each is recorded as the language's."""
    with tracectx(Trace()) as trace:
        out = getattr(operator, name)(tensor(dtype=kind))
    assert (out.shape, out.dtype) == ((2, 3), kind)
    assert len(trace.bound_symbols) == 1


def test_every_operator_of_python_is_in_the_table() -> None:
    """None falls back to object's."""
    assert {f"__{n}__" for n in BINARY + COMPARISONS + ["neg", "pos", "abs", "invert"]} == set(OPERATORS)
    for dunder in OPERATORS:
        assert dunder in TensorProxy.__dict__
    for name in BINARY:
        assert f"__r{name}__" in TensorProxy.__dict__


def test_unknown_dunders_are_no_methods() -> None:
    """Protocols that a proxy does not have are absent, whatever the language."""
    for dunder in ("__array__", "__float__", "__index__", "__torch_function__"):
        assert not hasattr(tensor(), dunder)
    with pytest.raises(TypeError):
        float(tensor())


# -- numbers ----------------------------------------------------------------------------------------------------------
NUMBERS = st.one_of(st.integers(-20, 20), st.floats(-20, 20), st.booleans())


@given(NUMBERS, NUMBERS, st.sampled_from(BINARY[:7] + COMPARISONS))
def test_numbers_compute_as_python_does(x: Any, y: Any, name: str) -> None:
    """From either side, errors too."""
    fn = getattr(operator, name)

    def outcome(a: Any, b: Any) -> Any:
        try:
            result = fn(a, b)
        except Exception as error:
            return type(error)
        return (type(result), repr(result))

    expected = outcome(x, y)
    p, q = NumberProxy(x, name="p"), NumberProxy(y, name="q")
    assert outcome(p, y) == outcome(x, q) == outcome(p, q) == expected


@given(st.integers(0, 50), st.integers(0, 8), st.sampled_from(["and", "or", "xor", "lshift", "rshift"]))
def test_integers_have_bits(x: int, y: int, name: str) -> None:
    """As Python's."""
    fn = getattr(operator, f"{name}_" if name in ("and", "or") else name)
    assert fn(NumberProxy(x, name="p"), y) == fn(x, NumberProxy(y, name="q")) == fn(x, y)


def test_numbers_convert() -> None:
    """As what they are wherever Python asks for one."""
    n = NumberProxy(3, name="n")
    assert (int(n), float(n), complex(n), bool(n), range(5)[n], math.sqrt(n)) == (3, 3.0, 3 + 0j, True, 3, math.sqrt(3))
    assert [0, 1, 2, 3][n] == 3
    assert (-n, +n, abs(NumberProxy(-2, name="m")), ~n) == (-3, 3, 2, -4)
    assert (number_value(n), number_value(4)) == (3, 4)
    assert (number_type(n), number_type(True)) == (int, bool)
    assert n.type_string() == "int 3"
    assert bool(NumberProxy(0.0, name="z")) is False


def test_a_number_that_the_program_computes() -> None:
    """Its type is known, its value is not: asking for it is an error with a way out."""
    n = NumberProxy(None, float, name="n")
    assert number_type(n) is float
    assert n.type_string() == "float ?"
    for use in (
        bool,
        int,
        float,
        complex,
        abs,
        operator.neg,
        lambda x: x + 1,
        lambda x: x > 1,
        operator.index,
        number_value,
    ):
        with pytest.raises(TracingError, match=r"the program computes the number n.*torch\.where"):
            use(n)


def test_numbers_leave_tensors_to_their_language() -> None:
    """`n * a` is the tensor's multiplication."""
    with tracectx(Trace()) as trace:
        out = NumberProxy(2, name="n") * tensor()
    assert isinstance(out, TensorProxy)
    assert len(trace.bound_symbols) == 1


# -- others -----------------------------------------------------------------------------------------------------------
def test_collections() -> None:
    """They hold what they stand for."""
    items = (tensor(), 2)
    c = TupleProxy(items, name="c")
    assert (len(c), c[1], tuple(c)) == (2, 2, items)
    assert DictProxy({"k": 1}, name="d")["k"] == 1


@pytest.mark.parametrize(
    "proxy",
    [
        tensor(requires_grad=True),
        NumberProxy(2.5, name="n"),
        AnyProxy([1], name="o"),
        TupleProxy((1,), name="t"),
    ],
    ids=lambda p: type(p).__name__,
)
def test_another_name(proxy: Proxy) -> None:
    """All else stays."""
    new = proxy.replace_name("other")
    assert type(new) is type(proxy)
    assert new.name == "other"
    assert proxy.name != "other"
    assert new.type_string() == proxy.type_string()
    for slot in ("value", "shape", "dtype", "device", "requires_grad", "ndim", "python_type"):
        if slot in {s for cls in type(proxy).__mro__ for s in getattr(cls, "__slots__", ())}:
            assert getattr(new, slot) is getattr(proxy, slot)
