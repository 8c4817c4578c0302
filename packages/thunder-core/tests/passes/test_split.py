# SPDX-License-Identifier: Apache-2.0
"""Forward and backward programs: one for each set of gradients, what they return and take, how they read."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import record

from thunder.core import devices, dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.trace import Trace
from thunder.core.verify import verify
from thunder.passes.split import Split

F64 = dtypes.float64


def traced(fn: Any, count: int) -> Trace:
    """The trace of `fn` on float64 tensors that require grad."""
    options = {"shape": (2, 3), "device": devices.cpu, "dtype": F64, "requires_grad": True}
    return record(fn, [TensorProxy(f"x{i}", **options) for i in range(count)], taken=[f"x{i}" for i in range(count)])


def split(fn: Any, count: int) -> Split:
    """The split of a program with respect to all its inputs."""
    trace = verify(traced(fn, count))
    return Split(trace, (), trace.args)


def operations(trace: Trace) -> list[str]:
    """The names of what a trace runs."""
    return [op.sym.name for op in trace.bound_symbols if not op.sym.name.startswith(("unpack", "python_"))]


def several(a: Any, b: Any) -> Any:
    """Three results, of which the second depends on one input only."""
    s = prims.sin(a)
    return prims.mul(s, b), prims.exp(b), s


def test_a_backward_program_for_what_arrives() -> None:
    """What leads to other results is not in it."""
    program = split(several, 2)
    assert program.returned == 3
    hidden = len(program.outputs) - 3
    counts = {}
    for present in ((True, True, True), (True, False, False), (False, True, False), (False, False, True)):
        backward = verify(program.backward((*present, *[False] * hidden)))
        counts[present] = operations(backward)
        assert len(backward.args) == len(program.saved) + sum(present)
    assert counts[False, True, False] == ["mul"]  # exp's
    assert sorted(counts[False, False, True]) == ["cos", "mul"]  # sin's
    assert sorted(counts[True, False, False]) == ["cos", "mul", "mul", "mul"]
    assert not [name for names in counts.values() for name in names if name.startswith(("full", "zeros"))]


def test_a_backward_program_for_what_is_wanted() -> None:
    """Gradients that nobody asks for are None, and not computed."""
    program = split(several, 2)
    present = (True, True, True, *[False] * (len(program.outputs) - 3))
    whole, first, none = (program.backward(present, wanted) for wanted in ((True, True), (True, False), (False, False)))
    assert first.output[1] is None
    assert none.output == [None, None]
    assert operations(none) == []
    assert len(operations(first)) < len(operations(whole))


def test_whether_less_is_computed_for_less() -> None:
    """Not where all gradients come from the same operations, or from views of what these gave."""
    assert split(several, 2).takes_less_for_less()
    assert split(lambda a, b: prims.mul(a, b), 2).takes_less_for_less()
    assert not split(lambda a, b: prims.sin(prims.add(a, b)), 2).takes_less_for_less()
    assert not split(
        lambda a, b: prims.add(prims.transpose(a, (1, 0)), prims.transpose(b, (1, 0))), 2
    ).takes_less_for_less()


def test_how_they_read() -> None:
    """What is saved stands above forward's return, with bytes; backward takes it in a list, which it empties."""
    program = split(lambda a, b: prims.mul(prims.sin(a), b), 2)
    text = program.forward.python(depth=0)
    assert "# saved for backward: 3 values, 144 bytes" in text
    assert '#   x0: "cpu f64[2, 3]", 48 bytes' in text
    assert re.search(r"return \(t1, \((x1|t0|x0), (x1|t0|x0), (x1|t0|x0)\)\)", text)
    backward = program.backward([True] + [False] * (len(program.outputs) - 1))
    lines = backward.python(depth=0, decorators=False).splitlines()
    start = lines.index("def backward(saved, grad_t1):")
    assert re.fullmatch(r"  \[(x1|t0|x0), (x1|t0|x0), (x1|t0|x0)\] = saved", lines[start + 1])
    assert lines[start + 2] == "  saved.clear()"
    flat = program.backward([True] + [False] * (len(program.outputs) - 1), boxed=False)
    assert "saved.clear()" not in flat.python()
    assert [p.name for p in flat.args] == [p.name for p in backward.args]


