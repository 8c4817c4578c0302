# SPDX-License-Identifier: Apache-2.0
"""What a code object says of itself: which globals it reads, and through them which attributes, without running it."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

from thunder.core.locations import is_ours

__all__ = [
    "ATTRIBUTE",
    "IDENTITY",
    "LENGTH",
    "VARIABLE",
    "attribute_names",
    "compares_identity",
    "global_loads",
    "imported_modules",
    "measured",
    "nested_codes",
    "raised_by_branch",
    "stored_attributes",
    "stored_globals",
    "stored_past_hooks",
    "uses",
]

_GLOBAL = {dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME") if name in dis.opmap}
_ATTRIBUTE = {dis.opmap[name] for name in ("LOAD_ATTR", "LOAD_METHOD") if name in dis.opmap}
_STORE = {dis.opmap[name] for name in ("STORE_GLOBAL", "DELETE_GLOBAL")}
_STORE_ATTR = dis.opmap["STORE_ATTR"]
_LOAD_GLOBAL, _LOAD_ATTR = dis.opmap["LOAD_GLOBAL"], dis.opmap["LOAD_ATTR"]
_CONTAINS = dis.opmap.get("CONTAINS_OP", -1)
_IS = dis.opmap["IS_OP"]
_CONSTANT = {dis.opmap[name] for name in ("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT") if name in dis.opmap}
_IMPORT, _IMPORT_FROM = dis.opmap["IMPORT_NAME"], dis.opmap["IMPORT_FROM"]
_DEREF = dis.opmap["LOAD_DEREF"]
_CALLS = {dis.opmap[name] for name in ("CALL", "PRECALL", "CALL_FUNCTION") if name in dis.opmap}
_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLOSURE")
_EXTENDED, _CACHE = dis.EXTENDED_ARG, dis.opmap.get("CACHE", -1)
_PUSH_NULL = dis.opmap.get("PUSH_NULL", -1)
# Since then the lowest bit of the argument says how a call is prepared.
_GLOBAL_SHIFT = 1 if sys.version_info >= (3, 11) else 0
_ATTRIBUTE_SHIFT = 1 if sys.version_info >= (3, 12) else 0


def _instructions(code: CodeType) -> Iterator[tuple[int, int]]:
    raw, argument = code.co_code, 0
    for i in range(0, len(raw), 2):
        op = raw[i]
        argument = argument << 8 | raw[i + 1]
        if op == _EXTENDED:
            continue
        if op != _CACHE and op != _PUSH_NULL:
            yield op, argument
        argument = 0


_known: dict[int, tuple[CodeType, tuple[Any, ...]]] = {}


def _facts(code: CodeType) -> tuple[Any, ...]:
    known = _known.get(id(code))
    if known is None:
        if len(_known) > 10_000:
            _known.clear()
        known = _known[id(code)] = (code, _scan(code))
    return known[1]


def _scan(code: CodeType) -> tuple[Any, ...]:
    loads: dict[tuple[str, ...], None] = {}
    attributes: dict[str, None] = {}
    uses: dict[tuple[str, str], set[str]] = {}
    stored: set[str] = set()
    assigned: set[str] = set()
    chain: tuple[str, ...] = ()
    last: tuple[str, str] | None = None  # what was loaded just before
    imported: set[str] = set()
    measured = 0  # 1 right after the built-in `len`, 2 when it has been given something
    taken: set[tuple[str, ...]] = set()  # chains that something else is done with than to ask what is in them
    identity = False  # whether `is` stands between two things neither of which is a constant or global
    before = -1  # the opcode before
    names = code.co_names
    instructions = [*_instructions(code)]
    for i, (op, argument) in enumerate(instructions):
        name, now = IDENTITY if last is not None and _tests_identity(instructions, i) else "", None
        identity = identity or (op == _IS and before not in _CONSTANT and not chain)
        before = op
        if measured:  # between `len` and its call stands what it is given, and nothing else
            if op in _CALLS and argument == 1 and measured > 1:
                name, measured = LENGTH, 0
            elif op in _ATTRIBUTE and measured > 1:
                measured = 2
            else:
                measured = 2 if measured == 1 and dis.opname[op].startswith(_LOADS) else 0
        if len(chain) > 1 and op not in _ATTRIBUTE and op != _CONTAINS:
            taken.add(chain)
        if op in _GLOBAL:
            chain = (names[argument >> (_GLOBAL_SHIFT if op == _LOAD_GLOBAL else 0)],)
            loads[chain] = None
            now = (VARIABLE, chain[0])
            measured = 1 if chain == ("len",) else measured
        elif op == _DEREF:
            chain = ()
            now = (VARIABLE, _dereferenced(code, argument))
        elif op in _ATTRIBUTE:
            name = names[argument >> (_ATTRIBUTE_SHIFT if op == _LOAD_ATTR else 0)]
            attributes[name] = None
            now = (ATTRIBUTE, name)
            if chain:
                chain = (*chain, name)
                loads[chain] = None
        else:
            chain = ()
            if op == _IMPORT:
                imported.add(names[argument])
            elif op == _IMPORT_FROM:
                attributes[names[argument]] = None
            if op in _STORE:
                stored.add(names[argument])
            elif op == _STORE_ATTR:
                assigned.add(names[argument])
        if last is not None:
            uses.setdefault(last, set()).add(name)
        last = now
    return (
        tuple(loads),
        tuple(attributes),
        frozenset(stored),
        uses,
        frozenset(imported),
        frozenset(taken),
        (frozenset(key for key, found in uses.items() if LENGTH in found)),
        frozenset(assigned),
        identity,
    )


def _tests_identity(instructions: list[tuple[int, int]], i: int) -> bool:
    """Check whether what was loaded just before an instruction is only compared by `is`."""
    name = dis.opname[instructions[i][0]]
    if name == "IS_OP" or (name.startswith("POP_JUMP") and name.endswith("NONE")):
        return True
    return name in _SINGLE_LOADS and i + 1 < len(instructions) and dis.opname[instructions[i + 1][0]] == "IS_OP"


_SINGLE_LOADS = frozenset({"LOAD_CONST", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME"})
ATTRIBUTE, VARIABLE = "attribute", "variable"
IDENTITY = "is"  # a use of a variable or attribute: whether it is some object
LENGTH = "len()"  # a use of a variable or attribute: how long it is


def _dereferenced(code: CodeType, argument: int) -> str:
    if hasattr(code, "_varname_from_oparg"):
        return code._varname_from_oparg(argument)  # type: ignore[no-any-return]
    return (code.co_cellvars + code.co_freevars)[argument]


def global_loads(code: CodeType) -> tuple[tuple[str, ...], ...]:
    """Return the globals that code reads, each also with attributes read of it: `("torch",)`, `("torch", "relu")`."""
    return _facts(code)[0]  # type: ignore[no-any-return]


def attribute_names(code: CodeType) -> Iterator[str]:
    """Iterate over the attributes that code reads of anything."""
    return iter(_facts(code)[1])


def uses(code: CodeType, kind: str, name: str) -> set[str]:
    """Return what code does with an attribute or variable of that name.

    These are the attributes it takes of it, `LENGTH` where it asks how long it is, `IDENTITY` where it asks whether it
    is some object, "" for anything else.
    """
    found: set[str] = set(_facts(code)[3].get((kind, name), ()))
    return found | {""} if name in code.co_consts else found


def imported_modules(code: CodeType) -> frozenset[str]:
    """Return the modules that code imports itself."""
    return _facts(code)[4]  # type: ignore[no-any-return]


def only_asks(code: CodeType, chain: tuple[str, ...]) -> bool:
    """Check whether all that code does with a global's attribute is to ask whether something is in it."""
    return chain not in _facts(code)[5]


