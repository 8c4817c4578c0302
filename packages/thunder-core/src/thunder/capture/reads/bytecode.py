# SPDX-License-Identifier: Apache-2.0
"""Static facts about a code object: e.g. the globals that it reads, and the attributes that it reads from them."""

from __future__ import annotations

import dis
import functools
import itertools
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

from thunder.core.locations import is_ours

__all__ = [
    "ATTRIBUTE",
    "IDENTITY",
    "LENGTH",
    "MEMBERSHIP",
    "VARIABLE",
    "assigned_cells",
    "attribute_names",
    "attributes_not_of_self",
    "catches_missing_attributes",
    "combines",
    "compared_objects",
    "compares_identity",
    "global_loads",
    "imported_modules",
    "measured",
    "nested_codes",
    "raised_by_branch",
    "reads_past_hooks",
    "stored_attributes",
    "stored_globals",
    "stored_past_hooks",
    "uses",
]

_GLOBAL = {dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in dis.opmap}
_ATTRIBUTE = {dis.opmap[name] for name in ("LOAD_ATTR", "LOAD_METHOD") if name in dis.opmap}
_SUPER = dis.opmap.get("LOAD_SUPER_ATTR", -1)  # since Python 3.12: `super().name` in one instruction
_STORE = {dis.opmap[name] for name in ("STORE_GLOBAL", "DELETE_GLOBAL")}
_STORE_ATTR = dis.opmap["STORE_ATTR"]
_LOAD_GLOBAL, _LOAD_ATTR = dis.opmap["LOAD_GLOBAL"], dis.opmap["LOAD_ATTR"]
_CONTAINS = dis.opmap.get("CONTAINS_OP", -1)
_IS = dis.opmap["IS_OP"]
_COMPARE = dis.opmap["COMPARE_OP"]
# `==` and `!=` among the arguments of COMPARE_OP, whose lowest bits encode other facts since Python 3.12.
_COMPARE_SHIFT = 5 if sys.version_info >= (3, 13) else 4 if sys.version_info >= (3, 12) else 0
_EQUALITY = {dis.cmp_op.index("=="), dis.cmp_op.index("!=")}
_BUILD_SET = {dis.opmap[name] for name in ("BUILD_SET", "SET_ADD", "SET_UPDATE") if name in dis.opmap}
# Functions and methods that may compare objects by identity.
_IDENTITY_FUNCTIONS = frozenset({"id", "hash", "is_", "is_not", "eq", "ne", "set", "frozenset", "index", "remove",
                                 "count", "discard", "countOf", "indexOf", "contains", "__eq__", "__ne__",
                                 "__contains__", "__hash__", "is_set_to"})  # fmt: skip
_CONSTANT = {dis.opmap[name] for name in ("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT") if name in dis.opmap}
_IMPORT, _IMPORT_FROM = dis.opmap["IMPORT_NAME"], dis.opmap["IMPORT_FROM"]
# The last two, before and since Python 3.12, load the variables of functions in the body of a class.
_DEREF = {dis.opmap[n] for n in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF") if n in dis.opmap}
_MATCH_CLASS = dis.opmap["MATCH_CLASS"]
_CALLS = {dis.opmap[name] for name in ("CALL", "PRECALL", "CALL_FUNCTION") if name in dis.opmap}
_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLOSURE")
_EXTENDED, _CACHE = dis.EXTENDED_ARG, dis.opmap.get("CACHE", -1)
_PUSH_NULL = dis.opmap.get("PUSH_NULL", -1)
# Since these versions, the lowest bit of the argument encodes how a call is prepared.
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
    last: tuple[str, str] | None = None  # the variable or attribute that the previous instruction loaded
    imported: set[str] = set()
    measured = 0  # 1 right after the load of the built-in `len`, 2 after the load of its argument
    taken: set[tuple[str, ...]] = set()  # attributes of globals with uses other than `in` and further attributes
    identity = False  # whether `is` compares two values, excluding constants and globals
    before = -1  # the previous opcode
    names = code.co_names
    instructions = [*_instructions(code)]
    for i, (op, argument) in enumerate(instructions):
        name, now = IDENTITY if last is not None and _tests_identity(instructions, i) else "", None
        if op == _CONTAINS:
            name = MEMBERSHIP
        identity = identity or (op == _IS and before not in _CONSTANT and not chain)
        before = op
        if measured:  # between `len` and its call, only loads of its argument may occur
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
        elif op in _DEREF:
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
            if op == _SUPER:
                attributes[names[argument >> 2]] = None
                now = (ATTRIBUTE, names[argument >> 2])
            if op == _MATCH_CLASS and argument:  # patterns by position
                attributes["__match_args__"] = None
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
        _compared(code, instructions),
    )


