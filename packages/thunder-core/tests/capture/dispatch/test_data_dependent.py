# SPDX-License-Identifier: Apache-2.0
"""Values that only running a program tells: numbers read off tensors, sizes that depend on values, and errors."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import thunder
from thunder.core.errors import TracingError


def value() -> torch.Tensor:
    """An input."""
    return torch.tensor([[0.1, 0.9, 0.4], [0.7, 0.2, 0.8]], dtype=torch.float64)


def long(x: Any) -> Any:
    """Whole numbers."""
    return (x * 3).long()


def written(x: Any, y: Any) -> Any:
    """A write at a mask."""
    out = x.clone()
    out[x > 0.5] = y
    return out


def written_at(x: Any, mask: Any, y: Any) -> Any:
    """A write at this mask."""
    out = x.clone()
    out[mask] = y
    return out


def as_many(x: Any) -> Any:
    """A write at a mask, of a number of elements that the program counts."""
    out, mask = x.flatten(), x.flatten() > 0.5
    return out.index_fill(0, torch.tensor([0]), 1.0), written_at(out, mask, out[: mask.sum().item()] * 10)


def of_equal_sizes(x: Any) -> Any:
    """Rows that two masks select; there are as many of them."""
    return x[x[:, 0] > 0.3], x[x.flip(0)[:, 0] > 0.3]


def experts(x: Any) -> Any:
    """As mixtures of experts go: each takes the rows that are for it."""
    out = torch.zeros_like(x)
    chosen = long(x).max(1).values
    for expert in range(3):
        (rows,) = torch.where(chosen == expert)
        out.index_add_(0, rows, x[rows] * expert)
    return out


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "a number": lambda x: x.sum().item(),
    "numbers computed with": lambda x: x * x.sum().item() + long(x).max().item() // 2 - 1,
    "numbers in results": lambda x: {"loss": x.mean().item(), "n": (x > 0.5).sum().item(), "x": x * 2},
    "equal": lambda x: (torch.equal(x, x * 1), x.equal(x[:1]), torch.allclose(x, x + 1e-9), x.allclose(x + 1)),
    "bounds in tensors": lambda x: (x[:, : long(x).max()], torch.arange(long(x).max(), long(x).max() + 3) + 1),
    "lists": lambda x: (x.tolist(), long(x)[0, 1].tolist(), sum(x[0].tolist())),
    "lists of nothing": lambda x: (x[:0].tolist(), x[:, :0].tolist(), x.new_zeros(2, 0, 3).tolist()),
    "lists of truths": lambda x: ((x > 0.5).tolist(), (x[:1] > 0.5).tolist()),
    "parts by a list": lambda x: [p.exp().sum() for p in x.split((x[:1, 0] * 0).add(1.5).long().tolist() + [1])],
    "sizes in tensors": lambda x: (
        x.view(x.shape[0], torch.div(x.shape[1], 1, rounding_mode="trunc"), -1),
        x[:1].expand(long(x)[0, 0] + 2, -1) * 2,
        x.reshape((torch.mul(2, 3), 1)).repeat(1, torch.add(1, 1)),
        x.narrow(0, 0, (long(x) * 0)[0, 0] + 1).sum(),
        x.reshape(-1).as_strided(size=(torch.div(4, 2, rounding_mode="trunc") - 1, 2), stride=[torch.mul(2, 1), 1]) * 2,
    ),
    "a size": lambda x: torch.zeros((x > 0.5).sum().item(), 2) + 1,
    "nonzero": lambda x: x.nonzero() + 1,
    "nonzero as a tuple": lambda x: x.sub(0.4).nonzero(as_tuple=True),
    "where": lambda x: torch.where(x > 0.5),
    "argwhere": lambda x: torch.argwhere(x > 0.5),
    "a mask": lambda x: x[x > 0.5] * 2,
    "a mask twice": lambda x: x[x > 0.5] * x.exp()[x > 0.5],
    "a mask and its mean": lambda x: x[x > 0.5].mean(),
    "a mask of rows": lambda x: x[x[:, 0] > 0.5][:, 1:].sum(0),
    "a mask of columns": lambda x: x[:, x[0] > 0.3].softmax(0),
    "a mask between": lambda x: x[None][:, x[:, 0] > 0.5, 1],
    "a mask without dimensions": lambda x: x[x.sum() > 2] * 2,
    "a write at a mask without dimensions": lambda x: written_at(x, x.sum() > 2, x[x.sum() > 2] * 10),
    "masked_select": lambda x: torch.masked_select(x, torch.tensor([True, False, True])),
    "a write at a mask": lambda x: written(x, x[x > 0.5] * 10),
    "a number at a mask": lambda x: written(x, 0.0),
    "as many elements at a mask as a number says": as_many,
    "addmm of sizes that are equal": lambda x: torch.addmm(*of_equal_sizes(x), torch.ones(3, 3, dtype=x.dtype)),
    "einsum of sizes that are equal": lambda x: torch.einsum("ij,ik->jk", *of_equal_sizes(x)),
    "a size that is equal to the one expanded to": lambda x: x[x.sum(1) > 0].expand(2, -1) * 2,
    "unique": lambda x: long(x).unique(),
    "unique and more": lambda x: torch.unique(long(x), return_inverse=True, return_counts=True),
    "unique columns": lambda x: torch.unique(long(x), dim=1, return_counts=True),
    "unique of nothing": lambda x: torch.unique(long(x)[:0].sum(1), return_inverse=True, return_counts=True),
    "unique rows of nothing": lambda x: torch.unique(long(x)[:0], dim=0),
    "unique in a row of nothing": lambda x: torch.unique_consecutive(long(x)[:0], return_counts=True),
    "unique in a row": lambda x: torch.unique_consecutive(long(x), return_counts=True),
    "bincount": lambda x: torch.bincount(long(x).view(-1), minlength=2),
    "bincount of a length that is not known": lambda x: (
        counts := torch.bincount(long(x).view(-1), minlength=len(long(x).unique())),
        counts[counts > 1],
    ),
    "bincount with weights": lambda x: torch.bincount(long(x).view(-1), x.view(-1).detach()),
    "repeats": lambda x: torch.repeat_interleave(x, long(x)[:, 0], dim=0) * 2,
    "repeats of all": lambda x: x.view(-1).repeat_interleave(long(x).view(-1)),
    "a loss of what counts": lambda x: F.cross_entropy(x[x[:, 0] > 0.5], torch.tensor([1, 2])[x[:, 0] > 0.5]),
    "a layer": lambda x: F.linear(x[x[:, 0] > 0.5], torch.ones(4, 3, dtype=x.dtype)).relu().softmax(-1),
    "parts": lambda x: torch.cat([x[x > 0.5], x[x <= 0.5]]),
    "sorted": lambda x: x[x > 0.3].sort(descending=True).values,
    "nothing": lambda x: x[x > 5].sum(),
    "one": lambda x: x[x > 0.85] * 3,
    "indices": lambda x: torch.zeros(3, dtype=x.dtype).index_add(0, (x > 0.5).nonzero()[:, 1], x[x > 0.5]),
    "experts": experts,
    "shapes": lambda x: (x[x > 0.5].shape, x.nonzero().shape[1], x[x > 0.5].numel(), x * 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_values_that_only_running_tells(name: str) -> None:
    """Have eager's results and gradients for any values, with one trace."""
    f = PROGRAMS[name]
    jitted = thunder.jit(f)
    for x in (value(), value().flip(0) * 0.9 + 0.05, value() * 0.5):
        found, expected = jitted(x), f(x)
        torch.testing.assert_close(found, expected, equal_nan=True)
        assert str(type(found)) == str(type(expected))
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (1, 2)
    leaf = value().requires_grad_()
    out = f(leaf)
    if isinstance(out, torch.Tensor) and out.requires_grad:
        jitted = thunder.jit(f)
        for _ in range(2):
            again = jitted(leaf)
            torch.testing.assert_close(torch.autograd.grad(again.sum(), leaf), torch.autograd.grad(f(leaf).sum(), leaf))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.booleans(), min_size=5, max_size=5), st.integers(0, 3))
