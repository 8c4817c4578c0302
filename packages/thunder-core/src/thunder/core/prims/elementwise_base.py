# SPDX-License-Identifier: Apache-2.0
"""How an elementwise operation is declared: one block says all of it, from the primitive to torch's names.

    tan = elementwise(
        "tan",
        "Return the tangent of each element.",
        categories=INEXACT,
        promotion=KIND.INT_TO_FLOAT,
        number_fn="tan",
        vjp=lambda g, out, a: g * conjugated(1 + out * out),
        domain={"low": -1.5, "high": 1.5},
    )

The block is an `Elementwise` record. It makes the primitive, which `elementwise` returns. Each floor above makes its
own part of every record with a reader (`@each_elementwise`): the core language the function that broadcasts and
promotes, the torch and the NumPy language their operations, the torch executor what lets a function of torch take
numbers. Where such a part is more than that, `overridden_in` names the language, which has a body of its own in its
folder. A rule that does not fit into a line stands below the block (`@tan.vjp`), as for any operation.

A primitive neither promotes nor broadcasts, so a dtype that it cannot mean anything for is an error here: torch's own
NotImplementedError, which names the operation and the dtype. The languages convert before they get this far.
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
# Of truth values and integers: no gradient flows through them.
COMPARISON = (OpTags.ELEMENTWISE_OP, OpTags.NON_DIFFERENTIABLE)

# The categories of dtypes that an operation takes.
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
    """Decorate a function of a record: call it for each that is declared, and for each that will be."""
    for op in _declared:
        reader(op)
    _readers.append(reader)
    return reader


@dataclass(frozen=True, eq=False)
class Elementwise:
    """The declaration of an elementwise operation, on all floors."""

    name: str
    doc: str  #: what it computes, with {a} and {b} for its operands
    _: KW_ONLY
    operands: int = 1

    # The primitive.
    categories: tuple[int, ...] = ANY  #: of the dtypes that it takes
    out: dtype | Callable[[dtype], dtype] | None = None  #: the result's dtype, if not the operands'
    meta: Callable[..., TensorProxy] | None = None  #: its meta function, where `categories` and `out` do not say it
    vjp: Callable[..., Any] | None = None
    tags: Sequence[OpTags] = ELEMENTWISE
    facts: Mapping[str, Any] = field(default_factory=dict)  #: keywords of `make_prim` and `torchsymbol` alike

    # The core language.
    language_name: str = ""  #: its name in the core and the torch language, if not the primitive's
    promotion: KIND = KIND.DEFAULT
    number_fn: str | Callable[..., Any] | None = None  #: computes Python numbers; a function of `math` by its name
    lowering: Callable[..., Any] | None = None  #: called on converted operands instead of the primitive
    swapped: str = ""  #: the operation that a call with a number first becomes, with its operands swapped
    method: bool = False  #: whether an operator of Python calls it on proxies
    overridden_in: Sequence[str] = ()  #: the languages ("clang", "torch") that have a body of their own for it

    # The torch and the NumPy language.
    torch: str | Sequence[str] = ()  #: torch's functions, by default that of its name; the first runs it
    tensors_only: bool = False  #: torch's function takes no Python numbers
    numpy: str = ""  #: its name in NumPy, if it is one of the NumPy language

    # Tests.
    domain: Mapping[str, Any] = field(default_factory=dict)  #: low=, high=, exclude_zero= for the values of samples
    numbers: bool = False  #: whether the second operand of a sample is a Python number
    samples: Callable[[MakeTensor], Iterable[SampleInput]] | None = None  #: what the torch language adds
    refuses: dtype | None = None  #: a dtype that is an error on all floors
    message: str = ""  #: of the error for a dtype that it does not take, if not the usual one; {dtype} is its name
    error: type[Exception] = NotImplementedError
    errors: Callable[[MakeTensor], Iterator[ErrorSample]] | None = None  #: what else is

    prim: Symbol = field(init=False)
    family: str = field(init=False)  #: the module of the declaration

    def __post_init__(self) -> None:
        # As for a function, the module that declares it says whether it is one of thunder's, and its family.
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
        """Return the result that `categories` and `out` say; raise torch's error for other dtypes."""
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
        """The functions of torch that it answers to."""
        names = (self.torch,) if isinstance(self.torch, str) else tuple(self.torch)
        return names or (f"torch.{self.language_name}",)

    def docstring(self, *operands: str) -> str:
        """Return its documentation with the names that its operands have on a floor."""
        return self.doc.format(**dict(zip("ab", operands)))

    @property
    def number_function(self) -> Callable[..., Any] | None:
        """The function that computes it of Python numbers, if there is one."""
        return _function_of_numbers(self.number_fn) if isinstance(self.number_fn, str) else self.number_fn

    def _prim_errors(self, make: MakeTensor) -> Iterator[ErrorSample]:
        if self.refuses is not None:
            a = make((2, 3), dtype=self.refuses)
            expected = re.escape(self.message.format(dtype=self.refuses)) or f"not implemented for {self.refuses}"
            yield SampleInput(*[a] * self.operands), self.error, expected
        if self.errors is not None:
            yield from self.errors(make)

    def language_samples(self, make: MakeTensor) -> Iterator[SampleInput]:
        """Yield the primitive's samples, shapes that broadcast, and what the declaration adds."""
        assert self.prim.sample_generator is not None
        yield from self.prim.sample_generator(make)
        if self.operands == 2:
            yield from broadcasting_pairs(make, **self.domain)
        if self.samples is not None:
            yield from self.samples(make)

    def language_errors(self, make: MakeTensor) -> Iterator[ErrorSample]:
        """Yield what the primitive refuses, and shapes that do not broadcast."""
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
    """Return Python's function of that name, of real or complex numbers."""
    real, of_complex = getattr(math, name), getattr(cmath, name, None)
    if of_complex is None:
        return real

    def apply(x: Any) -> Any:
        return of_complex(x) if isinstance(x, complex) else real(x)

    return apply


