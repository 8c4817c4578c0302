# SPDX-License-Identifier: Apache-2.0
"""Compiled programs that raise an error at run time: whether the call can run eagerly instead."""

from __future__ import annotations

import types
from typing import Any, NamedTuple

from thunder.core import prims
from thunder.core.state import SourceLine
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import ProgramLines
from thunder.core.tracebacks import PROGRAM_PREFIX, sources
from thunder.extend import get_always_executors

__all__ = ["Failure", "failed_before_effects"]

# An operation with one of these tags does not leave the world as it was before the call.
_EFFECTS = frozenset({
    OpTags.RANDOM_OP, OpTags.GENERATOR_STATE_OP, OpTags.IN_PLACE_OP, OpTags.COLLECTIVE, OpTags.SIDE_EFFECT,
})  # fmt: skip


class Failure(NamedTuple):
    """An error of a compiled program, without its frames, and the line of user code that it comes from."""

    error: Exception
    where: SourceLine | None


def failed_before_effects(error: BaseException) -> bool:
    """Check whether an operation of torch raised an error in a compiled program that had written and drawn nothing.

    Then the call can run eagerly. An error of a plugin's operation is a defect of the plugin.
    """
    entry = error.__traceback__
    while entry is not None and not entry.tb_frame.f_code.co_filename.startswith(PROGRAM_PREFIX):
        entry = entry.tb_next
    lines = None if entry is None else sources.get(entry.tb_frame.f_code.co_filename)
    if entry is None or not isinstance(lines, ProgramLines):
        return False  # e.g. an epilogue, which makes the assignments one after another
    ran = lines.until(entry.tb_lineno)
    executor = ran[-1].sym.executor if ran else None
    return bool(ran) and (executor is None or executor in get_always_executors()) and not any(map(_has_effect, ran))


def _has_effect(op: BoundSymbol) -> bool:
    sym = op.sym
    if sym.is_structural or sym is prims.decide or [part.sym for part in op.subsymbols] == [prims.decide]:
        return False
    if OpTags.OPAQUE_OP in sym.tags and not _is_of_torch(sym.fn):
        return True  # an operation of torch.library, which may run any code
    return not _EFFECTS.isdisjoint(sym.tags) or any(map(_has_effect, op.subsymbols))


def _is_of_torch(function: Any) -> bool:
    if isinstance(function, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        return True
    return getattr(function, "namespace", None) == "aten"