def test_any_number_of_true_elements(mask: list[bool], dim: int) -> None:
    """None, one, several, all."""
    x = torch.arange(10.0).reshape(5, 2).requires_grad_()
    out = FIXED(x, torch.tensor(mask))
    expected = of_rows(x, torch.tensor(mask))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(torch.autograd.grad(out[0].sum(), x), torch.autograd.grad(expected[0].sum(), x))


def of_rows(x: Any, mask: Any) -> Any:
    """Of a number of rows that is not known."""
    rows = x[mask]
    rest = x[~mask]
    return (rows.exp() + rows.shape[0]).sum(0) * rest.shape[0], torch.cat([rest, rows]).cumsum(0), rows.t() @ rows


FIXED = thunder.jit(of_rows)


# Where other sizes are as small as data-dependent ones may be.
SMALL: dict[str, Callable[[Any, list[int]], Any]] = {
    "narrow": lambda x, n: x.narrow(0, 0, n[0]).exp().sum(0),
    "slice": lambda x, n: x[: n[0]].exp().sum(0),
    "the rest": lambda x, n: x[n[0] :].exp().mean(0),
    "parts": lambda x, n: [p.square().sum() * (k + 1) for k, p in enumerate(x.split([n[0], x.shape[0] - n[0]]))],
    "means of parts": lambda x, n: [p.mean(0) for p in x.split([n[0], x.shape[0] - n[0]])],
    "deviations": lambda x, n: x.split([n[0], x.shape[0] - n[0]])[0].var(0, correction=0),
    "three parts": lambda x, n: [p.cumsum(0).sum() for p in x.split([1, n[0] - 1, x.shape[0] - n[0]])],
    "parts back together": lambda x, n: torch.cat([p.flip(0) for p in x.split([n[0], x.shape[0] - n[0]])]),
    "product": lambda x, n: x[: n[0]].prod(0),
    "columns of rows": lambda x, n: x.narrow(0, 0, n[0])[:, 1:].exp().sum(),
    "repeated": lambda x, n: x[:1].expand(n[0], -1).exp().sum(0),
    "padded": lambda x, n: F.pad(x, (0, 0, 0, n[0])).exp().sum(0),
}


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("name", SMALL)
def test_small_sizes(name: str, rows: int) -> None:
    """A number that may be as small is not taken for another: results and gradients are eager's."""
    f = SMALL[name]
    jitted = thunder.jit(lambda x, n: f(x, n.tolist()))
    leaf = torch.linspace(-1, 1, 2 * rows, dtype=torch.float64).reshape(rows, 2).requires_grad_()
    for n in (*range(1, rows + 1), rows, 1):
        found, expected = jitted(leaf, torch.tensor([n])), f(leaf, [n])
        torch.testing.assert_close(found, expected, equal_nan=True)
        found, expected = (sum(t.sum() for t in (x if isinstance(x, list) else [x])) for x in (found, expected))
        for ours, theirs in zip(torch.autograd.grad(found, leaf), torch.autograd.grad(expected, leaf)):
            torch.testing.assert_close(ours, theirs, equal_nan=True)
    assert thunder.cache_hits(jitted) >= 1


