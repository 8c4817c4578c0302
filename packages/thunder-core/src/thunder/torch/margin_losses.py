# SPDX-License-Identifier: Apache-2.0
"""Losses with a margin: between classes, between pairs, and between near and far vectors."""

from __future__ import annotations

from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol
from thunder.torch.loss_arguments import Flag, reduced, reduction_of
from thunder.torch.losses import bad_reduction

_TAGS = (OpTags.REDUCTION_OP,)


def _signs(make: MakeTensor, *shape: int) -> Any:
    """Return targets that are 1 or -1."""
    return make(shape, low=0, high=2, dtype=torch.int64) * 2 - 1


def _each_reduction(make: MakeTensor, *shapes: tuple[int, ...], **options: Any) -> Any:
    for reduction in ("mean", "sum", "none"):
        yield SampleInput(*[make(s) for s in shapes], _signs(make, *shapes[0][:1]), reduction=reduction, **options)


@torchsymbol(torch.nn.functional.soft_margin_loss, is_method=False, tags=_TAGS, autocast="float32")
def soft_margin_loss(
    input: Any, target: Any, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean"
) -> Any:
    """Compute log(1 + exp(-target * input)) for targets 1 and -1."""
    reduction = reduction_of(reduction, size_average, reduce)
    return reduced(ltorch.log1p(ltorch.exp(-target * input)), reduction, input.dtype)


@soft_margin_loss.samples
def _(make: MakeTensor) -> Any:
    yield from _each_reduction(make, (5,))
    yield SampleInput(make((2, 3)), _signs(make, 2, 3).to(make(()).dtype))


soft_margin_loss.errors(bad_reduction)


@torchsymbol(torch.nn.functional.hinge_embedding_loss, is_method=False, tags=_TAGS, autocast="float32")
def hinge_embedding_loss(
    input: Any, target: Any, margin: float = 1.0, size_average: Flag = None, reduce: Flag = None,
    reduction: str = "mean",
) -> Any:  # fmt: skip
    """Return `input` where the target is 1, and max(0, margin - input) where it is -1."""
    reduction = reduction_of(reduction, size_average, reduce)
    below = ltorch.clamp_min((int(margin) if dtypes.is_exact_dtype(input.dtype) else margin) - input, 0)
    loss = ltorch.where(target != 1, below, 0) + ltorch.where(target != -1, input, 0)
    return reduced(loss, reduction)


@hinge_embedding_loss.samples
def _(make: MakeTensor) -> Any:
    yield from _each_reduction(make, (5,))
    yield SampleInput(make((2, 3)), _signs(make, 2, 3), 3.0)


hinge_embedding_loss.errors(bad_reduction)


@torchsymbol(torch.nn.functional.margin_ranking_loss, is_method=False, tags=_TAGS, autocast="float32")
def margin_ranking_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0, size_average: Flag = None, reduce: Flag = None,
    reduction: str = "mean",
) -> Any:  # fmt: skip
    """Compute max(0, -target * (input1 - input2) + margin)."""
    reduction = reduction_of(reduction, size_average, reduce)
    check(
        input1.ndim == input2.ndim == target.ndim,
        lambda: (
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: input1: "
            f"torch.Size({list(input1.shape)}), input2: torch.Size({list(input2.shape)}), target: "
            f"torch.Size({list(target.shape)}) "
        ),
    )
    return reduced(ltorch.clamp_min(-target * (input1 - input2) + float(margin), 0), reduction)


@margin_ranking_loss.samples
def _(make: MakeTensor) -> Any:
    yield from _each_reduction(make, (5,), (5,))
    yield from _each_reduction(make, (5,), (5,), margin=2.0)


@margin_ranking_loss.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,)), make((3,)), make((3, 3))), RuntimeError, "should have same dimension"


@torchsymbol(torch.nn.functional.cosine_embedding_loss, is_method=False, tags=_TAGS, autocast="float32")
def cosine_embedding_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0, size_average: Flag = None, reduce: Flag = None,
    reduction: str = "mean",
) -> Any:  # fmt: skip
    """Compute 1 - cos (target 1), or max(0, cos - margin) (target -1), with the cosine between the inputs."""
    reduction = reduction_of(reduction, size_average, reduce)
    check(target.ndim <= 1, lambda: "0D or 1D target tensor expected, multi-target not supported")
    check(
        input1.ndim == input2.ndim == target.ndim + 1,
        lambda: (
            f"{target.ndim}D target tensor expects {target.ndim + 1}D input tensors, but found inputs with sizes "
            f"{list(input1.shape)} and {list(input2.shape)}."
        ),
    )
    lengths = ((clang.sum(x * x, -1) + 1e-12) for x in (input1, input2))
    first, second = lengths
    cosine = clang.sum(input1 * input2, -1) / ltorch.sqrt(first * second)
    together = ltorch.where(target == 1, 1 - cosine, 0.0)
    return reduced(together + ltorch.where(target == -1, ltorch.clamp_min(cosine - margin, 0), 0.0), reduction)


@cosine_embedding_loss.samples
def _(make: MakeTensor) -> Any:
    yield from _each_reduction(make, (5, 4), (5, 4))
    yield from _each_reduction(make, (5, 4), (5, 4), margin=0.3)
    yield SampleInput(make((4,)), make((4,)), _signs(make))


