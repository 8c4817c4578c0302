# SPDX-License-Identifier: Apache-2.0
"""`thunder.jit` itself: what can be jitted, what it looks like, its transforms."""

from __future__ import annotations

import functools
import inspect
import random
import warnings
from typing import Any

import pytest
import torch
from outcomes import counts

import thunder
import thunder.torch as ltorch
from thunder import api
from thunder.core.trace import Trace


def test_it_looks_like_the_function() -> None:
    """Name, docstring, signature."""

    @thunder.jit
    def scale(x: Any, by: float = 2.0) -> Any:
        """Scales."""
        return x * by

    assert (scale.__name__, scale.__doc__) == ("scale", "Scales.")
    assert list(inspect.signature(scale).parameters) == ["x", "by"]
    assert "scale" in repr(scale)


def test_as_a_decorator() -> None:
    """With arguments and without."""

    @thunder.jit(cache="no caching")
    def f(x: Any) -> Any:
        return x + 1

    @thunder.jit()
    def g(x: Any) -> Any:
        return x + 1

    for _ in range(2):
        assert f(torch.ones(1)).item() == g(torch.ones(1)).item() == 2
    assert counts(f) == (2, 0)
    assert counts(g) == (1, 1)


def test_methods_partials_and_callable_objects() -> None:
    """Whatever can be called."""

    class Scaler:
        def __init__(self, by: float):
            self.by = by

        @thunder.jit
        def decorated(self, x: Any) -> Any:
            return x * self.by

        def method(self, x: Any) -> Any:
            return x * self.by

        def __call__(self, x: Any) -> Any:
            return x * self.by

    s = Scaler(3.0)
    x = torch.ones(2)
    for f in (s.decorated, thunder.jit(s.method), thunder.jit(s), thunder.jit(functools.partial(torch.mul, other=3.0))):
        assert f(x).tolist() == [3, 3]
        assert f(x).tolist() == [3, 3]
    jitted = thunder.jit(s.method)
    assert jitted(x).tolist() == [3, 3]
    s.by = 4.0
    assert jitted(x).tolist() == [4, 4]
    assert Scaler(5.0).decorated(x).tolist() == [5, 5]


def test_jit_of_what_is_jitted() -> None:
    """The same again, unless something else is asked for."""
    f = thunder.jit(lambda x: x * 2)
    assert thunder.jit(f) is f
    executor = thunder.extend.OperatorExecutor("jit_test")
    op = executor.register_operator("jit_test_mul", like=ltorch.mul, fn=lambda a, b: a * b + 1)
    executor.register_implementation(ltorch.mul, op)
    assert thunder.jit(f, executors=[executor])(torch.ones(1)).item() == 3
    assert f(torch.ones(1)).item() == 2
    module = thunder.jit(torch.nn.Linear(2, 2))
    assert thunder.jit(module) is module


def test_jitted_functions_in_traced_ones() -> None:
    """Are a part of the program."""
    inner = thunder.jit(lambda x: x.sin())
    outer = thunder.jit(lambda x: inner(x) * 2)
    x = torch.ones(2)
    torch.testing.assert_close(outer(x), x.sin() * 2)
    torch.testing.assert_close(outer(x), x.sin() * 2)
    assert counts(inner) == (0, 0)
    assert "sin" in str(thunder.last_traces(outer)[-1])


@pytest.mark.parametrize("wrong", [3, "f", torch.ones(2)])
def test_what_cannot_be_jitted(wrong: Any) -> None:
    """Says what can."""
    with pytest.raises(TypeError, match=r"thunder\.jit expects a function or a module, not"):
        thunder.jit(wrong)


def test_async_functions() -> None:
    """Run nothing when they are called."""

    async def later(x: Any) -> Any:
        return x + 1

    with pytest.raises(TypeError, match=r"is async, .* pass a function without async"):
        thunder.jit(later)


def test_reset() -> None:
    """Forgets what was compiled, and counts on."""
    f = thunder.jit(lambda x: x + 1)
    for _ in range(2):
        f(torch.ones(1))
    thunder.reset()
    f(torch.ones(1))
    assert counts(f) == (2, 1)


