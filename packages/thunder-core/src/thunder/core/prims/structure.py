# SPDX-License-Identifier: Apache-2.0
"""The primitives that turn a list of operations into a program: inputs, `del` and `return`."""

from __future__ import annotations

from typing import Any

from thunder.core.nbytes import bytes_of, in_bytes
from thunder.core.prims.base import prim
from thunder.core.printer import PrintContext, printable, type_comment
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol, OpTags

__all__ = ["Saved", "comment", "hand_over", "python_del", "python_return", "unpack_saved", "unpack_trivial"]


class Saved(tuple):
    """The values that a forward program returns for its backward program."""

    __slots__ = ()


def _print_unpack(bsym: BoundSymbol, context: PrintContext) -> list[str]:
    return [type_comment(bsym.output)]


@prim(tags=(OpTags.UNPACK_OP, OpTags.NON_DIFFERENTIABLE, OpTags.DONT_DCE), printer=_print_unpack)
def unpack_trivial(x: Proxy, /) -> Proxy:
    """Declare that `x` is an input of the program; this primitive prints as a comment with the type of `x`."""
    return x


def _print_unpack_saved(bsym: BoundSymbol, context: PrintContext) -> list[str]:
    holder = bsym.args[0]
    return [f"[{', '.join([p.name for p in bsym.output])}] = {holder}", f"{holder}.clear()"]


@prim(tags=(OpTags.UNPACK_OP, OpTags.NON_DIFFERENTIABLE, OpTags.DONT_DCE), printer=_print_unpack_saved)
def unpack_saved(holder: str, /) -> tuple[Proxy, ...]:
    """Return the inputs in the list called `holder`, and empty the list, so that only the program references them."""
    return ()


def _print_return(bsym: BoundSymbol, context: PrintContext) -> list[str]:
    value = bsym.args[0]
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Saved):
        written = f"({printable(value[0], context)}, {printable(tuple(value[1]), context)})"
        return [*_what_is_saved(value[1]), f"return {written}"]
    return [f"return {printable(value, context)}"]


def _what_is_saved(saved: Saved) -> list[str]:
    """Return comments that list the values saved for backward, with their types and sizes in bytes."""
    total = sum(bytes_of(p) for p in saved)
    lines = [f"# saved for backward: {len(saved)} values, {in_bytes(total)}"]
    return lines + [f'#   {p.name}: "{p.type_string()}", {in_bytes(bytes_of(p))}' for p in saved]


@prim(tags=(OpTags.SIDE_EFFECT, OpTags.NON_DIFFERENTIABLE), id="RETURN", printer=_print_return)
def python_return(x: Any, /) -> None:
    """Return `x` from the program; this primitive is the last line of a program."""


def _print_hand_over(bsym: BoundSymbol, context: PrintContext) -> list[str]:
    values, dead, name = bsym.args
    forget = [f"del {', '.join(dead)}"] if dead else []
    return [f"{name} = {printable(values, context)}", *forget, f"yield {name}"]


@prim(tags=(OpTags.SIDE_EFFECT, OpTags.NON_DIFFERENTIABLE), id="HAND_OVER", printer=_print_hand_over)
def hand_over(values: list[Proxy | None], dead: tuple[str, ...], name: str, /) -> None:
    """Yield results to the caller before the program ends, in a list that the caller empties.

    The program first deletes the values in `dead`, so that only the caller references them.
    """


def _print_del(bsym: BoundSymbol, context: PrintContext) -> list[str]:
    return [f"del {', '.join(p.name for p in bsym.flat_args)}"]


@prim(tags=(OpTags.SIDE_EFFECT, OpTags.NON_DIFFERENTIABLE), id="DEL", printer=_print_del)
def python_del(*values: Proxy) -> None:
    """Delete values after their last use to free their memory."""


def _print_comment(bsym: BoundSymbol, context: PrintContext) -> list[str]:
    return [f"# {line}" for line in bsym.args[0].splitlines()]


@prim(tags=(OpTags.SIDE_EFFECT, OpTags.NON_DIFFERENTIABLE), printer=_print_comment)
def comment(text: str, /) -> None:
    """Add a comment to the printed program."""
