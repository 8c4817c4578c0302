# SPDX-License-Identifier: Apache-2.0
"""Sample inputs of operators, which are declared beside the operator.

A sample generator receives a tensor factory `make(*shape, **options)` with a preset device, dtype and requires_grad.
It yields `SampleInput`s. An error generator yields `(SampleInput, exception type, message pattern)`. This module also
contains generators for whole classes of operators (elementwise, reductions).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

__all__ = [
    "ErrorSample",
    "MakeTensor",
    "SampleInput",
    "broadcasting_pairs",
    "elementwise_binary",
    "elementwise_unary",
    "reduction",
]


class MakeTensor(Protocol):
    """A tensor factory, `make(*shape, **options)`, for one device and dtype."""

    @property
    def device(self) -> Any:
        """The device of the tensors that the factory creates."""

    @property
    def dtype(self) -> Any:
        """The dtype of the tensors that the factory creates."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return a tensor; the positional arguments are its shape."""


class SampleInput:
    """The arguments of one call."""

    __slots__ = ("args", "kwargs", "unless")

    def __init__(self, *args: Any, **kwargs: Any):
        self.args = args
        self.kwargs = kwargs
        self.unless: dict[str, Any] | None = None

    def left_out_when(self, reason: str, **conditions: Any) -> SampleInput:
        """Skip the sample if the conditions are true, because torch then crashes or reads out of bounds.

        The conditions have the format of known failures: `device="cuda"`, `torch="<2.12"`, `library="acme<2"`.
        """
        assert reason.strip() and conditions, "a skipped sample needs a reason and conditions"
        self.unless = conditions
        return self

    def __repr__(self) -> str:
        return f"[SampleInput args={self.args} kwargs={self.kwargs}]"


ErrorSample = tuple[SampleInput, type[Exception], str]


def elementwise_unary(make: MakeTensor, **domain: Any) -> Iterator[SampleInput]:
    """Yield the shapes and layouts that every unary operation must accept.

    `domain` contains `low=` and `high=`, the bounds of the values.
    """
    for shape in ((4, 4), (), (0,), (3, 0, 2), (8, 3, 5)):
        yield SampleInput(make(shape, **domain))
    yield SampleInput(make((5, 3), **domain).mT)
    yield SampleInput(make((4, 1), **domain).expand(4, 3))


def broadcasting_pairs(make: MakeTensor, **domain: Any) -> Iterator[SampleInput]:
    """Yield pairs of tensors with different shapes that broadcast, including empty and expanded tensors."""
    for a, b in (((4, 1), (4, 3)), ((3,), (2, 3)), ((), (2, 2)), ((2, 2), ()), ((0, 3), (1, 3)), ((2, 1, 3), (4, 1))):
        yield SampleInput(make(a, **domain), make(b, **domain))
    yield SampleInput(make((1, 3), **domain).expand(2, 3), make((2, 3), **domain))


def elementwise_binary(make: MakeTensor, *, numbers: bool = True, **domain: Any) -> Iterator[SampleInput]:
    """Yield pairs of equal shapes first, then broadcasting, empty, 0-d, strided and expanded pairs, and numbers."""
    yield SampleInput(make((4, 4), **domain), make((4, 4), **domain))
    yield from broadcasting_pairs(make, **domain)
    yield SampleInput(make((5, 3), **domain).mT, make((3, 5), **domain))
    if numbers:
        yield SampleInput(make((2, 3), **domain), 2)


def reduction(make: MakeTensor, *, empty: bool = True, **domain: Any) -> Iterator[SampleInput]:
    """Yield the arguments `(a)` and `(a, dim, keepdim)` with the shapes that every reduction must accept."""
    for shape in ((4, 4), (), (8, 3, 5), *(((0,), (3, 0, 2)) if empty else ())):
        yield SampleInput(make(shape, **domain))
    for shape, dim, keepdim in (((4, 4), 1, False), ((2, 3, 4), (0, -1), True), ((2, 3, 4), -2, False), ((), 0, False)):
        yield SampleInput(make(shape, **domain), dim, keepdim=keepdim)
    yield SampleInput(make((5, 3), **domain).mT, 0)