def test_traces_before_the_first_call() -> None:
    """There are none, and the error says so; of what was never jitted too."""
    f = thunder.jit(lambda x: x)
    for ask in (thunder.last_traces, thunder.last_prologue_traces, thunder.last_backward_traces):
        with pytest.raises(RuntimeError, match="has not been called yet"):
            ask(f)
        with pytest.raises(TypeError, match="is not a jitted function or module"):
            ask(lambda x: x)
    assert counts(f) == (0, 0)


def test_traces_of_a_function_that_ran_eagerly() -> None:
    """There are none, and the error has the reason."""
    f = thunder.jit(lambda x: x * random.random(), sharp_edges="allow")
    f(torch.ones(2))
    with pytest.raises(RuntimeError, match=r"all calls ran eagerly: the program calls .*random"):
        thunder.last_traces(f)


def test_trace_and_compile() -> None:
    """`thunder.trace()` gives the trace under the function's name; `compile` uses exactly its executors."""

    def foo(a: Any, b: Any) -> Any:
        return a + b

    trace = thunder.trace()(foo, torch.ones(2), b=torch.ones(2))
    assert isinstance(trace, Trace)
    assert "def foo(a, b):" in str(trace)
    assert "t0 = ltorch.add(a, b)" in str(trace)
    compiled = thunder.compile(foo)
    assert compiled(torch.ones(1), torch.ones(1)).item() == 2
    assert "def foo(a, b):" in str(thunder.last_traces(compiled)[-1])
    with pytest.raises(RuntimeError, match=r"Could not find executor for bound symbol t0 = ltorch\.add"):
        thunder.compile(foo, executors_list=[])(torch.ones(1), torch.ones(1))


def test_transforms() -> None:
    """Functions from trace to trace, in their order, before anything is claimed."""
    seen = []

    def note(trace: Trace, executors: Any) -> Trace:
        seen.append([op.sym.name for op in trace.bound_symbols])
        return trace

    f = thunder.jit(lambda x: x.sin() + 1, transforms=[note, note])
    assert torch.equal(f(torch.zeros(2)), torch.ones(2))
    assert len(seen) == 2
    assert "sin" in seen[0]


WEIGHT = torch.full((2,), 2.0)


def test_global_tensors_are_found_anew() -> None:
    """Their values flow in at each call."""
    table = {"w": torch.ones(2)}
    f = thunder.jit(lambda x: x * table["w"] + WEIGHT)
    assert f(torch.ones(2)).tolist() == [3, 3]
    WEIGHT.fill_(5)
    table["w"].fill_(7)
    try:
        assert f(torch.ones(2)).tolist() == [12, 12]
        table["w"] = torch.zeros(2)
        assert f(torch.ones(2)).tolist() == [5, 5]
    finally:
        WEIGHT.fill_(2)


def test_a_generator_that_is_kept_goes_on() -> None:
    """With the tensor that it holds: such a program runs as Python."""

    class Box:
        __slots__ = ("items",)

    box = Box()
    box.items = iter(())

    def f(x: Any) -> Any:
        y = x * 2
        box.items = (y for _ in range(1))
        return y

    jf = thunder.jit(f)
    for _ in range(2):
        assert torch.equal(jf(torch.ones(2)), torch.full((2,), 2.0))
        assert torch.equal(next(box.items), torch.full((2,), 2.0))
    assert "uses its tensors after the call" in thunder.explain(jf)


def test_a_python_without_the_gil(monkeypatch):
    """A program is warned once, at its line; with the GIL nothing is said."""
    for enabled in (True, False):
        monkeypatch.setattr("sys._is_gil_enabled", lambda enabled=enabled: enabled, raising=False)
        api._warn_without_gil.cache_clear()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for _ in range(2):
                thunder.jit(torch.sin)
        assert [each.filename for each in found] == ([] if enabled else [__file__])
        assert enabled or "PYTHON_GIL=1" in str(found[0].message)
    api._warn_without_gil.cache_clear()
