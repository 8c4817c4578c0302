# SPDX-License-Identifier: Apache-2.0
"""Whether code may depend on the order of a set that it makes. It differs between processes, as hashes of strings do.

Code is followed instruction by instruction, on all ways through it, with a mark for each value on the stack and in a
variable. A set may be tested, measured, changed, compared and combined with other sets, for which its order does not
matter. All other uses count as uses of its order, and so does an instruction that is not listed here while a set is on
the stack. Some uses are known to be harmless only when the program has run (`SetUses`).
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import sys
from types import CodeType
from typing import NamedTuple

from thunder.capture.reads.stack_effects import (
    BUILDS,
    ENDS,
    JUMPS,
    NAMED_OPERATIONS,
    NULL_COMES_LAST,
    ONLY_TAKE,
    SET_OPERATIONS,
    SET_UP_HANDLERS,
    TAKEN,
    handlers,
)

__all__ = ["SetUses", "set_uses"]


class SetUses(NamedTuple):
    """How code uses the sets that it makes."""

    ordered: bool = False  # it may depend on their order
    # It loops over `set(x)`, which it never changes. Then the order of this set decides (`order_of_sets.py`).
    loops: bool = False
    called: bool = False  # it depends on their order only if it makes one by a call of `set`
    sorts: bool = False  # it sorts them, so that the result depends on their order unless elements are ordered totally
    raises: frozenset[int] = frozenset()  # the positions where it raises an error whose message contains one
    builtins: frozenset[str] = frozenset()  # the built-in functions that it is assumed to call by these names


class _UsesOrder(Exception):
    """The code may depend on the order of a set."""


# -- marks of values --------------------------------------------------------------------------------------------------
# Values that are none of these have the mark `_OTHER`: what the code does with them does not matter.
_OTHER = ""
_SET = "set"
_MAYBE = "set on some ways"
_NEW = "new set"  # the result of `set(x)`, which has the order of `x` and of hashes until it is changed
_VIEW = "view"  # the keys or items of a dict, which become a set if they are combined with others
_TEXT = "text"  # a text that contains the elements of a set, or an error with such a message
_COMPREHENSION = "<setcomp>"  # the name of its code
_MAKER = "makes a set"  # the function of a set comprehension (before Python 3.12)
_TYPES = "types"  # a tuple with the class `set`
_NULL, _LITERAL = "null", "literal"
# And `global NAME`, `method NAME` of a set or `maybe NAME` of what may be a set, and `literal NAME` of a literal text.

_MAKES = frozenset({"set", "frozenset"})
_MEASURES = frozenset({"len", "bool", "isinstance"})
_TEXTS = frozenset({"str", "repr"})
_BUILTINS = _MAKES | _MEASURES | _TEXTS | {"sorted"}
_ERRORS = frozenset(n for n, x in vars(builtins).items() if isinstance(x, type) and issubclass(x, Exception))
_RETURN_SETS = frozenset({"copy", "union", "intersection", "difference", "symmetric_difference"})
_CHANGE = frozenset({"add", "discard", "remove", "clear", "update", "difference_update", "intersection_update",
                     "symmetric_difference_update"})  # fmt: skip
_RETURN_OTHER = _CHANGE | {"isdisjoint", "issubset", "issuperset"}
# Functions that only iterate over a dict's keys or items, or test or measure them.
_ITERATE = frozenset({"list", "tuple", "dict", "sorted", "enumerate", "zip", "map", "filter", "iter", "any", "all",
                      "min", "max", "sum", "reversed", *_MAKES, *_MEASURES, *_TEXTS})  # fmt: skip
_METHODS = _RETURN_SETS | _RETURN_OTHER
_VIEWS = frozenset({"keys", "items"})
# Since Python 3.12, the interpreter reports calls of classes.
_SEES_NEW_SETS = sys.version_info >= (3, 12)
# Names by which code reads variables of a function, so that sets in them cannot be followed.
_READS_VARIABLES = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "f_locals"})


def _carries(mark: str) -> bool:
    """Check whether the order of a set may be read from a value."""
    return mark in _CARRIERS or mark.startswith(("method ", "maybe ")) or mark in _CLASSES


_CARRIERS = frozenset({_SET, _MAYBE, _NEW, _VIEW, _TEXT, _MAKER, _TYPES})
_CLASSES = frozenset(f"global {name}" for name in _MAKES)
_SETS = frozenset({_SET, _MAYBE, _NEW})


def _joined(a: str, b: str) -> str:
    """Return the mark of a value that has one of two marks."""
    if a == b:
        return a
    carriers = [x for x in (a, b) if _carries(x)]
    if not carriers:
        return _OTHER
    if _SETS.issuperset(carriers):
        return _MAYBE
    if len(carriers) == 1 and carriers[0] in (_TEXT, _TYPES, _VIEW):
        return carriers[0]
    raise _UsesOrder


# -- code ------------------------------------------------------------------------------------------------------------
class _State(NamedTuple):
    """The marks before an instruction: of the stack, and of the variables that may hold a set."""

    stack: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]

    def join(self, other: _State) -> _State:
        if len(self.stack) != len(other.stack):
            raise _UsesOrder
        stack = tuple(map(_joined, self.stack, other.stack))
        mine, others = dict(self.variables), dict(other.variables)
        names = sorted({*mine, *others})
        marks = [(n, _joined(mine.get(n, _OTHER), others.get(n, _OTHER))) for n in names]
        return _State(stack, tuple(marks))


class _Walk:
    """Follows the code of one function. `cells` are closure variables that may hold a set.

    Without `calls`, it is assumed that the code calls no `set`.
    """

    def __init__(self, code: CodeType, cells: frozenset[str], *, calls: bool):
        self.code = code
        self.cells = cells
        self.calls = calls
        self.stored: set[str] = set()  # the closure variables of this code that it stores a set in
        self.loops = self.changes = False  # whether it loops over a new set, and whether it changes one
        self.sorts = False
        self.raises: set[int] = set()
        self.builtins: set[str] = set()
        self._instructions = [*dis.get_instructions(code)]
        self._index = {x.offset: i for i, x in enumerate(self._instructions)}
        self._handlers = [*handlers(code)]
        self._states: dict[int, _State] = {}
        self._waiting: list[int] = []

    def run(self) -> None:
        """Follow all ways through the code. Raise `_UsesOrder` if one of them may depend on the order of a set."""
        if not SET_UP_HANDLERS.isdisjoint(x.opname for x in self._instructions):
            raise _UsesOrder
        self._arrive(0, _State((), ()))
        while self._waiting:
            i = self._waiting.pop()
            self._step(self._instructions[i], i, self._states[i])

    def _arrive(self, i: int, state: _State) -> None:
        known = self._states.get(i)
        found = state if known is None else known.join(state)
        if found != known:
            self._states[i] = found
            self._waiting.append(i)

    def _step(self, instruction: dis.Instruction, i: int, state: _State) -> None:
        op = instruction.opname
        for start, end, target, depth, with_offset in self._handlers:
            if start <= instruction.offset < end:
                self._catch(target, depth + with_offset + 1, depth, state)
        frame = _Frame(self, instruction, [*state.stack], dict(state.variables))
        if instruction.opcode in JUMPS and op not in ENDS:
            jumping = _Frame(self, instruction, [*state.stack], dict(state.variables))
            jumping.apply(jump=True)
            self._arrive(self._index[instruction.argval], jumping.state())
        frame.apply(jump=op in ENDS and instruction.opcode in JUMPS)
        if op not in ENDS:
            self._arrive(i + 1, frame.state())
        elif instruction.opcode in JUMPS:
            self._arrive(self._index[instruction.argval], frame.state())

    def _catch(self, target: int, height: int, depth: int, state: _State) -> None:
        """Arrive in the handler of an error, for which the stack is cut."""
        stack = state.stack[:depth]
        self._arrive(self._index[target], _State((*stack, *[_OTHER] * (height - depth)), state.variables))

    def is_protected(self, offset: int) -> bool:
        """Check whether the code itself may catch the error that an instruction raises."""
        return any(start <= offset < end for start, end, *_ in self._handlers)


class _Frame:
    """The effect of one instruction on the marks."""

    def __init__(self, walk: _Walk, instruction: dis.Instruction, stack: list[str], variables: dict[str, str]):
        self._walk, self._instruction = walk, instruction
        self._stack, self._variables = stack, variables

    def state(self) -> _State:
        return _State(tuple(self._stack), tuple(sorted((k, v) for k, v in self._variables.items() if v)))

    def take(self, count: int) -> list[str]:
        return [_SET if mark == _NEW else mark for mark in self._taken(count)]

    def _taken(self, count: int) -> list[str]:
        if count == 0:
            return []
        if count > len(self._stack):
            raise _UsesOrder
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def push(self, *marks: str) -> None:
        self._stack.extend(marks)

    def apply(self, *, jump: bool) -> None:
        """Apply the instruction."""
        op, argument = self._instruction.opname, self._instruction.arg or 0
        handler = getattr(self, f"_{op.lower()}", None)
        if handler is not None:
            handler(argument)
        elif op in ("POP_TOP", "POP_ITER", "END_SEND") or op.startswith("POP_JUMP"):
            self.take(1)
        elif op in ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"):
            self.take(0 if jump else 1)
        elif op in ("UNARY_NOT", "TO_BOOL"):
            self.take(1)
            self.push(_OTHER)
        elif "FAST" in op:
            self._fast(op)
        elif op in NAMED_OPERATIONS:
            self._combine(NAMED_OPERATIONS[op])
        elif op.startswith("CALL_FUNCTION") or op in ("CALL", "CALL_METHOD", "CALL_KW"):
            self._call_of(op, argument)
        else:
            self._generic(op, argument, jump)

    def _generic(self, op: str, argument: int, jump: bool) -> None:
        effect = dis.stack_effect(self._instruction.opcode, self._instruction.arg, jump=jump)
        if op in ONLY_TAKE:
            taken = max(0, -effect)
        elif op in BUILDS:
            taken = 1 - effect
        elif op in TAKEN:
            taken = TAKEN[op]
        else:  # an instruction that is not listed may use all values
            self._use(self._stack)
            taken = max(0, -effect)
        if effect + taken < 0:
            raise _UsesOrder
        self._use(self.take(taken))
        self.push(*[_OTHER] * (effect + taken))

    def _use(self, marks: list[str]) -> None:
        """Use values in any way."""
        if any(map(_carries, marks)):
            raise _UsesOrder

    # -- loads and stores ---------------------------------------------------------------------------------------------
    def _load_const(self, argument: int) -> None:
        value = self._instruction.argval
        kind = type(value)
        self.push(_SET if kind is frozenset else _LITERAL if kind is str else _OTHER)
        if kind is tuple and any(type(x) is frozenset for x in value):
            raise _UsesOrder

    def _return_const(self, argument: int) -> None:
        self._load_const(argument)
        self._return_value(argument)

    def _return_value(self, argument: int) -> None:
        (mark,) = self.take(1)
        if mark != _SET or self._walk.code.co_name != _COMPREHENSION:
            self._use([mark])

    def _load_global(self, argument: int) -> None:
        name = self._instruction.argval
        mark = f"global {name}"
        if name in _BUILTINS:
            self._walk.builtins.add(name)
        with_null = sys.version_info >= (3, 11) and argument & 1
        pushed = [_NULL, mark] if with_null else [mark]
        self.push(*(reversed(pushed) if NULL_COMES_LAST else pushed))

    def _load_name(self, argument: int) -> None:
        if self._instruction.argval in _BUILTINS:  # in the body of a class, which may assign it
            raise _UsesOrder
        self.push(_OTHER)

    def _load_assertion_error(self, argument: int) -> None:
        self.push("global AssertionError")

    def _load_common_constant(self, argument: int) -> None:
        self.push(f"global {self._instruction.argrepr}")

    def _return_generator(self, argument: int) -> None:
        self.push(_OTHER)

    def _push_null(self, argument: int) -> None:
        self.push(_NULL)

    def _load_deref(self, argument: int) -> None:
        self.push(_MAYBE if self._instruction.argval in self._walk.cells else _OTHER)

    def _load_classderef(self, argument: int) -> None:
        self._load_deref(argument)

    def _load_from_dict_or_deref(self, argument: int) -> None:
        self.take(1)
        self._load_deref(argument)

    def _store_deref(self, argument: int) -> None:
        (mark,) = self.take(1)
        name = self._instruction.argval
        if mark in _SETS and name in self._walk.code.co_cellvars:
            self._walk.stored.add(name)
        else:
            self._use([mark])

    def _fast(self, op: str) -> None:
        names = self._instruction.argval
        names = list(names) if isinstance(names, tuple) else [names]
        kinds = op.replace("_BORROW", "").replace("_CHECK", "").split("_FAST")[:-1]
        known = {"LOAD": 1, "_LOAD": 1, "STORE": 0, "_STORE": 0}
        if op == "DELETE_FAST":
            self._variables.pop(names[0], None)
            return
        if len(kinds) != len(names) or not set(kinds) <= known.keys() or op.endswith(("CLEAR", "NULL")):
            self._odd_fast(op, names)
            return
        for kind, name in zip(kinds, names):
            if known[kind]:
                self.push(self._variables.get(name, _OTHER))  # since Python 3.13 also cells, which are followed
            else:
                self._variables[name] = self._taken(1)[0]

    def _odd_fast(self, op: str, names: list[str]) -> None:
        if op == "LOAD_FAST_AND_CLEAR":
            self.push(self._variables.pop(names[0], _OTHER))
        elif op == "STORE_FAST_MAYBE_NULL":
            self._variables[names[0]] = self.take(1)[0]
        else:
            raise _UsesOrder

    def _load_attr(self, argument: int) -> None:
        name = self._instruction.argval
        self._changes(self._stack[-1:], name in _CHANGE)
        (owner,) = self.take(1)
        is_method = self._instruction.opname == "LOAD_METHOD" or (sys.version_info >= (3, 12) and argument & 1)
        if owner in _SETS:
            if name not in _METHODS:
                raise _UsesOrder
            mark = f"{'method' if owner == _SET else 'maybe'} {name}"
        elif owner == "global builtins" and name in _BUILTINS:
            raise _UsesOrder
        elif owner == _LITERAL and name == "join":
            mark = "literal join"
        else:
            self._use([owner])
            mark = f"view {name}" if name in _VIEWS else _OTHER
        self.push(*([mark, _OTHER] if is_method else [mark]))

    _load_method = _load_attr

    # -- the stack ----------------------------------------------------------------------------------------------------
    def _copy(self, argument: int) -> None:
        if argument > len(self._stack):
            raise _UsesOrder
        self.push(self._stack[-argument])

    def _swap(self, argument: int) -> None:
        if argument > len(self._stack):
            raise _UsesOrder
        self._stack[-1], self._stack[-argument] = self._stack[-argument], self._stack[-1]

    def _dup_top(self, argument: int) -> None:
        self._copy(1)

    def _dup_top_two(self, argument: int) -> None:
        self.push(*self._stack[-2:])

    def _rot(self, count: int) -> None:
        taken = self._taken(count)
        self.push(taken[-1], *taken[:-1])

    def _rot_two(self, argument: int) -> None:
        self._rot(2)

    def _rot_three(self, argument: int) -> None:
        self._rot(3)

    def _rot_four(self, argument: int) -> None:
        self._rot(4)

    def _rot_n(self, argument: int) -> None:
        self._rot(argument)

    # -- sets ---------------------------------------------------------------------------------------------------------
    def _build_set(self, argument: int) -> None:
        self._use([x for x in self.take(argument) if x not in _SETS])
        self.push(_SET)

    def _set_add(self, argument: int) -> None:
        self._use([x for x in self.take(1) if x not in _SETS])
        if self._stack[-argument] not in (_SET, _MAYBE):
            raise _UsesOrder

    _set_update = _set_add

    def _contains_op(self, argument: int) -> None:
        element, container = self.take(2)
        if container not in (*_SETS, _TYPES, _VIEW):
            self._use([container])
        if element not in _CLASSES and not (element in _SETS and container == _SET):
            self._use([element])
        self.push(_OTHER)

    def _is_op(self, argument: int) -> None:
        self.take(2)
        self.push(_OTHER)

    def _get_iter(self, argument: int) -> None:
        (mark,) = self._taken(1)
        if mark == _NEW and _SEES_NEW_SETS:
            self._walk.loops = True
        elif mark != _VIEW:
            self._use([mark])
        self.push(_OTHER)

    def _changes(self, marks: list[str], is_change: bool) -> None:
        self._walk.changes |= is_change and _NEW in marks

    def _compare_op(self, argument: int) -> None:
        both = self.take(2)
        if {*both} != {_SET}:
            self._use([x for x in both if x not in _CLASSES and {*both} != {_VIEW}])
        self.push(_OTHER)

    def _binary_op(self, argument: int) -> None:
        self._combine(self._instruction.argrepr)

    def _combine(self, sign: str) -> None:
        self._changes(self._stack[-2:-1], sign.endswith("="))
        both = self.take(2)
        if sign in SET_OPERATIONS and {*both} == {_SET}:
            self.push(_SET)
        else:
            self._use([x for x in both if x != _VIEW])
            self.push(_MAYBE if sign in SET_OPERATIONS and _VIEW in both else _OTHER)

    def _build_tuple(self, argument: int) -> None:
        taken = self.take(argument)
        self._use([x for x in taken if x not in _CLASSES and x != _TYPES])
        self.push(_TYPES if any(x in _CLASSES or x == _TYPES for x in taken) else _OTHER)

    # -- texts and errors ---------------------------------------------------------------------------------------------
    def _format_value(self, argument: int) -> None:
        self._format(2 if argument & 4 else 1)

    def _format_simple(self, argument: int) -> None:
        self._format(1)

    def _convert_value(self, argument: int) -> None:
        self._format(1)

    def _format_with_spec(self, argument: int) -> None:
        self._format(2)

    def _build_string(self, argument: int) -> None:
        self._format(argument)

    def _format(self, count: int) -> None:
        taken = self.take(count)
        self._use([x for x in taken if x not in _SETS and x != _TEXT])
        self.push(_TEXT if any(map(_carries, taken)) else _OTHER)

    def _raise_varargs(self, argument: int) -> None:
        taken = self.take(argument)
        self._use([x for x in taken if x != _TEXT])
        if _TEXT in taken:
            if self._walk.is_protected(self._instruction.offset):
                raise _UsesOrder
            self._walk.raises.add(self._instruction.offset)

    # -- calls --------------------------------------------------------------------------------------------------------
    def _precall(self, argument: int) -> None:
        """Do nothing: `CALL` follows, and takes the values."""

    def _make_function(self, argument: int) -> None:
        self._use(self.take(1 - dis.stack_effect(self._instruction.opcode, self._instruction.arg)))
        self.push(_MAKER if self._makes_set() else _OTHER)

    def _makes_set(self) -> bool:
        """Check whether the function that is made is that of a set comprehension."""
        before = self._walk._instructions[: self._walk._index[self._instruction.offset]]
        code = next((x.argval for x in reversed(before) if isinstance(x.argval, CodeType)), None)
        return code is not None and code.co_name == _COMPREHENSION

    def _call_of(self, op: str, argument: int) -> None:
        if op == "CALL_FUNCTION_EX":  # the arguments are in a tuple and a dict
            keywords = 1 if sys.version_info >= (3, 14) else argument & 1
            count, slots, names = 1 + keywords, 1 if sys.version_info < (3, 11) else 2, 0
        else:
            count, names = argument, int(op in ("CALL_FUNCTION_KW", "CALL_KW"))
            slots = 1 if op.startswith("CALL_FUNCTION") else 2
        taken = self.take(slots + count + names)
        head, arguments = taken[:slots], taken[slots:]
        self.push(self._called(head, arguments, spread=op == "CALL_FUNCTION_EX"))

    def _called(self, head: list[str], arguments: list[str], *, spread: bool) -> str:
        """Return the mark of what a call returns."""
        kinds = ("global ", "method ", "maybe ", "view ", "literal ")
        callee = next((x for x in head if x == _MAKER or x.startswith(kinds)), _OTHER)
        kind, _, name = callee.partition(" ")
        if callee:
            head.remove(callee)
        sets = [x for x in arguments if x in _SETS]
        others = [*head, *(x for x in arguments if x not in _SETS)]
        if spread:
            self._use(sets)
        if callee == _MAKER:
            self._use([*others, *sets])
            return _SET
        if kind == "method":
            self._use(others)
            return _SET if name in _RETURN_SETS else _OTHER
        if kind == "global" and name in _ITERATE and _VIEW in arguments:
            self._walk.builtins.add(name)
            others = [x for x in others if x != _VIEW]
        if kind == "global" and name in _BUILTINS:
            found = self._called_builtin(name, others, sets)
            if found != _SET or spread:
                return found
            return _OTHER if not self._walk.calls else _NEW if len(arguments) == 1 else found
        if kind == "global" and name in _ERRORS and _TEXT in others:
            self._use([*sets, *(x for x in others if x != _TEXT)])
            self._walk.builtins.add(name)
            return _TEXT
        if callee == "literal join" and sets:
            self._use(others)
            return _TEXT
        self._use([*others, *sets])
        if kind == "maybe":
            return _MAYBE if name in _RETURN_SETS else _OTHER
        return _VIEW if kind == "view" and not arguments else _OTHER

    def _called_builtin(self, name: str, others: list[str], sets: list[str]) -> str:
        if name == "isinstance":
            self._use([x for x in others if x not in _CLASSES and x != _TYPES])
            self._use(sets)
            return _OTHER
        self._use(others)
        if name == "sorted" and sets:
            self._walk.sorts = True
        if name in _TEXTS and sets:
            return _TEXT
        return _SET if name in _MAKES else _OTHER


def _followed(code: CodeType, cells: frozenset[str], *, calls: bool = True) -> SetUses:
    """Follow code, and the functions that it defines if they see a set in a closure variable."""
    walk = _Walk(code, cells, calls=calls)
    walk.run()
    if walk.loops and walk.changes:
        raise _UsesOrder
    seen = cells | walk.stored
    if seen != cells:  # the code may read what it stores
        return _followed(code, seen, calls=calls)
    assumed = {*walk.builtins}
    for nested in (c for c in code.co_consts if isinstance(c, CodeType)):
        if shared := seen.intersection(nested.co_freevars):
            more = _followed(nested, shared, calls=calls)
            if more.raises or more.sorts:  # nobody asks whether the nested function did
                raise _UsesOrder
            assumed |= more.builtins
    return SetUses(False, walk.loops, not calls, walk.sorts, frozenset(walk.raises), frozenset(assumed))


_MAKES_SETS = {dis.opmap[n] for n in ("BUILD_SET", "SET_ADD", "SET_UPDATE") if n in dis.opmap}


@functools.lru_cache(maxsize=4096)
def set_uses(code: CodeType) -> SetUses:
    """Return how code uses the sets that it makes."""
    operations = {*code.co_code[::2]}
    makes = (
        not _MAKES.isdisjoint(code.co_names)
        or any(type(x) is frozenset or (type(x) is CodeType and x.co_name == _COMPREHENSION) for x in code.co_consts)
        or not _MAKES_SETS.isdisjoint(operations)
    )
    if not makes and _VIEWS.isdisjoint(code.co_names):
        return SetUses()
    if makes and not _READS_VARIABLES.isdisjoint(code.co_names):
        return SetUses(ordered=True)
    if sys.version_info < (3, 11) and any(x.opname.startswith("SETUP_") for x in dis.get_instructions(code)):
        return SetUses(ordered=makes)  # handlers of errors, which this version has no table of
    for calls in (True, False) if _SEES_NEW_SETS else (True,):
        with contextlib.suppress(_UsesOrder, RecursionError):
            return _followed(code, frozenset(), calls=calls)
    return SetUses(ordered=True)
