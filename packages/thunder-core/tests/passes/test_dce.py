# SPDX-License-Identifier: Apache-2.0
"""Dead code: what nobody uses goes, what draws or writes or checks stays, in its order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recording import names, traced

import thunder
from thunder.core import devices, dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.core.verify import verify
from thunder.passes.dce import dce, has_effect


def draw() -> Any:
    """A random tensor."""
    return prims.uniform((2, 3), 0.0, 1.0, device=devices.cpu, dtype=dtypes.float32)


def test_chains_of_unused_values_go() -> None:
    """Not only the last of them; the original trace keeps them."""

    def f(a: Any, b: Any) -> Any:
        prims.exp(prims.cos(prims.sin(a)))
        return prims.neg(b)

    trace = traced(f)
    out = dce(trace)
    assert names(out) == ["neg"]
    assert names(trace) == ["sin", "cos", "exp", "neg"]
    assert out.provenance.name == "Dead Code Elimination"
    assert out.args == trace.args
    verify(out)


def test_one_used_output_keeps_the_call() -> None:
    """Of several."""

    def f(a: Any, b: Any) -> Any:
        values, _ = prims.topk(a, 1, 1, True, True)
        prims.topk(b, 1, 1, True, True)
        return values

    assert names(dce(traced(f))) == ["topk"]


def test_what_is_returned_deep_inside_is_used() -> None:
    """In any container, or as a slice's bound."""
    for wrap in (lambda x: [x], lambda x: {"k": (x,)}, lambda x: (1, [x, None])):
        assert names(dce(traced(lambda a, b, wrap=wrap: wrap(prims.sin(a))))) == ["sin"]


@pytest.mark.parametrize(
    "tag", [OpTags.RANDOM_OP, OpTags.IN_PLACE_OP, OpTags.SIDE_EFFECT, OpTags.CHECK_OP, OpTags.DONT_DCE]
)
def test_effects_stay_and_keep_what_they_read(tag: OpTags) -> None:
    """Also those deep inside a decomposition."""
    effect = Symbol("effect", lambda a: TensorProxy(like=a), is_prim=True, tags=(tag,))
    outer = Symbol("outer", Symbol("inner", effect))

    def f(a: Any, b: Any) -> Any:
        outer(prims.sin(a))
        return b

    trace = traced(f)
    assert names(dce(trace)) == ["sin", "outer"]
    assert has_effect(trace.bound_symbols[1])
    assert not has_effect(trace.bound_symbols[0])


def test_draws_stay_in_their_order() -> None:
    """So that the ones that are used are eager's."""

    def f(a: Any, b: Any) -> Any:
        draw()
        x = draw()
        prims.add(draw(), draw())
        return prims.add(x, draw())

    out = dce(traced(f))
    assert names(out) == ["uniform"] * 5 + ["add"]
    torch.manual_seed(0)
    drawn = [torch.rand(2, 3) for _ in range(5)]
    torch.manual_seed(0)
    assert torch.equal(out.python_callable()(torch.ones(2, 3), torch.ones(2, 3)), drawn[1] + drawn[4])


def test_deletions_of_what_is_gone() -> None:
    """A pass may run on a trace with `del`s: they stay where their values stay."""

    def f(a: Any, b: Any) -> Any:
        c = prims.sin(a)
        return prims.neg(c)

    trace = traced(f)
    trace.bound_symbols.insert(2, BoundSymbol(prims.python_del, (trace.bound_symbols[0].output,), {}, None))
    verify(dce(trace))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=1, max_size=10),
    st.integers(0, 11),
)
def test_it_keeps_exactly_what_is_needed(steps: list[tuple[int, int, bool]], returned: int) -> None:
    """Against reachability computed the plain way, on random programs."""
    made_by: dict[str, tuple[str, ...]] = {}
    drawn: list[str] = []

    def f(a: Any, b: Any) -> Any:
        values = [a, b]
        for i, j, random in steps:
            x, y = values[i % len(values)], values[j % len(values)]
            if random:
                out, inputs = draw(), ()
                drawn.append(out.name)
            else:
                out, inputs = prims.add(x, y), (x.name, y.name)
            made_by[out.name] = inputs
            values.append(out)
        return values[returned % len(values)]

    trace = traced(f)
    needed, stack = set(drawn), [trace.output.name, *drawn]
    while stack:
        name = stack.pop()
        needed.add(name)
        stack += made_by.get(name, ())
    out = dce(trace)
    kept = [name for op in out.bound_symbols for name in op.out_names]
    assert kept == [name for name in made_by if name in needed]
    assert [name for op in dce(out).bound_symbols for name in op.out_names] == kept


def test_an_unused_draw_in_a_jitted_function_advances_the_generator() -> None:
    """As in eager."""

    def f(a: Any) -> Any:
        torch.rand(3)
        torch.nn.functional.dropout(a, 0.5)
        return a + torch.rand(2)

    results = []
    for fn in (f, thunder.jit(f)):
        torch.manual_seed(1)
        results.append((fn(torch.ones(2)), torch.rand(1)))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
