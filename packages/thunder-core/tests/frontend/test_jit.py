# SPDX-License-Identifier: Apache-2.0
"""`thunder.jit` of functions: what goes in and comes out, what is cached, what an error leaves behind."""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import inspect
import threading
import traceback
import weakref
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import thunder
import thunder.torch as ltorch
from thunder.core.errors import ThunderError, TracingError
from thunder.core.state import state
from thunder.core.trace import Trace


def counts(f: Any) -> tuple[int, int]:
    """Misses and hits."""
    return thunder.cache_misses(f), thunder.cache_hits(f)


# -- arguments --------------------------------------------------------------------------------------------------------
def mixed(a: Any, /, b: Any, c: Any = 2, *rest: Any, d: Any, e: Any = None, **more: Any) -> Any:
    """Every kind of parameter."""
    out = a * c + b - d
    for i, x in enumerate(rest):
        out = out + x * (i + 1)
    for k in sorted(more):
        out = out * more[k] + len(k)
    return out if e is None else out / e


X = [torch.arange(6.0).reshape(2, 3) + i for i in range(6)]
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((X[0], X[1]), {"d": X[2]}),
    ((X[0], X[1]), {"d": 5}),
    ((X[0],), {"b": X[1], "d": X[2], "c": 3}),
    ((X[0],), {"d": X[2], "c": X[3], "b": X[1]}),
    ((X[0], X[1], 4, X[2], X[3]), {"d": 1.5, "e": X[4]}),
    ((X[0], X[1], 2, 7), {"d": X[2], "zz": X[3], "y": X[4]}),
    ((X[0], 1), {"d": 7, "e": 2, "class": X[1], "a b": 2.0}),
]


@pytest.mark.parametrize("call", range(len(CALLS)))
def test_arguments_of_every_kind(call: int) -> None:
    """By position, by name, as defaults, in excess; the second time from the cache, with other values too."""
    args, kwargs = CALLS[call]
    f = thunder.jit(mixed)
    torch.testing.assert_close(f(*args, **kwargs), mixed(*args, **kwargs))
    args = tuple(a + 1 if isinstance(a, torch.Tensor) else a for a in args)
    kwargs = {k: v * 2 if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    torch.testing.assert_close(f(*args, **kwargs), mixed(*args, **kwargs))
    assert counts(f) == (1, 1)


def test_kinds_of_calls_have_programs_of_their_own() -> None:
    """And each finds its own again, in whatever order they come."""
    f = thunder.jit(mixed)
    for _ in range(2):
        for args, kwargs in CALLS + CALLS[::-1]:
            torch.testing.assert_close(f(*args, **kwargs), mixed(*args, **kwargs))
    assert counts(f) == (len(CALLS), 3 * len(CALLS))


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((X[0],), {"d": 1}), ((X[0], X[1]), {}), ((X[0], X[1]), {"d": 1, "b": 2})]
)
def test_a_wrong_call_is_pythons_error(args: Any, kwargs: Any) -> None:
    """In its own words, and nothing is cached."""
    f = thunder.jit(mixed)
    with pytest.raises(TypeError) as expected:
        mixed(*args, **kwargs)
    with pytest.raises(TypeError) as found:
        f(*args, **kwargs)
    assert str(expected.value) in str(found.value)
    f(X[0], X[1], d=1)
    with pytest.raises(TypeError):
        f(*args, **kwargs)


def test_values_of_arguments_that_decide() -> None:
    """Numbers, strings, None and the like are constants of a program: another value is another program."""

    def f(x: Any, flag: Any) -> Any:
        if flag is None:
            return x
        return x.relu() if flag == "relu" else x * flag

    jitted = thunder.jit(f)
    x = torch.tensor([-1.0, 2.0])
    values = [None, "relu", 2, 2.0, True, -0.0, 0.0, 3]
    for _ in range(2):
        for v in values:
            found, expected = jitted(x, v), f(x, v)
            assert torch.equal(found, expected), v
            assert torch.equal(found.signbit(), expected.signbit()), v
    assert counts(jitted) == (len(values), len(values))


