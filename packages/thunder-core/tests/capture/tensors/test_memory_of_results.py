# SPDX-License-Identifier: Apache-2.0
"""Results share memory with inputs and among themselves as in eager mode, with the same strides and tensor objects."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder

LAST = torch.channels_last
SYMBOLIC = "symbolic values"


def image(*shape: int) -> torch.Tensor:
    """An image without gaps."""
    return torch.arange(1.0, torch.Size(shape).numel() + 1).reshape(shape)


def last(*shape: int) -> torch.Tensor:
    """A channels-last image."""
    return image(*shape).contiguous(memory_format=LAST)


def gaps() -> torch.Tensor:
    """Some channels of a channels-last image."""
    return last(2, 8, 3, 3)[:, 2:6]


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any


def tensors_of(x: Any) -> list[torch.Tensor]:
    """The tensors of a result, in order."""
    if isinstance(x, Pair):
        return tensors_of((x.first, x.second))
    return [x] if isinstance(x, torch.Tensor) else [t for part in x for t in tensors_of(part)]


def described(f: Any, x: torch.Tensor) -> dict[str, Any]:
    """What a call returns and leaves behind."""
    tensors = [x, *tensors_of(f(x))]
    places = [t.untyped_storage().data_ptr() for t in tensors]
    return {
        "values": [t.tolist() for t in tensors],
        "memory": [(places.index(p), t.storage_offset(), t.stride()) for p, t in zip(places, tensors)],
        "objects": [next(i for i, other in enumerate(tensors) if other is t) for t in tensors],
        "requires_grad": [t.requires_grad for t in tensors],
    }


def part_of_copy(x: Any) -> Any:
    a, b = (x * 2).contiguous(memory_format=LAST).chunk(2, 1)
    a.add_(1)
    return a, b


def last_part_of_parts(x: Any) -> Any:
    a, b, c = (x + 1).permute(1, 0, 2, 3).flatten(1).unbind(0)[1].view(2, 9)[:, 1:7].chunk(3, 1)
    b.mul_(3)
    return c, a, b


def to_last(x: Any) -> Any:
    return x.to(memory_format=LAST).mul_(2)


def to_last_with_dtype(x: Any) -> Any:
    return x.to(torch.float32, memory_format=LAST)


def cpu_last(x: Any) -> Any:
    return x.cpu(memory_format=LAST).add_(1)


def to_contiguous(x: Any) -> Any:
    return (x * 2).to(memory_format=torch.contiguous_format), x.float(memory_format=torch.contiguous_format)


def view_of_copy(x: Any) -> Any:
    y = x.flatten()
    y.view(-1)[1:].add_(1)
    return y


def squeezed_copy(x: Any) -> Any:
    y = x.reshape(-1)
    z = y.squeeze(0)
    z[::2].zero_()
    return z, y


def row_of_copy(x: Any) -> Any:
    y = x.reshape(x.shape[0], -1)
    y[0] = 5
    return x, y


def copies_of_written_gaps(x: Any) -> Any:
    x[:, 1:].fill_(4)
    return x.contiguous(), x.contiguous()


def step(x: Any) -> Any:
    return x[0, 0, 0, ::2].ravel().add_(1)


def grid(x: Any) -> Any:
    rows, columns = torch.meshgrid(x[0, 0, 0], x[0, 0, :, 0] * 2, indexing="xy")
    x.mul_(2)
    return rows, columns


def one_view_twice(x: Any) -> Any:
    y = x.view_as(x)
    return y, x, y


def view_of_view(x: Any) -> Any:
    y = x[1:]
    return y, y.view_as(y)


def data(x: Any) -> Any:
    return x.data.mul_(2)


def empty_part(x: Any) -> Any:
    x.tensor_split(3, -1)[2].data.mul_(2)
    return x, x.split(9, 0)


def same_type(x: Any) -> Any:
    y = x.expand(x.shape)
    return x.type_as(y), y


def by_name(x: Any) -> Any:
    y = x.mT.to("cpu", torch.float64)
    return y + (1 if y.is_contiguous() else 2)


def strided(x: Any) -> Any:
    return (x * 2).transpose(0, -1).as_strided((2, 3), (3, 1), 1), x[1].mT.as_strided((2, 2), (1, 2))


def whole(x: Any) -> Any:
    return x[:], x.view_as(x)


def turned_in_place(x: Any) -> Any:
    y = x * 2
    y.contiguous().transpose_(0, 1)
    return y


def written_image(x: Any) -> Any:
    y = torch.nn.functional.avg_pool2d(x, 1)
    y.add_(1)
    return y.to(memory_format=LAST), y


CASES: list[tuple[Callable[..., Any], Callable[[], torch.Tensor]]] = [
    (part_of_copy, lambda: image(2, 4, 3, 3)),
    (last_part_of_parts, lambda: image(2, 4, 3, 3)),
    *[
        (conversion, made)
        for conversion in (to_last, to_last_with_dtype, cpu_last, to_contiguous)
        for made in (gaps, lambda: gaps()[:, :1], lambda: image(2, 1, 3, 3), lambda: last(2, 1, 3, 3))
    ],
    (view_of_copy, lambda: image(2, 4, 3, 3).mT),
    (squeezed_copy, lambda: image(2, 4, 3, 3).mT),
    (row_of_copy, gaps),
    (row_of_copy, lambda: image(2, 4, 3, 3)),
    (copies_of_written_gaps, gaps),
    (step, lambda: image(2, 4, 3, 3)),
    (grid, lambda: image(2, 4, 3, 3)),
    (one_view_twice, lambda: image(2, 4, 3, 3)),
    (view_of_view, lambda: image(2, 4, 3, 3)),
    (data, lambda: image(2, 4, 3, 3)),
    (empty_part, lambda: image(2, 4, 1, 1)),
    (same_type, lambda: image(2, 4, 3, 3)),
    (by_name, lambda: image(2, 4, 3, 3)),
    (strided, lambda: image(2, 4, 3, 3)),
    (whole, lambda: last(2, 4, 3, 3)),
    (written_image, lambda: last(2, 4, 3, 3)),
]


@pytest.mark.parametrize("cache", ["constant values", SYMBOLIC])
@pytest.mark.parametrize("f, make", CASES)
def test_results_have_the_memory_of_eager_mode(f: Any, make: Any, cache: Any) -> None:
    """Storages, offsets, strides, values and objects; a cached program gives the same."""
    jitted = thunder.jit(f, cache=cache)
    for _ in range(2):
        assert described(jitted, make()) == described(f, make())
    assert thunder.cache_hits(jitted) == 1


@pytest.mark.parametrize(
    "f, made",
    [
        (turned_in_place, lambda: image(2, 4, 3, 3)),
        (lambda x: x[1].add_(1), lambda: image(1, 4).expand(3, 4)),
        (lambda x: x[:, 0].zero_(), lambda: image(3, 1).expand(3, 4)),
    ],
)
@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_what_no_trace_expresses_runs_eagerly(f: Any, made: Any) -> None:
    """A result of `contiguous` that turns, and writes to elements of an input that share memory."""
    jitted = thunder.jit(f)
    for _ in range(2):
        assert described(jitted, made()) == described(f, made())


# -- writes of the caller ---------------------------------------------------------------------------------------------
RESULTS: dict[str, Callable[[Any], Any]] = {
    "a row of an input": lambda x: x[0],
    "a reshaped input": lambda x: x.reshape(-1),
    "views in an object": lambda x: Pair(x.view(-1), [x.mT]),
    "a view in an object twice": lambda x: Pair(x[1], x[1].view_as(x[1])),
    "a view of a written value": lambda x: (x * 2).add_(1).mT,
    "a written value and a view": lambda x: (lambda y: (y, y[1]))((x * 3).sin_()),
    "a copy and its view": lambda x: (lambda y: (y.squeeze(0), y[2:]))(x.mT.reshape(-1)),
}


def after_write(f: Any, written: int) -> list[Any]:
    """Results, the input and its gradient, after the caller has written to a result."""
    leaf = image(2, 4).requires_grad_()
    x = leaf * 1
    results = tensors_of(f(x))
    results[written % len(results)].mul_(2)
    sum((t * t * (i + 1)).sum() for i, t in enumerate([*results, x])).backward()
    return [*[t.tolist() for t in (*results, x)], leaf.grad.tolist()]  # type: ignore[union-attr]


@pytest.mark.parametrize("written", [0, 1])
@pytest.mark.parametrize("name", list(RESULTS))
def test_the_caller_may_write_to_views_that_require_grad(name: str, written: int) -> None:
    """In the program's results, values and gradients then change as in eager mode."""
    f = RESULTS[name]
    assert after_write(thunder.jit(f), written) == after_write(f, written)


