# SPDX-License-Identifier: Apache-2.0
"""Patterns: found over the dataflow, and left alone where replacing them would change the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import thunder
from thunder.core.errors import ThunderError, TracingError
from thunder.extend import OperatorExecutor
from thunder.transforms.patterns import Pattern

executor = OperatorExecutor("pattern_tests", version="1")
gated = executor.register_operator("gated", like=lambda a, b: F_silu(a) * b, fn=lambda a, b: F.silu(a) * b)
scaled = executor.register_operator("scaled", like=lambda a, k: a * k, fn=lambda a, k: a * k)


def F_silu(a: Any) -> Any:
    """Of the torch language."""
    import thunder.torch as ltorch

    return ltorch.silu(a)


def gated_pattern() -> Pattern:
    """silu(a) * b, as one operator."""

    @thunder.pattern
    def pattern(a: Any, b: Any) -> Any:
        return F.silu(a) * b

    @pattern.replacement
    def _(a: Any, b: Any) -> Any:
        return gated(a, b)

    return pattern  # type: ignore[no-any-return]


def run(fn: Callable[..., Any], *patterns: Pattern, count: int = 2) -> list[str]:
    """The operations of `fn` after the patterns, which give what it gives, and the same gradients."""
    torch.manual_seed(0)
    args = [torch.randn(3, 3, requires_grad=True) for _ in range(count)]
    theirs = [a.detach().clone().requires_grad_() for a in args]
    f = thunder.jit(fn, executors=[executor], transforms=list(patterns))
    found, expected = f(*args), fn(*theirs)
    torch.testing.assert_close(found, expected)
    for x, y in zip(_tensors(found), _tensors(expected)):
        x.sum().backward(retain_graph=True)
        y.sum().backward(retain_graph=True)
    torch.testing.assert_close([a.grad for a in args], [a.grad for a in theirs])
    trace = next(
        (t for t in reversed(thunder.last_traces(f)) if t.provenance and "pattern" in t.provenance.name),
        thunder.last_traces(f)[0],
    )
    skipped = ("unpack_trivial", "python_return")
    return [op.sym.name for op in trace.bound_symbols if op.sym.name not in skipped]


def _tensors(x: Any) -> list[torch.Tensor]:
    return list(x) if isinstance(x, tuple) else [x]


def test_found_and_replaced() -> None:
    """Whatever stands in between, either way round, as often as it is there."""

    def fn(a: Any, b: Any) -> Any:
        x = F.silu(a)
        y = a @ b
        z = y * x
        return F.silu(z) * y

    assert run(fn, gated_pattern()) == ["matmul", "gated", "gated"]


def test_found_where_gradients_are_off() -> None:
    """Though parameters require grad."""
    w = torch.randn(3, 3, requires_grad=True)
    f = thunder.jit(lambda a, b: F.silu(a @ w) * (b @ w), executors=[executor], transforms=[gated_pattern()])
    a, b = torch.randn(3, 3), torch.randn(3, 3)
    with torch.no_grad():
        torch.testing.assert_close(f(a, b), F.silu(a @ w) * (b @ w))
    assert "gated(" in thunder.last_traces(f)[-1].python(depth=0)


def test_methods_operators_and_functions_are_the_same() -> None:
    """What matters is which operation a spelling stands for."""

    @thunder.pattern
    def norm(x: Any, weight: Any, eps: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight

    @norm.replacement
    def _(x: Any, weight: Any, eps: Any) -> Any:
        return F.rms_norm(x, x.shape[-1:], weight[0], eps)

    def fn(a: Any, b: Any) -> Any:
        b = b[:1].expand(3, 3)
        return b * (torch.mul(a, torch.rsqrt(torch.mean(a**2, -1, True) + 1e-3)))

    assert run(fn, norm)[-1] == "rms_norm"


def test_a_sum_whose_second_term_is_scaled() -> None:
    """Its terms do not change places."""

    @thunder.pattern
    def sines(a: Any, b: Any) -> Any:
        return torch.add(torch.sin(a), torch.cos(b), alpha=2)

    @sines.replacement
    def _(a: Any, b: Any) -> Any:
        return torch.sin(a) + torch.cos(b) * 2

    assert "mul" in run(lambda a, b: torch.add(torch.sin(a), torch.cos(b), alpha=2), sines)
    assert "mul" not in run(lambda a, b: torch.add(torch.cos(b), torch.sin(a), alpha=2), sines)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: (lambda x: (x * b, x))(F.silu(a)),  # what is inside is returned
        lambda a, b: F.silu(a) * b + F.silu(a).sin(),  # or used
        lambda a, b: F.relu(a) * b,  # another operation
        lambda a, b: F.silu(a) + b,
    ],
)
def test_left_alone(fn: Callable[..., Any]) -> None:
    """Where it is not there, or not only there."""
    assert "gated" not in run(fn, gated_pattern())


def test_literals_and_parameters() -> None:
    """A literal is that literal; a parameter anything, and the same everywhere."""

    @thunder.pattern
    def twice(a: Any, k: Any) -> Any:
        return (a * k).sin() * k + 1

    @twice.replacement
    def _(a: Any, k: Any) -> Any:
        return scaled(torch.sin(scaled(a, k)), k) + 1

    assert run(lambda a, b: (a * 3.0).sin() * 3.0 + 1, twice).count("scaled") == 2
    assert run(lambda a, b: (a * b).sin() * b + 1, twice).count("scaled") == 2
    assert "scaled" not in run(lambda a, b: (a * 3.0).sin() * 2.0 + 1, twice)
    assert "scaled" not in run(lambda a, b: (a * 3.0).sin() * 3.0 + 2, twice)


def test_several_results() -> None:
    """Of the pattern, and of an operation in it."""

    @thunder.pattern
    def both(a: Any) -> Any:
        return a.sin(), a.cos()

    @both.replacement
    def _(a: Any) -> Any:
        return torch.cos(a - torch.pi / 2), torch.sin(a + torch.pi / 2)

    assert run(lambda a, b: a.sin() + a.cos().exp(), both).count("sin") == 1
    assert "sub" not in run(lambda a, b: a.sin() + b.cos(), both)
    assert "sub" not in run(lambda a, b: (lambda s: s + (a + 0 * s).cos())(a.sin()), both)

    @thunder.pattern
    def halves(a: Any) -> Any:
        parts = torch.chunk(a, 3, -1)
        return parts[0] * parts[2]

    @halves.replacement
    def _(a: Any) -> Any:
        return scaled(a[:, :1], 1.0) * a[:, 2:]

    assert "scaled" in run(lambda a, b: (lambda p: p[2] * p[0])(a.chunk(3, -1)), halves)
    assert "scaled" not in run(lambda a, b: (lambda p: p[2] * p[1])(a.chunk(3, -1)), halves)


def test_indexing_is_an_operation() -> None:
    """`x[0]` of a tensor."""

    @thunder.pattern
    def first(a: Any) -> Any:
        return a[0].exp()

    @first.replacement
    def _(a: Any) -> Any:
        return scaled(torch.exp(a[0]), 1.0)

    assert "scaled" in run(lambda a, b: a[0].exp(), first)
    assert "scaled" not in run(lambda a, b: a[1].exp(), first)


def test_results_that_are_needed_before_all_is_there() -> None:
    """The pattern as a whole would have to run before what it reads."""

    @thunder.pattern
    def pair(a: Any, b: Any) -> Any:
        return a.sin(), b.cos()

    @pair.replacement
    def _(a: Any, b: Any) -> Any:
        return scaled(torch.sin(a), 1.0), torch.cos(b)

    assert "scaled" in run(lambda a, b: a.sin() + b.cos(), pair)
    assert "scaled" not in run(lambda a, b: (a.sin() * b).cos(), pair)


def test_writes_in_between() -> None:
    """A match across a write to memory is left alone; the program's values are as they were."""
    a, b = torch.randn(3), torch.randn(3)
    other = a.clone()

    def fn(a: Any, b: Any) -> Any:
        x = F.silu(a)
        a.add_(1)
        return x * b

    f = thunder.jit(fn, executors=[executor], transforms=[gated_pattern()])
    torch.testing.assert_close(f(a, b), fn(other, b))
    torch.testing.assert_close(a, other)


