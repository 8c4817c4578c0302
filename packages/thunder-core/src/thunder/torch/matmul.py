# SPDX-License-Identifier: Apache-2.0
"""Matrix multiplications of the torch language: `matmul`, its variants by number of dimensions, and contractions.

Each operation has the same checks as its torch function, and decomposes into the `matmul` or `linear` primitive. Each
has its own gradient rule, so that a differentiated program still contains the operation of user code, and an executor
can still claim it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes, prims
from thunder.core.errors import check
from thunder.core.prims.matmul import MATMUL_SHAPES, linear_grads, linear_samples, matmul_grads
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.core.symint.numbers import same_shape
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol

_TAGS = (OpTags.MATMUL_OP,)


def _grads(g: Any, out: Any, input: Any, other: Any) -> Any:
    return matmul_grads(g, input, other)


def _dtype_error(make: MakeTensor, *shapes: tuple[int, ...]) -> Any:
    *first, last = shapes
    return (
        SampleInput(*[make(s) for s in first], make(last, dtype=torch.float64)),
        RuntimeError,
        "same dtype|scalar type",
    )


# -- products ----------------------------------------------------------------------------------------------------------
@torchsymbol(torch.matmul, torch.linalg.matmul, torch.Tensor.__matmul__, tags=_TAGS, autocast="lower")
def matmul(input: Any, other: Any) -> Any:
    """Multiply matrices, vectors or batches of matrices: tensors with at least one dimension."""
    return clang.matmul(input, other)


matmul.vjp(_grads)
matmul.jvp_rule = prims.matmul.jvp_rule


@matmul.batch
def _(b: Any, input: Any, other: Any) -> Any:
    return NotImplemented if other in b or other.ndim > 2 else matmul(input, other)


@matmul.samples
def _(make: MakeTensor) -> Any:
    for a, b in MATMUL_SHAPES:
        yield SampleInput(make(a), make(b))
    yield SampleInput(make((4, 3)).mT, make((5, 4)).mT)


@matmul.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), make((2, 3))), RuntimeError, r"shapes cannot be multiplied \(2x3 and 2x3\)"
    yield SampleInput(make(()), make((2,))), RuntimeError, "need to be at least 1D, but they are 0D and 1D"
    yield _dtype_error(make, (2, 3), (3, 2))


@torchsymbol(torch.mm, tags=_TAGS, autocast="lower", layout="contiguous")
def mm(input: Any, mat2: Any) -> Any:
    """Multiply two matrices."""
    check(input.ndim == 2, lambda: "self must be a matrix")
    check(mat2.ndim == 2, lambda: "mat2 must be a matrix")
    return clang.matmul(input, mat2)


mm.vjp(_grads)


@mm.samples
def _(make: MakeTensor) -> Any:
    for a, b in (((3, 4), (4, 5)), ((0, 4), (4, 5)), ((3, 0), (0, 5))):
        yield SampleInput(make(a), make(b))
    yield SampleInput(make((4, 3)).mT, make((5, 4)).mT)


@mm.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), make((2, 3))), RuntimeError, r"shapes cannot be multiplied \(2x3 and 2x3\)"
    yield SampleInput(make((2, 3, 3)), make((3, 3))), RuntimeError, "self must be a matrix"
    yield _dtype_error(make, (2, 3), (3, 2))


def _check_batches(batch1: Any, batch2: Any) -> None:
    check(batch1.ndim == 3, lambda: "batch1 must be a 3D tensor")
    check(batch2.ndim == 3, lambda: "batch2 must be a 3D tensor")
    check(
        batch2.shape[:2] == (batch1.shape[0], batch1.shape[2]),
        lambda: (
            f"Expected size for first two dimensions of batch2 tensor to be: [{batch1.shape[0]}, {batch1.shape[2]}] "
            "but "
            f"got: [{batch2.shape[0]}, {batch2.shape[1]}]."
        ),
    )


@torchsymbol(torch.bmm, tags=_TAGS, autocast="lower", layout="contiguous")
def bmm(input: Any, mat2: Any) -> Any:
    """Multiply two batches of matrices."""
    _check_batches(input, mat2)
    return clang.matmul(input, mat2)


bmm.vjp(_grads)


@bmm.samples
def _(make: MakeTensor) -> Any:
    for a, b in (((2, 3, 4), (2, 4, 5)), ((0, 3, 4), (0, 4, 5)), ((2, 0, 4), (2, 4, 5))):
        yield SampleInput(make(a), make(b))
    yield SampleInput(make((2, 4, 3)).mT, make((1, 4, 5)).expand(2, 4, 5))


@bmm.errors
def _(make: MakeTensor) -> Any:
    yield (
        SampleInput(make((2, 3, 4)), make((3, 4, 5))),
        RuntimeError,
        "Expected size for first two dimensions of batch2",
    )
    yield SampleInput(make((2, 3)), make((2, 3, 4))), RuntimeError, "batch1 must be a 3D tensor"
    yield _dtype_error(make, (2, 3, 4), (2, 4, 5))


@torchsymbol(torch.mv, tags=_TAGS, autocast={"cuda": "lower"})
def mv(input: Any, vec: Any) -> Any:
    """Multiply a matrix and a vector."""
    check(
        input.ndim == 2 and vec.ndim == 1, lambda: f"vector + matrix @ vector expected, got 1, {input.ndim}, {vec.ndim}"
    )
    return clang.matmul(input, vec)


mv.vjp(_grads)


@mv.samples
def _(make: MakeTensor) -> Any:
    for n in (4, 0):
        yield SampleInput(make((3, n)), make((n,)))


@mv.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), make((2,))), RuntimeError, r"size mismatch, got input \(2\), mat \(2x3\), vec \(2\)"
    yield SampleInput(make((2, 3, 4)), make((2,))), RuntimeError, r"vector \+ matrix @ vector expected, got 1, 3, 1"


def _check_vectors(a: Any, b: Any, name: str) -> None:
    check(a.ndim == 1 and b.ndim == 1, lambda: f"1D tensors expected, but got {a.ndim}D and {b.ndim}D tensors")
    check(
        a.dtype is b.dtype,
        lambda: f"{name} : expected both vectors to have same dtype, but found {a.dtype} and {b.dtype}",
    )


@torchsymbol(torch.dot, tags=_TAGS, autocast={"cuda": "widest"})
def dot(input: Any, tensor: Any) -> Any:
    """Compute the inner product of two vectors."""
    _check_vectors(input, tensor, "dot")
    return clang.matmul(input, tensor)


dot.vjp(_grads)


@torchsymbol(torch.vdot, tags=_TAGS, autocast={"cuda": "widest"})
def vdot(input: Any, other: Any) -> Any:
    """Compute the inner product of two vectors, with the first one conjugated."""
    _check_vectors(input, other, "vdot")
    return clang.matmul(ltorch.conj(input) if dtypes.is_complex_dtype(input.dtype) else input, other)


def _vector_samples(make: MakeTensor) -> Any:
    for n in (4, 1, 0):
        yield SampleInput(make((n,)), make((n,)))


def _vector_errors(make: MakeTensor) -> Any:
    yield (
        SampleInput(make((2,)), make((3,))),
        RuntimeError,
        r"expected tensor \[2\] and src \[3\] to have the same number",
    )
    yield SampleInput(make((2, 2)), make((3,))), RuntimeError, "1D tensors expected, but got 2D and 1D tensors"
    yield _dtype_error(make, (3,), (3,))


for _sym in (dot, vdot):
    _sym.samples(_vector_samples)
    _sym.errors(_vector_errors)


@torchsymbol(torch.linalg.vecdot, is_method=False, tags=_TAGS, autocast="lower")
def vecdot(x: Any, y: Any, *, dim: int = -1) -> Any:
    """Compute the inner products of vectors along `dim`, with the first ones conjugated."""
    return clang.sum(ltorch.mul(ltorch.conj(x) if dtypes.is_complex_dtype(x.dtype) else x, y), dim)


@vecdot.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 4)), make((3, 4)))
    yield SampleInput(make((3, 4)), make((4,)))
    yield SampleInput(make((3, 4)), make((3, 4)), dim=0)


@torchsymbol(torch.inner, tags=_TAGS)
def inner(input: Any, other: Any) -> Any:
    """Compute the inner products of vectors along the last dimension of both tensors.

    If one of them has 0 dimensions, multiply element by element.
    """
    if input.ndim == 0 or other.ndim == 0:
        return input * other
    check(
        input.shape[-1] == other.shape[-1],
        lambda: (
            "inner() the last dimension must match on both input tensors but got shapes "
            f"{list(input.shape)} and {list(other.shape)}"
        ),
    )
    return tensordot(input, other, ([-1], [-1]))


@inner.samples
def _(make: MakeTensor) -> Any:
    for a, b in (((4,), (4,)), ((2, 4), (3, 4)), ((2, 3, 4), (4,)), ((2, 3), ()), ((2, 1, 4), (3, 4))):
        yield SampleInput(make(a), make(b))


@inner.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), make((4, 4))), RuntimeError, r"inner\(\) the last dimension must match"


@torchsymbol(torch.outer, torch.ger, tags=_TAGS)
def outer(input: Any, vec2: Any) -> Any:
    """Compute the product of each element of one vector with each element of the other."""
    for name, x in (("self", input), ("vec2", vec2)):
        check(x.ndim == 1, lambda: f"outer: Expected 1-D argument {name}, but got {x.ndim}-D")
    return input.unsqueeze(1) * vec2


@outer.samples
def _(make: MakeTensor) -> Any:
    for m, n in ((3, 4), (0, 4), (1, 1)):
        yield SampleInput(make((m,)), make((n,)))


@outer.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 2)), make((3,))), RuntimeError, "outer: Expected 1-D argument self, but got 2-D"


# -- layers ------------------------------------------------------------------------------------------------------------
@torchsymbol(torch.nn.functional.linear, torch._C._nn.linear, tags=_TAGS, autocast="lower", layout="contiguous")
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """Return input @ weight.T + bias."""
    return clang.linear(input, weight, bias)


@linear.vjp
def _(g: Any, out: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    return linear_grads(g, input, weight, bias)


linear.jvp_rule = prims.linear.jvp_rule


@linear.batch
def _(b: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    if weight in b or bias in b or (bias is not None and bias.ndim > 1):
        return NotImplemented
    return linear(input, weight, bias)


linear.samples(linear_samples)


@linear.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), make((4, 4))), RuntimeError, r"shapes cannot be multiplied \(2x3 and 4x4\)"
    yield SampleInput(make((2, 3)), make((4, 3)), make((3,))), RuntimeError, r"The expanded size of the tensor \(4\)"
    yield _dtype_error(make, (2, 3), (4, 3))


@torchsymbol(torch.nn.functional.bilinear, torch.bilinear, tags=_TAGS, autocast={"cuda": "widest"})
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """Compute input1 @ weight[k] @ input2 + bias[k] for each output k."""
    check(
        input1.shape[:-1] == input2.shape[:-1],
        lambda: (
            "bilinear(): input batch dimensions do not match: got "
            f"{list(input1.shape[:-1])} and {list(input2.shape[:-1])}"
        ),
    )
    for i, x in ((1, input1), (2, input2)):
        check(
            x.shape[-1] == weight.shape[i],
            lambda: (
                f"bilinear(): input{i} size does not match weight size: got {x.shape[-1]} but expected "
                f"{weight.shape[i]}"
            ),
        )
    check(
        bias is None or bias.shape[0] == weight.shape[0],
        lambda: f"bilinear(): bias size does not match weight size: got {bias.shape[0]} but expected {weight.shape[0]}",
    )
    out = ltorch.einsum("...i,kij,...j->...k", input1, weight, input2)
    return out if bias is None else out + bias


@bilinear.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 4)), make((3, 5)), make((2, 4, 5)), make((2,)))
    yield SampleInput(make((2, 3, 4)), make((2, 3, 5)), make((2, 4, 5)))
    yield SampleInput(make((4,)), make((5,)), make((2, 4, 5)), make((2,)))


@bilinear.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 4)), make((2, 5)), make((2, 4, 5))), RuntimeError, "batch dimensions do not match"
    yield (
        SampleInput(make((3, 4)), make((3, 4)), make((2, 4, 5))),
        RuntimeError,
        "input2 size does not match weight size",
    )


# -- contractions ------------------------------------------------------------------------------------------------------
def _contracted_dims(input: Any, other: Any, dims: Any) -> tuple[list[int], list[int]]:
    if isinstance(dims, int):
        check(dims >= 0, lambda: f"tensordot expects dims >= 0, but got dims={dims}")
        check(
            dims <= min(input.ndim, other.ndim),
            lambda: f"tensordot expects dims < ndim_a or ndim_b, but got dims={dims}",
        )
        return list(range(-dims, 0)), list(range(dims))
    ours, theirs = dims
    return ([ours] if isinstance(ours, int) else list(ours)), ([theirs] if isinstance(theirs, int) else list(theirs))


@torchsymbol(torch.tensordot, tags=_TAGS, autocast={"cuda": "widest"})
def tensordot(input: Any, other: Any, dims: Any = 2) -> Any:
    """Compute sums of products over `dims`.

    A number sums over the last dimensions of `input` and the first dimensions of `other`. Two lists name the dimensions
    of each tensor.
    """
    ours, theirs = _contracted_dims(input, other, dims)
    check(len(ours) == len(theirs), lambda: "both dimension lists should have same length")
    for i, j in zip(ours, theirs):
        if input.shape[i] != other.shape[j] and 1 in (input.shape[i], other.shape[j]):  # a size of 1 is broadcast
            input = ltorch.sum(input, i, keepdim=True, dtype=input.dtype) if other.shape[j] == 1 else input
            other = ltorch.sum(other, j, keepdim=True, dtype=other.dtype) if input.shape[i] == 1 else other
        check(
            input.shape[i] == other.shape[j],
            lambda: (
                f"contracted dimensions need to match, but first has size {input.shape[i]} in dim {i} and second has "
                "size "
                f"{other.shape[j]} in dim {j}"
            ),
        )
    ours = [d % input.ndim for d in ours]
    theirs = [d % other.ndim for d in theirs]
    rows = [d for d in range(input.ndim) if d not in ours]
    columns = [d for d in range(other.ndim) if d not in theirs]
    left = ltorch.permute(input, (*rows, *ours))
    right = ltorch.permute(other, (*theirs, *columns))
    inner = math.prod(input.shape[d] for d in ours)
    left = ltorch.reshape(left, (math.prod(input.shape[d] for d in rows), inner))
    right = ltorch.reshape(right, (inner, math.prod(other.shape[d] for d in columns)))
    shape = (*[input.shape[d] for d in rows], *[other.shape[d] for d in columns])
    if all(size == 1 for size in shape):  # torch multiplies no matrices here, which matters under autocast
        products = ltorch.reshape(left, (inner,)) * ltorch.reshape(right, (inner,))
        return ltorch.reshape(ltorch.sum(products, dtype=products.dtype), shape)
    return ltorch.reshape(ltorch.matmul(left, right), shape)


@tensordot.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3, 4)), make((3, 4, 5)))
    yield SampleInput(make((2, 3, 4)), make((4, 3, 5)), ([1, 2], [1, 0]))
    yield SampleInput(make((2,)), make((3,)), 0)
    yield SampleInput(make((2, 3)), make((3, 2)), ([0], [1]))
    yield SampleInput(make((0, 3)), make((3, 2)), 1)
    yield SampleInput(make((2, 0)), make((0, 2)), 1)
    yield SampleInput(make((1, 3, 2)), make((2, 1, 4)), ([0, 1], [0, 1]))


@tensordot.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3, 4)), make((4, 4, 5)), 2), RuntimeError, "contracted dimensions need to match"
    yield SampleInput(make((2, 3)), make((3, 2)), ([0, 1], [1])), RuntimeError, "should have same length"


@torchsymbol(torch.kron, tags=_TAGS)
def kron(input: Any, other: Any) -> Any:
    """Compute the Kronecker product: each element of `input` times the whole of `other`."""
    rank = max(input.ndim, other.ndim)
    a, b = ((1,) * (rank - x.ndim) + x.shape for x in (input, other))
    left = ltorch.reshape(input, tuple(n for m in a for n in (m, 1)))
    right = ltorch.reshape(other, tuple(n for m in b for n in (1, m)))
    return ltorch.reshape(left * right, tuple(m * n for m, n in zip(a, b)))


@kron.samples
def _(make: MakeTensor) -> Any:
    for a, b in (((2, 3), (4, 2)), ((2,), (2, 3)), ((), (2, 3)), ((2, 3), (2, 2, 2)), ((0, 2), (2, 2))):
        yield SampleInput(make(a), make(b))


def _best_order(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return where to split each part of a chain of matrices with the given sizes, for the fewest multiplications.

    Of orders with the same number, choose torch's, so that results are rounded alike: the product of three matrices
    starts on the left, and a longer chain is split as early as possible.
    """
    n = len(sizes) - 1
    preferred = -1 if n == 3 else 1
    cost = {(i, i): 0 for i in range(n)}
    split: dict[tuple[int, int], int] = {}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            splits = range(i, j)[::preferred]
            costs = [cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1] for k in splits]
            cost[i, j] = min(costs)
            split[i, j] = splits[costs.index(cost[i, j])]
    return split