def test_numbers_that_are_stored() -> None:
    """In attributes and lists, anew at each call, as Python's numbers."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = 0.0
            self.log: list[float] = []

        def forward(self, x: Any) -> Any:
            loss = x.square().mean()
            self.last = loss.item()
            self.log.append(loss.item() * 2)
            return loss

    model = Model()
    jitted = thunder.jit(model)
    for k in range(3):
        x = value() + k
        jitted(x)
        assert type(model.last) is float
        assert model.last == x.square().mean().item()
        assert model.log[k] == model.last * 2
    assert thunder.cache_misses(jitted) == 1


def test_what_the_trace_shows() -> None:
    """A line for each number, and sizes by their names."""
    jitted = thunder.jit(lambda x: x[x > 0.5] * x.sum().item())
    jitted(value())
    text = str(thunder.last_traces(jitted)[0])
    assert ".shape[0]" in text
    assert ".item()" in text
    namespace = thunder.last_traces(jitted)[0].python_ctx()
    exec(text, namespace)
    torch.testing.assert_close(namespace["computation"](value()), jitted(value()))


def test_a_list_is_waited_for_once() -> None:
    """Its numbers come in one line, however it is nested, and are asked for once."""
    jitted = thunder.jit(lambda x: (x.tolist(), sum(x.tolist()[1]), x[0, 0].item()))
    jitted(value())
    text = str(thunder.last_traces(jitted)[-1])
    assert (text.count(".tolist()"), text.count(".item()")) == (1, 1)
    some = thunder.jit(lambda x: x * x[1].tolist()[1])
    some(value())
    assert "_, u1, _, = " in str(thunder.last_traces(some)[-1])


def test_what_is_checked_of_a_number() -> None:
    """`torch._check` says what the program relies on, and is checked at each call."""

    def f(x: Any, n: Any) -> Any:
        size = n.sum().item()
        torch._check(size >= 0)
        torch._check(size <= 4, lambda: "too many")
        torch._check_is_size(size)
        y = torch.zeros(size, 2) if size <= 4 else x
        return y + 1

    jitted = thunder.jit(f)
    for n in (2, 3, 0):
        torch.testing.assert_close(jitted(value(), torch.tensor([n])), torch.ones(n, 2))
    assert thunder.cache_hits(jitted) == 2
    with pytest.raises(RuntimeError, match="too many"):
        jitted(value(), torch.tensor([5]))
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        jitted(value(), torch.tensor([-1]))


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a branch on a tensor": (lambda x: x if x.sum() > 0 else -x, "value of a tensor"),
    "a branch on a number": (lambda x: x if x.sum().item() > 0 else -x, r"whether u0 > 0.*torch\.cond"),
    "a branch on a size": (lambda x: x if len(x[x > 0.5]) else -x, "whether u0 != 0"),
    "a loop": (lambda x: [x * i for i in range((x > 0.5).sum().item())], "the number u0"),
    "float": (lambda x: x if float(x[0, 0]) > 0 else -x, r"\(float\(\)\).*thunder\.disable"),
    "int": (lambda x: [x * i for i in range(int(x[0, 0]))], r"\(int\(\)\)"),
    "bool": (lambda x: x if bool(x.sum() > 0) else -x, r"the number u0|whether u0"),
    "the greater of an integer and a float": (lambda x: x * max(x.sum().item(), 1), "write both as floats"),
    "percent": (lambda x: operator.mod("%.2f", x.sum().item()), "the number u0"),
    "a loop over what a mask left": (lambda x: [row * 2 for row in x[x > 0.5]], "the number u0"),
    "an array": (lambda x: np.sqrt(x.sum().item()), "the number u0"),
    "a key": (lambda x: {x.sum().item(): x}, "the number u0"),
    "contains": (lambda x: 1.0 in x, r"\(in\)"),
    "equal": (lambda x: x if torch.equal(x, x * 2) else -x, "u0"),
    "max": (lambda x: max(x[0]), "a branch on it"),
    "a truth value": (lambda x: x if (x > 0).all().item() else -x, "u0"),
    "many numbers": (lambda x: x.repeat(1000, 1).tolist(), "at most 1024"),
    "how many parts": (lambda x: x.chunk((x > 0.5).sum().item()), "the number u0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_to_be_known_is_an_error(name: str) -> None:
    """Where a single trace stands for all calls. The error names the line and what can be done."""
    f, message = REFUSED[name]
    with pytest.raises((TracingError, RuntimeError), match=f"(?s){message}") as caught:
        thunder.trace()(f, value())
    assert "test_data_dependent.py:" in str(caught.value)
    found, expected = thunder.jit(f, sharp_edges="allow")(value()), f(value())
    assert repr(found) == repr(expected)


UNDECIDED = ("the greater of an integer and a float", "percent", "numpy", "many numbers")


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in UNDECIDED])
def test_what_has_to_be_known_is_decided(name: str) -> None:
    """`thunder.jit` compiles a path for each answer."""
    f, _ = REFUSED[name]
    jitted = thunder.jit(f)
    for x in (value(), value(), value() / 4 + 0.5, value(), value() / 4 + 0.5):
        torch.testing.assert_close(jitted(x), f(x))
    assert thunder.cache_misses(jitted) <= 2


def test_errors_of_torch() -> None:
    """Where torch has some."""
    with pytest.raises(RuntimeError, match="a Tensor with 6 elements cannot be converted to Scalar"):
        thunder.jit(lambda x: x.item())(value())
    with pytest.raises(IndexError, match="The shape of the mask"):
        thunder.jit(lambda x: x[torch.ones(4, dtype=torch.bool)])(value())


def test_sizes_that_meet() -> None:
    """They have to be the same when the program runs, which says where they are not."""
    f = lambda x, y: (x[x > 0] * y[y > 0]).sum()  # noqa: E731
    jitted = thunder.jit(f)
    for n in (2, 3, 5):
        x, y = torch.ones(7), torch.ones(7)
        x[n:], y[: 7 - n] = -1, -1
        torch.testing.assert_close(jitted(x, y), f(x, y))
    assert thunder.cache_misses(jitted) == 1
    with pytest.raises(RuntimeError, match=r"(size|must match)"):
        jitted(torch.ones(7), torch.tensor([1.0, 1.0, -1, -1, -1, -1, -1]))


def test_checks_of_tensors() -> None:
    """Are made when the program runs."""

    def f(x: Any) -> Any:
        torch._check_tensor_all(x > 0, lambda: "all of them are to be positive")
        return x * 2

    jitted = thunder.jit(f)
    for grad in (True, False):
        torch.testing.assert_close(jitted(torch.ones(3, requires_grad=grad)), torch.full((3,), 2.0), check_stride=False)
    with pytest.raises(RuntimeError, match="all of them are to be positive"):
        jitted(-torch.ones(3))
    assert thunder.cache_misses(jitted) == 2


def test_parts_of_sizes_that_are_read() -> None:
    """The parts of a mask's rows, by counts that are read off a tensor, as models with pictures take them apart."""

    def f(x: Any, counts: Any) -> Any:
        rows = x[x.sum(1) > 0]
        parts = rows.split(counts.tolist())
        return torch.cat([part * i for i, part in enumerate(parts)]).sum(), [part.mean() for part in parts]

    jitted = thunder.jit(f)
    for counts in ([1, 2], [3, 1]):
        x = torch.rand(6, 2)
        x[sum(counts) :] = -1
        x.requires_grad_()
        found, expected = (g(x, torch.tensor(counts)) for g in (jitted, f))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*[torch.autograd.grad(out[0], x) for out in (found, expected)])
    assert thunder.cache_misses(jitted) == 1


