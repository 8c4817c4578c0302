# SPDX-License-Identifier: Apache-2.0
"""The printer: every kind of value reads back as it was, and a trace's text rebuilds the same trace."""

from __future__ import annotations

import collections
import enum
import math
import re
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recording import record

import thunder
import thunder.torch as ltorch
from thunder.core import devices, dtypes, prims
from thunder.core.printer import PrintContext, bound_symbol_lines, lines_around, printable
from thunder.core.proxies import AnyProxy, NumberProxy, TensorProxy
from thunder.core.state import SourceLine, tracectx
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import Trace


def read_back(x: Any) -> Any:
    """What the text of a value evaluates to."""
    context = PrintContext()
    text = printable(x, context)
    namespace = dict(context.objects)
    exec("\n".join(["import torch", *context.imports]), namespace)
    return eval(text, namespace)


def same(a: Any, b: Any) -> bool:
    """Equal in value, type, sign of zero, and NaN for NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (a != a and b != b) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, slice):
        return same((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    return a == b


ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=4),
    st.just(...),
    st.sampled_from(dtypes.all_dtypes),
    st.sampled_from(
        [devices.cpu, devices.Device("cuda:1"), torch.float16, torch.device("cuda", 1), torch.device("cpu")]
    ),
    st.sampled_from([bool, int, float, complex, str]),
    st.builds(slice, st.none() | st.integers(), st.none() | st.integers(), st.none() | st.integers()),
    st.frozensets(st.integers(), max_size=2),
    st.sets(st.integers(), max_size=2),
    st.binary(max_size=2),
    st.sampled_from([torch.contiguous_format, torch.strided]),
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(VALUES)
def test_every_value_reads_back(x: Any) -> None:
    """As a literal where there is one, else as an object of the context."""
    assert same(read_back(x), x)


@pytest.mark.parametrize(
    "x", [complex(-0.0, 1.0), complex(0.0, -0.0), complex(-0.0, -0.0), complex(math.inf, -0.0)], ids=repr
)
def test_the_signs_of_complex_zeros(x: complex) -> None:
    """repr() loses them."""
    assert same(read_back(x), x)


class Colour(enum.IntEnum):
    """An int that is more than its number."""

    RED = 1


class Pair(NamedTuple):
    """A tuple that is more than its items."""

    a: Any
    b: Any


@pytest.mark.parametrize(
    "x",
    [
        Colour.RED,
        Pair(1, 2),
        collections.OrderedDict(a=1),
        object(),
        len,
        lambda: 0,
        torch.nn.ReLU(),
        torch.Generator(),
    ],
)
def test_what_has_no_literal_is_an_object_of_the_context(x: Any) -> None:
    """And comes back as the very thing."""
    back = read_back(x)
    assert type(back) is type(x)
    assert back is x or back == x


def test_sizes_are_tuples() -> None:
    """`torch.Size` is written as the tuple that it is."""
    assert printable(torch.Size([2, 1]), PrintContext()) == "(2, 1)"


def test_proxies_print_as_their_names_wherever_they_are() -> None:
    """In every kind of container."""
    a = TensorProxy("a", shape=(2,), device="cpu", dtype=dtypes.float32)
    n = NumberProxy(3, name="n")
    context = PrintContext()
    text = printable([a, (n,), {"k": a}, slice(n, None), (a, n)], context)
    assert text == "[a, (n,), {'k': a}, slice(n, None, None), (a, n)]"
    namespace = {**context.objects, "a": 1, "n": 2}
    exec("\n".join(context.imports), namespace)
    assert eval(printable(Pair(a, [n]), context), {**context.objects, "a": 1, "n": 2}) == Pair(1, [2])


def test_one_object_has_one_name_and_two_have_two() -> None:
    """However often they are used."""
    context = PrintContext()
    a, b = object(), object()
    names = [printable(x, context) for x in (a, b, a)]
    assert names == ["_object_0", "_object_1", "_object_0"]
    assert context.objects == {"_object_0": a, "_object_1": b}


# -- whole traces -----------------------------------------------------------------------------------------------------
def rebuilt(trace: Trace) -> Trace:
    """The trace that a trace's text records when it is run on the same inputs."""
    context = trace.python_ctx()
    exec(str(trace), context)
    out = Trace(trace.name, args=trace.args)
    out.provenance = trace.provenance
    with tracectx(out):
        for p in trace.args:
            prims.unpack_trivial(p)
        out.output = context[trace.name](*trace.args)
        prims.python_return(out.output)
    return out


