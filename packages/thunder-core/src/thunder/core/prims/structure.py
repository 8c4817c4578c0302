# SPDX-License-Identifier: Apache-2.0
"""The primitives that make a list of operations a program: inputs, `del` and `return`."""

from __future__ import annotations

from typing import Any

from thunder.core.prims.base import prim
from thunder.core.printer import PrintContext, printable, type_comment
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol, OpTags

__all__ = ["comment", "python_del", "python_return", "unpack_trivial"]


def _print_unpack(bsym: BoundSymbol, context: PrintContext) -> list[str]:
    return [type_comment(bsym.output)]


@prim(tags=(OpTags.UNPACK_OP, OpTags.NON_DIFFERENTIABLE, OpTags.DONT_DCE), printer=_print_unpack)
def unpack_trivial(x: Proxy, /) -> Proxy:
    """Says that `x` is an input of the program; prints as its type comment."""
    return x


def _print_return(bsym: BoundSymbol, context: PrintContext) -> list[str]:
    return [f"return {printable(bsym.args[0], context)}"]


@prim(tags=(OpTags.SIDE_EFFECT, OpTags.NON_DIFFERENTIABLE), id="RETURN", printer=_print_return)
def python_return(x: Any, /) -> None:
    """The last line of a program."""


def _print_del(bsym: BoundSymbol, context: PrintContext) -> list[str]:
    return [f"del {', '.join(p.name for p in bsym.flat_args)}"]


@prim(tags=(OpTags.SIDE_EFFECT, OpTags.NON_DIFFERENTIABLE), id="DEL", printer=_print_del)
def python_del(*values: Proxy) -> None:
    """Drops values that are not used any more, so that their memory is free."""


def _print_comment(bsym: BoundSymbol, context: PrintContext) -> list[str]:
    return [f"# {line}" for line in bsym.args[0].splitlines()]


@prim(tags=(OpTags.SIDE_EFFECT, OpTags.NON_DIFFERENTIABLE), printer=_print_comment)
def comment(text: str, /) -> None:
    """A comment in the printed program."""
