# SPDX-License-Identifier: Apache-2.0
"""The check of a saved program's text before it is compiled: only what thunder's printer writes is accepted.

A program is one function of straight-line statements: assignments, `del`, `return`, `yield`, calls, and in a prologue
`if` statements that raise a failed guard. What it may call is listed exactly (`operators.py`).

A syntax tree of every line would take too long to walk. Lines are therefore reduced to their shapes first: each
literal becomes an empty string or 0, and each variable becomes `x` (most of them by two substitutions in the whole
text, the rest token by token). The tree of a shape differs from the line's tree in
names of variables and in values only, and a program has few shapes. The reduction reads the tokens of a line as Python
does: a text in which it could not (e.g. with comments, triple quotes or continued lines) is refused.
"""

# ruff: noqa: SIM905  (a text is shorter than a list)
from __future__ import annotations

import ast
import builtins
import functools
import importlib
import keyword
import re
import types
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch

from thunder.saved.operators import OPERATORS, SYMBOLS

__all__ = ["CALL_MEMOIZED", "ERRORS", "Names", "Refused", "verify"]


class Refused(Exception):
    """A text is not one that thunder's printer writes."""


_BUILTINS = frozenset({"len", "type", "tuple", "float", "complex", "slice", "bool", "int", "str", "set", "hasattr",
                       "issubclass", "sorted", "max", "min", "GuardFailed", "TensorsDiffer"})  # fmt: skip
#: The errors that programs raise if a number is not as an operation requires.
ERRORS = frozenset({"RuntimeError", "IndexError", "ValueError", "TypeError", "AssertionError", "ZeroDivisionError"})
# Conditions of guards on torch's state, and functions of numbers in expressions of symbolic sizes.
_STATE = frozenset({
    "torch.is_grad_enabled", "torch.is_inference_mode_enabled", "torch.get_default_dtype", "torch.is_autocast_enabled",
    "torch.get_autocast_dtype", "torch.device", "devices.Device",
    "math.floor", "math.ceil", "math.trunc", "math.sqrt", "math.isqrt",
    "math.pow", "math.log", "math.log2", "math.exp", "math.gcd", "math.isnan", "math.isinf", "math.isfinite",
    "math.copysign", "math.fmod", "dict.keys", "dict.values", "dict.__getitem__", "list.__getitem__",
    "tuple.__getitem__", "deque.__getitem__", "OrderedDict.__getitem__",
})  # fmt: skip
# Methods that guards call on the values that they check, and methods of lists of saved values.
_METHODS = frozenset(
    """
    keys values isdisjoint intersection accepts get storage_offset clear item tolist is_conj isEnabledFor is_neg
    is_contiguous is_shared is_pinned is_inference size dim
""".split()
)
# Attributes of Python's own objects with two underscores that guards read.
_DUNDER = frozenset(
    f"__{name}__"
    for name in """
    code dict globals closure defaults kwdefaults self func mro wrapped call name qualname module annotations
    class bases doc slots init new post_init init_subclass set_name get set delete getattr getattribute setattr
    delattr getitem setitem delitem missing contains len length_hint iter next reversed enter exit bool int float
    complex index str repr format bytes hash eq ne lt le gt ge add sub mul matmul truediv floordiv mod divmod pow
    lshift rshift and xor or radd rsub rmul rdiv rmatmul rtruediv rfloordiv rmod rdivmod rpow rlshift rrshift rand rxor
    ror iadd isub imul imatmul itruediv ifloordiv imod ipow ilshift irshift iand ixor ior neg pos abs invert round
    trunc floor ceil torch_function array array_function array_ufunc dataclass_fields dataclass_params match_args
    constants instancecheck subclasscheck subclasshook class_getitem copy deepcopy dir file package
    """.split()
)
# Functions without arguments that return a setting, which prologues call through the constant of a module.
_SETTINGS = frozenset({
    ("sys", "getrecursionlimit"), ("torch.distributed", "is_initialized"),
    ("thunder.runtime.settings", "attention_kernels"), ("thunder.runtime.settings", "decimal_settings"),
    ("os", "getcwd"),
    *(("torch._C", f"_get_{name}") for name in """deterministic_algorithms deterministic_algorithms_warn_only
      float32_matmul_precision cudnn_enabled cudnn_benchmark cudnn_deterministic cudnn_allow_tf32 cublas_allow_tf32
      mkldnn_enabled flash_sdp_enabled mem_efficient_sdp_enabled math_sdp_enabled cudnn_sdp_enabled""".split()),
})  # fmt: skip
_CALLED = _METHODS | {name for _, name in _SETTINGS}
# Attributes through which code outside of the program could be reached.
_DENIED = frozenset({"gi_frame", "gi_code", "cr_frame", "tb_frame", "f_globals", "f_builtins", "f_locals", "f_back",
                     "func_globals", "mro"})  # fmt: skip


