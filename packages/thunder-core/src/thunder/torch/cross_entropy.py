# SPDX-License-Identifier: Apache-2.0
"""Classification losses: negative log likelihood and cross-entropy, for class indices or class probabilities.

Classes are dimension 1 of `(batch, classes, …)`, or the only dimension. For class indices, the gradient of
cross-entropy saves the input and the logsumexp of each row (the logarithm of the sum of exponentials). An executor can
provide a gradient rule that saves more, as torch's executor does.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims import get_grad, put_grad, put_grads
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.core.symint.numbers import equal_shapes
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol
from thunder.torch.loss_arguments import Flag, reduction_of, upcast

_TAGS = (OpTags.REDUCTION_OP,)


# -- what both check ---------------------------------------------------------------------------------------------------
def _class_dim(input: Any) -> int:
    return 0 if input.ndim == 1 else 1


def _check_numbers(input: Any, target: Any, weight: Any) -> None:
    """Check class indices as torch does."""
    if not dtypes.is_float_dtype(input.dtype):
        raise NotImplementedError(f'"nll_loss_out_frame" not implemented for {input.dtype}')
    check(input.ndim > 0, lambda: f"Expected 1 or more dimensions (got {input.ndim})", ValueError)
    check(
        target.dtype in (dtypes.int64, dtypes.uint8),
        lambda: f"expected target dtype to be Long or Byte, but got {target.dtype}",
    )
    classes = input.shape[_class_dim(input)]
    if input.ndim == 1:
        check(
            target.ndim == 0 or target.shape == (1,),
            lambda: f"For 1D input, 1D target must have size 1, but got target size: {list(target.shape)}",
        )
    else:
        check(
            target.ndim > 0 and input.shape[0] == target.shape[0],
            lambda: (
                f"Expected input batch_size ({input.shape[0]}) to match target batch_size "
                f"({target.shape[0] if target.ndim else 0})."
            ),
            ValueError,
        )
        expected = (input.shape[0], *input.shape[2:])
        what = "0D or 1D target tensor expected, multi-target not supported"
        check(
            tuple(target.shape) == expected,
            lambda: what if input.ndim == 2 else f"Expected target size {list(expected)}, got {list(target.shape)}",
        )
    _check_weight(weight, classes)
    check(
        weight is None or weight.dtype is input.dtype,
        lambda: f"expected scalar type {input.dtype} but found {weight.dtype} (the weight of the classes)",
    )


def _check_weight(weight: Any, classes: int) -> None:
    check(
        weight is None or tuple(weight.shape) == (classes,),
        lambda: (
            f"weight tensor should be defined either for all {classes} classes or no classes but got weight tensor of "
            "shape: "
            f"{list(weight.shape)}"
        ),
    )


def check_constant(weight: Any) -> None:
    """Raise torch's error if a gradient of the class weights is requested: they have none."""
    check(
        weight is None or not weight.requires_grad,
        lambda: (
            "The function 'nll_loss_forward' is not differentiable with respect to argument 'weight'. This input "
            "cannot have requires_grad True."
        ),
    )


def _target_like_rows(input: Any, target: Any) -> Any:
    """Return class indices as int64, with the shape of the input without its class dimension."""
    if input.ndim == 1 and target.ndim == 1:
        target = ltorch.reshape(target, ())
    return clang.maybe_convert_to_dtype(target, dtypes.int64)


def _picked(x: Any, dim: int, index: Any) -> Any:
    """Return the element of each row at the index of that row."""
    return ltorch.squeeze(ltorch.gather(x, dim, ltorch.unsqueeze(index, dim)), dim)


def _by_class(weight: Any, input: Any) -> Any:
    return weight if input.ndim == 1 else ltorch.reshape(weight, (1, -1, *([1] * (input.ndim - 2))))


def _rows(input: Any, target: Any, weight: Any, ignore_index: int) -> tuple[Any, Any, Any]:
    """Return valid class indices, the weight of each row's class, and a mask of the rows that count."""
    target = _target_like_rows(input, target)
    counts = target != ignore_index
    safe = ltorch.where(counts, target, 0)
    if weight is None:
        of_row = clang.maybe_convert_to_dtype(counts, clang.reductions.compute_dtype(input.dtype))
    else:
        flat = ltorch.index_select(weight, 0, ltorch.reshape(safe, (-1,)))
        of_row = ltorch.where(counts, ltorch.reshape(flat, safe.shape), 0.0)
    return safe, of_row, counts


