# SPDX-License-Identifier: Apache-2.0
"""The declaration of elementwise operations: one block declares everything, from the primitive to torch's names.

    tan = elementwise(
        "tan",
        "Return the tangent of each element.",
        categories=INEXACT,
        promotion=KIND.INT_TO_FLOAT,
        number_fn="tan",
        vjp=lambda g, out, a: g * conjugated(1 + out * out),
        domain={"low": -1.5, "high": 1.5},
    )

The block creates an `Elementwise` record and the primitive, which `elementwise` returns. Each higher layer has a reader
(`@each_elementwise`), which creates that layer's part of the operation from the record:

- The core language creates the function that broadcasts and promotes.
- The torch and the NumPy language create their operations.
- The torch executor creates its implementation, and lets torch functions that need tensors accept numbers.

If a language needs a special implementation, `overridden_in` contains the language's name, and the implementation is in
the language's folder. A rule that needs more than one line follows below the block (`@tan.vjp`), as for any operation.

A primitive does not promote or broadcast. For a dtype that a primitive does not support, it raises the same
NotImplementedError as torch, with the names of the operation and the dtype. The languages convert dtypes before they
call a primitive.
"""

from __future__ import annotations

import cmath
import functools
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ParamSpec

from thunder.core.dtypes import (
    BOOL,
    COMPLEX,
    FLOAT,
    INTEGER,
    dtype,
    float32,
    int64,
    is_complex_dtype,
    is_inexact_dtype,
)
from thunder.core.errors import check
from thunder.core.prims.base import PrimIDs, make_prim
from thunder.core.prims.metas import elementwise_meta
from thunder.core.promotion import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from thunder.core.proxies import TensorProxy
from thunder.core.samples import ErrorSample, MakeTensor, SampleInput, broadcasting_pairs, elementwise_unary
from thunder.core.symbol import OpTags, Symbol

__all__ = [
    "ANY",
    "BITS",
    "COMPARISON",
    "ELEMENTWISE",
    "FLOATS",
    "INEXACT",
    "INTEGERS",
    "KIND",
    "NUMBERS",
    "ORDERED",
    "Elementwise",
    "binary_samples",
    "check_categories",
    "conjugated",
    "differentiable",
    "each_elementwise",
    "elementwise",
    "unary_samples",
]

P = ParamSpec("P")

ELEMENTWISE = (OpTags.ELEMENTWISE_OP,)
# The tags of operations with bool or integer results, through which no gradient flows.
COMPARISON = (OpTags.ELEMENTWISE_OP, OpTags.NON_DIFFERENTIABLE)

# The categories of dtypes that an operation accepts.
ANY = (BOOL, INTEGER, FLOAT, COMPLEX)
INEXACT = (FLOAT, COMPLEX)
FLOATS = (FLOAT,)
ORDERED = (BOOL, INTEGER, FLOAT)
NUMBERS = (INTEGER, FLOAT)
INTEGERS = (INTEGER,)
BITS = (BOOL, INTEGER)

_WORDS = {BOOL: "bool", INTEGER: "integer", FLOAT: "floating point", COMPLEX: "complex"}

_declared: list[Elementwise] = []
_readers: list[Callable[[Elementwise], None]] = []


def each_elementwise(reader: Callable[[Elementwise], None]) -> Callable[[Elementwise], None]:
    """Call the decorated function with each `Elementwise` record, including records that are declared later."""
    for op in _declared:
        reader(op)
    _readers.append(reader)
    return reader