def test_metadata_of_tensors_decides() -> None:
    """Shape, strides, dtype, whether it requires grad; values do not."""
    f = thunder.jit(lambda x: x * 2 + x.shape[0])
    x = torch.randn(3, 4)
    for kind in (x, x[:2], x.t(), x.double(), x.clone().requires_grad_(), x[None], x[:, ::2]):
        for scale in (1, 2):
            y = (
                (kind * scale).detach().requires_grad_(kind.requires_grad)
                if scale == 2 and kind.is_contiguous()
                else kind
            )
            torch.testing.assert_close(f(y), y * 2 + y.shape[0])
    assert counts(f) == (7, 7)


def test_one_tensor_twice_is_another_program() -> None:
    """What is the same tensor is the same input."""

    def f(a: Any, b: Any) -> Any:
        a.add_(1)
        return a * b

    jitted = thunder.jit(f)
    for same in (False, True, False, True):
        pairs = []
        for _ in range(2):
            a = torch.ones(2)
            pairs.append((a, a if same else torch.ones(2)))
        assert torch.equal(jitted(*pairs[0]), f(*pairs[1]))
        assert torch.equal(pairs[0][0], pairs[1][0])
    assert counts(jitted) == (2, 2)


def test_arguments_that_share_memory() -> None:
    """A write to one shows in the other, as in eager, or is refused; it is never lost."""

    def f(a: Any, b: Any) -> Any:
        a.add_(1)
        return b * 2

    for make in (lambda t: (t, t[1:]), lambda t: (t[1:], t), lambda t: (t, t.view(-1)), lambda t: (t[:2], t[1:])):
        expected_base, base = torch.arange(4.0), torch.arange(4.0)
        expected = f(*make(expected_base))
        jitted = thunder.jit(f)
        try:
            found = jitted(*make(base))
        except ThunderError as error:
            assert "memory" in str(error)
            continue
        assert torch.equal(found, expected)
        assert torch.equal(base, expected_base)


def test_sharing_memory_later() -> None:
    """A program that was made for separate tensors does not answer for overlapping ones."""

    def f(a: Any, b: Any) -> Any:
        a.add_(1)
        return b * 2

    jitted = thunder.jit(f)
    jitted(torch.arange(3.0), torch.arange(3.0))
    base, other = torch.arange(4.0), torch.arange(4.0)
    expected = f(other[:3], other[1:])
    try:
        found = jitted(base[:3], base[1:])
    except ThunderError as error:
        assert "memory" in str(error)
    else:
        assert torch.equal(found, expected)
        assert torch.equal(base, other)


# -- containers -------------------------------------------------------------------------------------------------------
class Point(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


@dataclasses.dataclass
class Batch:
    """A dataclass."""

    data: Any
    label: Any = None

    def total(self) -> Any:
        """A method, which programs may call."""
        return self.data.sum() if self.label is None else self.data.sum() + self.label


class Output(collections.OrderedDict):
    """As Transformers' ModelOutput, without being a dataclass."""


leaf = st.sampled_from(["tensor", "other", "number", "text", "none"])
shapes = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b", "class", 0, 7]), inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Batch, inner, inner),
        st.dictionaries(st.sampled_from(["p", "q"]), inner, max_size=2).map(collections.OrderedDict),
    ),
    max_leaves=6,
)


def fill(shape: Any, scale: float) -> Any:
    """A container of that shape with real things in it."""
    if isinstance(shape, str):
        return {
            "tensor": torch.arange(3.0) * scale, "other": torch.ones(2, 2) * scale,
            "number": 3, "text": "t", "none": None,
        }[shape]  # fmt: skip
    return rebuild(shape, lambda s: fill(s, scale))


