# SPDX-License-Identifier: Apache-2.0
"""`torch.einsum`: parse the equation and compute diagonals, sums, permutations and batched matrix multiplications.

Operands are contracted pairwise from left to right. A subscript is a letter. The dimensions of an ellipsis have the
subscripts -1, -2, … from right to left, so that ellipses of different lengths broadcast like shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from thunder import clang
from thunder.clang.base import is_one, is_same_size
from thunder.core.errors import check
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol

Subscript = Any  # a letter, or a negative number for a dimension of an ellipsis
_ELLIPSIS = "..."


# -- reading the equation ----------------------------------------------------------------------------------------------
def _letter(number: Any) -> str:
    if number is Ellipsis:
        return _ELLIPSIS
    check(
        isinstance(number, int) and 0 <= number < 52,
        lambda: f"einsum(): not in the range [0, 52): the subscript {number} of a sublist",
        ValueError,
    )
    return chr(ord("A") + number) if number < 26 else chr(ord("a") + number - 26)


def _from_sublists(args: Sequence[Any]) -> tuple[str, list[Any]]:
    """Return the equation and the operands of a call with sublists, e.g. `einsum(a, [0, 1], b, [1, 2], [0, 2])`."""
    pairs = len(args) // 2
    sides = ["".join(_letter(n) for n in args[2 * i + 1]) for i in range(pairs)]
    equation = ",".join(sides)
    if len(args) % 2:
        equation += "->" + "".join(_letter(n) for n in args[-1])
    return equation, [args[2 * i] for i in range(pairs)]


def _split_subscripts(text: str, where: str, start: int) -> list[str]:
    """Return the subscripts of one operand, or of the output."""
    out: list[str] = []
    i = 0
    while i < len(text):
        c = text[i]
        if c == ".":
            check(
                text[i : i + 3] == _ELLIPSIS,
                lambda: f"einsum(): found '.' for {where} that is not part of any ellipsis",
            )
            check(
                _ELLIPSIS not in out, lambda: f"einsum(): found '.' for {where} for which an ellipsis was already found"
            )
            out.append(_ELLIPSIS)
            i += 3
            continue
        if c != " ":
            check(
                c.isascii() and c.isalpha(),
                lambda: (
                    f"einsum(): invalid subscript given at index {start + i} in the equation string, subscripts must "
                    "be in "
                    "[a-zA-Z]"
                ),
            )
            out.append(c)
        i += 1
    return out


def _labels(subscripts: list[str], x: Any, number: int) -> list[Subscript]:
    """Return one label for each dimension of an operand."""
    named = len(subscripts) - (_ELLIPSIS in subscripts)
    if _ELLIPSIS not in subscripts:
        check(
            named == x.ndim,
            lambda: (
                f"einsum(): the number of subscripts in the equation ({named}) does not match the number of dimensions "
                f"({x.ndim}) for operand {number} and no ellipsis was given"
            ),
        )
        return list(subscripts)
    check(
        named <= x.ndim,
        lambda: (
            f"einsum(): the number of subscripts in the equation ({named}) is more than the number of dimensions "
            f"({x.ndim}) for operand {number}"
        ),
    )
    at = subscripts.index(_ELLIPSIS)
    return [*subscripts[:at], *range(named - x.ndim, 0), *subscripts[at + 1 :]]


def _output_labels(text: str | None, start: int, operands: list[list[Subscript]]) -> list[Subscript]:
    present = [label for labels in operands for label in labels]
    ellipsis = sorted({label for label in present if isinstance(label, int)})
    if text is None:
        once = sorted(label for label in set(present) if isinstance(label, str) and present.count(label) == 1)
        return [*ellipsis, *once]
    out: list[Subscript] = []
    for subscript in _split_subscripts(text, "the output", start):
        if subscript == _ELLIPSIS:
            out += ellipsis
            continue
        check(
            subscript not in out, lambda: f"einsum(): output subscript {subscript} appears more than once in the output"
        )
        check(
            subscript in present,
            lambda: f"einsum(): output subscript {subscript} does not appear in the equation for any input operand",
        )
        out.append(subscript)
    return out


def _parse(equation: str, tensors: list[Any]) -> tuple[list[list[Subscript]], list[Subscript]]:
    left, arrow, right = equation.partition("->")
    sides = left.split(",")
    check(bool(tensors), lambda: "einsum(): must provide at least one operand")
    check(len(sides) >= len(tensors), lambda: "einsum(): more operands were provided than specified in the equation")
    check(len(sides) <= len(tensors), lambda: "einsum(): fewer operands were provided than specified in the equation")
    operands, start = [], 0
    for i, (side, x) in enumerate(zip(sides, tensors)):
        operands.append(_labels(_split_subscripts(side, f"operand {i}", start), x, i))
        start += len(side) + 1
    return operands, _output_labels(right if arrow else None, start + 1, operands)


# -- computing ---------------------------------------------------------------------------------------------------------
def _diagonals(x: Any, labels: list[Subscript], number: int) -> tuple[Any, list[Subscript]]:
    """Return an operand in which each label occurs once: repeated labels select the diagonal."""
    labels = list(labels)
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i = labels.index(label)
            j = labels.index(label, i + 1)
            check(
                x.shape[i] == x.shape[j],
                lambda: (
                    f"einsum(): subscript {label} is repeated for operand {number} but the sizes don't match, "
                    f"{x.shape[j]} != {x.shape[i]}"
                ),
            )
            x = ltorch.diagonal(x, 0, i, j)
            labels = [*labels[:i], *labels[i + 1 : j], *labels[j + 1 :], label]
    return x, labels


def _sizes(operands: list[tuple[Any, list[Subscript]]]) -> dict[Subscript, int]:
    sizes: dict[Subscript, int] = {}
    for number, (x, labels) in enumerate(operands):
        for label, n in zip(labels, x.shape):
            known = sizes.get(label, 1)
            check(
                is_one(n) or is_one(known) or is_same_size(n, known),
                lambda: (
                    f"einsum(): subscript {label} has size {n} for operand {number} which does not broadcast with "
                    f"previously seen size {known}"
                ),
            )
            sizes[label] = known if is_one(n) else n
    return sizes


def _without(x: Any, labels: list[Subscript], drop: Any) -> tuple[Any, list[Subscript]]:
    """Return an operand summed over the labels for which `drop` is true."""
    dims = tuple(d for d, label in enumerate(labels) if drop(label))
    if not dims:
        return x, labels
    return clang.sum(x, dims), [label for label in labels if not drop(label)]


def _dense(x: Any, labels: list[Subscript], sizes: dict[Subscript, int]) -> tuple[Any, list[Subscript]]:
    """Return an operand without the dimensions of length 1 that would be broadcast."""
    spread = tuple(d for d, label in enumerate(labels) if x.shape[d] == 1 and sizes[label] != 1)
    if not spread:
        return x, labels
    return ltorch.squeeze(x, spread), [label for d, label in enumerate(labels) if d not in spread]


def _without_ones(x: Any, labels: list[Subscript], keep: set[Subscript]) -> tuple[Any, list[Subscript]]:
    """Return an operand without unneeded dimensions of length 1, which need no sum."""
    ones = tuple(d for d, label in enumerate(labels) if x.shape[d] == 1 and label not in keep)
    return (
        (ltorch.squeeze(x, ones), [label for d, label in enumerate(labels) if d not in ones]) if ones else (x, labels)
    )


def _arranged(
    x: Any, labels: list[Subscript], groups: Sequence[Sequence[Subscript]], sizes: dict[Subscript, int]
) -> Any:
    """Return an operand permuted and reshaped, with one dimension for each group of labels."""
    order = tuple(labels.index(label) for group in groups for label in group)
    if order != tuple(range(x.ndim)):
        x = ltorch.permute(x, order)
    shape = tuple(math.prod(sizes[label] for label in group) for group in groups)
    return ltorch.reshape(x, shape) if tuple(x.shape) != shape else x


def _contract(
    a: Any, la: list[Subscript], b: Any, lb: list[Subscript], keep: set[Subscript], sizes: dict[Subscript, int]
) -> tuple[Any, list[Subscript]]:
    """Return the product of two operands, summed over all labels that are not in `keep`."""
    a, la = _without_ones(a, la, keep)
    b, lb = _without_ones(b, lb, keep)
    a, la = _without(a, la, lambda label: label not in keep and label not in lb)
    b, lb = _without(b, lb, lambda label: label not in keep and label not in la)
    batch = [label for label in la if label in lb and label in keep]
    summed = [label for label in la if label in lb and label not in keep]
    rows = [label for label in la if label not in lb]
    columns = [label for label in lb if label not in la]
    labels = [*batch, *rows, *columns]
    shape = tuple(sizes[label] for label in labels)
    if summed:
        left = _arranged(a, la, (batch, rows, summed), sizes)
        right = _arranged(b, lb, (batch, summed, columns), sizes)
        if not batch:
            left, right = ltorch.squeeze(left, 0), ltorch.squeeze(right, 0)
        return ltorch.reshape(ltorch.matmul(left, right), shape), labels
    left = _arranged(a, la, (*[(x,) for x in (*batch, *rows)], *[() for _ in columns]), sizes)
    right = _arranged(b, lb, (*[(x,) for x in batch], *[() for _ in rows], *[(x,) for x in columns]), sizes)
    return left * right, labels


@torchsymbol(torch.einsum, tags=(OpTags.MATMUL_OP,), autocast={"cuda": "lower"})
def einsum(equation: Any, *operands: Any) -> Any:
    """Compute a sum of products in Einstein's notation, e.g. `einsum("ij,jk->ik", a, b)`.

    Instead of the equation, a list of subscript numbers may follow each operand.
    """
    if not isinstance(equation, str):
        equation, tensors = _from_sublists((equation, *operands))
    elif len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        tensors = list(operands[0])
    else:
        tensors = list(operands)
    parsed, output = _parse(equation, tensors)
    work = [_diagonals(x, labels, i) for i, (x, labels) in enumerate(zip(tensors, parsed))]
    sizes = _sizes(work)
    if len(work) > 1:
        work = [_dense(x, labels, sizes) for x, labels in work]
    x, labels = work[0]
    for i in range(1, len(work)):
        later = {label for _, others in work[i + 1 :] for label in others}
        x, labels = _contract(x, labels, *work[i], {*output, *later}, sizes)
    x, labels = _without(x, labels, lambda label: label not in output)
    order = tuple(labels.index(label) for label in output)
    return ltorch.permute(x, order) if order != tuple(range(x.ndim)) else x


@einsum.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput("ij,jk->ik", make((2, 3)), make((3, 4)))
    for equation, *shapes in (
        ("ij,jk", (2, 3), (3, 4)),
        ("ij,jk->ki", (2, 3), (3, 4)),
        ("...i,ij->...j", (2, 2, 3), (3, 4)),
        ("ij...,...jk->...ik", (2, 3, 5), (5, 3, 4)),
        ("...,...", (3, 1), (4,)),
        ("ii", (3, 3)),
        ("ii->i", (3, 3)),
        ("iij,j->i", (3, 3, 2), (2,)),
        ("i,j,k->kji", (2,), (3,), (4,)),
        ("bij,bjk,bk->bi", (2, 3, 4), (2, 4, 5), (2, 5)),
        ("ij,ij->ij", (2, 3), (1, 3)),
        ("ij,ij", (2, 3), (2, 3)),
        ("iJ,Jk", (3, 1), (1, 4)),
        ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
        ("->", ()),
        ("...->", (3, 2)),
        ("i...->...", (3, 2)),
        ("ab , bc -> ac", (2, 3), (3, 4)),
        ("ij,jk->ik", (0, 3), (3, 4)),
        ("ij,jk->ik", (2, 0), (0, 4)),
    ):
        yield SampleInput(equation, *[make(s) for s in shapes])
    yield SampleInput("ij,jk", [make((2, 3)), make((3, 4))])
    yield SampleInput(make((2, 3)), [0, 1], make((3, 4)), [1, 2], [0, 2])
    yield SampleInput(make((2, 2, 3)), [..., 1], make((3, 4)), [1, 2], [..., 2])


@einsum.errors
def _(make: MakeTensor) -> Any:
    pair = make((2, 3)), make((3, 4))
    for equation, tensors, message in (
        ("ij,jk->kz", pair, "output subscript z does not appear"),
        ("ij,jk", pair[:1], "fewer operands were provided"),
        ("ij", pair, "more operands were provided"),
        ("ij,jk", (make((2, 3)), make((4, 4))), "subscript j has size 4 for operand 1 which does not broadcast"),
        ("ijk", pair[:1], r"the number of subscripts in the equation \(3\) does not match"),
        ("i!", pair[:1], "invalid subscript given at index 1"),
        ("ij->iji", pair[:1], "output subscript i appears more than once"),
        ("i..j", pair[:1], "found '.' for operand 0 that is not part of any ellipsis"),
        ("ii", pair[:1], "subscript i is repeated for operand 0 but the sizes don't match"),
    ):
        yield SampleInput(equation, *tensors), RuntimeError, message