def measured(code: CodeType) -> frozenset[tuple[str, str]]:
    """Return the attributes and variables whose length code asks for."""
    return _facts(code)[6]  # type: ignore[no-any-return]


def stored_globals(code: CodeType) -> frozenset[str]:
    """Return the globals that code assigns or deletes."""
    return _facts(code)[2]  # type: ignore[no-any-return]


def stored_attributes(code: CodeType) -> frozenset[str]:
    """Return the attributes that code assigns of anything."""
    return _facts(code)[7]  # type: ignore[no-any-return]


def compares_identity(code: CodeType) -> bool:
    """Check whether it may ask whether two objects are one: by `is`, or by functions that tell."""
    found: bool = _facts(code)[8]
    return found or not {"id", "is_", "is_set_to"}.isdisjoint(code.co_names)


def stored_past_hooks(code: CodeType) -> frozenset[str]:
    """Return what code names, where it may assign that without its class being asked."""
    past = {"__setattr__", "__dict__"}.intersection(attribute_names(code))
    if past or ("vars",) in global_loads(code):
        return frozenset(name for name in code.co_consts if isinstance(name, str))
    return frozenset()


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Iterate over the code of functions defined in code, however deep."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from nested_codes(const)


def raised_by_branch(error: BaseException) -> bool:
    """Check whether an error of ours comes from where a program asks only whether something is true."""
    asks, entry = "", error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        if not is_ours(code.co_filename):
            asks = dis.opname[code.co_code[entry.tb_lasti]]
        entry = entry.tb_next
    return "JUMP" in asks or asks in ("TO_BOOL", "UNARY_NOT", "COMPARE_OP")
