# SPDX-License-Identifier: Apache-2.0
"""A jitted function is the function: its parameters, pickles, copies and results; and what `thunder.jit` rejects."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from outcomes import counts
from torch import nn

import thunder


@thunder.jit
def decorated(x: Any) -> Any:
    """A jitted function that its module refers to by its name."""
    return x * 2


class Owner:
    """A class with a jitted method."""

    @thunder.jit
    def method(self, x: Any) -> Any:
        return x * 3


def plain(x: Any) -> Any:
    return x * 4


@pytest.mark.parametrize("fn", [decorated, Owner.method], ids=["function", "method"])
def test_decorated_functions_are_pickled_by_name(fn: Any) -> None:
    """As Python does with functions. Copies are the same object, also inside of other objects."""
    assert pickle.loads(pickle.dumps(fn)) is fn
    assert copy.copy(fn) is fn and copy.deepcopy(fn) is fn
    assert copy.deepcopy({"fn": [fn]})["fn"][0] is fn


def test_other_jitted_functions_are_pickled_with_their_function() -> None:
    """Their name in the module is that of the plain function."""
    jitted = thunder.jit(plain, cache="no caching")
    for twin in (pickle.loads(pickle.dumps(jitted)), copy.deepcopy(jitted)):
        assert twin is not jitted
        assert torch.equal(twin(torch.ones(2)), torch.full((2,), 4.0)) and counts(twin) == (1, 0)
        assert twin._options.cache == "no caching"


def test_parameters_of_any_name() -> None:
    """`self`, `args`, `kwargs` and `fn` are passed by keyword like other parameters."""

    def f(self: Any, args: Any, kwargs: Any = 1, fn: Any = 2) -> Any:
        return self * args * kwargs * fn

    jitted, x = thunder.jit(f), torch.ones(2)
    for _ in range(2):
        assert torch.equal(jitted(self=x, args=3, kwargs=4, fn=5), x * 60)
    assert counts(jitted) == (1, 1)


def test_classes_of_modules() -> None:
    """The error says what to decorate, and that works."""
    with pytest.raises(TypeError, match=r"pass an instance, e\.g\. thunder\.jit\(Net\(…\)\)"):

        @thunder.jit
        class Net(nn.Module):
            pass

    class Decorated(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale = scale

        @thunder.jit
        def forward(self, x: Any) -> Any:
            return x * self.scale

    for scale in (2.0, 3.0):
        assert torch.equal(Decorated(scale)(torch.ones(2)), torch.full((2,), scale))
    assert thunder.cache_misses(Decorated.forward) >= 1


def test_reset_of_one_function() -> None:
    """Programs of other functions stay."""
    one, other, module = thunder.jit(plain), thunder.jit(plain), thunder.jit(nn.Linear(2, 2))
    x = torch.ones(2)
    for f in (one, other, module):
        f(x)
    thunder.reset(one)
    thunder.reset(module)
    for f in (one, other, module):
        f(x)
    assert [counts(f) for f in (one, other, module)] == [(2, 0), (1, 1), (2, 0)]
    with pytest.raises(TypeError, match="is not a jitted function or module"):
        thunder.reset(plain)


def test_is_compiling_is_a_boolean() -> None:
    """Of the class `bool`, in arithmetic with tensors too."""
    seen: list[Any] = []

    def f(x: Any) -> Any:
        compiling = torch.compiler.is_compiling()
        seen.append(type(compiling))
        return x + compiling, x * compiling, torch.full((2,), compiling), torch.tensor([compiling])

    found = thunder.jit(f)(torch.ones(2))
    assert [t.tolist() for t in found] == [[2, 2], [1, 1], [True, True], [True]]
    assert seen == [bool]
    assert torch.compiler.is_compiling() is False


# -- limits -----------------------------------------------------------------------------------------------------------
def test_the_number_of_programs() -> None:
    """Further calls run eagerly, with a warning, and cached programs are still used."""
    jitted = thunder.jit(lambda x: x.sum() * x.ndim, max_programs=2)
    inputs = [torch.ones([1] * n) for n in range(1, 5)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            for x in inputs:
                assert jitted(x) == x.ndim
    assert counts(jitted) == (2, 2)
    assert "2 programs are cached" in thunder.explain(jitted)


def test_the_time_of_compilations() -> None:
    """A started compilation ends; the next call that needs one runs eagerly."""
    jitted = thunder.jit(plain, max_compile_time=1e-9)
    assert torch.equal(jitted(torch.ones(2)), torch.full((2,), 4.0))
    assert thunder.compile_stats(jitted).compile_time > 0
    with pytest.warns(UserWarning, match="max_compile_time is 1e-09"):
        assert torch.equal(jitted(torch.ones(3)), torch.full((3,), 4.0))
    jitted(torch.ones(2))
    assert counts(jitted) == (1, 1)
    thunder.reset(jitted)
    jitted(torch.ones(3))
    assert counts(jitted) == (2, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"max_programs": 0}, "an int of at least 1"), ({"max_compile_time": -1}, "None or a positive number of seconds")],
)
def test_wrong_limits(options: Any, message: str) -> None:
    """The message says what is allowed."""
    with pytest.raises(ValueError, match=message):
        thunder.jit(plain, **options)


# -- results that are views -------------------------------------------------------------------------------------------
VIEWS: dict[str, Callable[[Any], Any]] = {
    "an item and its base": lambda x: (lambda y: (y[0], y))(x * 2),
    "two items": lambda x: (lambda y: (y[0], y[1]))(x * 2),
    "views of views": lambda x: (lambda y: (y.t()[0], y.t(), y[1, 1:]))(x.sin()),
    "in containers": lambda x: (lambda y: {"a": [y[0]], "b": (y, 3)})(x * 5),
    "views of an input": lambda x: (x[0], x[1:]),
    "one view": lambda x: (x * 2)[0],
    "detached": lambda x: (lambda y: (y[0], y.detach(), y))(x * 2),
    "a view twice": lambda x: (lambda y: (y[0], y[0]))(x * 2),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_user_code_writes_to_results_that_are_views(name: str, requires_grad: bool) -> None:
    """The other results change as in eager mode, and gradients are eager's."""
    f = VIEWS[name]
    found = []
    for run in (f, thunder.jit(f)):
        for _ in range(2):
            leaf = torch.arange(6.0).view(2, 3).requires_grad_(requires_grad)
            out = torch.utils._pytree.tree_leaves(run(leaf * 1))
            tensors = [t for t in out if isinstance(t, torch.Tensor)]
            tensors[0].mul_(3)
            if requires_grad:
                sum(t.sum() * (i + 2) for i, t in enumerate(tensors)).backward()
            found.append([t.detach().clone() for t in tensors] + ([leaf.grad] if requires_grad else []))
    for later in found[1:]:
        assert len(later) == len(found[0])
        for a, b in zip(later, found[0]):
            torch.testing.assert_close(a, b)


@thunder.jit
def power(x: Any) -> Any:
    """A jitted function of tensors."""
    return x**2 + 1


# -- tracers of torch -------------------------------------------------------------------------------------------------
class Calls(nn.Module):
    """A module that calls a jitted function."""

    def forward(self, x: Any) -> Any:
        return power(x).sin()


def test_torch_jit_traces_the_original_function() -> None:
    """Also if the program is compiled already: a second trace, with which torch checks the first, is the same."""
    x = torch.randn(3)
    power(x)
    for fn in (power, Calls()):
        traced = torch.jit.trace(fn, (x,))
        y = torch.randn(3)
        torch.testing.assert_close(traced(y), fn(y))
        assert "<thunder." not in str(traced.graph)