@pytest.mark.parametrize("x", [torch.tensor(2.0), torch.tensor(0.0), torch.zeros(0), torch.zeros(0, 3), torch.eye(2)])
def test_positions_of_scalars_and_of_nothing(x: torch.Tensor) -> None:
    for program in (lambda x: torch.where(x != 0), lambda x: x.nonzero(as_tuple=True), torch.nonzero, torch.argwhere):
        torch.testing.assert_close(thunder.jit(program)(x), program(x))


def test_what_is_asked_of_values_of_unknown_sizes_is_no_text() -> None:
    """Whether two values are the same is told by how they are computed, with such sizes in it."""

    def f(x: Any, n: Any) -> Any:
        wide = x[x > 0].repeat(n.item()).reshape(n.item() * 2, -1)
        torch._check_tensor_all(wide > 0)
        return wide[wide > 1], (wide > 1).nonzero(), wide.sum().item()

    jitted = thunder.jit(f)
    for n in (2, 4):
        x = torch.tensor([1.0, 2.0, -1.0, 3.0, 4.0])
        torch.testing.assert_close(jitted(x, torch.tensor(n)), f(x, torch.tensor(n)))
    assert thunder.cache_misses(jitted) == 1
    assert thunder.explain(jitted).count("partly eager") == 0


