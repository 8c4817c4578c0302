# SPDX-License-Identifier: Apache-2.0
"""Writes to memory that tensors share: windows, views of results and inputs; a copy has memory of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder


# -- windows that overlap ---------------------------------------------------------------------------------------------
def _one_window(y):
    y.unfold(0, 3, 1)[1].mul_(2)


def _first_of_each(y):
    y.unfold(dimension=0, size=3, step=1)[:, 0].mul_(y[:4] + 1)


def _ends_of_some(y):
    y.unfold(0, 3, 1)[1:3, 2].copy_(torch.zeros(2))


def _a_row(y):
    y.as_strided((3, 3), (1, 1))[1].add_(1)


def _columns_of_windows(y):
    y.view(2, 3).unfold(1, 2, 1)[:, :, 0].transpose(0, 1).mul_(2)


@pytest.mark.parametrize("write", [_one_window, _first_of_each, _ends_of_some, _a_row, _columns_of_windows])
def test_a_write_to_elements_of_windows_that_overlap(write):
    """What is written to is in different places, though the windows on the way to it are not."""

    def f(x):
        y = x * 1
        other = y[2:]
        write(y)
        return y, other * 2

    jf = thunder.jit(f)
    for _ in range(2):
        x = torch.randn(6, dtype=torch.float64, requires_grad=True)
        out, wanted = jf(x), f(x)
        torch.testing.assert_close(out, wanted)
        torch.testing.assert_close(*[torch.autograd.grad((a.sin().sum() + b.sum()), x) for a, b in (out, wanted)])
    assert thunder.cache_misses(jf) == 1


TWICE: list[Any] = [
    lambda y: y.unfold(0, 3, 1).mul_(2),
    lambda y: y.as_strided((3, 2), (1, 1)).mul_(2),
    lambda y: y.unfold(0, 2, 1).__setitem__((..., slice(0, 1)), 2.0),
    lambda y: y.unfold(0, 2, 1).__setitem__(y.unfold(0, 2, 1) > 0, 2.0),
    lambda y: y.unfold(0, 2, 1).__iadd__(1),
]


@pytest.mark.parametrize("write", TWICE)
def test_a_write_to_one_place_twice_is_as_in_eager(write):
    """Eager mode does not refuse it, and the call runs eagerly."""

    def f(x):
        y = x * 1
        write(y)
        return y

    jitted = thunder.jit(f)
    for _ in range(3):
        torch.testing.assert_close(jitted(torch.ones(6)), f(torch.ones(6)))


# -- memory of its own ------------------------------------------------------------------------------------------------
BUFFER = torch.arange(6.0).reshape(2, 3)


def set_all(y: Any, key: Any, value: Any) -> Any:
    """y[key] = value."""
    y[key] = value
    return y


@pytest.mark.parametrize(
    "write",
    [
        lambda y, v, b: y.copy_(b),
        lambda y, v, b: y.copy_(b[:1]),
        lambda y, v, b: y.copy_(BUFFER),
        lambda y, v, b: y.copy_(BUFFER[0]),
        lambda y, v, b: y.fill_(v),
        lambda y, v, b: y[0, 0].fill_(v) * y,
        lambda y, v, b: set_all(y, slice(None), b[1]),
        lambda y, v, b: set_all(y, ..., v),
        lambda y, v, b: set_all(y, slice(None), BUFFER),
        lambda y, v, b: torch.add(v, 1, out=y) if y.dim() == 0 else torch.add(b, 1, out=y),
        lambda y, v, b: torch.tensor(BUFFER),
        lambda y, v, b: torch.asarray(BUFFER, copy=True),
    ],
)
def test_what_is_copied_has_memory_of_its_own(write: Any) -> None:
    """A later write, by the program or by who is given the result, reaches neither the source nor other elements."""

    def f(x: Any, v: Any, b: Any) -> Any:
        y = write(x * 2, v, b)
        for source in (v, b, BUFFER):
            source.add_(1)
        return y

    results = []
    for call in (f, thunder.jit(f)):
        BUFFER.copy_(torch.arange(6.0).reshape(2, 3))
        given = torch.ones(2, 3), torch.tensor(3.0), torch.arange(6.0).reshape(2, 3) * 2
        y = call(*given)
        y[0, 0] += 100
        results.append((y, *given, BUFFER.clone()))
        assert y.stride() == (3, 1)
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_fills_are_of_one_element() -> None:
    """As torch says."""
    with pytest.raises(RuntimeError, match="fill_ only supports 0-dimension value tensor"):
        thunder.jit(lambda x: (x * 2).fill_(x[:1]))(torch.ones(3))


@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_a_write_to_memory_of_another_input_runs_eagerly() -> None:
    """The trace has no alias between two inputs."""

    def run(compile_: Any) -> Any:
        base = torch.zeros(4)
        part = base[1:2]

        def program(x: Any) -> Any:
            y = x * part
            base.add_(1.0)
            return y + part

        compiled = compile_(program)
        return [compiled(torch.ones(2)).tolist() for _ in range(4)], base.tolist()

    assert run(thunder.jit) == run(lambda fn: fn)


@pytest.mark.parametrize(
    "results",
    [
        lambda y: (y.view(-1), y),
        lambda y: (y, y.view(-1), y[1:]),
        lambda y: (y.view(-1), y.view(-1)),
        lambda y: (y, y),
    ],
)
@pytest.mark.parametrize("of_input", [False, True])
def test_results_that_are_views_of_the_whole_tensor_can_be_written(results: Any, of_input: bool) -> None:
    def f(x: Any) -> Any:
        return results(x if of_input else x * 2)

    outcomes = []
    for fn in (f, thunder.jit(f)):
        leaf = torch.arange(4.0, requires_grad=True)
        found = fn(leaf * 1)
        found[0].mul_(2)
        sum((x * x).sum() for x in found).backward()
        outcomes.append([*(x.detach() for x in found), leaf.grad])
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    "write", [lambda x: x.__setitem__(0, 0.5), lambda x: x[0].mul_(2), lambda x: x.masked_fill_(x > 0, 2.0)]
)
def test_parts_of_expanded_inputs(write: Any) -> None:
    """torch writes to all elements that share the memory."""

    def f(x: Any) -> Any:
        write(x)
        return x * 2

    mine, eager = (torch.arange(3.0).expand(2, 3) for _ in range(2))
    with pytest.warns(thunder.FallbackWarning, match="elements share memory"):
        found = thunder.jit(f)(mine)
    assert torch.equal(found, f(eager)) and torch.equal(mine, eager)


@pytest.mark.parametrize("write", [lambda d: d.add_(1), lambda d: d.__setitem__(0, 2.0)])
def test_a_detached_input_that_was_written_to(write: Any) -> None:
    """The result is another tensor than the input, which requires grad."""

    def f(x: Any) -> Any:
        d = x.detach()
        write(d)
        return d

    x, y = (torch.zeros(3, requires_grad=True) for _ in range(2))
    out, expected = thunder.jit(f)(x), f(y)
    assert torch.equal(out, expected) and torch.equal(x, y)
    assert not out.requires_grad and x.requires_grad
    assert out.data_ptr() == x.data_ptr()
