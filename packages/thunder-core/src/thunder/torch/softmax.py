# SPDX-License-Identifier: Apache-2.0
"""Softmax and log-softmax, and operations on normalized vectors: normalize, cosine similarity and distances.

The softmaxes save their result for the backward program, which is one operation (e.g. `softmax_backward`) that
executors can claim.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes
from thunder.core.dtypes import to_dtype
from thunder.core.errors import check
from thunder.core.prims.metas import canonicalize_dim
from thunder.core.promotion import result_type
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol

_TAGS = (OpTags.REDUCTION_OP,)
_FACTS: Any = {"tags": _TAGS, "autocast": {"cuda": "float32"}, "layout": "contiguous on gpu"}


# -- softmax -----------------------------------------------------------------------------------------------------------
def _implicit_dim(name: str, ndim: int) -> int:
    warnings.warn(
        f"Implicit dimension choice for {name} has been deprecated. Change the call to include dim=X as an argument.",
        stacklevel=6,
    )
    return 0 if ndim in (0, 1, 3) else 1


def _arguments(name: str, input: Any, dim: Any, dtype: Any, _stacklevel: Any) -> tuple[int, Any]:
    """Return `dim` and `dtype` for both signatures: `(input, dim, dtype)` and `(input, dim, _stacklevel, dtype)`."""
    if isinstance(dtype, int):
        dtype = None if isinstance(_stacklevel, int) else _stacklevel
    return (_implicit_dim(name, input.ndim) if dim is None else dim), dtype


def _write_canonically(bsym: BoundSymbol) -> None:
    names = ("input", "dim", "dtype", "_stacklevel")
    given = {**dict(zip(names, bsym.args)), **bsym.kwargs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dim, dtype = _arguments(
            bsym.sym.name, given["input"], given.get("dim"), given.get("dtype"), given.get("_stacklevel", 3)
        )
    bsym.args = (given["input"], dim)
    bsym.kwargs = {} if dtype is None else {"dtype": dtype}


def _prepared(name: str, input: Any, dtype: Any) -> tuple[Any, dtypes.dtype]:
    """Return the input in the dtype of the computation, and the dtype of the result."""
    kind = to_dtype(dtype) or input.dtype
    if not dtypes.is_float_dtype(kind) and 0 not in input.shape:
        raise NotImplementedError(
            f'"{name}_lastdim_kernel_impl" not implemented for {kind}. Pass a floating point dtype='
        )
    # torch first rounds to the requested dtype, and then computes on the rounded numbers.
    x = clang.maybe_convert_to_dtype(input, kind)
    return clang.maybe_convert_to_dtype(x, clang.reductions.compute_dtype(kind)), kind


@torchsymbol(torch.softmax, torch.special.softmax, torch.nn.functional.softmax, **_FACTS)
def softmax(input: Any, dim: Any = None, dtype: Any = None, _stacklevel: Any = 3) -> Any:
    """Compute exp(input) divided by its sum over `dim`."""
    dim, dtype = _arguments("softmax", input, dim, dtype, _stacklevel)
    dim = canonicalize_dim(input.ndim, dim)
    x, kind = _prepared("softmax", input, dtype)
    if 0 in x.shape:
        return ltorch.zeros_like(x, dtype=kind)
    exponents = ltorch.exp(x - clang.amax(x, dim, True))
    return clang.maybe_convert_to_dtype(exponents / clang.sum(exponents, dim, True), kind)


@torchsymbol(tags=_TAGS, id="torch.softmax_backward", layout="contiguous on gpu")
def softmax_backward(grad: Any, output: Any, dim: int) -> Any:
    """Return the gradient of the input of softmax, given its output."""
    g, y = (clang.maybe_convert_to_dtype(x, clang.reductions.compute_dtype(x.dtype)) for x in (grad, output))
    product = g * y
    return clang.maybe_convert_to_dtype(product - y * clang.sum(product, dim, True), output.dtype)


@torchsymbol(torch.log_softmax, torch.special.log_softmax, torch.nn.functional.log_softmax, **_FACTS)
def log_softmax(input: Any, dim: Any = None, dtype: Any = None, _stacklevel: Any = 3) -> Any:
    """Return the logarithm of softmax, computed without overflow."""
    dim, dtype = _arguments("log_softmax", input, dim, dtype, _stacklevel)
    dim = canonicalize_dim(input.ndim, dim)
    x, kind = _prepared("log_softmax", input, dtype)
    if 0 in x.shape:
        return ltorch.zeros_like(x, dtype=kind)
    shifted = x - clang.amax(x, dim, True)
    return clang.maybe_convert_to_dtype(shifted - ltorch.log(clang.sum(ltorch.exp(shifted), dim, True)), kind)


@torchsymbol(tags=_TAGS, id="torch.log_softmax_backward", layout="contiguous on gpu")
def log_softmax_backward(grad: Any, output: Any, dim: int) -> Any:
    """Return the gradient of the input of log_softmax, given its output."""
    g, y = (clang.maybe_convert_to_dtype(x, clang.reductions.compute_dtype(x.dtype)) for x in (grad, output))
    return clang.maybe_convert_to_dtype(g - ltorch.exp(y) * clang.sum(g, dim, True), output.dtype)


def _softmax_samples(make: MakeTensor) -> Any:
    for shape, dim in (((4, 4), 1), ((2, 3, 5), 1), ((2, 3, 5), -1), ((), 0), ((0, 3), 1), ((3, 0), 1), ((4, 1), 1)):
        yield SampleInput(make(shape), dim)
    yield SampleInput(make((5, 3)).mT, 0)
    yield SampleInput(make((3, 4)), 1, dtype=torch.float64)
    yield SampleInput(make((3, 4), low=500, high=1000), -1)


def _softmax_errors(make: MakeTensor) -> Any:
    yield SampleInput(make((3,)), 1), IndexError, "Dimension out of range"
    yield SampleInput(make((3,), dtype=torch.int64), 0), NotImplementedError, "softmax_lastdim_kernel_impl"


def _backward_samples(make: MakeTensor) -> Any:
    for shape, dim in (((4, 4), 1), ((2, 3, 5), 1), ((), 0)):
        out = make(shape).float().softmax(dim).to(make(()).dtype).detach()
        yield SampleInput(make(shape), out.requires_grad_(make(()).requires_grad), dim)


def _join(forward: Symbol, backward: Symbol) -> None:
    """Add the common parts of both softmaxes: the gradient computed from the result, batching and samples."""
    forward.bind_postprocess = _write_canonically
    forward.samples(_softmax_samples)
    forward.errors(_softmax_errors)
    backward.samples(_backward_samples)

    @forward.vjp
    def _(g: Any, out: Any, input: Any, dim: int, *, dtype: Any = None) -> Any:
        return backward(g, out, dim).to(input.dtype)

    @forward.batch
    def _(b: Any, input: Any, dim: int, *, dtype: Any = None) -> Any:
        return forward(b.at_least_1d(input), b.dim(input, dim), dtype)

    @backward.batch
    def _(b: Any, grad: Any, output: Any, dim: int) -> Any:
        grad, output = (b.at_least_1d(b.expand(x)) for x in (grad, output))
        return backward(grad, output, b.dim(output, dim))


_join(softmax, softmax_backward)
_join(log_softmax, log_softmax_backward)


@torchsymbol(
    torch.nn.functional.softmin, is_method=False, tags=_TAGS, executed_by_torch=False, autocast={"cuda": "float32"}
)
def softmin(input: Any, dim: Any = None, _stacklevel: Any = 3, dtype: Any = None) -> Any:
    """Compute softmax(-input)."""
    return softmax(-input, _implicit_dim("softmin", input.ndim) if dim is None else dim, dtype)


softmin.samples(_softmax_samples)


# -- unit length -------------------------------------------------------------------------------------------------------
@torchsymbol(torch.nn.functional.normalize, is_method=False, autocast={"cuda": "float32"})
def normalize(input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Any:
    """Divide `input` by its p-norm over `dim`, or by `eps` if that is larger."""
    length = ltorch.clamp_min(ltorch.vector_norm(input, p, dim, True), eps)
    return input / length


@normalize.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 4)))
    yield SampleInput(make((3, 4)), 1.0, 0)
    yield SampleInput(make((2, 3, 4)), 3.0, -1, 1e-3)
    yield SampleInput(make((2, 3)) * 0, 2.0, 1)
    yield SampleInput(make((2, 3, 4)), dim=(1, 2))


@normalize.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,)), 2.0, 1), IndexError, "Dimension out of range"
    ints = make((3, 3), dtype=torch.int64)
    yield SampleInput(ints), RuntimeError, "Expected a floating point or complex tensor as input"


def _at_least(length: Any, eps: float) -> Any:
    """Return the larger of `length` and `eps`. As in torch, the gradient flows to `length` in both cases."""
    through = length - length.detach()
    return ltorch.where(length < eps, through + eps, length)


@torchsymbol(torch.nn.functional.cosine_similarity, is_method=False, tags=_TAGS, autocast={"cuda": "float32"})
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """Return the cosine of the angle between vectors along `dim`. Lengths below `eps` are replaced by `eps`."""
    kind = result_type(x1, x2)
    kind = to_dtype(kind)
    check(
        dtypes.is_inexact_dtype(kind),
        lambda: f"expected common dtype to be floating point, yet common dtype is {kind}",
    )
    x1, x2 = (clang.maybe_convert_to_dtype(x, kind) if dtypes.is_exact_dtype(x.dtype) else x for x in (x1, x2))
    a, b = clang.maybe_broadcast(x1, x2)
    a, b = (x / _at_least(ltorch.vector_norm(x, 2, dim, True), eps) for x in (a, b))
    return clang.sum(a * b, dim)


@cosine_similarity.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 4)), make((3, 4)))
    yield SampleInput(make((3, 4)), make((3, 4)), 0, 1e-3)
    yield SampleInput(make((3, 4)), make((4,)), -1)
    yield SampleInput(make((2, 3, 4)), make((2, 1, 4)), 2)


@cosine_similarity.errors
def _(make: MakeTensor) -> Any:
    ints = make((3, 4), dtype=torch.int64)
    yield SampleInput(ints, ints), RuntimeError, "expected common dtype to be floating point"


@torchsymbol(torch.nn.functional.pairwise_distance, torch.pairwise_distance, is_method=False, tags=_TAGS)
def pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    """Return the p-norm of `x1 - x2 + eps` over the last dimension."""
    return ltorch.vector_norm(x1 - x2 + eps, p, -1, keepdim)


@pairwise_distance.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3, 4)), make((3, 4)))
    yield SampleInput(make((3, 4)), make((4,)), 1.0, keepdim=True)
    yield SampleInput(make((2, 3, 4)), make((2, 3, 4)), 3.0, 1e-3)
