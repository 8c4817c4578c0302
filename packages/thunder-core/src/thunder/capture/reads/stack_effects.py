# SPDX-License-Identifier: Apache-2.0
"""What instructions of bytecode do with the stack, and handlers of errors, for `set_uses.py`, which follows code."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from types import CodeType

__all__ = [
    "BUILDS",
    "ENDS",
    "JUMPS",
    "NAMED_OPERATIONS",
    "NULL_COMES_LAST",
    "ONLY_TAKE",
    "SET_OPERATIONS",
    "SET_UP_HANDLERS",
    "TAKEN",
    "handlers",
]

# How many values an instruction takes from the stack; how many it puts there follows from its effect.
_TAKES = {
    0: "NOP RESUME CACHE KW_NAMES EXTENDED_ARG NOT_TAKEN LOAD_SMALL_INT LOAD_BUILD_CLASS "
       "LOAD_CLOSURE JUMP_FORWARD JUMP_BACKWARD JUMP_ABSOLUTE JUMP_BACKWARD_NO_INTERRUPT "
       "MAKE_CELL COPY_FREE_VARS DELETE_FAST DELETE_DEREF DELETE_GLOBAL DELETE_NAME PUSH_EXC_INFO",
    1: "UNARY_NEGATIVE UNARY_POSITIVE UNARY_INVERT LIST_TO_TUPLE STORE_DEREF STORE_GLOBAL STORE_NAME "
       "IMPORT_FROM LIST_APPEND LIST_EXTEND DICT_UPDATE DICT_MERGE UNPACK_SEQUENCE UNPACK_EX POP_EXCEPT RETURN_VALUE "
       "GET_LEN YIELD_VALUE CALL_INTRINSIC_1",
    2: "BINARY_SUBSCR SET_FUNCTION_ATTRIBUTE CALL_INTRINSIC_2 "
       "STORE_ATTR DELETE_SUBSCR IMPORT_NAME MAP_ADD BINARY_ADD BINARY_MULTIPLY "
       "BINARY_TRUE_DIVIDE BINARY_FLOOR_DIVIDE BINARY_MODULO BINARY_POWER INPLACE_ADD INPLACE_MULTIPLY",
    3: "STORE_SUBSCR BINARY_SLICE",
    4: "STORE_SLICE",
}  # fmt: skip
TAKEN = {name: count for count, names in _TAKES.items() for name in names.split()}
BUILDS = frozenset({"BUILD_LIST", "BUILD_MAP", "BUILD_SLICE", "BUILD_CONST_KEY_MAP"})
ONLY_TAKE = frozenset({"FOR_ITER", "END_FOR", "GEN_START"})
SET_OPERATIONS = frozenset({"&", "|", "-", "^", "&=", "|=", "-=", "^="})
NAMED_OPERATIONS = {f"{kind}_{name}": sign for kind in ("BINARY", "INPLACE")
                     for name, sign in (("AND", "&"), ("OR", "|"), ("SUBTRACT", "-"), ("XOR", "^"))}  # fmt: skip
NULL_COMES_LAST = sys.version_info >= (3, 13)  # after the function that is called
ENDS = frozenset({"JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "RETURN_VALUE",
                   "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})  # fmt: skip
JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
# Python 3.10 has no table of handlers, which could be reached from each instruction that they protect.
SET_UP_HANDLERS = frozenset({"SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH"})


def handlers(code: CodeType) -> Iterator[tuple[int, int, int, int, int]]:
    """Iterate over the handlers of errors: start, end and target of the protected code, the height of the stack, and
    whether the position of the error is put on it. Python 3.10 has no such table.
    """
    for entry in getattr(dis.Bytecode(code), "exception_entries", ()):
        yield entry.start, entry.end, entry.target, entry.depth, int(entry.lasti)
