# SPDX-License-Identifier: Apache-2.0
"""Inputs are updated in place where nothing can see it, and programs compute what they compute in eager mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from memory_updates import check, copied, lines, matrix, outcome

import thunder
from thunder.core.symbol import OpTags
from thunder.execution import in_place_updates as tested
from thunder.executors.torchex.in_place import TorchMemory


# -- what is written where --------------------------------------------------------------------------------------------
def update(a: Any, g: Any) -> None:
    a.mul_(0.9).add_(g, alpha=-0.1)


def adam(p: Any, m: Any, v: Any, g: Any) -> None:
    p.mul_(0.9)
    m.lerp_(g, 0.1)
    v.mul_(0.9).addcmul_(g, g, value=0.1)
    p.addcdiv_(m, v.sqrt().div_(0.5).add_(1e-8), value=-0.01)


def old_value_is_read_later(a: Any, g: Any) -> Any:
    old = a * 1
    a.add_(g)
    return old * g + a


def old_value_is_read_through_a_view(a: Any, g: Any) -> Any:
    view = a.t()
    product = view @ g
    a.mul_(2)
    return product


def value_is_returned(a: Any, g: Any) -> Any:
    new = a + g
    a.copy_(new)
    return new


def another_layout(a: Any, g: Any) -> None:
    a.copy_((a.t() * g.t()).t())


def another_dtype(a: Any, g: Any) -> None:
    a.copy_(a.double() + 1e-9)


def expands(a: Any, g: Any) -> None:
    a.copy_(a.sum(0) + g)


def shifted(a: Any, g: Any) -> None:
    a.copy_(a.flip(0) + g)


def swapped(a: Any, g: Any) -> None:
    old = a.clone()
    a.copy_(g)
    g.copy_(old * 2)


def chain(a: Any, g: Any) -> Any:
    x = ((a + g) * 2 - g).exp()
    a.mul_(x)
    return x.sum()


def parts(a: Any, g: Any) -> Any:
    a[0, 1:] = g[1, 1:]
    a[:, 0] = 2
    return a.sum()


def part_of_itself(a: Any, g: Any) -> None:
    a[0] = a[1] + g[0]
    g[0] = g[1]


def old_part_is_read_later(a: Any, g: Any) -> Any:
    old = a * 1
    a[0] = g[0]
    return old + a


def rows_of_a_new_tensor(a: Any) -> Any:
    out = torch.zeros(4, 3)
    for i in range(4):
        out[i] = a[i % 2] * i
    return out


def rows_at_positions_in_a_tensor(a: Any) -> Any:
    at = (a[:, 0] > 100).long()
    out = torch.zeros(4, 3)
    out[at] = a
    return out.index_add(0, at, a)


def loop_with_a_kept_state(a: Any) -> Any:
    out = torch.zeros_like(a)
    out[0] = a[1]
    kept = out
    out = out.clone()
    out[1] = a[0]
    return kept + out, out


CASES: list[tuple[Callable[..., Any], list[str]]] = [
    (parts, ["setitem_", "setitem_"]),
    (part_of_itself, ["setitem_", "copy_"]),
    (old_part_is_read_later, ["setitem_", "add > t"]),
    (rows_of_a_new_tensor, ["setitem_"] * 4),
    (rows_at_positions_in_a_tensor, ["setitem_", "index_add_"]),
    (loop_with_a_kept_state, ["setitem_", "setitem_"]),
    (update, ["mul > a", "add > a"]),
    (
        adam,
        ["mul > p", "lerp > m", "mul > v", "addcmul > v", "div > t", "add > t", "addcdiv > p"],
    ),
    (old_value_is_read_later, ["add > a", "mul > t", "add > t"]),
    (old_value_is_read_through_a_view, ["mul > a"]),
    (value_is_returned, ["copy_"]),
    (another_layout, ["copy_"]),
    (another_dtype, ["add > t", "copy_"]),
    (expands, ["copy_"]),
    (shifted, ["copy_"]),
    (swapped, ["copy_", "mul > g", "copy_"]),
    (chain, ["mul > t", "sub > t", "exp > t", "mul > a"]),
]


@pytest.mark.parametrize(("fn", "expected"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_what_is_written_where(fn: Callable[..., Any], expected: list[str]) -> None:
    count = fn.__code__.co_argcount
    jitted = check(fn, *[matrix(i) for i in range(count)])
    found = lines(thunder.last_traces(jitted)[-1])
    assert [line.rstrip("0123456789") for line in found] == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["index_copy_", "index_add_", "index_fill_", "scatter_", "setitem_"])
def test_positions_in_a_tensor(name: str) -> None:
    """On a GPU, wrong positions raise no error at the operation."""

    def write(a: Any, g: Any, at: Any) -> Any:
        if name == "setitem_":
            a[at] = g
        elif name == "index_fill_":
            a.index_fill_(0, at, 2.0)
        elif name == "scatter_":
            a.scatter_(0, at[:, None].expand(2, 3), g)
        else:
            getattr(a, name)(0, at, g)
        return a.sum()

    given = torch.rand(5, 3).cuda(), torch.rand(2, 3).cuda(), torch.tensor([4, 1]).cuda()
    expected = [x.clone() for x in given]
    jitted = thunder.jit(write, cuda_graphs="never", executors=["torch"])
    for _ in range(3):
        assert torch.equal(jitted(*given), write(*expected))
    assert torch.equal(given[0], expected[0])
    assert lines(thunder.last_traces(jitted)[-1]) == [name]


# -- operations that may end the run ----------------------------------------------------------------------------------
def decides(a: Any, b: Any, g: Any) -> None:
    a.mul_(0.5)
    if (b * g).sum() > 0:
        b.add_(a)
    else:
        b.sub_(a)


def decides_on_the_new_value(a: Any, b: Any, g: Any) -> None:
    a.mul_(g)
    if a.sum() > 0:
        b.add_(a)


@pytest.mark.parametrize("fn", [decides, decides_on_the_new_value])
def test_nothing_is_written_before_a_decision(fn: Callable[..., Any]) -> None:
    jitted = thunder.jit(fn, executors=["torch"])  # fusions postpone what a decision does not need
    ours = [matrix(1), matrix(2), matrix(3)]
    theirs = copied(ours)
    for sign in (1, -1, 1, 1, -1, -1):
        for inputs in (ours, theirs):
            inputs[2].abs_().mul_(sign)
        assert outcome(jitted, ours) == outcome(fn, theirs)
    names = [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]
    tags = [OpTags.IN_PLACE_OP in op.sym.tags for op in thunder.last_traces(jitted)[-1].bound_symbols]
    assert True in tags and tags.index(True) > names.index("decide")
    assert thunder.cache_misses(jitted) == 2


def test_an_error_because_of_values_leaves_inputs_as_in_eager_mode() -> None:
    """The index is out of range in one call. The program has written nothing by then, and eager mode raises."""

    def fn(a: Any, b: Any, i: Any, g: Any) -> None:
        a.mul_(0.5)
        b.add_(a)
        b[:1] += g[i]

    jitted = check(fn, matrix(1), matrix(2), torch.tensor([1]), matrix(3))
    for index in (1, 7, 0):
        ours = [matrix(1), matrix(2), torch.tensor([index]), matrix(3)]
        theirs = copied(ours)
        assert outcome(jitted, ours) == outcome(fn, theirs)


def test_arithmetic_on_numbers_comes_before_the_first_write() -> None:
    """A division by zero leaves inputs as in eager mode."""

    def fn(a: Any, step: Any, g: Any) -> None:
        step += 1
        a.mul_(0.5)
        a.add_(g, alpha=1 / (1 - 0.5 ** step.item()))

    jitted = check(fn, matrix(1), torch.tensor(0.0), matrix(2))
    text = thunder.last_traces(jitted)[-1].python(depth=0)
    assert text.index("1 / (1 -") < text.index("mul")
    assert lines(thunder.last_traces(jitted)[-1])[-2:] == ["mul > a", "add > a"]
    ours = [matrix(1), torch.tensor(-1.0), matrix(2)]
    theirs = copied(ours)
    found = outcome(jitted, ours)
    assert found == outcome(fn, theirs) and found[0] == "ZeroDivisionError"


def test_numbers_of_large_tensors_stay_where_they_are() -> None:
    def fn(a: Any, g: Any) -> None:
        a.mul_(0.5)
        g.mul_(1 / (1 + (a + g).norm().item()))

    jitted = check(fn, matrix(1), matrix(2))
    text = thunder.last_traces(jitted)[-1].python(depth=0)
    assert text.index(".item()") < text.index("copy_(") and lines(thunder.last_traces(jitted)[-1])[0] == "copy_"


def test_draws_and_opaque_operations_end_before_the_first_write() -> None:
    def fn(a: Any, g: Any) -> Any:
        a.mul_(0.5)
        return torch.rand(2, 3) + a, torch.linalg.lu_factor(g[:, :2])[0]

    jitted = thunder.jit(fn)
    ours = [matrix(1), matrix(2)]
    theirs = copied(ours)
    for _ in range(2):
        torch.manual_seed(0)
        found = outcome(jitted, ours)
        torch.manual_seed(0)
        assert found == outcome(fn, theirs)
    found = lines(thunder.last_traces(jitted)[-1])
    assert found == ["copy_"]


# -- random programs --------------------------------------------------------------------------------------------------
UNARY = ["sin", "exp", "relu", "neg", "clone", "t", "t_clone", "view", "detach", "flip", "zeros"]
BINARY = ["add", "mul", "sub", "maximum", "mm"]
WRITES = ["add_", "mul_", "copy_", "lerp_", "sin_", "row_", "zero_", "window_", "mask_", "rows_", "column_"]

statements = st.one_of(
    st.tuples(st.sampled_from(UNARY), st.integers(0, 20), st.just(0)),
    st.tuples(st.sampled_from(BINARY), st.integers(0, 20), st.integers(0, 20)),
    st.tuples(st.sampled_from(WRITES), st.integers(0, 20), st.integers(0, 20)),
    st.tuples(st.sampled_from(WRITES), st.integers(0, 2), st.integers(0, 20)),
    st.tuples(st.just("if"), st.integers(0, 20), st.integers(0, 2)),
    st.tuples(st.sampled_from(["item", "index"]), st.integers(0, 20), st.integers(0, 20)),
)


def interpreted(program: list[tuple[str, int, int]], returned: list[int]) -> Callable[..., Any]:
    """Return the function of three square matrices that a program describes: its values are numbered."""

    def fn(a: Any, b: Any, c: Any) -> Any:
        values = [a, b, c]
        for name, i, j in program:
            x, y = values[i % len(values)], values[j % len(values)]
            if name == "if":
                if x.sum() > 2:
                    values[j].mul_(0.5)
                continue
            if name == "item":
                new = y * (1 / (2 + x[0, 0].item()))
            elif name == "index":
                new = x[(y[:, 0] > 0.5).long()]
            elif name == "lerp_":
                new = x.lerp_(y, 0.25)
            elif name == "row_":
                new = x[0].copy_(y[1])
                continue
            elif name == "window_":
                x[1:, 1:] = y[:2, :2] * 1
                continue
            elif name == "mask_":
                x[y * 1 > 0.5] = 0.25
                continue
            elif name == "column_":
                x[:, 2] += y[1] * 1
                continue
            elif name == "rows_":
                new = x.index_copy_(0, torch.tensor([2, 0]), y[1:] * 1).contiguous()
            elif name == "zeros":
                new = torch.zeros_like(x)
            elif name == "t_clone":
                new = x.t().clone()
            elif name == "view":
                new = x.reshape(9)[:9].view(3, 3)
            elif name == "flip":
                new = x.flip(0)
            elif name in ("sin_", "zero_") or name in UNARY:
                new = getattr(x, name)()
            else:
                new = getattr(x, name)(y)
            values.append(new)
        return [values[k % len(values)] for k in returned]

    return fn


layouts = st.sampled_from(["own", "transposed", "one base", "strided"])


def inputs_of(layout: str, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if layout == "one base":
        base = torch.rand(9, 3, generator=generator)
        return [base[:3], base[3:6], base[6:]]
    if layout == "strided":
        return [torch.rand(3, 6, generator=generator)[:, ::2] for _ in range(3)]
    found = [torch.rand(3, 3, generator=generator) for _ in range(3)]
    return [found[0].t(), *found[1:]] if layout == "transposed" else found


@settings(max_examples=200)
@given(st.lists(statements, min_size=1, max_size=12), st.lists(st.integers(0, 20), max_size=3), layouts)
def test_random_programs(program: list[tuple[str, int, int]], returned: list[int], layout: str) -> None:
    fn = interpreted(program, returned)
    ours = inputs_of(layout, 0)
    theirs = copied(ours)
    jitted = thunder.jit(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            found, expected = outcome(jitted, ours), outcome(fn, theirs)
            if expected[0] == "RuntimeError":  # eager mode rejects operands that overlap what is written
                return
            assert found == expected


# -- the checks -------------------------------------------------------------------------------------------------------
def reads_old(a: Any, g: Any) -> Any:
    new = a * g
    old = a + g
    a.copy_(new * 2)
    return old


def reads_twice(a: Any, g: Any) -> Any:
    x = a * g
    y = x + 1
    a.add_(y)
    return x * 2 + a


def reads_view(a: Any, g: Any) -> Any:
    x = a * g
    view = x.t()
    y = x + 1
    a.add_(y)
    return view @ a


WITHOUT: dict[str, tuple[Any, str, Any, Callable[..., Any]]] = {
    "whether operands are read afterwards": (tested._Updates, "_dies_at", lambda *args: True, reads_twice),
    "views": (TorchMemory, "may_share", lambda *args: (), reads_view),
    "when the old value is read": (tested._Updates, "_may_move", lambda *args: True, reads_old),
}


@pytest.mark.parametrize("what", WITHOUT)
def test_that_a_check_is_needed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check, the program computes something else: tests of this file can fail."""
    owner, name, replacement, fn = WITHOUT[what]
    check(fn, matrix(1), matrix(2))
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises(AssertionError):
        check(fn, matrix(1), matrix(2))


def test_that_decisions_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "may_fail", lambda op: False)
    with pytest.raises(AssertionError):
        test_nothing_is_written_before_a_decision(decides)
