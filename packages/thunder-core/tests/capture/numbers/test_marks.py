# SPDX-License-Identifier: Apache-2.0
"""Marks of sizes as dynamic or static: `thunder.mark_dynamic`, and the marks of `torch._dynamo`."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch._dynamo
from outcomes import counts

import thunder


def scaled(x: Any) -> Any:
    """Depends on a size."""
    return x * x.shape[0] + x.shape[-1]


def expected(n: int, m: int = 3) -> torch.Tensor:
    return torch.ones(n, m) * n + m


def test_the_first_program_is_for_all_sizes() -> None:
    """No guard has to fail before the size becomes an input."""
    x = torch.ones(4, 3)
    assert thunder.mark_dynamic(x, 0) is x
    jitted = thunder.jit(scaled)
    for n in (4, 2, 9, 100):
        assert torch.equal(jitted(x if n == 4 else torch.ones(n, 3)), expected(n))
    assert counts(jitted) == (1, 3)
    jitted(torch.ones(4, 5))  # the other size is a constant
    assert counts(jitted) == (2, 3)


def test_bounds() -> None:
    """The program accepts sizes within the bounds, and uses them in comparisons."""

    def program(x: Any) -> Any:
        return x * 2 if x.shape[0] <= 8 else x * 3

    jitted = thunder.jit(program)
    jitted(thunder.mark_dynamic(torch.ones(4, 3), 0, min=2, max=8))
    for n in (2, 8, 5):
        assert torch.equal(jitted(torch.ones(n, 3)), torch.ones(n, 3) * 2)
    assert counts(jitted) == (1, 3)
    assert torch.equal(jitted(torch.ones(9, 3)), torch.ones(9, 3) * 3)
    assert counts(jitted) == (2, 3)
    prologue = str(thunder.last_prologue_traces(jitted)[-1])
    assert "GuardFailed" in prologue


def test_several_dimensions_and_gradients() -> None:
    """Negative dimensions count from the end; gradients need no further program."""
    jitted = thunder.jit(lambda x: (x.sum(0) * x.shape[1]).square().sum())
    x = torch.ones(4, 3, requires_grad=True)
    thunder.mark_dynamic(x, (0, -1))
    for shape in ((4, 3), (5, 6), (2, 9)):
        y = x if shape == (4, 3) else torch.ones(shape, requires_grad=True)
        (found,) = torch.autograd.grad(jitted(y), y)
        z = torch.ones(shape, requires_grad=True)
        (wanted,) = torch.autograd.grad((z.sum(0) * z.shape[1]).square().sum(), z)
        torch.testing.assert_close(found, wanted)
    assert counts(jitted) == (1, 2)


@pytest.mark.parametrize("mark", ["mark_dynamic", "maybe_mark_dynamic", "mark_unbacked"])
def test_marks_of_torch(mark: str) -> None:
    """They mean the same as thunder's mark."""
    x = torch.ones(4, 3)
    getattr(torch._dynamo.decorators, mark)(x, 0)
    jitted = thunder.jit(scaled)
    for n in (4, 2, 9):
        assert torch.equal(jitted(x if n == 4 else torch.ones(n, 3)), expected(n))
    assert counts(jitted) == (1, 2)


def test_bounds_of_torch() -> None:
    """`torch._dynamo.mark_dynamic` has bounds too."""
    x = torch.ones(4, 3)
    torch._dynamo.mark_dynamic(x, 0, min=3, max=8)
    jitted = thunder.jit(scaled)
    jitted(x)
    jitted(torch.ones(8, 3))
    assert counts(jitted) == (1, 1)
    assert torch.equal(jitted(torch.ones(9, 3)), expected(9))
    assert "the program requires x.shape[0] <= 8" in thunder.explain(jitted)


def test_static_sizes_stay_constants() -> None:
    """`torch._dynamo.mark_static` keeps a size constant although it changes, and with symbolic values."""
    for cache in ("constant values", "symbolic values"):
        jitted = thunder.jit(scaled, cache=cache)
        for n in (2, 3, 4, 5):
            x = torch.ones(n, 3)
            torch._dynamo.mark_static(x, 0)
            assert torch.equal(jitted(x), expected(n))
        assert counts(jitted) == (4, 0)


def test_a_program_that_needs_the_size() -> None:
    """Warn the user about a mark without effect."""

    def fixed(x: Any) -> Any:
        return x + torch.ones(4, 3)

    x = thunder.mark_dynamic(torch.ones(4, 3), 0)
    with pytest.warns(UserWarning, match="the program only works with size 0 of x = 4"):
        assert torch.equal(thunder.jit(fixed, sharp_edges="warn")(x), torch.full((4, 3), 2.0))
    with pytest.raises(RuntimeError, match="although sizes are marked as dynamic"):
        thunder.jit(fixed, sharp_edges="error")(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        thunder.jit(fixed, sharp_edges="allow")(x)


def test_wrong_marks() -> None:
    """Errors name what is wrong."""
    with pytest.raises(TypeError, match="takes a tensor, not int"):
        thunder.mark_dynamic(3, 0)  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="has no dimension 2"):
        thunder.mark_dynamic(torch.ones(2, 3), 2)
    with pytest.raises(ValueError, match="is 3, which is not between min=4 and max=None"):
        thunder.mark_dynamic(torch.ones(2, 3), 1, min=4)


def test_sizes_one_and_zero_are_constants() -> None:
    """They broadcast, so a program for all sizes would be wrong."""
    jitted = thunder.jit(lambda x: x + torch.ones(3, 3))
    assert jitted(thunder.mark_dynamic(torch.ones(1, 3), 0)).shape == (3, 3)
    assert jitted(torch.ones(3, 3)).shape == (3, 3)