@dataclass(frozen=True, eq=False)
class Elementwise:
    """The declaration of an elementwise operation, for all layers."""

    name: str
    doc: str  #: the docstring, with {a} and {b} for the operands
    _: KW_ONLY
    operands: int = 1

    # The primitive.
    categories: tuple[int, ...] = ANY  #: the categories of dtypes that it accepts
    out: dtype | Callable[[dtype], dtype] | None = None  #: the result's dtype, if it differs from the operands' dtype
    meta: Callable[..., TensorProxy] | None = None  #: the meta function, if `categories` and `out` do not suffice
    vjp: Callable[..., Any] | None = None
    tags: Sequence[OpTags] = ELEMENTWISE
    facts: Mapping[str, Any] = field(default_factory=dict)  #: keywords for `make_prim` and for `torchsymbol`

    # The core language.
    language_name: str = ""  #: its name in the core and torch languages, if not the primitive's name
    promotion: KIND = KIND.DEFAULT
    number_fn: str | Callable[..., Any] | None = None  #: the function for numbers; a string is a name in `math`
    lowering: Callable[..., Any] | None = None  #: called on converted operands instead of the primitive
    swapped: str = ""  #: for `(number, tensor)`: the operation to call with swapped operands
    method: bool = False  #: True if an operator of Python calls it on proxies
    overridden_in: Sequence[str] = ()  #: the languages ("clang", "torch") that implement it separately

    # The torch and the NumPy language.
    torch: str | Sequence[str] = ()  #: torch's functions (default: the function of its name); the first runs it
    tensors_only: bool = False  #: True if torch's function accepts no Python numbers
    numpy: str = ""  #: its name in NumPy, if the NumPy language has it

    # Tests.
    domain: Mapping[str, Any] = field(default_factory=dict)  #: low=, high=, exclude_zero= for the values of samples
    numbers: bool = False  #: True if samples have a Python number as the second operand
    samples: Callable[[MakeTensor], Iterable[SampleInput]] | None = None  #: additional samples of the torch language
    refuses: dtype | None = None  #: a dtype that is an error in all layers
    message: str = ""  #: the error message for other dtypes, with {dtype}; empty for the usual message
    error: type[Exception] = NotImplementedError
    errors: Callable[[MakeTensor], Iterator[ErrorSample]] | None = None  #: other arguments that raise errors

    prim: Symbol = field(init=False)
    family: str = field(init=False)  #: the module of the declaration

    def __post_init__(self) -> None:
        # The module of the declaration determines the family, and whether the operation belongs to thunder.
        frame: Any = sys._getframe(1)
        while frame.f_globals is globals():
            frame = frame.f_back
        object.__setattr__(self, "language_name", self.language_name or self.name)
        object.__setattr__(self, "family", frame.f_globals["__name__"])
        meta = self.meta or self._meta()
        meta.__doc__, meta.__module__ = self.docstring("a", "b"), self.family
        prim = make_prim(
            PrimIDs._declare(self.name.upper()),
            self.name,
            meta=meta,
            tags=self.tags,
            torch=self.torch_names[0],
            **self.facts,
        )
        prim.vjp_rule = self.vjp
        if self.operands == 1:
            prim.samples(unary_samples(**self.domain))
        else:
            prim.samples(binary_samples(numbers=self.numbers, **self.domain))
        if self.errors is not None or self.refuses is not None:
            prim.errors(self._prim_errors)
        object.__setattr__(self, "prim", prim)

    def _meta(self) -> Callable[..., TensorProxy]:
        if self.operands == 1:

            def unary(a: TensorProxy, /) -> TensorProxy:
                return self.result(a)

            return unary

        def binary(a: Any, b: Any, /) -> TensorProxy:
            return self.result(a, b)

        return binary

    def result(self, *operands: Any) -> TensorProxy:
        """Return the result that `categories` and `out` declare; raise torch's error for other dtypes."""
        if self.message:
            given = operands[0].dtype
            check(given.category in self.categories, lambda: self.message.format(dtype=given), self.error)
        check_categories(self.name, self.categories, *operands)
        out = self.out
        if callable(out):
            out = out(operands[0].dtype)
        return elementwise_meta(self.name, *operands, out_dtype=out)

    @property
    def torch_names(self) -> tuple[str, ...]:
        """The functions of torch that this operation implements."""
        names = (self.torch,) if isinstance(self.torch, str) else tuple(self.torch)
        return names or (f"torch.{self.language_name}",)

    def docstring(self, *operands: str) -> str:
        """Return the docstring with `operands`, the names of the operands in one of the layers."""
        return self.doc.format(**dict(zip("ab", operands)))

    @property
    def number_function(self) -> Callable[..., Any] | None:
        """The function that computes the operation for Python numbers, or None."""
        return _function_of_numbers(self.number_fn) if isinstance(self.number_fn, str) else self.number_fn

    def _prim_errors(self, make: MakeTensor) -> Iterator[ErrorSample]:
        if self.refuses is not None:
            a = make((2, 3), dtype=self.refuses)
            expected = re.escape(self.message.format(dtype=self.refuses)) or f"not implemented for {self.refuses}"
            yield SampleInput(*[a] * self.operands), self.error, expected
        if self.errors is not None:
            yield from self.errors(make)

    def language_samples(self, make: MakeTensor) -> Iterator[SampleInput]:
        """Yield the primitive's samples, samples with shapes that broadcast, and the declaration's `samples`."""
        assert self.prim.sample_generator is not None
        yield from self.prim.sample_generator(make)
        if self.operands == 2:
            yield from broadcasting_pairs(make, **self.domain)
        if self.samples is not None:
            yield from self.samples(make)

    def language_errors(self, make: MakeTensor) -> Iterator[ErrorSample]:
        """Yield the primitive's errors, and an error for shapes that do not broadcast."""
        yield from self._prim_errors(make)
        if self.operands == 2:
            kind = float32 if FLOAT in self.categories else int64
            mismatch = SampleInput(make((2, 3), dtype=kind), make((4,), dtype=kind))
            yield mismatch, RuntimeError, r"The size of tensor a \(3\) must match the size of tensor b \(4\)"


