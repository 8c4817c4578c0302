# SPDX-License-Identifier: Apache-2.0
"""Primitives that bind data-dependent numbers, which are not known while a program is traced.

Symbolic expressions refer to these numbers (`core/symint/symbols.py`). The printed line of each primitive is also its
implementation. Only the memory pass removes a number without uses, because decompositions may need the number until
then.
"""

from __future__ import annotations

from typing import Any

from thunder.core.dtypes import is_boolean_dtype, is_complex_dtype, is_inexact_dtype
from thunder.core.prims.base import prim
from thunder.core.printer import PrintContext, call_line, printable
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.state import state
from thunder.core.symbol import BoundSymbol, OpTags

__all__ = ["check_number", "decide", "item", "items", "number", "size"]

_NUMBERS = (OpTags.UNPACK_OP, OpTags.NON_DIFFERENTIABLE, OpTags.DONT_DCE)


def _print_size(bsym: BoundSymbol, context: PrintContext) -> list[str]:
    if context.symbols:
        return [call_line(bsym, context)]
    x, dim = bsym.args
    return [f"{bsym.output.name} = {x.name}.shape[{dim}]"]


@prim(tags=_NUMBERS, printer=_print_size)
def size(x: TensorProxy, dim: int, /) -> NumberProxy:
    """Return the size `x.shape[dim]`, which is not known while tracing, as a leaf of symbolic expressions."""
    return x.shape[dim].proxy  # type: ignore[attr-defined, no-any-return]


def _print_item(bsym: BoundSymbol, context: PrintContext) -> list[str]:
    if context.symbols:
        return [call_line(bsym, context)]
    return [f"{bsym.output.name} = {bsym.args[0].name}.item()"]


@prim(tags=(*_NUMBERS, OpTags.DEVICE_SYNC_OP), printer=_print_item)
def item(x: TensorProxy, /) -> NumberProxy:
    """Return the only element of `x` as a number of the program, which is a leaf of symbolic expressions."""
    return _element(x)


def _element(x: TensorProxy) -> NumberProxy:
    from thunder.core.symint.symbols import symbols_of  # imports torch; `thunder.extend` must not

    assert state.trace is not None
    symbols = symbols_of(state.trace)
    if is_boolean_dtype(x.dtype):
        return symbols.unbacked(bool, low=0, high=1).proxy  # type: ignore[no-any-return]
    kind = complex if is_complex_dtype(x.dtype) else float if is_inexact_dtype(x.dtype) else int
    return symbols.unbacked(kind).proxy  # type: ignore[no-any-return]


def _print_items(bsym: BoundSymbol, context: PrintContext) -> list[str]:
    if context.symbols:
        return [call_line(bsym, context)]
    names = "".join(["_, " if p is None else f"{p.name}, " for p in bsym.output])
    return [f"{names}= {bsym.args[0].name}.tolist()"]


@prim(tags=(*_NUMBERS, OpTags.DEVICE_SYNC_OP), printer=_print_items)
def items(x: TensorProxy, /) -> tuple[NumberProxy, ...]:
    """Return the elements of the 1-D tensor `x` as numbers of the program, with one device synchronization for all."""
    return tuple([_element(x) for _ in range(x.shape[0])])


def _print_number(bsym: BoundSymbol, context: PrintContext) -> list[str]:
    if context.symbols:
        return [call_line(bsym, context)]
    return [f"{bsym.output.name} = {printable(bsym.args[0], context)}"]


@prim(tags=_NUMBERS, printer=_print_number)
def number(x: Any, /) -> NumberProxy:
    """Return the symbolic number `x` as a value of the program, which can be returned or saved for backward."""
    return NumberProxy(None, x.__class__)


def _print_check(bsym: BoundSymbol, context: PrintContext) -> list[str]:
    if context.symbols:
        return [call_line(bsym, context)]
    left, relation, right, message, kind = (*bsym.args, "RuntimeError")[:5]
    condition = f"{printable(left, context)} {relation} {printable(right, context)}"
    return [f"if not {condition}: raise {kind}({message!r})"]


@prim(tags=_NUMBERS, printer=_print_check)
def check_number(left: Any, relation: str, right: Any, message: str, kind: str = "RuntimeError", /) -> None:
    """Raise an error of type `kind` unless the comparison `left relation right` is true."""


@prim(tags=(OpTags.SIDE_EFFECT, OpTags.NON_DIFFERENTIABLE))
def decide(found: Any, answer: Any, index: int, /) -> None:
    """Leave this path of the program unless the condition or number `found` equals `answer`.

    `index` is the position among the decisions of the path.
    """


@decide.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(True, True, 0)
    yield SampleInput(2.5, 2.5, 1)