@cosine_embedding_loss.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 4)), make((3, 4)), make((3, 4))), RuntimeError, "multi-target not supported"
    yield SampleInput(make((4,)), make((4,)), make((3,))), RuntimeError, "1D target tensor expects 2D input tensors"


@torchsymbol(torch.nn.functional.triplet_margin_loss, is_method=False, tags=_TAGS, autocast="float32")
def triplet_margin_loss(
    anchor: Any, positive: Any, negative: Any, margin: float = 1.0, p: float = 2, eps: float = 1e-6,
    swap: bool = False, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    """Compute max(0, d(anchor, positive) - d(anchor, negative) + margin) for the distance d."""
    reduction = reduction_of(reduction, size_average, reduce)
    check(margin > 0, lambda: f"margin must be greater than 0, got {margin}", ValueError)
    check(
        anchor.ndim == positive.ndim == negative.ndim,
        lambda: (
            "The anchor, positive, and negative tensors are expected to have the same number of dimensions, but got: "
            "anchor "
            f"{anchor.ndim}D, positive {positive.ndim}D, and negative {negative.ndim}D inputs"
        ),
    )
    near = ltorch.pairwise_distance(anchor, positive, p, eps)
    far = ltorch.pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = ltorch.minimum(far, ltorch.pairwise_distance(positive, negative, p, eps))
    return reduced(ltorch.clamp_min(margin + near - far, 0), reduction)


@triplet_margin_loss.samples
def _(make: MakeTensor) -> Any:
    for reduction in ("mean", "sum", "none"):
        yield SampleInput(make((3, 4)), make((3, 4)), make((3, 4)), reduction=reduction)
    yield SampleInput(make((3, 4)), make((3, 4)), make((3, 4)), 2.0, 1.0, 1e-3, True)


@triplet_margin_loss.errors
def _(make: MakeTensor) -> Any:
    x = make((3, 4))
    yield SampleInput(x, x, make((3,))), RuntimeError, "expected to have the same number of dimensions"


@torchsymbol(torch.nn.functional.multilabel_soft_margin_loss, is_method=False, tags=_TAGS)
def multilabel_soft_margin_loss(
    input: Any, target: Any, weight: Any = None, size_average: Flag = None, reduce: Flag = None, reduction: str = "mean"
) -> Any:
    """Compute the mean over classes of the binary cross-entropy of sigmoid(input)."""
    reduction = reduction_of(reduction, size_average, reduce)
    loss = -(target * ltorch.logsigmoid(input) + (1 - target) * ltorch.logsigmoid(-input))
    if weight is not None:
        loss = loss * weight
    return reduced(clang.sum(loss, input.ndim - 1) / input.shape[-1], reduction)


@multilabel_soft_margin_loss.samples
def _(make: MakeTensor) -> Any:
    for reduction in ("mean", "sum", "none"):
        yield SampleInput(make((3, 4)), make((3, 4), low=0, high=1), reduction=reduction)
    yield SampleInput(make((3, 4)), make((3, 4), low=0, high=1), make((4,), low=0.1, high=2))


multilabel_soft_margin_loss.errors(bad_reduction)


@torchsymbol(torch.nn.functional.multi_margin_loss, is_method=False, tags=_TAGS, autocast="float32")
def multi_margin_loss(
    input: Any, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None, size_average: Flag = None,
    reduce: Flag = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    """Sum max(0, margin - input[target] + input[class]) ** p over the other classes, and divide by the class count."""
    reduction = reduction_of(reduction, size_average, reduce)
    check(p in (1, 2), lambda: "only p == 1 and p == 2 supported", ValueError)
    x = ltorch.unsqueeze(input, 0) if input.ndim <= 1 else input
    classes = x.shape[1]
    check(
        weight is None or tuple(weight.shape) == (classes,),
        lambda: f"inconsistent weight size, expected {classes} but got {list(weight.shape)}",
    )
    index = ltorch.reshape(target, (x.shape[0], 1))
    gap = margin - ltorch.gather(x, 1, index) + x
    short = ltorch.where(gap > 0, gap, 0.0)
    if p == 2:
        short = short * short
    if weight is not None:
        short = short * ltorch.reshape(ltorch.index_select(weight, 0, ltorch.reshape(target, (-1,))), (-1, 1))
    numbers = ltorch.arange(classes, device=input.device)
    loss = clang.sum(ltorch.where(numbers == index, 0.0, short), 1) / classes
    return reduced(ltorch.reshape(loss, ()) if target.ndim == 0 and reduction == "none" else loss, reduction)


@multi_margin_loss.samples
def _(make: MakeTensor) -> Any:
    for reduction in ("mean", "sum", "none"):
        target = make((3,), low=0, high=4, dtype=torch.int64)
        yield SampleInput(make((3, 4)), target, reduction=reduction)
        weight = make((4,), low=0.1, high=2, requires_grad=False)
        yield SampleInput(make((3, 4)), target, 2, 0.5, weight, reduction=reduction)
    yield SampleInput(make((4,)), make((), low=0, high=4, dtype=torch.int64))


@multi_margin_loss.errors
def _(make: MakeTensor) -> Any:
    target = make((3,), low=0, high=4, dtype=torch.int64)
    yield SampleInput(make((3, 4)), target, 3), ValueError, "only p == 1 and p == 2 supported"
    yield SampleInput(make((3, 4)), target, weight=make((3,))), RuntimeError, "inconsistent weight size, expected 4"