def _compared(code: CodeType, instructions: list[tuple[int, int]]) -> frozenset[tuple[str, ...]]:
    """Return the second operands of comparisons that may compare objects by identity, e.g. `a is b` and `a in b`.

    An operand is the chain of a global, or `()` for any other expression. Comparisons with constants are left out.
    """
    found: set[tuple[str, ...]] = set()
    if not _IDENTITY_FUNCTIONS.isdisjoint(code.co_names):
        found.add(())
    for i, (op, argument) in enumerate(instructions):
        if op in _BUILD_SET:
            found.add(())
        elif op in (_IS, _CONTAINS) or (op == _COMPARE and argument >> _COMPARE_SHIFT in _EQUALITY):
            right, before = _operand(code, instructions, i - 1)
            left, _ = _operand(code, instructions, before)
            if left is not None and right is not None:
                found.add(right if op == _IS else ())
    return frozenset(found)


def _operand(code: CodeType, instructions: list[tuple[int, int]], i: int) -> tuple[tuple[str, ...] | None, int]:
    """Return the operand whose last instruction is `i`, and the index before its first instruction.

    The operand is None for a constant, the chain of a global, or `()` for any other expression.
    """
    names: list[str] = []
    while i >= 0 and instructions[i][0] in _ATTRIBUTE:
        op, argument = instructions[i]
        names.append(code.co_names[argument >> (_ATTRIBUTE_SHIFT if op == _LOAD_ATTR else 0)])
        i -= 1
    if i < 0:
        return (), -1
    op, argument = instructions[i]
    if op in _CONSTANT:
        return (None if not names else ()), i - 1
    if op in _GLOBAL:
        names.append(code.co_names[argument >> (_GLOBAL_SHIFT if op == _LOAD_GLOBAL else 0)])
        return tuple(names[::-1]), i - 1
    return (), i - 1 if dis.opname[op] in _SINGLE_LOADS else -1


def _tests_identity(instructions: list[tuple[int, int]], i: int) -> bool:
    """Check whether the value that the previous instruction loaded is only compared by `is`."""
    name = dis.opname[instructions[i][0]]
    if name == "IS_OP" or (name.startswith("POP_JUMP") and name.endswith("NONE")):
        return True
    return name in _SINGLE_LOADS and i + 1 < len(instructions) and dis.opname[instructions[i + 1][0]] == "IS_OP"


