# SPDX-License-Identifier: Apache-2.0
"""`a[key]` and `a[key] = value` against torch, over random keys; the suite tests the usual ones."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import thunder
import thunder.torch as ltorch
from thunder.clang.indexing import is_basic_index
from thunder.core.errors import TracingError
from thunder.core.proxies import TensorProxy
from thunder.core.samples import SampleInput
from thunder.core.state import tracectx
from thunder.core.trace import Trace
from thunder.tests import running
from thunder.tests.opinfos import opinfo_of

GETITEM, SETITEM = opinfo_of("getitem"), opinfo_of("setitem")


# -- random keys ------------------------------------------------------------------------------------------------------
def _slices(n: int) -> st.SearchStrategy[slice]:
    bound = st.none() | st.integers(-n - 2, n + 2)
    return st.builds(slice, bound, bound, st.sampled_from([None, None, 1, 2, 3, -1]))


@st.composite
def _positions(draw: Any, n: int) -> torch.Tensor:
    shape = draw(st.sampled_from([(), (1,), (2,), (3,), (2, 1), (1, 3), (0,)]))
    count = torch.Size(shape).numel()
    values = draw(st.lists(st.integers(-n, max(n - 1, -n)), min_size=count, max_size=count))
    return torch.tensor(values, dtype=draw(st.sampled_from([torch.int64, torch.int32]))).reshape(shape)


def _lists(n: int) -> st.SearchStrategy[Any]:
    position = st.integers(-n, max(n - 1, -n))
    booleans = st.lists(st.booleans(), min_size=n, max_size=n)
    return st.one_of(
        st.lists(position, max_size=3), booleans, st.lists(position.map(lambda i: [i]), min_size=1, max_size=2)
    )


def _item(n: int) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.integers(-n - 1, n), _slices(n), _slices(n), st.none(), st.just(slice(None)), _positions(n), _lists(n),
        st.booleans(),
    )  # fmt: skip


@st.composite
def shapes_and_keys(draw: Any) -> tuple[tuple[int, ...], Any]:
    """A shape, and a key that is made for about that shape."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    items = [
        draw(_item(shape[min(i, len(shape) - 1)] if shape else 1)) for i in range(draw(st.integers(0, len(shape) + 1)))
    ]
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), ...)
    return shape, items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)


def _outcome(fn: Any) -> tuple[Any, type[Exception] | None]:
    try:
        return fn(), None
    except Exception as error:
        return None, type(error)


def _run(info: Any, sample: SampleInput, *, primitives: bool) -> Any:
    trace = running.trace_sample(info, sample)
    trace = running.to_primitives(trace) if primitives else trace
    return running.run_trace(running.execution_trace(trace, ()), sample)


def _is_checked_by_torch_only(shape: tuple[int, ...], key: Any, error: type[Exception]) -> bool:
    # Of a 0-d tensor as an index torch looks at the value, even if nothing is picked; and an invalid step of a slice
    # that has no dimension to stand for is one error or the other.
    return (0 in shape and error is IndexError) or error is ValueError or (not shape and "slice" in repr(key))


@settings(max_examples=150)
@given(shapes_and_keys())
def test_reading_is_torchs(case: tuple[tuple[int, ...], Any]) -> None:
    """The same elements in the same shape, or the same kind of error; by torch's function and by primitives."""
    shape, key = case
    a = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)
    expected, error = _outcome(lambda: a[key])
    for primitives in (False, True):
        actual, ours = _outcome(lambda: _run(GETITEM, SampleInput(a, key), primitives=primitives))
        if error is not None and _is_checked_by_torch_only(shape, key, error):
            continue
        assert ours is error
        if error is None:
            assert actual.shape == expected.shape
            assert torch.equal(actual, expected)


@st.composite
def _values(draw: Any, shape: tuple[int, ...]) -> Any:
    if draw(st.booleans()):
        return 7
    sizes = [n if draw(st.booleans()) else 1 for n in shape]
    sizes = sizes[draw(st.integers(0, len(sizes))) :] if draw(st.booleans()) else sizes
    return -torch.arange(1.0, 1 + torch.Size(sizes).numel()).reshape(sizes)


@settings(max_examples=150)
@given(shapes_and_keys(), st.data())
def test_writing_is_torchs(case: tuple[tuple[int, ...], Any], data: Any) -> None:
    """The tensor afterwards is the same; keys that name a position twice are left out, where order would matter."""
    shape, key = case
    a = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)
    places, error = _outcome(lambda: torch.arange(a.numel()).reshape(shape)[key])
    if error is not None or places.unique().numel() != places.numel():
        return
    value = data.draw(_values(tuple(places.shape)))
    expected = a.clone()
    expected[key] = value
    for primitives in (False, True):
        assert torch.equal(_run(SETITEM, SampleInput(a, key, value), primitives=primitives), expected)


