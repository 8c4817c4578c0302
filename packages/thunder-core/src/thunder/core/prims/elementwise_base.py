# SPDX-License-Identifier: Apache-2.0
"""What the families of elementwise primitives share: tags, the checks of their meta functions, sample generators.

A primitive neither promotes nor broadcasts, so a dtype that it cannot mean anything for is an error here: torch's own
NotImplementedError, which names the operation and the dtype. clang converts before it gets this far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from thunder.core.dtypes import BOOL, COMPLEX, FLOAT, INTEGER, is_complex_dtype, is_inexact_dtype
from thunder.core.prims.metas import elementwise_meta
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput, elementwise_unary
from thunder.core.symbol import OpTags

__all__ = [
    "COMPARISON",
    "ELEMENTWISE",
    "binary_samples",
    "conjugated",
    "differentiable",
    "float_meta",
    "inexact_meta",
    "integer_meta",
    "ordered_meta",
    "unary_samples",
]

ELEMENTWISE = (OpTags.ELEMENTWISE_OP,)
# Of truth values and integers: no gradient flows through them.
COMPARISON = (OpTags.ELEMENTWISE_OP, OpTags.NON_DIFFERENTIABLE)

_KINDS = {BOOL: "bool", INTEGER: "integer", FLOAT: "floating point", COMPLEX: "complex"}


def _of_kinds(name: str, args: tuple[Any, ...], kinds: tuple[int, ...], out_dtype: Any = None) -> TensorProxy:
    for a in args:
        if isinstance(a, TensorProxy) and a.dtype.category not in kinds:
            wanted = " and ".join(_KINDS[k] for k in kinds)
            raise NotImplementedError(f'"{name}" not implemented for {a.dtype}: it takes {wanted} tensors')
    return elementwise_meta(name, *args, out_dtype=out_dtype)


def inexact_meta(name: str, *args: Any, out_dtype: Any = None) -> TensorProxy:
    """The result of a function of real or complex numbers."""
    return _of_kinds(name, args, (FLOAT, COMPLEX), out_dtype)


def float_meta(name: str, *args: Any) -> TensorProxy:
    """The result of a function of real numbers."""
    return _of_kinds(name, args, (FLOAT,))


def ordered_meta(name: str, *args: Any, bools: bool = True, out_dtype: Any = None) -> TensorProxy:
    """The result of an operation that everything but complex numbers has (and, where not `bools`, truth values)."""
    return _of_kinds(name, args, (BOOL, INTEGER, FLOAT) if bools else (INTEGER, FLOAT), out_dtype)


def integer_meta(name: str, *args: Any, bools: bool) -> TensorProxy:
    """The result of an operation on bits."""
    return _of_kinds(name, args, (BOOL, INTEGER) if bools else (INTEGER,))


def conjugated(x: Any) -> Any:
    """The complex conjugate in a gradient rule: the value itself where it is real."""
    if isinstance(x, TensorProxy):
        return x.conj() if is_complex_dtype(x.dtype) else x
    return x.conjugate() if isinstance(x, complex) else x


def differentiable(x: Any) -> bool:
    """Whether a rule has to give a gradient for `x`: not for numbers, nor for integers."""
    return isinstance(x, TensorProxy) and is_inexact_dtype(x.dtype)


def unary_samples(**domain: Any) -> Callable[[MakeTensor], Iterator[SampleInput]]:
    """The sample generator of an operation on one tensor whose values are between low= and high=."""

    def generate(make: MakeTensor) -> Iterator[SampleInput]:
        yield from elementwise_unary(make, **domain)

    return generate


def binary_samples(**domain: Any) -> Callable[[MakeTensor], Iterator[SampleInput]]:
    """The sample generator of a primitive on two tensors of one shape; `numbers=True` adds a number as the second."""
    numbers = domain.pop("numbers", False)

    def generate(make: MakeTensor) -> Iterator[SampleInput]:
        for shape in ((4, 4), (), (0,), (3, 0, 2), (8, 3, 5)):
            yield SampleInput(make(shape, **domain), make(shape, **domain))
        yield SampleInput(make((5, 3), **domain).mT, make((3, 5), **domain))
        yield SampleInput(make((4, 1), **domain).expand(4, 3), make((4, 3), **domain))
        if numbers:
            yield SampleInput(make((2, 3), **domain), 2)

    return generate