def test_equal_masks_that_are_far_from_each_other() -> None:
    """What two of them select has sizes of two names, though equal calls are made once."""

    def f(x: Any) -> Any:
        a, b = x, x
        for _ in range(9):
            a, b = a * 0.9, b * 0.9
        return a[a > 0.2] * 2, torch.cat([b[b > 0.2] + 1, a[a > 0.2]]), b[b > 0.2].shape[0]

    jitted = thunder.jit(f)
    for scale in (1.0, 2.0):
        torch.testing.assert_close(jitted(value() * scale), f(value() * scale))
    assert thunder.cache_misses(jitted) == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.unique().sum() + x.sum(),
        lambda x: torch.unique(x, return_counts=True)[0].sum() + x.sum(),
        lambda x: x.unique_consecutive().sum() + x.sum(),
        lambda x: torch.bincount(torch.tensor([0, 1, 1]), x).sum() + x.sum(),
    ],
)
def test_derivatives_that_torch_does_not_have(f: Any) -> None:
    """No gradient is left out without a word."""
    results = []
    for call in (f, thunder.jit(f)):
        x = torch.tensor([0.5, 2.0, 2.0], requires_grad=True)
        out = call(x)
        results.append(out.detach())
        with pytest.raises((RuntimeError, NotImplementedError), match="not implemented"):
            out.backward()
    torch.testing.assert_close(*results)