@functools.cache
def _names_of_python() -> frozenset[str]:
    """Return the attributes with two underscores that Python's own objects have. Others, e.g. of a class, are data."""
    owners = (x for module in (builtins, types, importlib) for x in (module, *vars(module).values()))
    return frozenset({n for x in owners for n in dir(x) if n.startswith("__")} | {"__path__", "__main__"})


_HEADER = re.compile(r"def [A-Za-z_]\w*\((?:\*args, \*\*kwargs|(?:[A-Za-z_]\w*(?:, [A-Za-z_]\w*)*)?)\):")
# Strings, names with attributes (and the parenthesis or the = behind them), attributes, numbers, single characters.
_TOKEN = re.compile(
    r"""b?'(?:[^'\\\n]|\\.)*'|b?"(?:[^"\\\n]|\\.)*"|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?:\(|=(?!=))?|\.[A-Za-z_]\w*\(?"""
    r"""|\d+(?:\.\d*)?(?:e[+-]?\d+)?j?(?![\w.])|[\s\S]"""
)
# What is replaced in a whole text at once, so that few lines remain: strings, and the variables that the printer makes.
# A call of a variable is left, to be refused.
_STRING = re.compile(r"""'[^'\\\n]*(?:\\.[^'\\\n]*)*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*\"""")
_VARIABLE = re.compile(r"[tv](?<!\w[tv])(?:\d+|_\w+)\b(?!\()")  # begins with letters, for which the search is quick
_ROOTS = frozenset({"torch", "dtypes", "Tensor", "torchex", "operator", "math", "prims", "ltorch", "clang", "lnp",
                    "devices"})  # fmt: skip
_NAME = re.compile(r"\w+")
_ASSIGNMENT = re.compile(r"  [\w, \[\]()]+ = \S.*")
_NO_ASSIGNMENT = ("  if ", "  return", "  del ", "  yield ", "  raise ")
_SETTING_NAMES = tuple(f".{name}(" for _, name in _SETTINGS)
_WEAK = "_ReferenceType_"
#: The helper with which a prologue calls a function under `functools.lru_cache`: the object of a weak reference.
CALL_MEMOIZED = "call_memoized"
_MEMOIZED = re.compile(rf"{CALL_MEMOIZED}\(({_WEAK}\d+)\(\)[,)]")
# Names that programs never assign to.
_FIXED = frozenset({*_BUILTINS, *_ROOTS, "dict", "list", "deque", "OrderedDict", "bytes", "__builtins__"})
_MAX_MEMO = 1 << 16


class _Shapes(dict[str, str]):
    """Each token with what stands for it in the shape of a line."""

    def __missing__(self, token: str) -> str:
        if len(self) >= _MAX_MEMO:
            self.clear()
        found = self[token] = self._shape_of(token)
        return found

    def _shape_of(self, token: str) -> str:
        first = token[0]
        if first.isdigit():
            return "0" if len(token) > 1 or token.isdigit() else token
        if len(token) > 1 and (first in "'\"" or token[:2] in ("b'", 'b"')):
            return "''"
        if first in "'\"":
            return "\0"  # a string without an end
        if not (first.isalpha() or first == "_"):
            return token
        root, dot, rest = token.partition(".")
        if dot:
            keeps = root in _ROOTS or root in _OWNERS or token.endswith(_SETTING_NAMES)
            return token if keeps else f"x.{rest}"
        if token.startswith(_WEAK) and token[-1] == "(":
            return f"{_WEAK}0("
        return token if token[-1] in "(=" or keyword.iskeyword(token) else "x"


_OWNERS = frozenset({"dict", "list", "tuple", "deque", "OrderedDict"})  # of functions in `_STATE`
_tokens = _Shapes()
_lines: dict[tuple[str, str], frozenset[str]] = {}
_MAX_LINES = 1 << 14


