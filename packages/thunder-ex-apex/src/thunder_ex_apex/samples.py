# SPDX-License-Identifier: Apache-2.0
"""The samples with which the conformance suite tests the operators of this wheel.

The reference of an operator is what it stands for, run by torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

__all__ = ["of_losses", "of_norms"]

# Rows and classes: the fewest that are taken, rows that are not aligned, more than one block of threads reads at once.
SHAPES = ((1, 32), (7, 33), (4, 45), (3, 127), (5, 1030), (2, 32001))
HOW = (("mean", 0.0), ("sum", 0.1), ("none", 0.3))
# A tensor and what of it is normalized.
NORMALIZED: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 4), (4,)), ((2, 3, 4), (3, 4)), ((7,), (7,)), ((5, 33), (33,)), ((2, 1030), (1030,)), ((3, 4096), (4096,)),
)  # fmt: skip


def _generator(samples: Callable[[Any, Any], Iterator[tuple[tuple[Any, ...], dict[str, Any]]]]) -> Any:
    """The samples as OpInfo wants them; `samples` gets a maker of tensors, and one of what is never differentiated."""

    def generate(op: Any, device: Any, dtype: Any, requires_grad: bool, **kwargs: Any) -> Iterator[Any]:
        from thunder.tests.make_tensor import make_tensor
        from thunder.tests.opinfos import SampleInput

        made = partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad, low=-3, high=3)
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        for args, keywords in samples(made, partial(make_tensor, device=device, dtype=wide, low=0.5, high=2)):
            yield SampleInput(*args, **keywords)

    return generate


def _labels(rows: int, classes: int, device: Any) -> torch.Tensor:
    return torch.arange(rows, device=device) * 7 % classes


def _forward(make: Any, fixed: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for rows, classes in SHAPES:
        for reduction, smoothing in HOW:
            logits = make((rows, classes))
            labels = _labels(rows, classes, logits.device)
            yield (logits, labels, reduction, smoothing), {}
            ignored = int(labels[-1]) if rows > 1 else -100
            yield (make((classes, rows)).mT, labels, reduction, smoothing, ignored), {}


def _backward(make: Any, fixed: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for rows, classes in SHAPES:
        logits = make((rows, classes))
        saved = {"target": _labels(rows, classes, logits.device), "max_log_sum_exp": fixed((rows,), low=4, high=6)}
        for smoothing in (0.0, 0.2):
            yield (fixed((rows,)), logits), {**saved, "label_smoothing": smoothing}


def _layer_norm(make: Any, fixed: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for shape, last in NORMALIZED:
        yield (make(shape), last, make(last), make(last), 1e-5), {}
        yield (make(shape), last, None, None, 0.1), {}


def _layer_norm_backward(make: Any, fixed: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for shape, last in NORMALIZED:
        rows = (*shape[: len(shape) - len(last)], *([1] * len(last)))
        statistics = fixed(rows), fixed(rows)
        yield (make(shape), make(shape), last, *statistics, make(last), make(last), 1e-5), {}
        yield (make(shape), make(shape), last, *statistics, None, None, 0.1), {}


def _rms_norm(make: Any, fixed: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for shape, last in NORMALIZED:
        yield (make(shape), last, make(last), None), {}
        yield (make(shape), last, None, 0.1), {}


def _rms_norm_backward(make: Any, fixed: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for shape, last in NORMALIZED:
        rows = (*shape[: len(shape) - len(last)], *([1] * len(last)))
        yield (make(shape), make(shape), last, fixed(rows), make(last), None), {}
        yield (make(shape), make(shape), last, fixed(rows), None, 0.1), {}


def _opinfos(executor: str, family: str, table: dict[str, tuple[Any, Any, Any]]) -> list[Any]:
    from thunder.extend import get_executor
    from thunder.tests.opinfos import OpInfo

    operators = get_executor(executor).opmap
    return [
        OpInfo(
            operators[name],
            sample_input_generator=_generator(samples),
            torch_reference=like,
            family=family,
            dtypes=dtypes,
        )
        for name, (like, samples, dtypes) in table.items()
    ]


def of_losses() -> list[Any]:
    """The operators of cross-entropy."""
    from thunder_ex_apex import cross_entropy

    table = {
        "apex_cross_entropy": (cross_entropy.forward_like, _forward, cross_entropy.TAKEN),
        "apex_cross_entropy_backward": (cross_entropy.backward_like, _backward, cross_entropy.TAKEN),
    }
    return _opinfos("apex", "loss", table)


def of_norms() -> list[Any]:
    """The operators of norms."""
    import thunder.torch as ltorch
    from thunder_ex_apex import norms

    table = {
        "apex_layer_norm": (ltorch.layer_norm_forward, _layer_norm, norms.OF_LAYERS),
        "apex_layer_norm_backward": (norms.layer_norm_backward_like, _layer_norm_backward, norms.OF_LAYERS),
        "apex_rms_norm": (ltorch.rms_norm_forward, _rms_norm, norms.OF_ROOTS),
        "apex_rms_norm_backward": (norms.rms_norm_backward_like, _rms_norm_backward, norms.OF_ROOTS),
    }
    return _opinfos("apex_norm", "normalization", table)