def rebuild(x: Any, fn: Any) -> Any:
    """The same container with `fn` of what is in it."""
    if isinstance(x, Batch):
        return Batch(fn(x.data), fn(x.label))
    if isinstance(x, Point):
        return Point(fn(x.x), fn(x.y))
    if isinstance(x, dict):
        return type(x)((k, fn(v)) for k, v in x.items())
    return type(x)(fn(v) for v in x)


def doubled(x: Any) -> Any:
    """A container with its tensors doubled, numbers and texts as they are."""
    if isinstance(x, torch.Tensor):
        return x * 2
    return x if x is None or isinstance(x, (int, str)) else rebuild(x, doubled)


def assert_equal(found: Any, expected: Any) -> None:
    """Containers, classes, order of keys, values and dtypes."""
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
        assert found.dtype is expected.dtype
    elif isinstance(expected, Batch):
        assert_equal((found.data, found.label), (expected.data, expected.label))
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        assert_equal(list(found.values()), list(expected.values()))
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for f, e in zip(found, expected):
            assert_equal(f, e)
    else:
        assert found == expected


@given(shapes)
def test_nested_containers_in_and_out(shape: Any) -> None:
    """Of every kind, as they are; with other tensors from the cache."""
    jitted = thunder.jit(doubled)
    for scale in (1.0, 2.0):
        given_ = fill(shape, scale)
        assert_equal(jitted(given_), doubled(fill(shape, scale)))
        assert_equal(given_, fill(shape, scale))  # what went in is as it was
    assert counts(jitted) == (1, 1)


def test_methods_of_arguments() -> None:
    """The program has the argument's own class."""
    f = thunder.jit(lambda batch: batch.total() * 2)
    assert f(Batch(torch.ones(3))).item() == 6
    assert f(Batch(torch.ones(3), torch.ones(()))).item() == 8
    assert f(Batch(torch.ones(3) * 2)).item() == 12
    assert counts(f) == (2, 1)


def test_results_that_are_inputs_or_the_same() -> None:
    """They are the caller's own tensors, and one tensor where eager gives one."""

    def f(a: Any, b: Any) -> Any:
        c = a + b
        return a, c, c, [b], (a,)

    a, b = torch.ones(2), torch.ones(2)
    for fn in (f, thunder.jit(f)):
        for _ in range(2):
            ra, c, again, (rb,), (ra2,) = fn(a, b)
            assert ra is a
            assert ra2 is a
            assert rb is b
            assert c is again


def test_results_that_were_not_computed() -> None:
    """Numbers, texts, None, dtypes, objects, and nothing at all."""
    marker = object()
    for result in (None, 3, 2.5, "text", torch.float16, marker, [], (), {}, [None, {"k": 1.5}], Point(1, "x")):
        f = thunder.jit(lambda x, result=result: result)
        for _ in range(2):
            found = f(torch.ones(1))
            assert found == result
            assert type(found) is type(result)


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


WEIGHT = torch.full((2,), 2.0)


# -- the jitted function itself ---------------------------------------------------------------------------------------
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


@pytest.mark.parametrize("wrong", [3, "f", None, torch.ones(2)])
def test_what_cannot_be_jitted(wrong: Any) -> None:
    """Says what can."""
    if wrong is None:
        return  # a decorator with arguments
    with pytest.raises(TypeError, match=r"thunder\.jit takes a function or a module, not"):
        thunder.jit(wrong)


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
        return trace.derive("Note") if False else trace

    f = thunder.jit(lambda x: x.sin() + 1, transforms=[note, note])
    assert torch.equal(f(torch.zeros(2)), torch.ones(2))
    assert len(seen) == 2
    assert "sin" in seen[0]


