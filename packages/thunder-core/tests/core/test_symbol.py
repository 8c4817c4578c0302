# SPDX-License-Identifier: Apache-2.0
"""Symbols and bound symbols: what a call records, what substitution changes, what is kept."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from recording import float_tensor as tensor

import thunder.torch as ltorch
from thunder.core import devices, dtypes, prims
from thunder.core.proxies import AnyProxy, NumberProxy, TensorProxy
from thunder.core.state import SourceLine, state, tracectx
from thunder.core.symbol import BoundSymbol, OpTags, Symbol, map_proxies, proxies_in
from thunder.core.symint.symbols import Symbols
from thunder.core.trace import Trace


@pytest.fixture
def trace() -> Iterator[Trace]:
    """A trace that is being written."""
    out = Trace(args=[tensor("a", 2), tensor("b", 2)])
    with tracectx(out):
        yield out


class Pair(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


def composite(a: Any, b: Any, scale: Any = 2) -> Any:
    """(a + b) * scale, and a."""
    return prims.mul(prims.add(a, b), float(scale)), a


def test_a_call_is_recorded(trace: Trace) -> None:
    """In its written form, with its output and, of a composite, what it decomposes into."""
    a, b = trace.args
    sym = Symbol("composite", composite, id="test.composite")
    out = sym(b=b, a=a, scale=2)
    (bsym,) = trace.bound_symbols
    assert (bsym.sym, bsym.args, bsym.kwargs, bsym.output) == (sym, (a, b), {}, out)
    assert bsym.id == "test.composite"
    assert [s.sym.name for s in bsym.subsymbols] == ["add", "mul"]
    assert bsym.arg_names == ("a", "b")
    assert bsym.out_names == ("t1",)  # `a` is only handed on
    assert bsym.tensors() == [a, b]
    assert sym.id == "test.composite"
    assert Symbol("nameless", composite).id == "nameless"


def test_a_primitive_has_no_parts(trace: Trace) -> None:
    """Its body is its meta function: what that calls is not recorded as parts of it."""
    prims.sin(trace.args[0])
    assert not trace.bound_symbols[0].subsymbols


def test_a_call_that_fails_leaves_no_trace(trace: Trace) -> None:
    """Neither a record nor an open scope, however deep it failed."""

    def inner(a: Any) -> Any:
        prims.sin(a)
        raise ValueError("inner")

    deep = Symbol("deep", Symbol("inner", inner))
    with pytest.raises(ValueError, match="inner"):
        deep(trace.args[0])
    assert trace.bound_symbols == []
    assert trace.scopes == [trace.bound_symbols]
    prims.sin(trace.args[0])
    assert len(trace.bound_symbols) == 1


def test_bind_postprocess_sees_the_call(trace: Trace) -> None:
    """And may change it."""

    def note(bsym: BoundSymbol) -> None:
        bsym.kwargs = {"noted": bsym.output[0].name}

    sym = Symbol("s", composite, bind_postprocess=note)
    sym(*trace.args)
    assert trace.bound_symbols[0].kwargs == {"noted": "t1"}


def test_calls_remember_the_users_line(trace: Trace) -> None:
    """Whatever the state says it is."""
    state.source = SourceLine("user.py", 7)
    try:
        prims.sin(trace.args[0])
    finally:
        state.source = None
    assert trace.bound_symbols[0].source[:2] == ("user.py", 7)
    assert trace.bound_symbols[0].substitute({}).source[:2] == ("user.py", 7)


def test_a_symbol_knows_what_stands_below_its_declaration() -> None:
    """Each decorator returns what it decorates and keeps it."""
    sym = Symbol("s", composite)
    for name, kept in (
        ("grad", "grad_rule"),
        ("vjp", "vjp_rule"),
        ("samples", "sample_generator"),
        ("errors", "error_generator"),
        ("view_scatter", "view_scatter_rule"),
    ):
        assert getattr(sym, kept) is None

        def fn() -> None: ...

        assert getattr(sym, name)(fn) is fn
        assert getattr(sym, kept) is fn
    assert sym.__doc__ == composite.__doc__
    assert sym.__name__ == "s"
    assert repr(Symbol("s", composite, module="m")) == "<Symbol m.s>"


@pytest.mark.parametrize("tag", list(OpTags))
def test_which_tags_keep_a_call(tag: OpTags) -> None:
    """Effects and draws stay though nobody uses their results."""
    keeping = {
        OpTags.RANDOM_OP,
        OpTags.IN_PLACE_OP,
        OpTags.SIDE_EFFECT,
        OpTags.CHECK_OP,
        OpTags.COLLECTIVE,
        OpTags.DONT_DCE,
    }
    sym = Symbol("s", composite, tags=(tag,))
    assert sym.must_stay is (tag in keeping)
    assert sym.differentiable is (tag is not OpTags.NON_DIFFERENTIABLE)


def test_pickling_by_name() -> None:
    """A symbol of a module comes back as itself."""
    for sym in (prims.add, ltorch.add):
        assert pickle.loads(pickle.dumps(sym)) is sym
    assert pickle.loads(pickle.dumps(prims.add.id)) is prims.add.id
    assert copy.deepcopy({prims.add.id: 1}) == {prims.add.id: 1}


def test_proxies_in_every_kind_of_container() -> None:
    """In order, however nested, each time they stand there."""
    a, b, n = tensor("a"), tensor("b"), NumberProxy(1, name="n")
    x = [a, (b, {"k": n, "l": [a]}), slice(None, n, b), Pair(a, 3), "a", None, torch.Size([2])]
    assert [p.name for p in proxies_in(x)] == ["a", "b", "n", "a", "n", "b", "a"]


def test_mapping_proxies() -> None:
    """The containers stay what they are; what holds no proxy is not copied."""
    a, b = tensor("a"), tensor("b")
    size = torch.Size([2])
    x = (a, [1, (a, {"k": a})], slice(a, 1), Pair(a, 2), size, (1, 2))
    out = map_proxies(x, lambda p: b)
    assert out == (b, [1, (b, {"k": b})], slice(b, 1), Pair(b, 2), size, (1, 2))
    assert type(out[3]) is Pair
    assert out[4] is size
    assert out[5] is x[5]
    unchanged = (1, (a, 2), "x")
    assert map_proxies(unchanged, lambda p: p) is unchanged


def test_substitution_goes_everywhere(trace: Trace) -> None:
    """Arguments, keywords, outputs and parts; the original stays."""
    a, b = trace.args
    c = tensor("c", 2)
    out, _ = Symbol("composite", composite)(a, b, scale=3)
    bsym = trace.bound_symbols[0]
    new = bsym.substitute({"a": c, out.name: tensor("z", 2)})
    assert new.arg_names == ("c", "b")
    assert new.out_names == ("z",)
    assert new.subsymbols[0].arg_names == ("c", "b")
    assert new.subsymbols[1].out_names == ("z",)
    assert new.subsymbols[1].arg_names == new.subsymbols[0].out_names
    assert bsym.arg_names == ("a", "b")
    assert bsym.subsymbols[0].arg_names == ("a", "b")


def test_parts_are_renamed_when_somebody_looks(trace: Trace) -> None:
    """Until then nothing below is touched, and what is known of the operation stays known."""
    a, b = trace.args
    Symbol("composite", composite)(a, b, scale=3)
    bsym = trace.bound_symbols[0]
    seen: list[str] = []

    class Watched(BoundSymbol):
        def substitute(self, *args: Any) -> BoundSymbol:
            seen.append(self.sym.name)
            return super().substitute(*args)

    parts = [Watched(p.sym, p.args, p.kwargs, p.output, p.subsymbols, p.source) for p in bsym.subsymbols]
    new = bsym.replace(subsymbols=parts).substitute({"a": tensor("c", 2)}).substitute({"b": tensor("d", 2)})
    assert (new.arg_names, new.has_effect, new.out_names) == (("c", "d"), False, bsym.out_names)
    assert seen == []
    assert new.subsymbols[0].arg_names == ("c", "d")
    assert set(seen) == {p.sym.name for p in parts}
    assert new.subsymbols is new.subsymbols


def test_sizes_below_are_replaced_with_their_tensors(trace: Trace) -> None:
    """A part may read the size that a tensor brings along; it is renamed though the call itself does not read it."""
    symbols = Symbols(lambda prefix: prefix)
    size = symbols.size(2)
    (leaf,) = proxies_in(size)
    x = TensorProxy("x", shape=(size,), device=devices.cpu, dtype=dtypes.float32)
    filled = Symbol("filled", lambda a: prims.full(a.shape, 1.0, device=a.device, dtype=a.dtype))
    filled(x)
    (bsym,) = trace.bound_symbols
    assert (bsym.arg_names, bsym.inner_numbers) == (("x",), {leaf.name})
    (other,) = proxies_in(Symbols(lambda prefix: f"other_{prefix}").size(2))
    new = bsym.substitute({leaf.name: other})
    assert new.subsymbols[0].arg_names == (other.name,)
    assert new.inner_numbers == {other.name}
    assert bsym.substitute({"somebody_else": other}) is bsym


def test_substitution_under_fresh_names(trace: Trace) -> None:
    """Another call: what it makes has the names that it is given, at every level, and so has its source."""
    a, b = trace.args
    Symbol("composite", composite)(a, b, scale=3)
    bsym = trace.bound_symbols[0]
    inside = bsym.subsymbols[0].out_names[0]
    fresh = {inside: "i", bsym.out_names[0]: "o"}
    mapping: dict[str, Any] = {"a": tensor("c", 2)}
    new = bsym.substitute(mapping, fresh, SourceLine("f", 9))
    assert (new.arg_names, new.out_names, new.source) == (("c", "b"), ("o",), SourceLine("f", 9))
    assert [p.out_names for p in new.subsymbols] == [("i",), ("o",)]
    assert new.subsymbols[1].output is new.output[0] is mapping[bsym.out_names[0]]
    assert new.subsymbols[0].source == SourceLine("f", 9)
    again = bsym.substitute({}, fresh)
    assert again.output[0] is not new.output[0]  # once more is once more
    assert again.like is bsym and new.like is new  # whose parts have been looked at


def test_operations_have_only_what_they_have() -> None:
    bsym = BoundSymbol(Symbol("s", composite), (1,), {}, None)
    with pytest.raises(AttributeError, match="no attribute 'outputs'"):
        bsym.outputs  # noqa: B018


def test_an_output_is_never_replaced_by_a_number() -> None:
    """A call cannot assign to one."""
    n = AnyProxy(name="n")
    bsym = BoundSymbol(Symbol("s", composite), (n,), {"k": [n]}, (n, tensor("a")))
    new = bsym.substitute({"n": 3})
    assert (new.args, new.kwargs) == ((3,), {"k": [3]})
    assert new.output[0] is n


def test_replace_copies() -> None:
    """One thing changes, the rest stays."""
    bsym = BoundSymbol(Symbol("s", composite), (1,), {"k": 2}, tensor("a"), [], SourceLine("f", 1))
    new = bsym.replace(args=(5,))
    assert (new.sym, new.args, new.kwargs, new.output, new.source) == (
        bsym.sym,
        (5,),
        {"k": 2},
        bsym.output,
        bsym.source,
    )
    assert bsym.args == (1,)


def test_names_are_looked_up_afresh_after_a_replacement() -> None:
    """The names that were counted before are the old call's."""
    a, b = tensor("a"), tensor("b")
    bsym = BoundSymbol(Symbol("s", composite), (a,), {}, b)
    assert (bsym.arg_names, bsym.out_names) == (("a",), ("b",))
    new = bsym.replace(args=(b,), output=(a, a))
    assert (new.arg_names, new.out_names) == (("b",), ("a",))


def test_outside_a_trace_a_symbol_just_runs() -> None:
    """On real tensors, with real results."""
    a, b = torch.randn(3), torch.randn(3)
    assert torch.equal(prims.mul(a, b), a * b)
    assert torch.equal(ltorch.add(a, other=b, alpha=2), a + 2 * b)