def everything(a: Any, b: Any, i: Any) -> Any:
    """Operations whose arguments are of all kinds."""
    c = ltorch.add(a, b, alpha=2)
    d = prims.convert_element_type(c, dtypes.float64)
    e = prims.full((2, 3), float("-inf"), device=devices.cpu, dtype=dtypes.float32)
    f = prims.where(prims.lt(b, e), a, 1e-30)
    g = prims.full((), complex(math.nan, -0.0), device=devices.cpu, dtype=dtypes.complex64)
    return {"sum": d, "list": [f, (g, 2)], 3: -(i * 2), "text": "it's", "none": None}


def inputs() -> list[TensorProxy]:
    """Two float tensors and one of integers."""
    kinds = {"a": dtypes.float32, "b": dtypes.float32, "i": dtypes.int64}
    return [TensorProxy(n, shape=(2, 3), device=devices.cpu, dtype=d) for n, d in kinds.items()]


def traced(fn: Any, args: list[TensorProxy]) -> Trace:
    """The trace of `fn`, under its name, with lines that name its inputs."""
    return record(fn, args, name=fn.__name__, unpack=True)


def test_the_text_rebuilds_the_trace() -> None:
    """Run on proxies it records what it says: the same text, and from that the same again."""
    trace = traced(everything, inputs())
    again = rebuilt(trace)
    assert str(again) == str(trace)
    constants = [[op.args for op in t.bound_symbols if not op.flat_args] for t in (trace, again)]
    assert same(*constants)


def test_the_text_runs() -> None:
    """On tensors it computes what the function computes."""
    trace = traced(everything, inputs())
    a, b, i = torch.randn(2, 3), torch.randn(2, 3), torch.arange(6).reshape(2, 3)
    out = trace.python_callable()(a, b, i)
    torch.testing.assert_close(out["sum"], (a + 2 * b).double())
    assert torch.equal(out["list"][0], torch.full((2, 3), 1e-30))
    assert out["list"][1][0].isnan()
    assert torch.equal(out[3], -2 * i)
    assert (out["text"], out["none"], out["list"][1][1]) == ("it's", None, 2)


def test_every_trace_of_a_jitted_function_runs() -> None:
    """Each step on the way computes the same: its text, executed as it stands, on the same inputs."""

    @thunder.jit
    def f(a: Any, b: Any) -> Any:
        return (a * b + 2).sin(), a @ b

    a, b = torch.randn(3, 3), torch.randn(3, 3)
    expected = f(a, b)
    assert len(thunder.last_traces(f)) > 3
    for trace in thunder.last_traces(f):
        namespace = trace.python_ctx()
        exec(str(trace), namespace)
        torch.testing.assert_close(namespace[trace.name](a, b), expected, rtol=0, atol=0)
    for trace in thunder.last_prologue_traces(f):
        namespace = trace.python_ctx()
        exec(str(trace), namespace)
        assert [x.data_ptr() for x in namespace[trace.name](a, b)] == [a.data_ptr(), b.data_ptr()]


def test_the_form() -> None:
    """Header, imports, decorators, typed inputs, operations with their types, decompositions as comments, return."""

    def f(a: Any, b: Any) -> Any:
        return ltorch.add(a, b)

    text = str(traced(f, inputs()[:2]))
    lines = text.splitlines()
    where = lines.index("def f(a, b):")
    assert lines[where - 2 : where] == ["@torch.no_grad()", "@no_autocast"]
    assert lines[where + 1 : where + 4] == [
        '  # a: "cpu f32[2, 3]"',
        '  # b: "cpu f32[2, 3]"',
        '  t0 = ltorch.add(a, b)  # t0: "cpu f32[2, 3]"',
    ]
    assert lines[where + 4] == '    # t0 = prims.add(a, b)  # t0: "cpu f32[2, 3]"'
    assert lines[-1] == "  return t0"
    assert "import thunder.torch as ltorch" in lines[: where - 2]
    # What only stands in comments is not imported.
    assert "import thunder.core.prims as prims" not in lines