class Names(NamedTuple):
    """What a program may do with its constants.

    Those that it may call, weak references, modules by their names, all, and weak references to memoized functions.
    """

    calls: Collection[str] = ()
    weak: Collection[str] = ()
    modules: Mapping[str, str] = MappingProxyType({})
    all: Collection[str] = ()
    memoized: Collection[str] = ()


def verify(text: str, names: Names, kind: str = "program") -> None:
    """Raise `Refused` unless a text is a program that calls listed operators, and constants that it may call.

    The kind "prologue" may read attributes of values and raise failed guards, and the kind "source" calls thunder's own
    operations. No program may assign to names of constants, of modules and of functions.
    """
    if not text.isascii() or "'''" in text or '"""' in text:
        raise Refused("the text has characters that no program has")
    if CALL_MEMOIZED in text:
        called = _MEMOIZED.findall(text)
        if kind != "prologue" or text.count(CALL_MEMOIZED) != len(called) or not {*called} <= {*names.memoized}:
            raise Refused("a call of a memoized function that has no name, or in a file that is not signed")
    head, _, body = text.partition("\n")
    if not any(map(_VARIABLE.fullmatch, (*names.all, *names.calls))):
        body = _VARIABLE.sub("x0", _STRING.sub("''", body))
    body_lines = {*body.split("\n")}
    tokens = _TOKEN.findall("\n".join([head, *body_lines]))
    for token in {*tokens}:
        _check_token(token, names, kind)
    if _HEADER.fullmatch(head) is None:
        raise Refused(f"not a header of a program: {head[:80]}")
    # Targets of assignments are names, without quotes; other lines may have a string with an equals sign.
    lines = [line.partition(" = ") for line in body_lines if not line.startswith(_NO_ASSIGNMENT)]
    assigned = [left for left, equals, _ in lines if equals and "'" not in left and '"' not in left]
    targets = {*_NAME.findall(head[4:]), *_NAME.findall(" ".join(assigned))}
    if not _FIXED.isdisjoint(targets) or not targets.isdisjoint((*names.all, *names.calls)):
        raise Refused("an assignment to a name that has another meaning")
    known = {*names.calls, *_BUILTINS, f"{_WEAK}0"}
    _, _, body = "".join(map(_tokens.__getitem__, tokens)).partition("\n")
    for line in {*body.split("\n")}:
        used = _lines.get((line, kind))
        if used is None:
            used = _calls_of(line, kind) if line else frozenset()
            if len(_lines) >= _MAX_LINES:
                _lines.clear()
            _lines[line, kind] = used
        if not used <= known:
            raise Refused(f"a call of {sorted(used - known)[0]}")


_NOT_IN_PROGRAMS = frozenset("\"'#;\\\t\r\f\v\0`@$?!&|^~")


def _check_token(token: str, names: Names, kind: str) -> None:
    """Refuse tokens that no program has, and calls of constants that are not what their names say."""
    if token in _NOT_IN_PROGRAMS and token != "!":
        raise Refused("a comment, a decorator, a continued line or an unknown literal")
    if token[0] == "_":
        if token[:2] == "__":
            raise Refused("a name that begins with two underscores")
        if token.startswith(_WEAK) and token[-1] == "(" and token[:-1] not in names.weak:
            raise Refused("a call of a constant that is no weak reference")
    if token in _ROOTS:
        raise Refused("a module as a value")
    if token.endswith(_SETTING_NAMES):
        owner, _, name = token[:-1].rpartition(".")
        if (names.modules.get(owner), name) not in _SETTINGS or kind != "prologue":
            raise Refused(f"a call of {token[:-1]}")


def _calls_of(line: str, kind: str) -> frozenset[str]:
    """Check the shape of a line, and return the names of the constants that it calls."""
    if not line.startswith("  ") or line[2:3] == " ":
        raise Refused(f"not a line of a program: {line[:80]}")
    try:
        (statement,) = ast.parse(line[2:]).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Refused(f"not a statement: {line[:80]}") from None
    if isinstance(statement, ast.Assign) and not _ASSIGNMENT.fullmatch(line):
        raise Refused(f"not an assignment of a program: {line[:80]}")
    found: set[str] = set()
    _statement(statement, kind, found)
    return frozenset(found)