def rule_options(
    weight: Any = None, size_average: Flag = None, ignore_index: int = -100, reduce: Flag = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> tuple[Any, int, str, float]:  # fmt: skip
    """Return weight, ignore_index, reduction and label_smoothing, given the loss's arguments after the target."""
    return weight, ignore_index, reduction_of(reduction, size_average, reduce), label_smoothing


# -- negative log likelihood -------------------------------------------------------------------------------------------
def _nll(input: Any, target: Any, weight: Any, reduction: str, ignore_index: int) -> tuple[Any, Any]:
    _check_numbers(input, target, weight)
    x, w = upcast(input, weight)
    safe, of_row, counts = _rows(x, target, w, ignore_index)
    loss = ltorch.where(counts, -_picked(x, _class_dim(input), safe) * of_row, 0.0)
    # torch does not sum the weights if it does not divide by the sum.
    total = clang.sum(of_row) if reduction != "none" else ltorch.zeros((), dtype=of_row.dtype, device=input.device)
    if reduction != "none":
        loss = clang.sum(loss)
    if reduction == "mean":
        loss = loss / total
    return clang.maybe_convert_to_dtype(loss, input.dtype), clang.maybe_convert_to_dtype(total, input.dtype)


@torchsymbol(torch.nn.functional.nll_loss, is_method=False, tags=_TAGS, autocast="float32")
def nll_loss(
    input: Any, target: Any, weight: Any = None, size_average: Flag = None, ignore_index: int = -100,
    reduce: Flag = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    """Compute minus the log-probability of each row's class, given by `input`. The mean is weighted."""
    return _nll(input, target, weight, reduction_of(reduction, size_average, reduce), ignore_index)[0]


@torchsymbol(id="torch.nll_loss_forward", tags=_TAGS)
def nll_loss_forward(input: Any, target: Any, weight: Any, reduction: str, ignore_index: int) -> Any:
    """Return the result of nll_loss, and the sum of the weights of all rows that count."""
    return _nll(input, target, weight, reduction, ignore_index)


@torchsymbol(id="torch.nll_loss_backward")
def nll_loss_backward(
    grad: Any, input: Any, target: Any, weight: Any, reduction: str, ignore_index: int, total_weight: Any
) -> Any:
    """Return the gradient of the input of nll_loss. Only the shape of `input` is read."""
    g, total, w = upcast(grad, total_weight, weight)
    kind = clang.reductions.compute_dtype(input.dtype)
    target = _target_like_rows(input, target)
    counts = target != ignore_index
    safe = ltorch.where(counts, target, 0)
    share = -(g / total if reduction == "mean" else g)
    if w is not None:
        flat = ltorch.index_select(w, 0, ltorch.reshape(safe, (-1,)))
        share = share * ltorch.reshape(flat, safe.shape)
    dim = _class_dim(input)
    share = ltorch.unsqueeze(ltorch.expand(ltorch.where(counts, share, 0.0), safe.shape), dim)
    zeros = ltorch.zeros(input.shape, dtype=kind, device=input.device)
    out = ltorch.scatter(zeros, dim, ltorch.unsqueeze(safe, dim), clang.maybe_convert_to_dtype(share, kind))
    return clang.maybe_convert_to_dtype(out, input.dtype)


@nll_loss.grad
def _(input: Any, target: Any, *options: Any, **named: Any) -> Any:
    weight, ignore_index, reduction, _ = rule_options(*options, **named)
    check_constant(weight)
    out, total = nll_loss_forward(input, target, weight, reduction, ignore_index)
    put_grad(input, nll_loss_backward(get_grad(out), input, target, weight, reduction, ignore_index, total))
    return out


def _class_numbers(make: MakeTensor, shape: tuple[int, ...], classes: int) -> Any:
    return make(shape, low=0, high=classes, dtype=torch.int64)


# (shape of input, shape of target)
_SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((4, 5), (4,)),
    ((5,), ()),
    ((2, 5, 3), (2, 3)),
    ((2, 5, 3, 2), (2, 3, 2)),
    ((1, 5, 2, 1, 2), (1, 2, 1, 2)),
)


def _weights(make: MakeTensor) -> Any:
    return make((5,), low=0.1, high=2, requires_grad=False)


@nll_loss.samples
def _(make: MakeTensor) -> Any:
    for shape, rows in _SHAPES:
        for reduction in ("mean", "sum", "none"):
            yield SampleInput(make(shape), _class_numbers(make, rows, 5), reduction=reduction)
        yield SampleInput(make(shape), _class_numbers(make, rows, 5), _weights(make))
    yield SampleInput(make((4, 5)), _class_numbers(make, (4,), 5), ignore_index=1)
    yield SampleInput(make((4, 5)), _class_numbers(make, (4,), 5), _weights(make), ignore_index=1, reduction="none")
    yield SampleInput(make((2, 5, 3)), _class_numbers(make, (2, 3), 5), _weights(make), ignore_index=2)
    yield SampleInput(make((0, 5)), _class_numbers(make, (0,), 5), reduction="sum")


def _number_errors(make: MakeTensor) -> Any:
    x = make((3, 5))
    yield SampleInput(x, _class_numbers(make, (2,), 5)), ValueError, r"Expected input batch_size \(3\) to match"
    yield SampleInput(x, _class_numbers(make, (3,), 5).int()), RuntimeError, "expected target dtype to be Long or Byte"
    target = _class_numbers(make, (3,), 5)
    yield SampleInput(x, target, make((4,))), RuntimeError, "either for all 5 classes or no classes"
    yield SampleInput(make((2, 5, 3)), _class_numbers(make, (2, 4), 5)), RuntimeError, r"Expected target size \[2, 3\]"
    yield SampleInput(x, target, reduction="x"), ValueError, "x is not a valid value for reduction"


nll_loss.errors(_number_errors)


def _nll_forward_samples(make: MakeTensor) -> Any:
    for shape, rows in _SHAPES:
        for weight, reduction in ((None, "mean"), (_weights(make), "mean"), (None, "none")):
            yield SampleInput(make(shape), _class_numbers(make, rows, 5), weight, reduction, -100)


nll_loss_forward.samples(_nll_forward_samples)


@nll_loss_backward.samples
def _(make: MakeTensor) -> Any:
    for shape, rows in _SHAPES:
        x, target = make(shape), _class_numbers(make, rows, 5)
        yield SampleInput(make(()), x, target, None, "mean", -100, make((), low=1))
        yield SampleInput(make(rows), x, target, _weights(make), "none", 1, make((), low=1))


# -- cross-entropy of class numbers ------------------------------------------------------------------------------------
def _cross_entropy_of_numbers(
    input: Any, target: Any, weight: Any, ignore_index: int, reduction: str, smoothing: float
) -> tuple[Any, Any]:
    """Return the loss, and the logsumexp of each row."""
    _check_numbers(input, target, weight)
    dim = _class_dim(input)
    x, w = upcast(input, weight)
    lse = ltorch.logsumexp(x, dim)
    safe, of_row, counts = _rows(x, target, w, ignore_index)
    loss = (lse - _picked(x, dim, safe)) * of_row
    if smoothing:
        classes = input.shape[dim]
        if w is None:
            spread = lse * classes - clang.sum(x, dim)
        else:
            spread = clang.sum((ltorch.unsqueeze(lse, dim) - x) * _by_class(w, x), dim)
        loss = loss * (1 - smoothing) + spread * (smoothing / classes)
    loss = ltorch.where(counts, loss, 0.0)
    if reduction != "none":
        loss = clang.sum(loss)
    if reduction == "mean":
        loss = loss / clang.sum(of_row)
    return clang.maybe_convert_to_dtype(loss, input.dtype), lse


@torchsymbol(id="torch.cross_entropy_forward", tags=_TAGS)
def cross_entropy_forward(
    input: Any, target: Any, weight: Any, ignore_index: int, reduction: str, label_smoothing: float
) -> Any:
    """Return the cross-entropy for class indices, and the logsumexp of each row."""
    return _cross_entropy_of_numbers(input, target, weight, ignore_index, reduction, label_smoothing)


@torchsymbol(id="torch.cross_entropy_backward")
def cross_entropy_backward(
    grad: Any,
    input: Any,
    target: Any,
    lse: Any,
    weight: Any,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> Any:
    """Return the gradient of the input of cross_entropy, for class indices."""
    dim = _class_dim(input)
    classes = input.shape[dim]
    g, x, w = upcast(grad, input, weight)
    safe, of_row, counts = _rows(x, target, w, ignore_index)
    share = ltorch.where(counts, g / clang.sum(of_row) if reduction == "mean" else g, 0.0)
    on_class = share * of_row * (1 - label_smoothing)
    on_all = share * (label_smoothing / classes)
    total = on_class + on_all * (classes if w is None else clang.sum(w)) if label_smoothing else on_class
    softmax = ltorch.exp(x - ltorch.unsqueeze(lse, dim))
    numbers = ltorch.arange(classes, device=input.device)
    hit = ltorch.unsqueeze(safe, dim) == (numbers if input.ndim == 1 else _by_class(numbers, x))
    out = softmax * ltorch.unsqueeze(total, dim) - ltorch.where(hit, ltorch.unsqueeze(on_class, dim), 0.0)
    if label_smoothing:
        spread = ltorch.unsqueeze(on_all, dim)
        out = out - (spread if w is None else spread * _by_class(w, x))
    # Rows that do not count have no gradient, whatever their values are.
    return clang.maybe_convert_to_dtype(ltorch.where(ltorch.unsqueeze(counts, dim), out, 0.0), input.dtype)


# -- cross-entropy of probabilities ------------------------------------------------------------------------------------
def _check_probabilities(input: Any, target: Any, weight: Any, ignore_index: int) -> None:
    check(
        dtypes.is_float_dtype(target.dtype),
        lambda: f"Expected floating point type for target with class probabilities, got {target.dtype}",
    )
    check(ignore_index < 0, lambda: "ignore_index is not supported for floating point target")
    _check_weight(weight, input.shape[_class_dim(input)])


def _smoothed(target: Any, smoothing: float, classes: int) -> Any:
    return target * (1 - smoothing) + smoothing / classes if smoothing else target


def _number_of_rows(input: Any) -> float:
    return math.prod(input.shape) / max(input.shape[_class_dim(input)], 1)


def _of_probabilities(log_probabilities: Any, target: Any, weight: Any, reduction: str, smoothing: float) -> Any:
    dim = _class_dim(log_probabilities)
    x, t, w = upcast(log_probabilities, target, weight)
    product = x * _smoothed(t, smoothing, x.shape[dim])
    if w is not None:
        product = product * _by_class(w, x)
    loss = -clang.sum(product, dim if reduction == "none" else None)
    if reduction == "mean":
        loss = loss / _number_of_rows(x)
    return clang.maybe_convert_to_dtype(loss, log_probabilities.dtype)


def probability_rule(input: Any, target: Any, weight: Any, reduction: str, smoothing: float) -> Any:
    """Return the gradient rule of cross-entropy for class probabilities."""
    dim = _class_dim(input)
    x = ltorch.log_softmax(input, dim)
    out = _of_probabilities(x, target, weight, reduction, smoothing)
    g = get_grad(out)
    if reduction == "none":
        g = ltorch.unsqueeze(g, dim)
    elif reduction == "mean":
        g = g / _number_of_rows(input)
    smoothed = _smoothed(target, smoothing, input.shape[dim])
    if weight is not None:
        of_weight = -(g * x * smoothed)
        rows = [d for d in range(x.ndim) if d != dim]
        of_weight = clang.maybe_convert_to_dtype(clang.sum(of_weight, rows) if rows else of_weight, weight.dtype)
        put_grad(weight, of_weight)
        g = g * _by_class(weight, input)
    of_x = clang.maybe_convert_to_dtype(ltorch.expand(-(g * smoothed), x.shape), x.dtype)
    of_target = clang.maybe_convert_to_dtype(-(g * x) * (1 - smoothing), target.dtype)
    put_grads((input, target), (ltorch.log_softmax_backward(of_x, x, dim), of_target))
    return out


# -- cross-entropy -----------------------------------------------------------------------------------------------------
def _check_smoothing(label_smoothing: float) -> None:
    check(
        0.0 <= label_smoothing <= 1.0,
        lambda: f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}",
    )


@torchsymbol(torch.nn.functional.cross_entropy, is_method=False, tags=_TAGS, autocast="float32")
def cross_entropy(
    input: Any, target: Any, weight: Any = None, size_average: Flag = None, ignore_index: int = -100,
    reduce: Flag = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Compute minus the log-probability of the target under softmax(input), for class indices or probabilities."""
    reduction = reduction_of(reduction, size_average, reduce)
    if equal_shapes(target.shape, input.shape):
        _check_probabilities(input, target, weight, ignore_index)
        _check_smoothing(label_smoothing)
        x = ltorch.log_softmax(input, _class_dim(input))
        return _of_probabilities(x, target, weight, reduction, label_smoothing)
    _check_smoothing(label_smoothing)
    return _cross_entropy_of_numbers(input, target, weight, ignore_index, reduction, label_smoothing)[0]


@cross_entropy.grad
def _(input: Any, target: Any, *options: Any, **named: Any) -> Any:
    how = rule_options(*options, **named)
    weight, _, reduction, label_smoothing = how
    if equal_shapes(target.shape, input.shape):
        return probability_rule(input, target, weight, reduction, label_smoothing)
    check_constant(weight)
    out, lse = cross_entropy_forward(input, target, *how)
    put_grad(input, cross_entropy_backward(get_grad(out), input, target, lse, *how))
    return out


def _probabilities(make: MakeTensor, shape: tuple[int, ...]) -> Any:
    return make(shape, low=0, high=1)


@cross_entropy.samples
def _(make: MakeTensor) -> Any:
    for shape, rows in _SHAPES:
        for reduction in ("mean", "sum", "none"):
            yield SampleInput(make(shape), _class_numbers(make, rows, 5), reduction=reduction)
            yield SampleInput(make(shape), _probabilities(make, shape), reduction=reduction)
        yield SampleInput(make(shape), _class_numbers(make, rows, 5), _weights(make), label_smoothing=0.2)
        yield SampleInput(make(shape), _probabilities(make, shape), _weights(make), label_smoothing=0.2)
    for reduction in ("mean", "sum", "none"):
        target = _class_numbers(make, (6,), 5)
        yield SampleInput(make((6, 5)), target, ignore_index=1, reduction=reduction, label_smoothing=0.1)
        yield SampleInput(
            make((6, 5)), target, _weights(make), ignore_index=1, reduction=reduction, label_smoothing=0.1
        )
    # Use enough classes for kernels that process a warp of classes.
    for reduction, smoothing in (("mean", 0.0), ("none", 0.1)):
        target = _class_numbers(make, (6,), 45)
        yield SampleInput(make((6, 45)), target, ignore_index=1, reduction=reduction, label_smoothing=smoothing)
    yield SampleInput(make((4, 5)), _class_numbers(make, (4,), 5), size_average=False)
    yield SampleInput(make((5, 4)).mT, _class_numbers(make, (4,), 5))
    yield SampleInput(make((0, 5)), _class_numbers(make, (0,), 5), reduction="sum")


@cross_entropy.errors
def _(make: MakeTensor) -> Any:
    yield from _number_errors(make)
    x = make((3, 5))
    yield SampleInput(x, _class_numbers(make, (3, 5), 5)), RuntimeError, "Expected floating point type for target"
    yield SampleInput(x, make((3, 5)), ignore_index=1), RuntimeError, "ignore_index is not supported for floating point"
    yield (
        SampleInput(x, _class_numbers(make, (3,), 5), label_smoothing=1.5),
        RuntimeError,
        "must be between 0.0 and 1.0",
    )


@cross_entropy_forward.samples
def _(make: MakeTensor) -> Any:
    for shape, rows in _SHAPES[:3]:
        yield SampleInput(make(shape), _class_numbers(make, rows, 5), None, -100, "mean", 0.0)
        yield SampleInput(make(shape), _class_numbers(make, rows, 5), _weights(make), 1, "none", 0.1)


@cross_entropy_backward.samples
def _(make: MakeTensor) -> Any:
    for shape, rows in _SHAPES[:3]:
        lse = make(rows, low=10, high=12)
        yield SampleInput(make(()), make(shape), _class_numbers(make, rows, 5), lse, None, -100, "mean", 0.0)
        yield SampleInput(make(rows), make(shape), _class_numbers(make, rows, 5), lse, _weights(make), 1, "none", 0.1)