def _chain(name: str, tensors: Sequence[Any]) -> Any:
    check(len(tensors) >= 2, lambda: f"{name}(): expected at least 2 tensors but got {len(tensors)}")
    first, *inner, last = tensors
    check(1 <= first.ndim <= 2, lambda: f"{name}(): the first tensor must be 1D or 2D but got {first.ndim}D")
    check(1 <= last.ndim <= 2, lambda: f"{name}(): the last tensor must be 1D or 2D but got {last.ndim}D")
    for i, x in enumerate(inner, start=1):
        check(x.ndim == 2, lambda: f"{name}(): tensor {i} must be 2D but got {x.ndim}D")
    matrices = [
        first.unsqueeze(0) if first.ndim == 1 else first, *inner, last.unsqueeze(1) if last.ndim == 1 else last
    ]  # fmt: skip
    for i in range(len(matrices) - 1):
        a, b = matrices[i : i + 2]
        check(
            a.shape[1] == b.shape[0],
            lambda: (
                f"{name}(): tensors {i} and {i + 1} with shapes {list(a.shape)} and {list(b.shape)} cannot be "
                "multiplied"
            ),
        )
    split = _best_order([m.shape[0] for m in matrices] + [matrices[-1].shape[1]])

    def product(i: int, j: int) -> Any:
        return matrices[i] if i == j else ltorch.matmul(product(i, split[i, j]), product(split[i, j] + 1, j))

    out = product(0, len(matrices) - 1)
    shape = (*first.shape[:-1], *last.shape[1:])
    return ltorch.reshape(out, shape) if not same_shape(out.shape, tuple(shape)) else out


@torchsymbol(torch.linalg.multi_dot, is_method=False, tags=_TAGS, autocast={"cuda": "lower"})
def multi_dot(tensors: Any) -> Any:
    """Multiply a chain of matrices in the order that needs the fewest multiplications."""
    return _chain("multi_dot", tensors)


@multi_dot.samples
def _(make: MakeTensor) -> Any:
    for shapes in (((2, 3), (3, 4)), ((2, 3), (3, 4), (4, 5)), ((3,), (3, 4), (4,)), ((2, 3), (3, 4), (4, 1), (1, 6))):
        yield SampleInput([make(s) for s in shapes])


@multi_dot.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput([make((2, 3))]), RuntimeError, "expected at least 2 tensors"
    yield SampleInput([make((2, 3)), make((2, 3))]), RuntimeError, "cannot be multiplied"


@torchsymbol(torch.chain_matmul, tags=_TAGS, autocast={"cuda": "lower"})
def chain_matmul(*matrices: Any) -> Any:
    """Multiply a chain of matrices: the deprecated name of `torch.linalg.multi_dot`."""
    return matrices[0] if len(matrices) == 1 else _chain("chain_matmul", matrices)


@chain_matmul.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), make((3, 4)), make((4, 5)))