# -- errors -----------------------------------------------------------------------------------------------------------
class Surroundings:
    """What a failed trace has to leave as it was."""

    def __init__(self) -> None:
        self.flag = torch.compiler._is_compiling_flag
        self.apply = torch.autograd.Function.__dict__.get("apply")
        self.vmap = torch.vmap
        self.getattribute = torch.nn.Module.__getattribute__

    def assert_same(self) -> None:
        """Modes, flags and functions of torch, and the thread's own state."""
        assert torch.compiler._is_compiling_flag is self.flag
        assert torch.autograd.Function.__dict__.get("apply") is self.apply
        assert torch.vmap is self.vmap
        assert torch.nn.Module.__getattribute__ is self.getattribute
        assert not torch.compiler.is_compiling()
        assert torch._C._len_torch_function_stack() == 0
        assert torch._C._len_torch_dispatch_stack() == 0
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert (state.trace, state.frontend, state.source) == (None, None, None)


def fails_in_python(x: Any) -> Any:
    """An error of the program's own."""
    with torch.no_grad(), torch.autocast("cpu"):
        y = x + 1
        raise KeyError(f"no luck with {y.shape}")


def fails_in_torch(x: Any) -> Any:
    """An error of torch's."""
    return x @ torch.ones(7, 7)


def fails_deep_inside(x: Any) -> Any:
    """In a function of a function, in a hook."""

    class Picky(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Any) -> Any:
            raise ValueError("not this one")

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    return Picky.apply(x)


def exits(x: Any) -> Any:
    """Not even an Exception."""
    raise SystemExit(3)


def asks_for_a_value(x: Any) -> Any:
    """Which is not known."""
    return x if x.sum() > 0 else -x


FAILURES = [
    (fails_in_python, KeyError), (fails_in_torch, RuntimeError), (fails_deep_inside, ValueError), (exits, SystemExit),
    (asks_for_a_value, TracingError),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "error"), FAILURES, ids=lambda p: getattr(p, "__name__", ""))
def test_a_failed_trace_leaves_nothing_behind(fn: Any, error: Any) -> None:
    """The error reaches the user with the lines of the program, and all is as it was."""
    before = Surroundings()
    f = thunder.jit(fn)
    for grad in (False, True):
        x = torch.ones(2, 3, requires_grad=grad)
        with pytest.raises(error) as caught:
            f(x)
        before.assert_same()
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert any(frame.name == fn.__name__ for frame in frames)
        assert torch.equal(x, torch.ones(2, 3))
    assert counts(f) == (2, 0)
    del caught, frames
    g = thunder.jit(lambda x: x + 1)
    assert torch.equal(g(torch.ones(2)), torch.full((2,), 2.0))


def test_an_error_of_the_user_keeps_its_message_and_type() -> None:
    """Only what thunder knows better is added."""
    with pytest.raises(KeyError) as caught:
        thunder.jit(fails_in_python)(torch.ones(2))
    assert caught.value.args == ("no luck with torch.Size([2])",)
    with pytest.raises(RuntimeError, match=r"test_jit\.py:\d+: return x @ torch\.ones\(7, 7\)"):
        thunder.jit(fails_in_torch)(torch.ones(2, 3))


def test_errors_that_the_program_catches() -> None:
    """Are its own business."""

    def f(x: Any) -> Any:
        try:
            return x @ torch.ones(7, 7)
        except RuntimeError:
            return x * 2

    jitted = thunder.jit(f)
    for _ in range(2):
        assert torch.equal(jitted(torch.ones(2, 3)), torch.full((2, 3), 2.0))
    assert counts(jitted) == (1, 1)


def test_an_error_at_run_time() -> None:
    """A kernel that fails in a cached program raises its error, and the next call works."""
    executor = thunder.extend.OperatorExecutor("jit_test_run")
    broken = [False]

    def run(a: torch.Tensor) -> torch.Tensor:
        if broken[0]:
            raise ArithmeticError("the kernel failed")
        return a + 1

    op = executor.register_operator("flaky", like=lambda a: a + 1, fn=run)
    f = thunder.jit(lambda x: op(x), executors=[executor])
    assert f(torch.ones(1)).item() == 2
    broken[0] = True
    with pytest.raises(ArithmeticError, match="the kernel failed"):
        f(torch.ones(1))
    broken[0] = False
    assert f(torch.ones(1)).item() == 2
    assert counts(f) == (1, 2)