# -- tensors that are passed for numbers ------------------------------------------------------------------------------
NUMBERS: dict[str, Callable[..., Any]] = {
    "arange": lambda x, n: torch.arange(n),
    "avg_pool1d": lambda x, n: F.avg_pool1d(x, n),
    "chunk": lambda x, n: x.chunk(n),
    "cumsum": lambda x, n: x.cumsum(n - 1),
    "diag": lambda x, n: x.diag(n),
    "eye": lambda x, n: torch.eye(n),
    "fft": lambda x, n: torch.fft.fft(x, n),
    "flip": lambda x, n: x.flip(n - 1),
    "interpolate": lambda x, n: F.interpolate(x[None], n),
    "kthvalue": lambda x, n: torch.kthvalue(x, n),
    "matrix_power": lambda x, n: torch.linalg.matrix_power(x, n),
    "one_hot": lambda x, n: F.one_hot(torch.zeros(2, dtype=torch.int64), n),
    "pad": lambda x, n: F.pad(x, (n, 1)),
    "permute": lambda x, n: x.permute(n - 1, 2 - n),
    "polygamma": lambda x, n: torch.polygamma(n, x),
    "roll": lambda x, n: torch.roll(x, n, 0),
    "split": lambda x, n: x.split(n),
    "sum": lambda x, n: x.sum(n - 1),
    "topk": lambda x, n: torch.topk(x, n),
    "unfold": lambda x, n: x.unfold(0, n, 1),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_tensors_that_are_passed_for_numbers(name: str) -> None:
    """torch converts a tensor without dimensions where it expects a number; the program is compiled all the same."""
    f, x = NUMBERS[name], torch.rand(4, 4, dtype=torch.float64) + 0.5
    jitted = thunder.jit(f)
    for n in (2, 2, 1, 2):
        torch.testing.assert_close(jitted(x, torch.tensor(n)), f(x, torch.tensor(n)))
    assert thunder.cache_hits(jitted) >= 1


def test_rejections_that_depend_on_a_number() -> None:
    """The program may catch torch's error for one number, and have a result for another."""

    def f(x: Any, n: Any) -> Any:
        try:
            return torch.kthvalue(x, n).values
        except RuntimeError:
            return x[0]

    x, jitted = torch.rand(3, 3), thunder.jit(f)
    for n in (2, 7, 0, 3, 7):
        torch.testing.assert_close(jitted(x, torch.tensor(n)), f(x, torch.tensor(n)))


OF_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "conjugate": lambda n: n.conjugate(),
    "floor": math.floor,
    "imag": lambda n: n.imag,
    "numerator": lambda n: getattr(n, "numerator", None),
    "pos": operator.pos,
    "real": lambda n: n.real,
    "round": round,
    "trunc": math.trunc,
}


@pytest.mark.parametrize("name", OF_NUMBERS)
@pytest.mark.parametrize("number", [True, 3, 2.5])
def test_types_of_numbers_computed_from_numbers(name: str, number: Any) -> None:
    """Arithmetic of a boolean gives an integer, and the imaginary part of a float is a float."""
    f = OF_NUMBERS[name]
    found, expected = thunder.jit(lambda t: f(t.item()))(torch.tensor(number)), f(number)
    assert (type(found), found) == (type(expected), expected)
