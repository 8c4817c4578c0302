# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy of logits whose classes are sharded over a process group, e.g. a vocabulary. Logits are not gathered.

Each rank computes with its own classes. Two all-reduces of at most two numbers per row combine the ranks: the maximum,
then the sum of exponentials and the logit of the target. Each rank has all targets. Backward does not communicate.
"""

from __future__ import annotations

from typing import Any

from thunder import clang
from thunder.core import prims
from thunder.core.groups import ONE_RANK, Group
from thunder.core.prims import get_grad, put_grad
from thunder.core.prims.collectives import own_rank
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol
from thunder.torch.cross_entropy import _by_class, _class_dim, _class_numbers, _picked, _rows, check_constant
from thunder.torch.loss_arguments import upcast

__all__ = ["sharded_cross_entropy", "sharded_cross_entropy_backward", "sharded_cross_entropy_forward"]

_TAGS = (OpTags.REDUCTION_OP,)


def _reduced(a: TensorProxy, op: str, group: Group) -> TensorProxy:
    return prims.wait(prims.all_reduce(a, op, group))  # type: ignore[no-any-return]


def _of_own_classes(input: TensorProxy, safe: TensorProxy, group: Group) -> tuple[Any, Any]:
    """Return the number of each row's class among this rank's classes, and a mask of the rows that have one."""
    classes = input.shape[_class_dim(input)]
    number: Any = safe - own_rank(group) * classes
    own = ltorch.logical_and(number >= 0, number < classes)
    return ltorch.where(own, number, 0), own


@torchsymbol(id="torch.sharded_cross_entropy_forward", tags=_TAGS)
def sharded_cross_entropy_forward(
    input: Any, target: Any, weight: Any, ignore_index: int, reduction: str, group: Group, rows: tuple[Group, ...]
) -> Any:
    """Return the loss, the maximum and the log of the sum of exponentials of each row, and by what a mean divides."""
    dim = _class_dim(input)
    x, w = upcast(input, weight)
    largest = _reduced(clang.amax(x, dim), "max", group)
    shifted = x - ltorch.unsqueeze(largest, dim)
    safe, of_row, counts = _rows(x, target, w, ignore_index)
    number, own = _of_own_classes(x, safe, group)
    of_class = ltorch.where(own, _picked(shifted, dim, number), 0.0)
    both = _reduced(ltorch.stack([clang.sum(ltorch.exp(shifted), dim), of_class]), "sum", group)
    log_sum = ltorch.log(both[0])
    loss = ltorch.where(counts, (log_sum - both[1]) * of_row, 0.0)
    total = clang.sum(of_row)
    if reduction == "mean":
        for others in rows:
            total = _reduced(total, "sum", others)
        loss = clang.sum(loss) / total
    elif reduction == "sum":
        loss = clang.sum(loss)
    return clang.maybe_convert_to_dtype(loss, input.dtype), largest, log_sum, total


@torchsymbol(id="torch.sharded_cross_entropy_backward")
def sharded_cross_entropy_backward(
    grad: Any, input: Any, target: Any, weight: Any, largest: Any, log_sum: Any, total: Any, ignore_index: int,
    reduction: str, group: Group,
) -> Any:  # fmt: skip
    """Return the gradient of this rank's logits."""
    dim = _class_dim(input)
    g, x, w = upcast(grad, input, weight)
    safe, of_row, counts = _rows(x, target, w, ignore_index)
    number, own = _of_own_classes(x, safe, group)
    share = ltorch.where(counts, (g / total if reduction == "mean" else g) * of_row, 0.0)
    softmax = ltorch.exp(x - ltorch.unsqueeze(largest, dim) - ltorch.unsqueeze(log_sum, dim))
    numbers = ltorch.arange(input.shape[dim], device=input.device)
    hit = ltorch.unsqueeze(number, dim) == (numbers if input.ndim == 1 else _by_class(numbers, x))
    hit = ltorch.logical_and(hit, ltorch.unsqueeze(own, dim))
    out = ltorch.where(hit, softmax - 1.0, softmax) * ltorch.unsqueeze(share, dim)
    # Rows that do not count have no gradient, whatever their values are.
    return clang.maybe_convert_to_dtype(ltorch.where(ltorch.unsqueeze(counts, dim), out, 0.0), input.dtype)


@torchsymbol(is_method=False, tags=_TAGS, autocast="float32")
def sharded_cross_entropy(
    input: Any, target: Any, weight: Any, ignore_index: int, reduction: str, group: Group, rows: tuple[Group, ...] = ()
) -> Any:
    """Return the cross-entropy of logits of which each rank of `group` has an equal part of the classes.

    If the rows are sharded, too, over the groups `rows`, a mean divides by the number of all rows, and each rank
    returns a summand of a mean or a sum.
    """
    return sharded_cross_entropy_forward(input, target, weight, ignore_index, reduction, group, rows)[0]


@sharded_cross_entropy.grad
def _(
    input: Any, target: Any, weight: Any, ignore_index: int, reduction: str, group: Group, rows: tuple[Group, ...] = ()
) -> Any:
    check_constant(weight)
    out, largest, log_sum, total = sharded_cross_entropy_forward(
        input, target, weight, ignore_index, reduction, group, rows
    )
    of_input = sharded_cross_entropy_backward(
        get_grad(out), input, target, weight, largest, log_sum, total, ignore_index, reduction, group
    )
    put_grad(input, of_input)
    return out


def _samples(make: MakeTensor, *groups: Any, **of_input: Any) -> Any:
    for shape, rows in (((4, 5), (4,)), ((5,), ()), ((2, 5, 3), (2, 3))):
        for weight, reduction in ((None, "mean"), (True, "sum"), (None, "none")):
            w = make((5,), low=0.1, high=2, requires_grad=False) if weight else None
            yield SampleInput(make(shape, **of_input), _class_numbers(make, rows, 5), w, 1, reduction, *groups)


@sharded_cross_entropy.samples
def _(make: MakeTensor) -> Any:
    yield from _samples(make, ONE_RANK)


@sharded_cross_entropy_forward.samples
def _(make: MakeTensor) -> Any:
    # A maximum over ranks has no gradient. The rule of `sharded_cross_entropy` does not differentiate this operation.
    yield from _samples(make, ONE_RANK, (), requires_grad=False)


@sharded_cross_entropy_backward.samples
def _(make: MakeTensor) -> Any:
    for shape, rows in (((4, 5), (4,)), ((2, 5, 3), (2, 3))):
        target, many = _class_numbers(make, rows, 5), make(rows, low=2, high=4)
        yield SampleInput(make(()), make(shape), target, None, many, many, make((), low=1, high=2), 1, "mean", ONE_RANK)
        yield SampleInput(make(rows), make(shape), target, None, many, many, make(()), -100, "none", ONE_RANK)