def test_views_of_an_input_that_the_program_wrote_under_no_grad() -> None:
    def f(x: Any) -> Any:
        y = x[:, None]
        with torch.no_grad():
            x.view(-1)[1:].add_(1)
        return y, x

    assert after_write(thunder.jit(f), 1) == after_write(f, 1)


def test_one_image_keeps_its_strides() -> None:
    """Of dimensions of one element, by which torch tells whether an image is channels-last."""
    for f in (whole, lambda x: torch.nn.functional.avg_pool2d(x.view_as(x), 1).mul_(2)):
        assert described(thunder.jit(f), last(1, 4, 3, 3)) == described(f, last(1, 4, 3, 3))


def test_one_image_keeps_its_strides_under_no_grad() -> None:
    """Also a view of a leaf with the same shape, whose values `as_strided` reads in the order of memory."""

    def f(x: Any) -> Any:
        with torch.no_grad():
            pooled = torch.nn.functional.avg_pool2d(x.view_as(x), 1)
            return pooled, pooled.as_strided((6,), (1,))

    leaf = last(1, 4, 3, 3).requires_grad_()
    assert described(thunder.jit(f), leaf) == described(f, leaf)


def test_an_attribute_of_a_view_of_an_input_is_kept() -> None:
    def f(x: Any) -> Any:
        y = x.view(-1)
        y.tag = 3
        return y

    jitted = thunder.jit(f)
    for _ in range(2):
        assert jitted(image(2, 4).requires_grad_()).tag == 3


def test_copies_are_split_off_without_a_walk_over_all_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing would take time that grows with the square of their number."""
    walks: list[Any] = []
    walk = weakref.WeakSet.__iter__
    monkeypatch.setattr(weakref.WeakSet, "__iter__", lambda found: [walks.append(found), walk(found)][1])

    def f(x: Any, count: int) -> Any:
        made = []
        for i in range(count):
            copy = (x + i).T.reshape(-1)
            part = copy.view(-1)[1:]
            copy.add_(1)
            made.append((copy, part))
        return made

    counts = []
    for count in (2, 12):
        walks.clear()
        found = thunder.jit(f)(image(2, 3), count)
        counts.append(len(walks))
        assert all(part.tolist() == copy[1:].tolist() for copy, part in found)
    assert counts[0] == counts[1]
