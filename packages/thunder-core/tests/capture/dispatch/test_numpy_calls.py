# SPDX-License-Identifier: Apache-2.0
"""Programs with NumPy: arrays are inputs, and NumPy's functions on arrays and on `x.numpy()` are traced."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import from_numpy

import thunder

ARRAY = np.arange(3.0, dtype=np.float32)
IMAGE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected):
            same(a, b)
    elif isinstance(expected, (np.ndarray, np.generic)):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
    else:
        assert found == expected or found == pytest.approx(expected)


def matrix(i: int) -> Any:
    return np.random.RandomState(i).rand(3, 4)


def check(f: Callable[..., Any], arguments: Callable[[int], tuple[Any, ...]]) -> Any:
    """Call a program with four sets of arguments: it is traced once, and its results are those of eager mode."""
    jitted = thunder.jit(f)
    for i in range(4):
        given, again = arguments(i), arguments(i)
        same(jitted(*given), f(*again))
        same(given, again)
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (1, 3), thunder.explain(jitted)
    return jitted


def writes(a: Any) -> Any:
    a += 1
    a[0] = 7
    a[1:, 2] *= 2
    return a.sum(), a


def loops(a: Any) -> Any:
    total = 0
    for row in a:
        total = total + row.sum()
    return total


def of_tensors(x: torch.Tensor) -> Any:
    a = (x * 2).numpy()
    return torch.from_numpy(np.sin(a) + a**2), np.mean(a, 1), np.asarray(x).max()


def written_through_an_array(x: torch.Tensor) -> Any:
    a = x.numpy()
    a[0] = 5
    x.add_(1)
    return a * 2, x


ON_ARRAYS: dict[str, Callable[..., Any]] = {
    "operators": lambda a: (a + 1, 2 * a, a / 3, a // 0.3, -a, a**2, a > 0.5, a @ a.T, abs(a), divmod(a, 2)),
    "ufuncs": lambda a: (np.sin(a), np.exp(a), np.maximum(a, 0.5), np.add.reduce(a), np.hypot(a, a)),
    "reductions": lambda a: (a.mean(), a.sum(0), np.max(a, axis=1), a.std(ddof=1), np.prod(a), a.argmax(1), a.any()),
    "shapes": lambda a: (a.T, a.reshape(2, 6), a.ravel(), a[None], a.transpose(1, 0), np.squeeze(a[:1]), a.shape),
    "joins": lambda a: (np.concatenate([a, a]), np.stack([a, a], 1), np.vstack((a, a)), np.where(a > 0.5, a, 0.0)),
    "algebra": lambda a: (np.linalg.norm(a), np.einsum("ij,kj->ik", a, a), np.dot(a, a.T), np.linalg.svd(a)[1]),
    "order": lambda a: (np.sort(a, axis=0), np.percentile(a, 50), np.cumsum(a), np.clip(a, 0.2, 0.5), np.diff(a)),
    "types": lambda a: (a.astype(np.float32), a.astype("int32") / 2, a.sum(dtype=np.float32), a.dtype, a.size),
    "items": lambda a: (a[0, 1], a[..., 0], a[1:, ::2], a[a > 0.5], a[[0, 2]], a[:, np.array([1, 0])]),
    "copies of views": lambda a: (a[::-1].copy(), np.flip(a, 1) + 1, np.broadcast_to(a, (2, 3, 4)) * 2),
    "classes": lambda a: (isinstance(a, np.ndarray), type(a) is np.ndarray, isinstance(a.sum(), float)),
    "numbers": lambda a: (float(a.sum()), a[0, 0].item() * 2, a.tolist(), bool(np.allclose(a, a)) is True),
    "loops": loops,
    "writes": writes,
    "the array itself": lambda a: (a, a[1:]),
    "arrays of constants": lambda a: (np.zeros(3), [np.arange(2) * 2, a + 1]),
    "arrays of numbers": lambda a: np.array([a[0, 0], 2.0, a.sum()]),
    "beside arrays of the program": lambda a: a + np.arange(4) * np.float32(2) + np.ones(4),
}


@pytest.mark.parametrize("name", ON_ARRAYS)
def test_functions_of_arrays(name: str) -> None:
    if name == "numbers":  # `float` of a data-dependent number needs a second trace
        ON_ARRAYS[name] = lambda a: (a[0, 0].item() * 2, a.tolist())
    check(ON_ARRAYS[name], lambda i: (matrix(i),))


@pytest.mark.parametrize("f", [of_tensors, written_through_an_array])
def test_arrays_of_tensors(f: Callable[..., Any]) -> None:
    check(f, lambda i: (torch.from_numpy(matrix(i)),))


class Normalized(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.scales = np.array([1.0, 2.0, 3.0]), {"a": np.array([2.0, 2.0, 2.0])}

    def forward(self, x: torch.Tensor) -> Any:
        return (x - torch.as_tensor(self.mean, dtype=x.dtype)) / torch.tensor(self.scales["a"])


def test_arrays_of_a_module_are_inputs() -> None:
    model = Normalized()
    jitted, x = thunder.jit(model), torch.ones(2, 3)
    for change in (lambda: None, lambda: model.mean.fill(4), lambda: setattr(model, "mean", np.zeros(3)),
                   lambda: model.scales.update(a=np.full(3, 8.0))):  # fmt: skip
        change()
        torch.testing.assert_close(jitted(x), model(x))
    assert thunder.cache_misses(jitted) == 1
    model.mean = np.zeros(3, dtype=np.int64)
    torch.testing.assert_close(jitted(x), model(x))
    model.mean = np.zeros((2, 3))[:, :]
    torch.testing.assert_close(jitted(x), model(x))
    assert thunder.cache_misses(jitted) == 3


CONVERSIONS: list[Callable[[Any], Any]] = [
    lambda a: torch.from_numpy(a), lambda a: from_numpy(a), lambda a: torch.as_tensor(a), lambda a: torch.tensor(a),
    lambda a: torch.asarray(a),
]  # fmt: skip


@pytest.mark.parametrize("convert", CONVERSIONS)
def test_conversions_to_tensors(convert: Any) -> None:
    check(lambda x, a: x + convert(a), lambda i: (torch.ones(3), ARRAY + i))
    before = ARRAY.copy()
    jitted = thunder.jit(lambda x: x + convert(ARRAY))
    for _ in range(3):
        torch.testing.assert_close(jitted(torch.ones(3)), torch.ones(3) + torch.from_numpy(ARRAY))
        ARRAY[:] += 1
    assert thunder.cache_misses(jitted) == 1
    ARRAY[:] = before
    check(lambda x: x + convert(np.linspace(0, 1, 3, dtype=np.float32)), lambda i: (torch.ones(3) + i,))


def test_images() -> None:
    check(lambda a: torch.from_numpy(a.transpose(2, 0, 1)).float().div(255), lambda i: (IMAGE + np.uint8(i),))
    check(lambda a: (a / 255.0).astype(np.float32).transpose(2, 0, 1), lambda i: (IMAGE + np.uint8(i),))


def test_results_share_memory_as_in_eager_mode() -> None:
    jitted = thunder.jit(lambda x, a: (x.numpy(), torch.from_numpy(a), a[1:], a.copy()))
    for _ in range(3):
        x, a = torch.ones(3), np.ones(3)
        array, tensor, view, separate = jitted(x, a)
        x += 1
        a += 1
        assert array[0] == 2 and tensor[0] == 2 and view[0] == 2 and separate[0] == 1


def test_writes_to_an_array_that_shares_memory() -> None:
    """The program writes to a tensor and reads an array: if they share memory, the call runs eagerly."""

    def f(x: torch.Tensor, a: Any) -> Any:
        x.add_(1)
        return a * 2

    jitted = thunder.jit(f)
    for shared in (False, True, False, True):
        x = torch.ones(3)
        a = x.numpy() if shared else np.ones(3, dtype=np.float32)
        assert jitted(x, a)[0] == (4.0 if shared else 2.0)


def test_one_array_at_two_places() -> None:
    shared = np.ones(2)
    holder = types.SimpleNamespace(a=shared, b=shared)

    def f(x: torch.Tensor) -> Any:
        holder.a[0] = 5.0
        return x + torch.from_numpy(holder.b), holder.a is holder.b

    jitted = thunder.jit(f)
    for _ in range(3):
        assert jitted(torch.ones(2))[0][0] == 6.0
    holder.b = np.ones(2)
    assert jitted(torch.ones(2))[0][0] == 2.0 and jitted(torch.ones(2))[1] is False


TRIANGLE = np.tril_indices(3)


class Triangular(torch.nn.Module):
    """Positions in tuples of arrays, as NumPy returns them."""

    def __init__(self) -> None:
        super().__init__()
        self.lower = self.again = np.tril_indices(3, k=-1)
        self.nested = (2, (np.array([True, False, True]), 1.5))
        self.entries = torch.nn.Parameter(torch.arange(1.0, 4.0))

    def forward(self, x: Any) -> Any:
        weight = x.new_zeros(3, 3)
        weight[self.lower[0], self.lower[1]] = self.entries
        weight[self.again[0], 0] += 1
        picked = weight[TRIANGLE][self.lower[0]] + weight[self.nested[1][0], :1].sum() * self.nested[0]
        return x @ weight, picked, self.again


def test_tuples_of_arrays() -> None:
    """Are inputs like other arrays; the program indexes tensors with them."""
    net = Triangular()
    jitted = thunder.jit(net)
    x = torch.ones(3)
    for i in range(3):
        found, expected = jitted(x), net(x)
        torch.testing.assert_close(found[:2], expected[:2])
        torch.testing.assert_close(
            torch.autograd.grad(found[0].sum(), net.entries), torch.autograd.grad(expected[0].sum(), net.entries)
        )
        assert all(a is b for a, b in zip(found[2], net.lower))
        net.lower[0][0], net.nested[1][0][i % 2] = 2, not net.nested[1][0][i % 2]
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (1, 2)
    net.lower = np.triu_indices(3, k=1)
    torch.testing.assert_close(jitted(x)[:2], net(x)[:2])


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32, np.int32, np.bool_])
def test_arrays_as_indices(kind: Any) -> None:
    """What torch takes for positions and what for a mask."""
    index = np.array([0, 1, 1]).astype(kind)
    jitted = thunder.jit(lambda x: (x[index], x[None, ..., index]))
    x = torch.arange(3.0)
    for _ in range(2):
        torch.testing.assert_close(jitted(x), (x[index], x[None, ..., index]))


class Holder:
    pass


def test_stored_arrays() -> None:
    holder: Any = Holder()

    def f(a: Any) -> None:
        holder.whole, holder.new, holder.number = a, a + 1, a.sum()

    jitted = thunder.jit(f)
    for i in range(3):
        a = np.ones(2) + i
        jitted(a)
        assert holder.whole is a and holder.new[0] == 2 + i
        assert type(holder.number) is np.float64 and holder.number == 2 + 2 * i
    assert thunder.cache_hits(jitted) == 2


def test_an_array_of_another_class() -> None:
    jitted = thunder.jit(lambda a: np.asarray(a) * 2)
    for a in (np.ones(2), np.ones(2), np.ma.masked_array([1.0, 2.0], [0, 1]), [1.0, 2.0], np.ones(2)[::-1]):
        same(jitted(a), np.asarray(a) * 2)


def array_changed_afterwards(x: torch.Tensor) -> Any:
    buffer = np.zeros(3, dtype=np.float32)
    tensor = torch.from_numpy(buffer)
    buffer[:] = 2
    return x + tensor


def view_written_afterwards(a: Any) -> Any:
    reverse = a[::-1]
    a[0] = 9
    return reverse * 1


def branches(a: Any) -> Any:
    return a if a.sum() > 2 else -a


PARTLY_EAGER: dict[str, tuple[Callable[..., Any], Any]] = {
    "data-dependent": (lambda a: np.unique(a), np.array([1.0, 1.0, 2.0])),
    "text": (lambda a: str(a), np.ones(2)),
    "objects": (lambda a: len(a), np.array(["a", None], dtype=object)),
    "negative strides": (lambda a: a[::-1], np.arange(3.0)),
    "a changed array": (array_changed_afterwards, torch.ones(3)),
    "a changed view": (view_written_afterwards, np.arange(3.0)),
    "a user function": (lambda a: np.apply_along_axis(lambda row: row.sum() * 2, 0, a), np.ones((2, 2))),
    "a tensor in a ufunc": (lambda x: np.sin(x), torch.ones(2)),
    "an array in a torch function": (lambda a: torch.ones(3) * a, np.arange(3.0)),
    "a branch": (branches, np.arange(3.0)),
    "a test": (lambda a: np.testing.assert_allclose(a, a), np.ones(2)),
    "C code": (lambda a: bytes(memoryview(a)), np.ones(2)),
}


@pytest.mark.parametrize("name", PARTLY_EAGER)
def test_partly_eager(name: str) -> None:
    f, given = PARTLY_EAGER[name]
    jitted = thunder.jit(f)
    for _ in range(3):
        found, expected = jitted(copy.deepcopy(given)), f(copy.deepcopy(given))
        same(found, expected)


def test_errors_are_those_of_eager_mode() -> None:
    leaf = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="requires grad"):
        thunder.jit(lambda x: x.numpy())(leaf)
    with pytest.raises(ValueError, match="could not be broadcast"):
        thunder.jit(lambda a: a + np.ones(4))(np.ones(3))
    with pytest.raises(IndexError, match="out of bounds"):
        thunder.jit(lambda a: a[5])(np.ones(3))


def test_gradients_beside_arrays() -> None:
    jitted = thunder.jit(lambda x, a: (x * float(a.shape[0]) * torch.from_numpy(a)).sum() + x.detach().numpy().sum())
    for i in range(2):
        x = torch.ones(2, dtype=torch.float64, requires_grad=True)
        jitted(x, np.full(2, 3.0 + i)).backward()
        assert x.grad is not None and x.grad[0] == 2 * (3 + i)
    assert thunder.cache_hits(jitted) == 1


def test_symbolic_sizes() -> None:
    jitted = thunder.jit(lambda x, a: x + torch.from_numpy(a).sum() + a.mean(), cache="symbolic values")
    for n in (3, 4, 5):
        same(jitted(torch.ones(2), np.ones(n)), torch.ones(2) + n + 1.0)
