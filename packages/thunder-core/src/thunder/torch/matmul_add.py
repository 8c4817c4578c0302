# SPDX-License-Identifier: Apache-2.0
"""Matrix products plus a tensor: `beta * input + alpha * (product)`, with one torch function per number of dimensions.

If `beta` is zero, `input` is not read, so that its NaN values do not spread.
"""

from __future__ import annotations

from typing import Any

import torch

from thunder import clang
from thunder.clang.base import is_one, is_same_size
from thunder.core import dtypes
from thunder.core.errors import check
from thunder.core.prims.elementwise_base import conjugated
from thunder.core.prims.matmul import matmul_grads
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol
from thunder.torch.matmul import _check_batches

_TAGS = (OpTags.MATMUL_OP,)


def _scaled(x: Any, factor: Any) -> Any:
    if dtypes.is_exact_dtype(x.dtype):
        factor = int(factor)  # for integers, torch truncates the factor
    return x if factor == 1 else x * factor


def _added(input: Any, product: Any, beta: Any, alpha: Any) -> Any:
    shape = product.shape
    fits = input.ndim <= len(shape) and all(
        is_one(m) or is_same_size(m, n) for m, n in zip(input.shape[::-1], shape[::-1])
    )
    check(
        fits,
        lambda: (
            f"The expanded size of the tensor ({list(shape)}) must match the existing size ({list(input.shape)}): the "
            "input "
            "cannot be broadcast to the product"
        ),
    )
    check(
        input.dtype is product.dtype,
        lambda: f"self and mat2 must have the same dtype, but got {input.dtype} and {product.dtype}",
    )
    # Compute in float32 until the end, as torch's kernels do.
    kind = clang.reductions.compute_dtype(product.dtype)
    out = _scaled(clang.maybe_convert_to_dtype(product, kind), alpha)
    if beta != 0:
        out = _scaled(clang.maybe_convert_to_dtype(input, kind), beta) + out
    return clang.maybe_convert_to_dtype(out, product.dtype)


def _conjugated(factor: Any) -> Any:
    return factor.conjugate() if isinstance(factor, complex) else factor


def _grads(g: Any, out: Any, input: Any, left: Any, right: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    beta, alpha = _conjugated(beta), _conjugated(alpha)
    of_input = ltorch.sum_to_size(_scaled(g, beta), input.shape)
    return (of_input, *(_scaled(grad, alpha) for grad in matmul_grads(g, left, right)))


@torchsymbol(torch.addmm, tags=_TAGS, autocast="lower", layout="contiguous")
def addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Compute beta * input + alpha * (mat1 @ mat2)."""
    return _added(input, ltorch.mm(mat1, mat2), beta, alpha)


addmm.vjp(_grads)


def _samples(make: MakeTensor, shapes: Any) -> Any:
    for a, b, c in shapes:
        yield SampleInput(make(a), make(b), make(c))
    a, b, c = shapes[0]
    whole = not make((1,)).dtype.is_floating_point and not make((1,)).dtype.is_complex
    yield SampleInput(make(a), make(b), make(c), beta=2 if whole else 0.5, alpha=3)
    yield SampleInput(make(a), make(b), make(c), beta=0)


@addmm.samples
def _(make: MakeTensor) -> Any:
    yield from _samples(
        make, [((3, 5), (3, 4), (4, 5)), ((5,), (3, 4), (4, 5)), ((3, 1), (3, 4), (4, 5)), ((), (3, 0), (0, 5))]
    )


@addmm.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 5)), make((2, 3)), make((3, 4))), RuntimeError, "must match the existing size"
    yield SampleInput(make((2, 4)), make((2, 3)), make((2, 4))), RuntimeError, "shapes cannot be multiplied"


@torchsymbol(torch.addmv, tags=_TAGS, autocast={"cuda": "lower"})
def addmv(input: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Compute beta * input + alpha * (mat @ vec)."""
    check(
        mat.ndim == 2 and vec.ndim == 1 and input.ndim <= 1,
        lambda: f"vector + matrix @ vector expected, got {input.ndim}, {mat.ndim}, {vec.ndim}",
    )
    return _added(input, ltorch.mv(mat, vec), beta, alpha)


addmv.vjp(_grads)


@addmv.samples
def _(make: MakeTensor) -> Any:
    yield from _samples(make, [((3,), (3, 4), (4,)), ((1,), (3, 4), (4,)), ((), (3, 4), (4,)), ((3,), (3, 0), (0,))])


@addmv.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,)), make((2, 3)), make((2,))), RuntimeError, "size mismatch"
    yield SampleInput(make((3,)), make((2, 3, 4)), make((2,))), RuntimeError, r"vector \+ matrix @ vector expected"