def test_they_run() -> None:
    """Forward gives the result and what is saved, backward the gradients, and holds nothing that was saved."""
    program = split(several, 2)
    a, b = (torch.rand(2, 3, dtype=torch.float64).requires_grad_() for _ in range(2))
    with torch.no_grad():
        outputs, saved = program.forward.python_callable()(a, b)
    torch.testing.assert_close(outputs, (a.sin() * b, b.exp(), a.sin()))
    hidden = len(program.outputs) - 3
    cotangents = [torch.rand(2, 3, dtype=torch.float64) for _ in range(3)]
    box = list(saved)
    found = program.backward([True] * 3 + [False] * hidden).python_callable()(box, *cotangents)
    assert box == []
    expected = torch.autograd.grad([(a.sin() * b), b.exp(), a.sin()], [a, b], cotangents)
    torch.testing.assert_close(found, list(expected), rtol=1e-12, atol=1e-12)


def test_saved_values_are_further_outputs() -> None:
    """Those that hang on what is differentiated by, so that gradients of gradients flow through them."""
    program = split(lambda a: prims.sin(prims.exp(a)), 1)
    assert [p.name for p in program.outputs[program.returned :]] == [p.name for p in program.saved if p.name != "x0"]
    with_hidden = verify(program.backward([True] * len(program.outputs)))
    assert len(with_hidden.args) == len(program.saved) + len(program.outputs)


def test_what_is_not_there_is_an_error() -> None:
    """A gradient of a gradient that needs more than was kept names the operation."""

    def draws(a: Any) -> Any:
        return prims.mul(a, prims.uniform((2, 3), 0.0, 1.0, device=devices.cpu, dtype=F64))

    program = split(draws, 1)
    program.saved.clear()
    with pytest.raises(RuntimeError, match="needs the result of uniform, which the forward program does not save"):
        program.backward([True] * program.returned)


STEPS = st.lists(
    st.tuples(st.sampled_from(["sin", "exp", "mul", "add", "neg"]), st.integers(0, 9), st.integers(0, 9)),
    min_size=1, max_size=8,
)  # fmt: skip


@settings(max_examples=40, deadline=None, derandomize=True)
@given(STEPS, st.lists(st.integers(0, 9), min_size=1, max_size=3), st.data())
def test_any_gradients_of_any_results(steps: Any, returned: Any, data: Any) -> None:
    """On random programs: those that arrive are given, those that are wanted come out, and are torch's."""

    def f(a: Any, b: Any, of: Any) -> Any:
        values = [a, b]
        for name, i, j in steps:
            x, y = values[i % len(values)], values[j % len(values)]
            values.append(getattr(of, name)(x, y) if name in ("mul", "add") else getattr(of, name)(of.mul(x, 0.3)))
        return tuple(values[i % len(values)] for i in returned)

    trace = traced(lambda a, b: f(a, b, prims), 2)
    program = Split(verify(trace), (), trace.args)
    if not program.returned:
        return
    hidden = len(program.outputs) - program.returned
    present = data.draw(st.lists(st.booleans(), min_size=program.returned, max_size=program.returned))
    wanted = data.draw(st.lists(st.booleans(), min_size=2, max_size=2))
    a, b = (torch.rand(2, 3, dtype=torch.float64).requires_grad_() for _ in range(2))
    results = {p.name: t for p, t in zip(trace.output, f(a, b, torch))}
    chosen = [results[p.name] for p, there in zip(program.outputs, present) if there]
    cotangents = [torch.rand(2, 3, dtype=torch.float64) for _ in chosen]
    with torch.no_grad():
        _, saved = program.forward.python_callable()(a, b)
    backward = verify(program.backward([*present, *[False] * hidden], wanted))
    found = backward.python_callable()(list(saved), *cotangents)
    expected = torch.autograd.grad(chosen, [a, b], cotangents, allow_unused=True) if chosen else (None, None)
    for g, e, want in zip(found, expected, wanted):
        assert (g is None) == (e is None or not want)
        if g is not None:
            torch.testing.assert_close(g, e, rtol=1e-10, atol=1e-12)
