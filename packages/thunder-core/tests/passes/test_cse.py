# SPDX-License-Identifier: Apache-2.0
"""Common subexpressions: equal calls are made once, and only where nobody can tell."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recording import names, traced

import thunder
from thunder.core import devices, dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import OpTags, Symbol
from thunder.core.verify import verify
from thunder.passes.cse import cse


def full(value: Any, dtype: dtypes.dtype = dtypes.float32) -> Any:
    """A constant tensor."""
    return prims.full((2, 3), value, device=devices.cpu, dtype=dtype)


def test_equal_calls_are_made_once() -> None:
    """And calls that are equal because of that."""

    def f(a: Any, b: Any) -> Any:
        x, y = prims.sin(a), prims.sin(a)
        return prims.add(prims.exp(x), prims.exp(y))

    out = cse(traced(f))
    assert names(out) == ["sin", "exp", "add"]
    assert out.bound_symbols[2].args == (out.bound_symbols[1].output,) * 2
    assert out.provenance.name == "Common Subexpression Elimination"
    verify(out)


@pytest.mark.parametrize(
    ("first", "second", "once"),
    [
        (1.0, 1.0, True),
        (math.nan, math.nan, True),
        (0.0, -0.0, False),
        (1.0, 1, False),
        (1, True, False),
        (0.0, False, False),
        (complex(0.0, 0.0), complex(0.0, -0.0), False),
        (math.inf, -math.inf, False),
        (1e-320, 0.0, False),
    ],
)
def test_constants_are_compared_with_care(first: Any, second: Any, once: bool) -> None:
    """By type, sign of zero and NaN: 1 == 1.0 == True and 0.0 == -0.0 are not what counts."""
    kind = dtypes.complex64 if isinstance(first, complex) else dtypes.float32

    def f(a: Any, b: Any) -> Any:
        return prims.add(prims.neg(full(first, kind)), prims.neg(full(second, kind)))

    out = cse(traced(f))
    assert names(out).count("full") == (1 if once else 2)


def test_all_arguments_count() -> None:
    """Positions, keywords, containers and their kinds, slices, dtypes."""
    sym = Symbol("sym", lambda *args, **kwargs: TensorProxy(like=args[0]), is_prim=True)
    calls = [
        ((), {}), ((1,), {}), ((), {"k": 1}), (([1],), {}), (((1,),), {}), ((slice(1),), {}), ((slice(1, None),), {}),
        ((dtypes.float32,), {}), ((dtypes.float64,), {}), (("1",), {}), ((None,), {}), (({"k": 1},), {}),
        (({"k": 2},), {}),
        ((torch.float32,), {}), ((0,), {}), ((False,), {}),
    ]  # fmt: skip

    def f(a: Any, b: Any) -> Any:
        total = b
        for args, kwargs in calls + calls:
            total = prims.add(total, prims.neg(sym(a, *args, **kwargs)))
        return total

    assert names(cse(traced(f))).count("sym") == len(calls)


def test_an_argument_that_cannot_be_compared_is_never_equal() -> None:
    """Nor does it stop the pass."""
    sym = Symbol("sym", lambda a, b: TensorProxy(like=a), is_prim=True)

    def f(a: Any, b: Any) -> Any:
        return prims.add(prims.neg(sym(a, {1, 2})), prims.neg(sym(a, {1, 2})))

    assert names(cse(traced(f))).count("sym") == 2


@pytest.mark.parametrize("tag", [OpTags.RANDOM_OP, OpTags.SIDE_EFFECT, OpTags.CHECK_OP, OpTags.IN_PLACE_OP])
def test_effects_are_never_merged(tag: OpTags) -> None:
    """Nor those deep inside a decomposition."""
    effect = Symbol("effect", lambda a: TensorProxy(like=a), is_prim=True, tags=(tag,))
    outer = Symbol("outer", effect)

    def f(a: Any, b: Any) -> Any:
        return prims.add(prims.neg(outer(a)), prims.neg(outer(a)))

    assert names(cse(traced(f))).count("outer") == 2


def test_nothing_is_merged_across_a_write() -> None:
    """What is read before and after it may differ."""

    def f(a: Any, b: Any) -> Any:
        x = prims.sin(a)
        prims.copy_(b, a)
        y = prims.sin(a)
        z = prims.sin(a)
        return prims.sub(x, prims.add(y, z))

    out = cse(traced(f))
    assert names(out) == ["sin", "copy_", "sin", "add", "sub"]


def test_outputs_keep_memory_of_their_own() -> None:
    """The caller may write to one and not find it in the other."""

    @thunder.jit
    def f(a: Any) -> Any:
        return a + 1, a + 1, torch.zeros(2), torch.zeros(2), (a * 2)[0], (a * 2)[0]

    for _ in range(2):
        outs = f(torch.ones(2, 2))
        for i, out in enumerate(outs):
            out += 10 * i
        for i, out in enumerate(outs):
            expected = (2.0, 2.0, 0.0, 0.0, 2.0, 2.0)[i]
            assert torch.equal(out, torch.full_like(out, expected + 10 * i)), i


def test_an_output_that_is_also_used_inside() -> None:
    """What is returned is not merged into another returned value through a chain of views either."""

    @thunder.jit
    def f(a: Any) -> Any:
        x, y = a + 1, a + 1
        return x, y.view(4), (x * y).sum()

    x, y, _ = f(torch.ones(2, 2))
    y.zero_()
    assert torch.equal(x, torch.full((2, 2), 2.0))


def test_random_tensors_are_drawn_twice() -> None:
    """In a jitted function."""
    f = thunder.jit(lambda a: a * torch.rand(3) - a * torch.rand(3))
    torch.manual_seed(3)
    assert f(torch.ones(3)).abs().max() > 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["sin", "add", "neg"]), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12
    )
)
def test_random_programs_compute_the_same(steps: list[tuple[str, int, int]]) -> None:
    """Nothing is made twice, and the result is what it was."""

    def f(a: Any, b: Any) -> Any:
        values = [a, b]
        for name, i, j in steps:
            x, y = values[i % len(values)], values[j % len(values)]
            values.append(prims.add(x, y) if name == "add" else getattr(prims, name)(x))
        total = values[0]
        for v in values[1:]:
            total = prims.add(total, v)
        return prims.neg(total)

    trace = traced(f)
    out = cse(trace)
    verify(out)
    calls = [(op.sym.id, op.arg_names) for op in out.bound_symbols[:-2]]
    assert len(set(calls)) == len(calls)
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    torch.testing.assert_close(out.python_callable()(a, b), trace.python_callable()(a, b), rtol=0, atol=0)