def test_after_grad() -> None:
    """In the backward program too."""

    @thunder.pattern(after_grad=True)
    def pattern(g: Any, a: Any) -> Any:
        return g * a.cos()

    @pattern.replacement
    def _(g: Any, a: Any) -> Any:
        return scaled(g, 1.0) * torch.cos(a)

    f = thunder.jit(lambda a: a.sin(), executors=[executor], transforms=[pattern])
    a = torch.randn(3, requires_grad=True)
    f(a).sum().backward()
    torch.testing.assert_close(a.grad, a.cos().detach())
    assert "scaled" in [op.sym.name for op in thunder.last_backward_traces(f)[-1].bound_symbols]


def shape(a: Any) -> Any:
    """Reads what is not known."""
    return a.reshape(a.shape[0], -1)


def branch(a: Any) -> Any:
    """Branches."""
    return a.sin() if a else a


def write(a: Any) -> Any:
    """Writes."""
    return a.add_(1)


def take_apart(a: Any) -> Any:
    """Unpacks."""
    x, y = a.chunk(2)
    return x * y


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (shape, r"a pattern reads \.shape of a tensor"),
        (branch, "a pattern cannot have branches"),
        (write, "a pattern calls add_, which writes"),
        (take_apart, "a pattern cannot unpack a result"),
        (lambda a: 3, "a pattern must return one or more tensors"),
        (lambda a: a, "a pattern must return one or more tensors"),
    ],
)
def test_what_no_pattern_can_say(fn: Callable[..., Any], message: str) -> None:
    """It is refused, with a way out."""
    pattern = Pattern(fn, lambda a: a)
    with pytest.raises(ThunderError, match=message):
        thunder.jit(lambda a: a + 1, transforms=[pattern])(torch.ones(2))


