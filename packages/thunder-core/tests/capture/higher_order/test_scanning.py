# SPDX-License-Identifier: Apache-2.0
"""`associative_scan` is part of a traced program, and computes what a loop computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan

import thunder

Pair = tuple[Any, Any]


def affine(left: Pair, right: Pair) -> Pair:
    """Compose `x -> a * x + b`, as in state space models."""
    return left[0] * right[0], right[0] * left[1] + right[1]


def flat(a: Any, b: Any, c: Any, d: Any) -> list[Any]:
    return [*affine((a, b), (c, d))]


def directly(a: Any, b: Any) -> Any:
    """Call the operation that torch's function calls on a GPU."""
    return torch.ops.higher_order.associative_scan(flat, [a, b], ())


def by_function(a: Any, b: Any) -> Any:
    return associative_scan(affine, (a, b), dim=0, combine_mode="generic")


def reverse(a: Any, b: Any) -> Any:
    found = associative_scan(affine, (a.flip(0), b.flip(0)), dim=0, reverse=True, combine_mode="generic")
    return found[0].flip(0), found[1].flip(0)


def loop(a: Any, b: Any) -> Any:
    found = [(a[0], b[0])]
    for i in range(1, len(a)):
        found.append(affine(found[-1], (a[i], b[i])))
    return torch.stack([x for x, _ in found]), torch.stack([x for _, x in found])


@pytest.mark.parametrize("fn", [directly, by_function, reverse])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 13, 32])
def test_it_is_as_a_loop(fn: Callable[..., Any], count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    given = [torch.rand(count, 2, 3, generator=generator, dtype=torch.float64) for _ in range(2)]
    results = []
    jitted = thunder.jit(fn)
    for run in (jitted, loop):
        inputs = [x.clone().requires_grad_() for x in given]
        out = run(*inputs)
        gradients = torch.autograd.grad(out[0].sin().sum() + out[1].square().sum(), inputs)
        results.append([*out, *gradients])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)
    assert "eager" not in thunder.explain(jitted)


def names(jitted: Any) -> list[str]:
    """The operations that are traced."""
    return [op.sym.name for op in thunder.last_traces(jitted)[0].bound_symbols]


@pytest.mark.parametrize("fn", [directly, by_function])
def test_linear_recurrences_are_one_operation(fn: Callable[..., Any]) -> None:
    """They save their factors and results for backward, and not the steps between."""
    jitted = thunder.jit(lambda a, b: fn(a, b)[1])
    a, b = (torch.rand(40, 3, requires_grad=True) for _ in range(2))
    jitted(a, b).sum().backward()
    assert names(jitted).count("linear_recurrence") == 1
    forward, backward = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    assert len(forward.output[1]) == 2
    assert [op.sym.name for op in backward.bound_symbols].count("linear_recurrence") == 1


def test_sums_and_products() -> None:
    def f(a: Any, b: Any) -> Any:
        return associative_scan(lambda x, y: (y[0] + x[0], x[1] * y[1]), (a, b), 1, combine_mode="generic")

    jitted = thunder.jit(f)
    a, b = torch.rand(3, 9), torch.rand(3, 9)
    torch.testing.assert_close(jitted(a, b), (a.cumsum(1), b.cumprod(1)))
    assert {"cumsum", "cumprod"} <= {*names(jitted)}


@pytest.mark.parametrize(
    "combine",
    [
        lambda x, y: (x[0] * y[0], x[0] * y[1] + x[1]),  # the factors of the left side
        lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1] * 1.0),
        lambda x, y: (x[0] + y[0], y[0] * x[1] + y[1]),
        lambda x, y: (x[0] * y[0], y[0] * x[0] + y[1]),
        lambda x, y: (torch.maximum(x[0], y[0]), x[1] + y[1] - 1),
        lambda x, y: (y[0], x[1] * x[1] + y[1]),
    ],
)
def test_other_functions_are_combined_as_torch_does(combine: Callable[..., Any]) -> None:
    """Also those that are not associative."""

    def f(a: Any, b: Any) -> Any:
        return associative_scan(combine, (a, b), 1, combine_mode="generic")

    jitted = thunder.jit(f)
    inputs = [torch.rand(3, 11, dtype=torch.float64).requires_grad_() for _ in range(2)]
    results = [run(*inputs) for run in (jitted, f)]
    torch.testing.assert_close(*results)
    gradients = [torch.autograd.grad(sum(x.sin().sum() for x in out), inputs) for out in results]
    torch.testing.assert_close(*gradients)
    assert "associative_scan" in names(jitted) and "linear_recurrence" not in names(jitted)
    assert "# combine((" in str(thunder.last_traces(jitted)[0])


def test_functions_that_read_other_tensors() -> None:
    def f(a: Any, scale: Any) -> Any:
        return associative_scan(lambda x, y: x + y * scale.mean(), a, 0, combine_mode="generic")

    jitted = thunder.jit(f)
    args = torch.rand(6, 2), torch.rand(3)
    torch.testing.assert_close(jitted(*args), f(*args))
    assert "associative_scan" not in names(jitted)


def test_function_that_writes_to_other_tensors_is_an_error() -> None:
    def f(a: Any, seen: Any) -> Any:
        def combine(x: Any, y: Any) -> Any:
            seen.add_(1)
            return x + y

        return torch.ops.higher_order.associative_scan(combine, [a], ())

    with pytest.raises(RuntimeError, match="associative_scan writes to a tensor created outside"):
        thunder.jit(f, sharp_edges="error")(torch.rand(6, 2), torch.zeros(1))


def test_batches() -> None:
    def f(a: Any, b: Any) -> Any:
        found = associative_scan(affine, (a, b), 0, combine_mode="generic")[1]
        return found + associative_scan(torch.logaddexp, a, 0, combine_mode="generic")

    a, b = torch.rand(4, 7, 2), torch.rand(7, 2)
    jitted = thunder.jit(torch.vmap(f, in_dims=(0, None)))
    torch.testing.assert_close(jitted(a, b), torch.stack([f(x, b) for x in a]))


def test_tangents() -> None:
    a, b, s, t = (torch.rand(9, 2, dtype=torch.float64) for _ in range(4))

    def f(a: Any, b: Any) -> Any:
        return associative_scan(affine, (a, b), 0, combine_mode="generic")[1]

    found = thunder.jit(lambda a, b, s, t: torch.func.jvp(f, (a, b), (s, t)))(a, b, s, t)
    torch.testing.assert_close(found, torch.func.jvp(lambda a, b: loop(a, b)[1], (a, b), (s, t)))


def test_steps_grow_with_the_logarithm() -> None:
    jitted = thunder.jit(lambda a: torch.ops.higher_order.associative_scan(lambda x, y: (x.maximum(y),), [a], ()))
    counts = []
    for n in (64, 256):
        jitted(torch.rand(n, 2))
        counts.append(len(thunder.last_traces(jitted)[-1].bound_symbols))
    assert counts[1] < 1.5 * counts[0]


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_strides_of_linear_recurrences(dim: int, count: int) -> None:
    """The scanned dimension is the first one in memory, in both results."""

    def f(a: Any, b: Any) -> Any:
        return associative_scan(affine, (a, b), dim=dim, combine_mode="generic")

    shape = [3, 2, 4]
    shape[dim] = count
    generator = torch.Generator().manual_seed(dim)
    a, b = torch.rand(2, *shape, generator=generator)
    b = b.mT.contiguous().mT
    for found, expected in zip(thunder.jit(f)(a, b), f(a, b), strict=True):
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