@settings(max_examples=100)
@given(st.lists(st.integers(0, 3), max_size=4), st.data())
def test_writing_at_masks_is_torchs(sizes: list[int], data: Any) -> None:
    """A boolean tensor in the key of a write: one value, one for a whole part, or one for each true place."""
    shape = tuple(sizes)
    at = data.draw(st.integers(0, len(shape)))
    masked = shape[at : data.draw(st.integers(at, len(shape)))]
    count = torch.Size(masked).numel()
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=count, max_size=count))).reshape(masked).bool()
    before = [data.draw(st.sampled_from([slice(None), slice(1, None), slice(None, None, 2)])) for _ in range(at)]
    key = (*before, mask)
    a = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)
    value = data.draw(_values(tuple(a[key].shape)))
    expected = a.clone()
    expected[key] = value
    for primitives in (False, True):
        assert torch.equal(_run(SETITEM, SampleInput(a, key, value), primitives=primitives), expected)


# -- in programs ------------------------------------------------------------------------------------------------------
def test_what_is_a_view() -> None:
    """Basic keys give views, 0-d tensors of integers among them; everything else gives copies."""
    with tracectx(Trace()):
        position = TensorProxy(shape=(), device="cpu", dtype=torch.int64)
        positions = TensorProxy(shape=(2,), device="cpu", dtype=torch.int64)
        truth = TensorProxy(shape=(), device="cpu", dtype=torch.bool)
    for key in (0, slice(1), None, ..., (), (0, None, ...), position, (slice(None), position)):
        assert is_basic_index(key), key
    for key in (positions, [0], (0, [1]), True, truth, (..., positions)):
        assert not is_basic_index(key), key


def test_writes_through_keys_reach_the_base() -> None:
    """A write through a basic key is seen in the tensor, through positions it is not."""

    def program(a: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = a * 1
        row, picked, one = a[1:, 0], a[i], a[i[0]]
        row.add_(10)
        picked.add_(100)
        one.mul_(-1)
        return a, row, picked, one

    a, i = torch.randn(3, 4), torch.tensor([2, 0])
    for actual, expected in zip(thunder.jit(program)(a, i), program(a, i)):
        assert torch.equal(actual, expected)


def test_gradients_of_reads_and_writes() -> None:
    """Through both to the tensor and to the value that is written."""

    def program(a: torch.Tensor, value: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        b = a * a
        b[1:, i] = value * 3
        return b[i, ..., None] * b[0]

    a = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    value = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    i = torch.tensor([2, 0])
    g = torch.randn(2, 4, 4, dtype=torch.float64)
    actual = torch.autograd.grad(thunder.jit(program)(a, value, i), (a, value), g)
    expected = torch.autograd.grad(program(a, value, i), (a, value), g)
    for x, y in zip(actual, expected):
        torch.testing.assert_close(x, y)


def test_masks() -> None:
    """How many elements they take is known when they are applied."""
    a = torch.tensor([[1.0, -2.0, 3.0], [0.0, 5.0, -6.0]])
    for program in (lambda a: a[a > 0], lambda a: a[:, (a > 0)[0]] * 2):
        jitted = thunder.jit(program)
        for x in (a, -a):
            torch.testing.assert_close(jitted(x), program(x))
        assert thunder.cache_hits(jitted) == 1


def test_what_depends_on_values_names_the_way_out() -> None:
    """A traced program reads the bound when it runs; an operation by itself says what to write instead."""
    f = thunder.jit(lambda a: a[: a.long()[0, 0]])
    for bound in (1.0, 2.0, 0.0):
        assert f(torch.full((2, 3), bound)).shape == (int(bound), 3)
    assert thunder.cache_misses(f) == 1
    with tracectx(Trace()):
        a = TensorProxy(shape=(4, 3), device="cpu", dtype=torch.float32)
        bound = TensorProxy(shape=(), device="cpu", dtype=torch.int64)
        with pytest.raises(TracingError, match="Python number"):
            ltorch.getitem(a, slice(None, bound))


def test_numpys_numbers_and_arrays() -> None:
    """They are indices as Python's are."""
    np = pytest.importorskip("numpy")
    with tracectx(Trace()):
        a = TensorProxy(shape=(4, 3), device="cpu", dtype=torch.float32)
        assert ltorch.getitem(a, np.int64(1)).shape == (3,)
        assert ltorch.getitem(a, (slice(None), np.array([0, 2]))).shape == (4, 2)
        assert ltorch.getitem(a, np.array([[0, 1]])).shape == (1, 2, 3)