_SINGLE_LOADS = frozenset({"LOAD_CONST", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME"})
ATTRIBUTE, VARIABLE = "attribute", "variable"
IDENTITY = "is"  # a use of a variable or attribute: a comparison by identity
MEMBERSHIP = "in"  # a use of a variable or attribute: as the container of a test
LENGTH = "len()"  # a use of a variable or attribute: its length


def _dereferenced(code: CodeType, argument: int) -> str:
    if hasattr(code, "_varname_from_oparg"):
        return code._varname_from_oparg(argument)  # type: ignore[no-any-return]
    return (code.co_cellvars + code.co_freevars)[argument]


def global_loads(code: CodeType) -> tuple[tuple[str, ...], ...]:
    """Return the globals that code reads, and the chains of attributes: `("torch",)` and `("torch", "relu")`."""
    return _facts(code)[0]  # type: ignore[no-any-return]


def attribute_names(code: CodeType) -> Iterator[str]:
    """Iterate over the names of all attributes that code reads."""
    return iter(_facts(code)[1])


@functools.lru_cache(maxsize=4096)
def attributes_not_of_self(code: CodeType) -> frozenset[str]:
    """Return the names of attributes that code reads from values other than the variable `self`."""
    found: set[str] = set()
    of_self = False
    for op, argument in _instructions(code):
        if op in _ATTRIBUTE and not of_self:
            found.add(code.co_names[argument >> (_ATTRIBUTE_SHIFT if op == _LOAD_ATTR else 0)])
        elif op == _SUPER:
            found.add(code.co_names[argument >> 2])
        of_self = _loads_self(code, op, argument)
    return frozenset(found)


def _loads_self(code: CodeType, op: int, argument: int) -> bool:
    if op in _DEREF:
        return _dereferenced(code, argument) == "self"
    name = dis.opname[op]
    if name in ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST_LOAD_FAST"):
        argument &= 15  # the variable that is loaded last
    elif name not in ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"):
        return False
    return argument < len(code.co_varnames) and code.co_varnames[argument] == "self"


def uses(code: CodeType, kind: str, name: str) -> set[str]:
    """Return how code uses attributes or variables called `name`.

    The result contains the names of attributes read from the value, `LENGTH` if the code computes its length,
    `IDENTITY` if the code compares it by identity, `MEMBERSHIP` if it tests what the value contains, and "" for any
    other use.
    """
    found: set[str] = set(_facts(code)[3].get((kind, name), ()))
    return found | {""} if name in code.co_consts else found


def imported_modules(code: CodeType) -> frozenset[str]:
    """Return the modules that code imports."""
    return _facts(code)[4]  # type: ignore[no-any-return]


def makes_readers(code: CodeType) -> bool:
    """Check whether code may make objects that read attributes, whose names it may compute."""
    return not {"attrgetter", "methodcaller"}.isdisjoint(code.co_names)


def only_asks(code: CodeType, chain: tuple[str, ...]) -> bool:
    """Check whether code uses an attribute of a global only for `in` tests and for reading further attributes."""
    return chain not in _facts(code)[5]


def measured(code: CodeType) -> frozenset[tuple[str, str]]:
    """Return the attributes and variables whose length code computes."""
    return _facts(code)[6]  # type: ignore[no-any-return]


def stored_globals(code: CodeType) -> frozenset[str]:
    """Return the globals that code assigns or deletes."""
    return _facts(code)[2]  # type: ignore[no-any-return]


def stored_attributes(code: CodeType) -> frozenset[str]:
    """Return the names of attributes that code assigns on any object."""
    return _facts(code)[7]  # type: ignore[no-any-return]


def compares_identity(code: CodeType) -> bool:
    """Check whether code may compare two objects by identity, with `is` or with a function such as `id`."""
    found: bool = _facts(code)[8]
    return found or not {"id", "is_", "is_set_to"}.isdisjoint(code.co_names)


_OF_HASHES = frozenset({"hash", "__hash__", "WeakSet"})
# Positions in sources. Programs are saved for code that moves in its file.
_OF_POSITIONS = frozenset({"co_firstlineno", "co_filename", "co_lines", "co_positions", "co_linetable", "co_lnotab",
                           "f_lineno", "tb_lineno", "lineno"})  # fmt: skip
_OF_FRAMES = frozenset({"f_locals", "gi_frame", "cr_frame"})  # whose variables may hold sets


@functools.lru_cache(maxsize=4096)
def varies_among_processes(code: CodeType) -> bool:
    """Check whether code may depend on what differs between processes: hashes, and positions in sources.

    `order_of_sets` checks for the order of sets.
    """
    read = (_OF_POSITIONS | _OF_FRAMES).intersection((*code.co_names, *code.co_consts))
    return bool(read) or not _OF_HASHES.isdisjoint(code.co_names)


def combines(code: CodeType) -> bool:
    """Check whether code applies `|` or `^` to any values."""
    names = {x.opname for x in dis.get_instructions(code) if x.opname.startswith(("BINARY_", "INPLACE_"))}
    signs = {x.argrepr.rstrip("=") for x in dis.get_instructions(code) if x.opname == "BINARY_OP"}
    return not signs.isdisjoint("|^") or any(name.endswith(("_OR", "_XOR")) for name in names)


def compared_objects(code: CodeType) -> frozenset[tuple[str, ...]]:
    """Return what code compares by identity: chains of globals, and `()` for any other expression."""
    return _facts(code)[9]  # type: ignore[no-any-return]


def stored_past_hooks(code: CodeType) -> frozenset[str]:
    """Return the names that code may assign without calling the class's `__setattr__`."""
    past = {"__setattr__", "__dict__"}.intersection(attribute_names(code))
    if past or ("vars",) in global_loads(code):
        return frozenset(name for name in code.co_consts if isinstance(name, str))
    return frozenset()


# Attributes of a function besides its code, which the guard on the function does not check.
ATTRIBUTES_OF_FUNCTIONS = (
    "__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "__annotations__",
)  # fmt: skip


def reads_past_hooks(code: CodeType) -> str | None:
    """Return the name by which code reads attributes unseen, or None, e.g. `object.__getattribute__(x, "k")`."""
    for name in ("__globals__", "__closure__"):
        if name in attribute_names(code) or name in code.co_consts:
            return name
    return "__getattribute__" if "__getattribute__" in attribute_names(code) else None


def attributes_of_functions(code: CodeType) -> frozenset[str]:
    """Return the attributes in `ATTRIBUTES_OF_FUNCTIONS` that code may read from a function.

    `type(x).__name__` and `x.__class__.__name__` are attributes of classes.
    """
    by_text = frozenset(ATTRIBUTES_OF_FUNCTIONS).intersection(c for c in code.co_consts if type(c) is str)
    if frozenset(ATTRIBUTES_OF_FUNCTIONS).isdisjoint(code.co_names):
        return by_text
    found, before = set(by_text), ""
    for op, argument in _instructions(code):
        name = code.co_names[argument >> _ATTRIBUTE_SHIFT] if op in _ATTRIBUTE else ""
        if name in ATTRIBUTES_OF_FUNCTIONS and before != "__class__":
            found.add(name)
        before = "__class__" if op in _CALLS and "type" in code.co_names else name
    return frozenset(found)


_CATCHING = frozenset({"AttributeError", "Exception", "BaseException", "suppress"})
_PUSH_ERROR, _POP = dis.opmap.get("PUSH_EXC_INFO", -1), dis.opmap["POP_TOP"]


@functools.lru_cache(maxsize=1024)
def catches_missing_attributes(code: CodeType) -> bool:
    """Check whether code may catch the error of an attribute that does not exist."""
    if not _CATCHING.isdisjoint(code.co_names):
        return True
    instructions = [op for op, _ in _instructions(code)]
    if "SETUP_FINALLY" in dis.opmap and _PUSH_ERROR == -1:  # Python 3.10
        return dis.opmap["SETUP_FINALLY"] in instructions
    return any(a == _PUSH_ERROR and b == _POP for a, b in itertools.pairwise(instructions))  # a bare `except:`


@functools.lru_cache(maxsize=1024)
def assigned_cells(code: CodeType) -> frozenset[str]:
    """Return the closure variables that `code` assigns to."""
    found = dis.get_instructions(code)
    return frozenset(str(i.argval) for i in found if i.opname in ("STORE_DEREF", "DELETE_DEREF"))


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Iterate over the code of functions defined in `code`, at any depth."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from nested_codes(const)


def raised_by_branch(error: BaseException) -> bool:
    """Check whether user code raised an error of thunder by testing a truth value (e.g. in a branch)."""
    asks, entry = "", error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        if not is_ours(code.co_filename):
            asks = dis.opname[code.co_code[entry.tb_lasti]]
        entry = entry.tb_next
    return "JUMP" in asks or asks in ("TO_BOOL", "UNARY_NOT", "COMPARE_OP")