def _statement(x: ast.stmt, kind: str, calls: set[str]) -> None:
    if isinstance(x, ast.Assign) and len(x.targets) == 1:
        _target(x.targets[0])
        _expression(x.value, kind, calls)
    elif isinstance(x, ast.Expr) and isinstance(x.value, ast.Yield) and isinstance(x.value.value, ast.Name):
        return
    elif isinstance(x, ast.Expr) and isinstance(x.value, ast.Call):
        _expression(x.value, kind, calls)
    elif isinstance(x, ast.Delete) and all(isinstance(t, ast.Name) for t in x.targets):
        return
    elif isinstance(x, ast.Return):
        if x.value is not None:
            _expression(x.value, kind, calls)
    elif isinstance(x, ast.If) and not x.orelse and len(x.body) == 1 and isinstance(x.body[0], ast.Raise):
        _failure(x.body[0], kind, calls)
        _expression(x.test, kind, calls)
    elif not isinstance(x, ast.Pass):
        raise Refused(f"a statement of the class {type(x).__name__}")


def _failure(x: ast.Raise, kind: str, calls: set[str]) -> None:
    """Check a failed guard of a prologue, or the error of a failed check of a program, which has a constant message."""
    error = x.exc
    if x.cause is not None or not isinstance(error, ast.Call) or not isinstance(error.func, ast.Name) or error.keywords:
        raise Refused("a statement that raises something else")
    name, arguments = error.func.id, error.args
    if kind == "prologue" and name in ("GuardFailed", "TensorsDiffer"):
        for argument in arguments:
            _expression(argument, kind, calls)
    elif name not in ERRORS or not all(isinstance(argument, ast.Constant) for argument in arguments):
        raise Refused(f"a statement that raises {name}")


def _target(x: ast.expr) -> None:
    if isinstance(x, (ast.Tuple, ast.List)):
        for item in x.elts:
            _target(item)
    elif not isinstance(x, ast.Name):
        raise Refused("an assignment to something that is no variable")


_VALUES = (torch.dtype, torch.layout, torch.memory_format)
_PLAIN = (ast.Constant, ast.Name, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Subscript, ast.Slice, ast.UnaryOp,
          ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Starred)  # fmt: skip


def _expression(x: ast.expr, kind: str, calls: set[str]) -> None:
    if isinstance(x, ast.Call):
        _call(x, kind, calls)
        return
    if isinstance(x, ast.Attribute):
        _attribute(x, kind, calls)
        return
    if not isinstance(x, _PLAIN):
        raise Refused(f"an expression of the class {type(x).__name__}")
    for child in ast.iter_child_nodes(x):
        if isinstance(child, ast.expr):
            _expression(child, kind, calls)


_NONE = ast.dump(ast.Constant(None))


def _call(x: ast.Call, kind: str, calls: set[str]) -> None:
    for argument in (*x.args, *(k.value for k in x.keywords)):
        _expression(argument, kind, calls)
    if isinstance(x.func, ast.Name):
        if x.keywords and x.func.id in _BUILTINS:
            raise Refused(f"an option of {x.func.id}")  # e.g. `key`, which `sorted` calls
        calls.add(x.func.id)
        return
    name = _dotted(x.func)
    if name is not None and (name in OPERATORS or name in _STATE or (kind == "source" and name in SYMBOLS)):
        return
    if isinstance(x.func, ast.Attribute) and x.func.attr in _CALLED and not x.keywords:
        if x.func.attr == "get" and [ast.dump(a) for a in x.args] != [_NONE]:  # of a context variable
            raise Refused("a method get with other arguments")
        _expression(x.func.value, kind, calls)
        return
    raise Refused(f"a call of {name or 'an expression'}")


def _dotted(x: ast.expr) -> str | None:
    if isinstance(x, ast.Name):
        return x.id
    if isinstance(x, ast.Attribute):
        owner = _dotted(x.value)
        return None if owner is None else f"{owner}.{x.attr}"
    return None


def _attribute(x: ast.Attribute, kind: str, calls: set[str]) -> None:
    name = _dotted(x)
    root = "" if name is None else name.partition(".")[0]
    if root in _ROOTS:
        owner, _, last = (name or "").rpartition(".")
        if owner == "dtypes" or (owner == "torch" and isinstance(vars(torch).get(last), _VALUES)):
            return
        raise Refused(f"a mention of {name}")
    of_python = x.attr.startswith("__") and x.attr in _names_of_python()
    allowed = x.attr in _DUNDER if of_python else x.attr not in _DENIED
    if not allowed or not (kind == "prologue" or x.attr == "shape"):
        raise Refused(f"an attribute {x.attr}")
    _expression(x.value, kind, calls)