def test_bad_replacements() -> None:
    """None; another shape; another number of results; one that writes or reads other tensors."""
    outside = torch.ones(3)

    def attempt(replace: Any) -> Any:
        return thunder.jit(lambda a: a.sin(), transforms=[Pattern(lambda a: a.sin(), replace)])(torch.ones(3))

    with pytest.raises(ThunderError, match=r"has no replacement\. Decorate one with"):
        attempt(None)
    with pytest.raises(
        ThunderError, match=r"returns a cpu f32\[\], but the program has a cpu f32\[3\]: .*test_patterns"
    ):
        attempt(lambda a: a.sum())
    with pytest.raises(ThunderError, match="returns 2 tensors instead of 1"):
        attempt(lambda a: (a, a))
    with pytest.raises(TracingError, match="writes to its argument t"):
        attempt(lambda a: a.add_(1))
    with pytest.raises(TracingError, match="a tensor that is not an argument"):
        attempt(lambda a: a + outside)
    with pytest.raises(TypeError, match=r"thunder\.pattern requires a function"):
        thunder.pattern(3)
    assert torch.equal(attempt(lambda a: a), torch.ones(3)), "an argument may be the result"


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(["silu", "mul", "add", "sin"]), st.integers(0, 9), st.integers(0, 9)), max_size=14
    )
)
def test_any_program_stays_the_same(steps: list[tuple[str, int, int]]) -> None:
    """Matches that overlap, chains of them, matches whose inside is used: results are those without."""

    def fn(a: Any, b: Any) -> Any:
        values = [a, b]
        for kind, i, j in steps:
            x, y = values[-1 - i % len(values)], values[-1 - j % len(values)]
            values.append(
                {"silu": F.silu, "sin": torch.sin}[kind](x) if kind in ("silu", "sin") else getattr(torch, kind)(x, y)
            )
        return values[-1], values[len(values) // 2]

    run(fn, gated_pattern())
