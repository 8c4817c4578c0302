# SPDX-License-Identifier: Apache-2.0
"""What goes into a jitted function and what comes out: arguments of every kind, containers, results."""

from __future__ import annotations

import collections
import dataclasses
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from outcomes import counts

import thunder
from thunder.core.errors import ThunderError


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


def _asks_whether_they_are_one(a: Any, b: Any) -> Any:
    return a * 2 if a is b else a * 3


def _writes(a: Any, b: Any) -> Any:
    a.add_(1)
    return b * 2


def _gives_an_attribute(a: Any, b: Any) -> Any:
    a.note = 3
    return b * getattr(b, "note", 2)


TELLING = {
    "is": _asks_whether_they_are_one,
    "id": lambda a, b: a * (id(a) == id(b)),
    "is not, of what it makes": lambda a, b: a * 2 if [a][0] is not [b][0] else b,
    "in": lambda a, b: a * 2 if a in [b] else b,
    "index": lambda a, b: a * [b, a].index(a),
    "equal tuples": lambda a, b: a * 2 if (a,) == (b,) else b,
    "a key": lambda a, b: {a: a * 2}[b],
    "is_": lambda a, b: a * 2 if operator.is_(a, b) else b,
    "is_set_to": lambda a, b: a * 2 if a.is_set_to(b) else b,
    "a write": _writes,
    "an attribute": _gives_an_attribute,
    "torch asks": lambda a, b: torch.nn.functional.multi_head_attention_forward(
        a[None], b[None], b[None], 2, 1, torch.ones(6, 2), None, None, None, False, 0.0, torch.eye(2), None, False,
        need_weights=False,
    )[0],
}  # fmt: skip


@pytest.mark.parametrize("fn", [pytest.param(fn, id=name) for name, fn in TELLING.items()])
def test_programs_that_can_tell_that_two_arguments_are_one(fn: Callable[[Any, Any], Any]) -> None:
    """One tensor that is given twice is one input, and they see what eager sees."""
    x = torch.randn(2, 2)
    ours, theirs = x.clone(), x.clone()
    jitted = thunder.jit(fn)
    torch.testing.assert_close(jitted(ours, ours), fn(theirs, theirs))
    torch.testing.assert_close(ours, theirs)
    if jitted._cache:
        assert sum(p.shape == (2, 2) for p in thunder.last_traces(jitted)[0].args if p.name in "ab") == 1


def test_programs_that_cannot_tell_that_two_arguments_are_one() -> None:
    """Each argument is an input of its own; what is returned of them is the caller's tensor."""

    def f(a: Any, b: Any, c: Any, *, d: Any) -> Any:
        return a * b + c * d, a, c, None if c is None else b is int

    jitted = thunder.jit(f)
    x, y = torch.randn(3), torch.randn(3)
    out, first, third, no = jitted(x, y, x, d=y)
    torch.testing.assert_close(out, x * y * 2)
    assert first is x and third is x and no is False
    assert [p.name for p in thunder.last_traces(jitted)[0].args] == ["a", "b", "c", "d"]
    jitted(x, y, x, d=y)
    assert counts(jitted) == (1, 1)
    x.requires_grad_()
    out, *_ = jitted(x, y, x, d=y)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], y * 2)


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


# -- results ----------------------------------------------------------------------------------------------------------
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