# -- threads ----------------------------------------------------------------------------------------------------------
def test_threads_call_and_trace_at_once() -> None:
    """Each gets its own results, and those that do not trace see torch as it is."""
    failed: list[BaseException] = []
    stop = threading.Event()
    shared = thunder.jit(lambda x, n: (x * n).sin().sum())
    start = threading.Barrier(4)

    def tracer(k: int) -> None:
        try:
            start.wait()
            for i in range(12):
                x = torch.full((i % 3 + 1,), float(k))
                own = thunder.jit(lambda x, i=i: x * i + k)
                torch.testing.assert_close(own(x), x * i + k)
                torch.testing.assert_close(shared(x, k), (x * k).sin().sum())
        except BaseException as error:
            failed.append(error)

    def bystander() -> None:
        try:
            start.wait()
            module = torch.nn.Linear(3, 3)
            while not stop.is_set():
                y = module(torch.ones(2, 3)).relu()
                assert type(y) is torch.Tensor
                assert not torch.compiler.is_compiling()
                y.sum().backward()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=tracer, args=(k,)) for k in range(3)] + [threading.Thread(target=bystander)]
    for t in threads:
        t.start()
    for t in threads[:3]:
        t.join()
    stop.set()
    threads[3].join()
    assert not failed
    assert sum(counts(shared)) == 36


# -- what stays alive -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_nothing_of_a_call_stays_alive(grad: bool, cached: bool) -> None:
    """Neither arguments nor results nor handles; at once where eager needs no collection either."""
    f = thunder.jit(lambda x, y: ((x * y).exp(), x + 1), cache="constant values" if cached else "no caching")
    gc.collect()
    gc.disable()
    try:
        for call in range(3):
            x, y = torch.ones(3, requires_grad=grad), torch.ones(3)
            out = f(x, y)
            refs = [weakref.ref(t) for t in (x, y, *out)]
            if grad:
                out[0].sum().backward()
                refs.append(weakref.ref(x.grad))
            del x, y, out
            alive = [r() is not None for r in refs]
            if call == 0 or not cached:
                gc.enable()
                gc.collect()  # tracing itself may leave cycles
                gc.disable()
                alive = [r() is not None for r in refs]
            assert not any(alive), (call, alive)
    finally:
        gc.enable()


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
    assert "goes on with its tensors" in thunder.explain(jf)


def test_a_tensor_of_another_trace() -> None:
    """Cannot be used in this one, and outside of any it says so."""
    stolen: list[Any] = []

    def f(x: Any) -> Any:
        y = x + 1
        stolen.append(y)
        raise KeyError

    with pytest.raises(KeyError):
        thunder.jit(f)(torch.ones(2))
    if not stolen:
        return  # the list was put back as it was
    with pytest.raises(TracingError):
        stolen[0] + 1
    with pytest.raises(TracingError, match="another trace"):
        thunder.jit(lambda x: x + stolen[0])(torch.ones(2))


@pytest.mark.parametrize(
    "parts",
    [
        lambda t: (t[0], t[1]),
        lambda t: (t[:, 0], t[:, 1]),
        lambda t: (t[:2, :2], t[:2, 2:]),
        lambda t: (t[::2], t[1::2]),
        lambda t: (t[:2], t[2:]),
    ],
)
def test_parts_of_one_tensor_that_do_not_meet(parts: Any) -> None:
    """Are written to as in eager, and cached: they only share a storage."""

    def f(a: Any, b: Any) -> Any:
        a.add_(1)
        return a.sum() + b.sum()

    jitted = thunder.jit(f)
    ours, theirs = torch.arange(16.0).view(4, 4), torch.arange(16.0).view(4, 4)
    for _ in range(2):
        assert jitted(*parts(ours)) == f(*parts(theirs))
        assert torch.equal(ours, theirs)
    assert counts(jitted) == (1, 1)