def check_categories(name: str, categories: Sequence[int], *operands: Any) -> None:
    """Raise torch's error for a tensor of a dtype that an operation does not take."""
    for a in operands:
        if isinstance(a, TensorProxy) and a.dtype.category not in categories:
            wanted = " and ".join(_WORDS[c] for c in categories)
            raise NotImplementedError(f'"{name}" not implemented for {a.dtype}: it takes {wanted} tensors')


def conjugated(x: Any) -> Any:
    """Return the complex conjugate in a gradient rule: the value itself where it is real."""
    if isinstance(x, TensorProxy):
        return x.conj() if is_complex_dtype(x.dtype) else x
    return x.conjugate() if isinstance(x, complex) else x


def differentiable(x: Any) -> bool:
    """Check whether a rule has to give a gradient for `x`: not for numbers, nor for integers."""
    return isinstance(x, TensorProxy) and is_inexact_dtype(x.dtype)


def unary_samples(**domain: Any) -> Callable[[MakeTensor], Iterator[SampleInput]]:
    """Return the sample generator of an operation on one tensor whose values are between low= and high=."""

    def generate(make: MakeTensor) -> Iterator[SampleInput]:
        yield from elementwise_unary(make, **domain)

    return generate


def binary_samples(*, numbers: bool = False, **domain: Any) -> Callable[[MakeTensor], Iterator[SampleInput]]:
    """Return the sample generator of a primitive on two tensors of one shape, and perhaps on a tensor and a number."""

    def generate(make: MakeTensor) -> Iterator[SampleInput]:
        for shape in ((4, 4), (), (0,), (3, 0, 2), (8, 3, 5)):
            yield SampleInput(make(shape, **domain), make(shape, **domain))
        yield SampleInput(make((5, 3), **domain).mT, make((3, 5), **domain))
        yield SampleInput(make((4, 1), **domain).expand(4, 3), make((4, 3), **domain))
        if numbers:
            yield SampleInput(make((2, 3), **domain), 2)

    return generate