def test_depth() -> None:
    """How many levels of decomposition are shown."""
    trace = traced(lambda a, b: ltorch.mean(ltorch.softmax(a, 1) + b), inputs()[:2])
    trace.name = "f"
    comments = [len(re.findall(r"^ +# \w+ = ", trace.python(depth=d), re.MULTILINE)) for d in (0, 1, 2, None)]
    assert comments[0] == 0
    assert comments == sorted(comments)
    assert comments[1] < comments[-1]
    deepest = max(len(line) - len(line.lstrip()) for line in str(trace).splitlines())
    assert deepest >= 6


def operation(output: Any, name: str = "op") -> BoundSymbol:
    """A call with this output."""
    return BoundSymbol(Symbol(name, lambda: None, is_prim=True), (1,), {"k": "v"}, output)


def test_outputs_of_every_kind() -> None:
    """One value, several, nested, in a list, in a dict, mixed with numbers, or none at all."""
    a, b = inputs()[:2]
    lines = {
        "x = op": operation(AnyProxy(name="x")),
        "op": operation(None),
        "(a, b) = op": operation((a, b)),
        "(a,) = op": operation((a,)),
        "[a, (b, _)] = op": operation([a, (b, 3)]),
    }
    for text, op in lines.items():
        assert bound_symbol_lines(op) == [f"{text}(1, k='v')"]
    assert bound_symbol_lines(operation(())) == ["op(1, k='v')"]
    line = bound_symbol_lines(operation({"p": a, "q": (b,)}))[0]
    namespace = {"op": lambda *args, **kwargs: {"p": 1, "q": (2,)}}
    exec(line, namespace)
    assert (namespace["a"], namespace["b"]) == (1, 2)
    assert str(operation(a)) == "a = op(1, k='v')  # a: \"cpu f32[2, 3]\""


def test_names_of_values_never_hide_what_the_text_needs() -> None:
    """Inputs called like operators, modules, types or keywords."""

    def scale(a: Any) -> Any:
        return a * 2

    executor = thunder.extend.OperatorExecutor("printer_test")
    op = executor.register_operator("scale", like=scale, fn=scale)
    other = executor.register_operator("torch", like=scale, fn=scale)
    again = executor.register_operator("f", like=scale, fn=lambda a: a * 3)
    trace = Trace("f")
    names = [trace.add_name(n) for n in ("scale", "torch", "prims", "float", "lambda", "slice", "no_autocast")]
    trace.args = [TensorProxy(n, shape=(2,), device="cpu", dtype=dtypes.float32) for n in names]
    with tracectx(trace):
        total = prims.full((2,), math.inf, device=devices.cpu, dtype=dtypes.float32)
        for p in trace.args:
            total = prims.minimum(total, p)
        prims.python_return(again(other(op(prims.neg(total)))))
    values = [torch.tensor([float(i), 7.0 - i]) for i in range(1, 8)]
    expected = -torch.stack(values).min(0).values * 12
    assert torch.equal(trace.python_callable()(*values), expected)


def test_two_operators_of_one_name() -> None:
    """Each call runs its own."""
    ops = [
        thunder.extend.OperatorExecutor(f"printer_test_{n}").register_operator(
            "times", like=lambda a: a, fn=lambda a, n=n: a * n
        )
        for n in (2, 3)
    ]
    trace = Trace("f", args=[a := inputs()[0]])
    with tracectx(trace):
        prims.python_return(ops[1](ops[0](a)))
    assert torch.equal(trace.python_callable()(torch.ones(2)), torch.full((2,), 6.0))


def test_lines_around() -> None:
    """What an error shows: the line, marked, with those before and after it."""
    trace = traced(lambda a: prims.neg(prims.cos(prims.sin(a))), inputs()[:1])
    text = lines_around(trace.bound_symbols, 2, radius=1)
    assert [line[:2] for line in text.splitlines()] == ["  ", "> ", "  "]
    assert "cos" in text.splitlines()[1]
    assert len(lines_around(trace.bound_symbols, 0, radius=1).splitlines()) == 2
    assert len(lines_around(trace.bound_symbols, 4, radius=10).splitlines()) == 5


def test_source_lines() -> None:
    """A line of the user's program prints with its text, where that can be read."""
    here = SourceLine(__file__, 1)
    assert str(here) == f"{__file__}:1: # SPDX-License-Identifier: Apache-2.0"
    assert str(SourceLine("nowhere.py", 3)) == "nowhere.py:3"
