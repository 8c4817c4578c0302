# SPDX-License-Identifier: Apache-2.0
"""The samples with which the conformance suite tests the operators of this wheel.

The reference of an operator is what it stands for, run by torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

__all__ = ["drawing_opinfos", "opinfos"]

# (shape of the logits, shape of the labels): rows of neighbours, one row, classes that are apart, few and many classes.
SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((4, 5), (4,)), ((7,), ()), ((2, 5, 3), (2, 3)), ((2, 4, 3, 2), (2, 3, 2)), ((3, 1030), (3,)), ((5, 2), (5,)),
)  # fmt: skip
HOW = (("mean", 0.0), ("sum", 0.1), ("none", 0.3))


class _Makers:
    """Makes tensors of a device and dtype."""

    def __init__(self, device: Any, dtype: Any, requires_grad: bool):
        from thunder.tests.make_tensor import make_tensor

        self.logits: Callable[..., Any] = partial(
            make_tensor, device=device, dtype=dtype, requires_grad=requires_grad, low=-3, high=3
        )
        self.constant: Callable[..., Any] = partial(make_tensor, device=device, dtype=dtype)
        self.saved: Callable[..., Any] = partial(
            make_tensor, device=device, dtype=torch.float64 if dtype is torch.float64 else torch.float32
        )
        self.device = device

    def labels(self, shape: tuple[int, ...], classes: int) -> torch.Tensor:
        """Class numbers."""
        made = torch.arange(max(torch.Size(shape).numel(), 1), device=self.device) * 3 % classes
        return made.reshape(shape)


def _numbers(makers: _Makers) -> Iterator[tuple[Any, ...]]:
    """Logits, labels, weight, ignore_index, reduction, smoothing."""
    for shape, rows in SHAPES:
        classes = shape[0] if len(shape) == 1 else shape[1]
        for reduction, smoothing in HOW:
            labels = makers.labels(rows, classes)
            yield makers.logits(shape), labels, None, -100, reduction, smoothing
            weight = makers.constant((classes,), low=0.1, high=2)
            yield makers.logits(shape), labels, weight, 1 if classes > 2 else -100, reduction, smoothing


def _probabilities(makers: _Makers) -> Iterator[tuple[Any, ...]]:
    """Logits, probabilities, weight, reduction, smoothing."""
    for shape, _ in SHAPES:
        classes = shape[0] if len(shape) == 1 else shape[1]
        for reduction, smoothing in HOW:
            for weight in (None, makers.constant((classes,), low=0.1, high=2)):
                yield makers.logits(shape), makers.constant(shape, low=0, high=1), weight, reduction, smoothing


def _generator(samples: Callable[[_Makers], Iterator[tuple[Any, ...]]]) -> Any:
    def generate(op: Any, device: Any, dtype: Any, requires_grad: bool, **kwargs: Any) -> Iterator[Any]:
        from thunder.tests.opinfos import SampleInput

        for args in samples(_Makers(device, dtype, requires_grad)):
            yield SampleInput(*args)

    return generate


def _loss(makers: _Makers) -> Iterator[tuple[Any, ...]]:
    for logits, labels, weight, ignore_index, reduction, smoothing in _numbers(makers):
        yield logits, labels, weight, None, ignore_index, None, reduction, smoothing
    for logits, target, weight, reduction, smoothing in _probabilities(makers):
        yield logits, target, weight, None, -100, None, reduction, smoothing


def _shape_of_rows(x: torch.Tensor) -> tuple[int, ...]:
    return tuple(x.shape[:1] + x.shape[2:]) if x.ndim > 1 else ()


def _backward(makers: _Makers) -> Iterator[tuple[Any, ...]]:
    for logits, labels, weight, ignore_index, reduction, smoothing in _numbers(makers):
        rows = _shape_of_rows(logits)
        lse, total = makers.saved(rows, low=3, high=5), makers.saved((), low=1, high=4)
        if reduction == "mean":  # the sum of weights is what the loss was divided by
            total = _sum_of_weights(labels, weight, ignore_index, total)
        g = makers.logits(rows if reduction == "none" else ())
        yield g, logits, labels, lse, total, weight, ignore_index, reduction, smoothing


def _sum_of_weights(labels: torch.Tensor, weight: Any, ignore_index: int, like: torch.Tensor) -> torch.Tensor:
    counts = labels != ignore_index
    chosen = counts.to(like.dtype) if weight is None else weight.to(like.dtype)[labels] * counts
    return chosen.sum()


def _soft_backward(makers: _Makers) -> Iterator[tuple[Any, ...]]:
    for logits, target, weight, reduction, smoothing in _probabilities(makers):
        rows = _shape_of_rows(logits)
        lse, mass = makers.saved(rows, low=3, high=5), makers.saved(rows, low=0, high=2)
        g = makers.logits(rows if reduction == "none" else ())
        yield g, logits, target, lse, mass, weight, reduction, smoothing


def _linear(makers: _Makers) -> Iterator[tuple[Any, ...]]:
    """Input, weight, bias, labels, weight of classes, ignore_index, reduction, smoothing, dtype of the loss."""
    make = makers.logits
    for rows, features, classes, reduction, smoothing in ((5, 8, 7, "mean", 0.0), (3, 4, 9, "sum", 0.1)):
        labels = makers.labels((rows,), classes)
        yield make((rows, features)), make((classes, features)), None, labels, None, -100, reduction, smoothing, None
        weight, bias = makers.constant((classes,), low=0.1, high=2), make((classes,))
        yield make((rows, features)), make((classes, features)), bias, labels, weight, 0, reduction, smoothing, None


def _linear_forward(makers: _Makers) -> Iterator[tuple[Any, ...]]:
    for args in _linear(makers):
        yield *args, (True, True, args[2] is not None)
        yield *args, (False, True, False)


def opinfos() -> list[Any]:
    """One for each operator of the cross-entropy executor."""
    from thunder.extend import get_executor
    from thunder.tests.opinfos import OpInfo
    from thunder_ex_triton.cross_entropy import linear, operators

    operator = get_executor("triton_crossentropy").opmap
    table = (
        ("triton_crossentropy", operators.Loss, _loss),
        ("triton_crossentropy_forward", operators.LossForward, _numbers),
        ("triton_crossentropy_backward", operators.LossBackward, _backward),
        ("triton_crossentropy_soft_forward", operators.SoftForward, _probabilities),
        ("triton_crossentropy_soft_backward", operators.SoftBackward, _soft_backward),
        ("triton_linear_crossentropy", linear.LinearLoss, _linear),
        ("triton_linear_crossentropy_forward", linear.LinearLossForward, _linear_forward),
    )
    return [
        OpInfo(operator[name], sample_input_generator=_generator(samples), torch_reference=of.like, family="loss")
        for name, of, samples in table
    ]


# -- random numbers ----------------------------------------------------------------------------------------------------
def _uniform(seed: torch.Tensor, shape: tuple[int, ...], device: Any) -> torch.Tensor:
    """The numbers that a kernel makes of a seed, one after the other."""
    from thunder.tests.philox import philox

    number, offset = seed.tolist()
    places = range(torch.Size(shape).numel())
    words = [philox(number, (place // 4, offset, offset >> 32, 0))[place % 4] for place in places]
    signed = torch.tensor([w - (1 << 32) if w >> 31 else w for w in words], dtype=torch.int64)
    folded = torch.where(signed < 0, -signed - 1, signed).to(torch.float32) * 4.6566127342e-10
    return folded.reshape(shape).to(seed.device)


def drawing_opinfos() -> list[Any]:
    """One for each operator of the fusion executor."""
    from thunder.tests import seeded
    from thunder_ex_triton.fusion.random import drawn_seeds

    return seeded.opinfos("triton", _uniform, drawn_seeds, ((123456789012, -7), (-1, 1 << 40)))