def _declaring(record: Callable[P, Elementwise]) -> Callable[P, Symbol]:
    @functools.wraps(record)
    def declare(*args: P.args, **kwargs: P.kwargs) -> Symbol:
        op = record(*args, **kwargs)
        _declared.append(op)
        for reader in _readers:
            reader(op)
        return op.prim

    return declare


elementwise = _declaring(Elementwise)


def _function_of_numbers(name: str) -> Callable[..., Any]:
    """Return the function `name` of `math` for real numbers, or of `cmath` for complex numbers."""
    real, of_complex = getattr(math, name), getattr(cmath, name, None)
    if of_complex is None:
        return real

    def apply(x: Any) -> Any:
        return of_complex(x) if isinstance(x, complex) else real(x)

    return apply


def check_categories(name: str, categories: Sequence[int], *operands: Any) -> None:
    """Raise torch's error for a tensor whose dtype the operation does not accept."""
    for a in operands:
        if isinstance(a, TensorProxy) and a.dtype.category not in categories:
            wanted = " and ".join(_WORDS[c] for c in categories)
            raise NotImplementedError(f'"{name}" not implemented for {a.dtype}: it accepts {wanted} tensors')


def conjugated(x: Any) -> Any:
    """Return the complex conjugate of `x`; if `x` is real, return `x` itself."""
    if isinstance(x, TensorProxy):
        return x.conj() if is_complex_dtype(x.dtype) else x
    return x.conjugate() if isinstance(x, complex) else x


def differentiable(x: Any) -> bool:
    """Check whether a rule must return a gradient for `x`: only for floating point and complex tensors."""
    return isinstance(x, TensorProxy) and is_inexact_dtype(x.dtype)


def unary_samples(**domain: Any) -> Callable[[MakeTensor], Iterator[SampleInput]]:
    """Return the sample generator of an operation on one tensor; `domain` contains the bounds low= and high=."""

    def generate(make: MakeTensor) -> Iterator[SampleInput]:
        yield from elementwise_unary(make, **domain)

    return generate


def binary_samples(*, numbers: bool = False, **domain: Any) -> Callable[[MakeTensor], Iterator[SampleInput]]:
    """Return the sample generator of a primitive on two tensors of one shape; `numbers` adds a tensor and a number."""

    def generate(make: MakeTensor) -> Iterator[SampleInput]:
        for shape in ((4, 4), (), (0,), (3, 0, 2), (8, 3, 5)):
            yield SampleInput(make(shape, **domain), make(shape, **domain))
        yield SampleInput(make((5, 3), **domain).mT, make((3, 5), **domain))
        yield SampleInput(make((4, 1), **domain).expand(4, 3), make((4, 3), **domain))
        if numbers:
            yield SampleInput(make((2, 3), **domain), 2)

    return generate