@torchsymbol(torch.addr, tags=_TAGS, autocast={"cuda": "lower"})
def addr(input: Any, vec1: Any, vec2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Compute beta * input + alpha * outer(vec1, vec2)."""
    out = ltorch.outer(vec1, vec2)
    if out.dtype is dtypes.bool8 is input.dtype:
        out = out if alpha else ltorch.zeros_like(out)
        return ltorch.logical_or(input, out) if beta else out
    if alpha != 1:
        out = alpha * out
    return out if beta == 0 else (beta * input if beta != 1 else input) + out


@addr.vjp
def _(g: Any, out: Any, input: Any, vec1: Any, vec2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    beta, alpha = _conjugated(beta), _conjugated(alpha)
    by_first, by_second = ltorch.mv(g, conjugated(vec2)), ltorch.mv(g.mT, conjugated(vec1))
    return ltorch.sum_to_size(_scaled(g, beta), input.shape), _scaled(by_first, alpha), _scaled(by_second, alpha)


@addr.samples
def _(make: MakeTensor) -> Any:
    yield from _samples(make, [((3, 4), (3,), (4,)), ((4,), (3,), (4,)), ((), (3,), (4,))])


@torchsymbol(torch.baddbmm, tags=_TAGS, autocast="lower", layout="contiguous")
def baddbmm(input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Compute beta * input + alpha * (batch1 @ batch2), matrix by matrix."""
    return _added(input, ltorch.bmm(batch1, batch2), beta, alpha)


baddbmm.vjp(_grads)


@baddbmm.samples
def _(make: MakeTensor) -> Any:
    shapes = ((2, 3, 5), (2, 3, 4), (2, 4, 5))
    yield from _samples(make, [shapes, ((3, 5), *shapes[1:]), ((1, 1, 5), *shapes[1:]), ((), (2, 3, 0), (2, 0, 5))])


@baddbmm.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,)), make((2, 3, 4)), make((2, 4, 5))), RuntimeError, "must match the existing size"
    yield SampleInput(make((3,)), make((2, 3)), make((2, 4, 5))), RuntimeError, "batch1 must be a 3D tensor"


@torchsymbol(torch.addbmm, tags=_TAGS, autocast="lower")
def addbmm(input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Compute beta * input + alpha * (the sum of batch1 @ batch2 over the batch)."""
    _check_batches(batch1, batch2)
    b, n, m = batch1.shape
    left = ltorch.reshape(ltorch.permute(batch1, (1, 0, 2)), (n, b * m))
    product = clang.matmul(left, ltorch.reshape(batch2, (b * m, batch2.shape[2])))
    return _added(input, product, beta, alpha)


@addbmm.vjp
def _(g: Any, out: Any, input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    each = ltorch.expand(ltorch.unsqueeze(g, 0), (batch1.shape[0], *g.shape))
    of_input = ltorch.sum_to_size(_scaled(g, _conjugated(beta)), input.shape)
    return (of_input, *(_scaled(grad, _conjugated(alpha)) for grad in matmul_grads(each, batch1, batch2)))


@addbmm.samples
def _(make: MakeTensor) -> Any:
    shapes = ((3, 5), (2, 3, 4), (2, 4, 5))
    yield from _samples(make, [shapes, ((5,), *shapes[1:]), ((3, 1), *shapes[1:])])


@addbmm.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,)), make((2, 3, 4)), make((2, 4, 5))), RuntimeError, "must match the existing size"
