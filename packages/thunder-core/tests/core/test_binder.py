# SPDX-License-Identifier: Apache-2.0
"""The binder: all spellings of a call have one written form, and a wrong call is refused as Python refuses it."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder.core.binder import Binder


def add(input: Any, other: Any, *, alpha: Any = 1) -> None:
    """As torch.add."""


def total(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> None:
    """As torch.sum."""


def strict(a: Any, b: Any = 2, c: Any = 3, /, d: Any = 4, *, e: Any, f: Any = 6) -> None:
    """With every kind of parameter."""


def numpys(a: Any, axis: Any = None, keepdims: bool = False) -> None:
    """With NumPy's names."""


def bound(fn: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """The written form of a call."""
    return Binder(fn, fn.__name__)(args, kwargs)


FUNCTIONS = {f.__name__: f for f in (add, total, strict)}


@st.composite
def calls(draw: Any) -> tuple[Any, dict[str, Any], list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    """A function, values for its parameters, and several ways to write that call."""
    fn = draw(st.sampled_from(list(FUNCTIONS.values())))
    params = list(inspect.signature(fn).parameters.values())
    values = {}
    for p in params:
        default = st.nothing() if p.default is p.empty else st.just(p.default)
        values[p.name] = draw(st.one_of(default, st.integers(0, 9), st.booleans(), st.none(), st.just((1, 2))))
    spellings = []
    for _ in range(3):
        positional = [p for p in params if p.kind is not p.KEYWORD_ONLY]
        only = sum(p.kind is p.POSITIONAL_ONLY for p in positional)
        count = draw(st.integers(only, len(positional)))
        args = tuple(values[p.name] for p in positional[:count])
        names = draw(st.permutations([p.name for p in (*positional[count:], *params[len(positional) :])]))
        # What equals its default may be left out.
        by_name = {p.name: p for p in params}
        kwargs = {
            n: values[n]
            for n in names
            if not (
                type(values[n]) is type(by_name[n].default) and values[n] == by_name[n].default and draw(st.booleans())
            )
        }
        spellings.append((args, kwargs))
    return fn, values, spellings


@given(calls())
def test_one_form(call: tuple[Any, dict[str, Any], list[tuple[tuple[Any, ...], dict[str, Any]]]]) -> None:
    """Every spelling gives the same form, which means the same call, and writing it again changes nothing."""
    fn, values, spellings = call
    signature = inspect.signature(fn)
    forms = [bound(fn, *args, **kwargs) for args, kwargs in spellings]
    for form in forms[1:]:
        assert form == forms[0]
        assert [list(map(type, f[0])) for f in (form, forms[0])] == [list(map(type, forms[0][0]))] * 2
    args, kwargs = forms[0]
    meant = signature.bind(*args, **kwargs)
    meant.apply_defaults()
    assert dict(meant.arguments) == values
    assert bound(fn, *args, **kwargs) == (args, kwargs)


@given(calls())
def test_explicit_form_has_everything(
    call: tuple[Any, dict[str, Any], list[tuple[tuple[Any, ...], dict[str, Any]]]],
) -> None:
    """An explicit operation is written with its defaults."""
    fn, values, spellings = call
    explicit = Binder(fn, fn.__name__, explicit=True)
    params = inspect.signature(fn).parameters.values()
    for args, kwargs in spellings:
        found = explicit(args, dict(kwargs))
        assert found[0] == tuple(values[p.name] for p in params if p.kind is not p.KEYWORD_ONLY)
        assert found[1] == {p.name: values[p.name] for p in params if p.kind is p.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("a", "b"), {}),
        (("a", "b"), {"alpha": 1}),
        (("a",), {"other": "b"}),
        ((), {"input": "a", "other": "b"}),
        ((), {"other": "b", "input": "a", "alpha": 1}),
        ((), {"self": "a", "other": "b"}),
        ((), {"tensor": "a", "other": "b"}),
    ],
)
def test_the_spellings_of_an_addition(args: Any, kwargs: Any) -> None:
    """The ones that torch accepts."""
    assert bound(add, *args, **kwargs) == (("a", "b"), {})


