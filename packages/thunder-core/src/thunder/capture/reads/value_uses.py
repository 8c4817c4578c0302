# SPDX-License-Identifier: Apache-2.0
"""Which globals code uses as values, and does not only call: `make(int)` and `x.kind is int`, but not `int(x)`.

What replaces a function while a program is traced behaves like it in calls, but is another object. Code is followed
instruction by instruction with a stack of the names that were loaded. An instruction that is not listed here uses the
values that it may take from the stack.
"""

from __future__ import annotations

import dis
import functools
import sys
from types import CodeType
from typing import NamedTuple

__all__ = ["ValueUses", "value_uses"]


class ValueUses(NamedTuple):
    """The names of globals, and of attributes of globals as `math.sqrt`, that code uses other than by calling them."""

    kept: frozenset[str]  # stored, returned, put into a container or compared by identity
    passed: frozenset[str]  # arguments of calls


# Functions that only call their arguments, or accept replacements of classes.
_ONLY_CALL = frozenset(
    {"isinstance", "issubclass", "map", "filter", "functools.reduce", "reduce", "sorted", "min", "max"}
)
_TYPE = "type()"  # stands for the result of a call of `type`, for which there is a replacement, too
_NULL = "NULL"
_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_NO_EFFECT = frozenset({"NOP", "RESUME", "CACHE", "PRECALL", "KW_NAMES", "EXTENDED_ARG", "NOT_TAKEN"})
_PUSHES = frozenset({"LOAD_CONST", "LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT", "LOAD_FAST", "LOAD_FAST_BORROW",
                     "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE", "LOAD_BUILD_CLASS",
                     "LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"})  # fmt: skip
# How many values an instruction takes from the stack besides its arguments and the called function.
_CALLS = {"CALL_FUNCTION": 0, "CALL_FUNCTION_KW": 1, "CALL_METHOD": 1, "CALL": 1, "CALL_KW": 2}
_ENDS = frozenset({"JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "RETURN_VALUE",
                   "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})  # fmt: skip
# Instructions that take the last values only, and leave those below as they are.
_TAKE_THE_LAST = frozenset({"LIST_APPEND", "LIST_EXTEND", "LIST_TO_TUPLE", "SET_ADD", "SET_UPDATE", "MAP_ADD",
                            "DICT_UPDATE", "DICT_MERGE", "STORE_FAST", "STORE_DEREF", "STORE_GLOBAL", "STORE_NAME",
                            "RETURN_VALUE"})  # fmt: skip
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
# `a or b` and `a and b` until Python 3.11: a jump leaves the value on the stack.
_OR_POPS = frozenset({"JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"})

# The names of one entry: one of a loaded global, several of a tuple, none of another value.
_Entry = frozenset[str]
_OTHER: _Entry = frozenset()


class _Stack(list["_Entry"]):
    """The entries that instructions have pushed. What lies below them is unknown."""

    def take(self, n: int) -> list[_Entry]:
        """Remove and return the last `n` entries, oldest first."""
        return [self.pop() if self else _OTHER for _ in range(n)][::-1]

    def join(self, other: _Stack) -> _Stack:
        """Return the entries after a jump: each holds the names that it has on either way."""
        common = min(len(self), len(other))
        return _Stack(a | b for a, b in zip(self[len(self) - common :], other[len(other) - common :]))


@functools.lru_cache(maxsize=10_000)
def value_uses(code: CodeType) -> ValueUses:
    """Return what code uses as values."""
    kept: set[str] = set()
    passed: set[str] = set()
    stack = _Stack()
    joins: dict[int, _Stack] = {}
    falls_through = True
    for instruction in dis.get_instructions(code):
        if (arriving := joins.get(instruction.offset)) is not None:
            stack = stack.join(arriving) if falls_through else _Stack(arriving)
        elif not falls_through:
            stack = _Stack()
        jumping = _Stack(stack) if instruction.opname in _OR_POPS else stack
        if instruction.opname in _CALLS:
            passed |= _call(stack, instruction.arg or 0, _CALLS[instruction.opname])
        elif instruction.opname == "CALL_FUNCTION_EX":  # the arguments are in a tuple and a dict
            with_keywords = 1 if sys.version_info >= (3, 14) else (instruction.arg or 0) & 1
            passed |= _call(stack, 1 + with_keywords, 0 if sys.version_info < (3, 11) else 1)
        else:
            kept |= _step(instruction, stack)
        if instruction.opcode in _JUMPS and isinstance(instruction.argval, int):
            known = joins.get(instruction.argval, jumping)
            joins[instruction.argval] = known.join(jumping)
        falls_through = instruction.opname not in _ENDS
    return ValueUses(frozenset(kept - {_TYPE, _NULL}), frozenset(passed - {_TYPE, _NULL}))


def _call(stack: _Stack, arguments: int, others: int) -> frozenset[str]:
    """Apply a call to the stack, and return the names that it is given as arguments."""
    entries = stack.take(arguments + 1 + others)
    head = len(entries) - arguments - (1 if others == 2 else 0)
    callee = next((each for each in entries[:head] if each - {_NULL, _TYPE}), _OTHER)
    stack.append(frozenset({_TYPE}) if callee == {"type"} else _OTHER)
    return _OTHER if callee and callee <= _ONLY_CALL else _OTHER.union(*entries[head:])


def _step(instruction: dis.Instruction, stack: _Stack) -> frozenset[str]:
    """Apply another instruction to the stack, and return the names that it uses as values."""
    op = instruction.opname
    if op in _NO_EFFECT or (op in _ENDS and "JUMP" in op):
        return _OTHER
    change = dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
    if op in _LOADS:
        loaded = frozenset({instruction.argval})
        null = [frozenset({_NULL})] * (change - 1)
        stack.extend([loaded, *null] if _NULL_COMES_LAST else [*null, loaded])
    elif op == "PUSH_NULL":
        stack.append(frozenset({_NULL}))
    elif op in _PUSHES:
        stack.extend([_OTHER] * change)
    elif op in _ATTRIBUTES:
        (owner,) = stack.take(1)
        name = instruction.argval
        found = [_TYPE] if name == "__class__" else [f"{each}.{name}" for each in owner]
        stack.extend([frozenset(found), *[_OTHER] * change])
    elif op == "BUILD_TUPLE" or op == "BINARY_OR" or (op == "BINARY_OP" and instruction.argrepr == "|"):
        stack.append(_OTHER.union(*stack.take(1 - change)))
    elif op in ("COMPARE_OP", "CONTAINS_OP"):  # what replaces a class is equal to it
        stack.take(2)
        stack.append(_OTHER)
    elif op == "IS_OP":
        both = _OTHER.union(*stack.take(2))
        stack.append(_OTHER)
        return _OTHER if _TYPE in both else both
    elif op == "POP_TOP" or op in _OR_POPS or (op.startswith("POP_JUMP") and change == -1):
        stack.take(1)
    else:
        taken = 1 - change if op.startswith("BUILD_") else max(0, -change) + (op not in _TAKE_THE_LAST)
        used = _OTHER.union(*stack.take(taken))
        stack.extend([_OTHER] * (change + taken))
        return used
    return _OTHER


_NULL_COMES_LAST = "CALL_KW" in dis.opmap  # since Python 3.13, after the function that is called