def test_a_gap_makes_keywords() -> None:
    """Positional as far as possible; what comes after an argument that equals its default is named."""
    assert bound(total, "a") == (("a",), {})
    assert bound(total, "a", None, False) == (("a",), {})
    assert bound(total, "a", 1, True) == (("a", 1, True), {})
    assert bound(total, "a", keepdim=True) == (("a",), {"keepdim": True})
    assert bound(total, "a", keepdim=True, dim=2) == (("a", 2, True), {})
    assert bound(total, "a", dtype="d", dim=2) == (("a", 2), {"dtype": "d"})
    assert bound(strict, 1, 2, 5, e=0) == ((1, 2, 5, 4), {"e": 0})


def test_numpys_names() -> None:
    """`axis` and `keepdims` are read as torch reads them, and torch's as NumPy's."""
    assert bound(total, "a", axis=1, keepdims=True) == bound(total, "a", 1, True)
    assert bound(numpys, "a", dim=1, keepdims=True) == bound(numpys, "a", 1, True)
    assert bound(numpys, "a", dim=1, keepdim=True) == bound(numpys, "a", 1, True)


def test_defaults_are_compared_with_care() -> None:
    """True is not 1, -0.0 is not 0.0, and a NaN that is the default is."""

    def f(a: Any, p: Any = 0.0, flag: Any = 1, nan: Any = math.nan) -> None: ...

    assert bound(f, "a", 0.0, 1) == (("a",), {})
    assert bound(f, "a", -0.0)[0][1:] == (-0.0,)
    assert math.copysign(1, bound(f, "a", -0.0)[0][1]) == -1
    assert bound(f, "a", 0) == (("a", 0), {})
    assert bound(f, "a", flag=True)[1] == {"flag": True}
    assert bound(f, "a", nan=math.nan) == (("a",), {})
    assert bound(f, "a", False)[0][1] is False


def test_an_argument_that_cannot_be_compared_is_no_default() -> None:
    """Nothing asks an argument's own == for a truth value (a tensor's would have none)."""

    class Odd:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None

    odd = Odd()
    assert bound(total, "a", odd)[0][1] is odd
    assert bound(total, odd)[0][0] is odd


def test_variadic_functions_are_written_as_called() -> None:
    """There is no other form to bring them into."""

    def f(*args: Any, **kwargs: Any) -> None: ...

    assert bound(f, 1, 2, axis=3) == ((1, 2), {"axis": 3})


@pytest.mark.parametrize(
    ("fn", "args", "kwargs"),
    [
        (add, ("a", "b", "c"), {}),
        (add, ("a", "b", "c"), {"alpha": 2}),
        (add, ("a",), {}),
        (add, (), {}),
        (add, (), {"alpha": 2}),
        (add, ("a", "b"), {"other": "c"}),
        (add, ("a", "b"), {"input": "c"}),
        (add, ("a", "b"), {"beta": 1}),
        (total, ("a", 1, True, "d"), {}),
        (total, ("a", 1), {"dim": 2}),
        (total, ("a", 1), {"axis": 2}),
        (total, ("a",), {"dim": 1, "axis": 2}),
        (total, ("a",), {"self": "b"}),
        (total, (), {"input": "a", "self": "b"}),
        (strict, (1, 2, 3, 4, 5), {"e": 1}),
    ],
)
def test_a_wrong_call_is_a_type_error(fn: Any, args: Any, kwargs: Any) -> None:
    """Whatever Python refuses is refused here too, naming the function."""
    known = {"axis": "dim", "self": "input"}
    renamed = [known.get(k, k) for k in kwargs]
    if len(set(renamed)) == len(renamed):
        with pytest.raises(TypeError):
            inspect.signature(fn).bind(*args, **dict(zip(renamed, kwargs.values())))
    with pytest.raises(TypeError, match=rf"^{fn.__name__}\(\) "):
        bound(fn, *args, **kwargs)


def test_the_messages() -> None:
    """As Python words them."""
    with pytest.raises(TypeError, match=r"add\(\) got an unexpected keyword argument 'beta'"):
        bound(add, 1, 2, beta=3)
    with pytest.raises(TypeError, match=r"add\(\) got multiple values for argument 'other'"):
        bound(add, 1, 2, other=3)
    with pytest.raises(TypeError, match=r"add\(\) takes 2 positional arguments but 3 were given"):
        bound(add, 1, 2, 3)
    with pytest.raises(TypeError, match=r"add\(\) missing .*'other'"):
        bound(add, 1)


def test_the_callers_dictionary_is_left_alone() -> None:
    """Keyword arguments that the caller keeps are not changed."""
    kwargs = {"alpha": 1, "other": "b"}
    Binder(add, "add")(("a",), kwargs)
    assert kwargs == {"alpha": 1, "other": "b"}
