# SPDX-License-Identifier: Apache-2.0
"""The texts of an entry: they are checked, compiled and run without the tracer. Layouts of nodes are read here, too."""

from __future__ import annotations

import ast
import builtins
import importlib
import itertools
import linecache
import math
import operator
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from thunder.core.tracebacks import PROGRAM_PREFIX
from thunder.runtime.autograd.layout import NodeLayout
from thunder.runtime.names import GUARD_HELPERS, HELPERS, Kernels
from thunder.runtime.torch_originals import namespaces, original_torch
from thunder.saved.bytecode import load_code
from thunder.saved.constants import WITH_PROGRAMS, Decoder, Encoder
from thunder.saved.keys import plugin_packages
from thunder.saved.made_functions import TAG
from thunder.saved.operators import OPERATORS
from thunder.saved.verify import CALL_MEMOIZED, ERRORS, Names, Refused, verify

__all__ = ["ProgramDecoder", "SavedText", "backward_folder", "describe_layout", "key_text", "read_layout"]

_counter = itertools.count()
_BUILTINS = ("len", "type", "tuple", "list", "dict", "float", "complex", "slice", "bool", "int", "str", "bytes", "set",
             "hasattr", "issubclass", "sorted", "max", "min")  # fmt: skip
_OF_TORCH = frozenset({"torch", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft", "torch._C._nn",
                       "torch._C._linalg", "torch._C"})  # fmt: skip
_NAMES = frozenset(name.rpartition(".")[2] for name in OPERATORS)
_PREFIXES = ("special_", "linalg_", "fft_")
_READING_FILES = (["aten", "from_file"], ["aten", "_from_blob"])
_RESERVED = frozenset({
    *_BUILTINS, *ERRORS, *HELPERS, "__builtins__", "torch", "Tensor", "operator", "math", "torchex", "dtypes",
    "devices", "prims", "ltorch", "clang", "lnp",
})  # fmt: skip
_kernels = Kernels()


def backward_folder(name: str) -> str:
    """Return the key under which the backward programs of the entry called `name` are stored."""
    return f"{name[:38]}.b"


def key_text(key: tuple[tuple[bool, ...], tuple[bool, ...]]) -> str:
    """Return the text of a backward program's key."""
    return "|".join("".join("1" if x else "0" for x in part) for part in key)


class SavedText:
    """The text of one program with its constants as JSON, and a check of the signature of its file."""

    def __init__(self, content: Mapping[str, Any], signed: Callable[[], bool] = lambda: False):
        self.signed = signed
        self.name: str = content["name"]
        self.text: str = content["text"]
        self.constants: dict[str, Any] = content["constants"]
        self.code: dict[str, Any] | None = content.get("code")
        if type(self.name) is not str or type(self.text) is not str or type(self.constants) is not dict:
            raise Refused("damaged")
        self.bound_symbols: tuple[Any, ...] = ()  # like a trace, for reports

    def __str__(self) -> str:
        return self.text

    def python(self, **options: Any) -> str:
        """Return the text, like `Trace.python`."""
        return self.text

    def check(self, kind: str, signed: Callable[[], bool] = lambda: False) -> None:
        """Raise `Refused` unless the text is one that the printer writes.

        The prologue of an entry that is `signed` may call memoized functions of the user.
        """
        constants = self.constants
        if not _RESERVED.isdisjoint(constants):
            raise Refused("a constant with the name of a module or a function")
        if kind != "source" and any(isinstance(x, list) and x[:1] in _OF_SOURCES for x in constants.values()):
            raise Refused("an operation that only sources have")
        if any(isinstance(x, list) and x[:1] == [TAG] for x in constants.values()) and not signed():
            raise Refused("a function that the program makes, in a file that is not signed")
        if kind == "program" and any(map(_is_foreign_function, constants.values())):
            raise Refused("a function that is no operator of torch")
        names = Names(
            {
                *(GUARD_HELPERS if kind == "prologue" else HELPERS),
                *(name for name, x in constants.items() if _may_be_called(x)),
            },
            {name for name, x in constants.items() if _is(x, "weak", 2)},
            {name: x[1] for name, x in constants.items() if _is(x, "ref", 4) and x[2] == []},
            constants.keys(),
            _memoized(constants) if CALL_MEMOIZED in self.text and signed() else (),
        )
        verify(self.text, names, kind)

    def function(self, decode: Decoder, *, kind: str = "program") -> Callable[..., Any]:
        """Check and compile the text, and return the function that it defines.

        If the entry is signed with the user's own key, the bytecode of the process that saved it is taken instead.
        """
        code = self.code if kind != "source" and decode.runs_code and decode.signed else None
        if code is None:
            self.check(kind, lambda: decode.signed)
        namespace: dict[str, Any] = {name: decode(constant) for name, constant in self.constants.items()}
        namespace.update(HELPERS)
        namespace.update(
            {
                # torch imports modules through the builtins of the program that calls it.
                "__builtins__": {name: getattr(builtins, name) for name in (*_BUILTINS, *ERRORS, "__import__")},
                "torch": original_torch,
                "Tensor": namespaces["torch.Tensor"],
                "torchex": _kernels,
                "operator": operator,
                "math": math,
            }
        )
        if kind == "source":
            # Imported by name at run time: few programs are compiled anew, and it loads symbolic numbers.
            namespace |= importlib.import_module("thunder.saved.source_names").names_of_source(self.text)
        elif "dtypes." in self.text:
            # Imported by name at run time, and only for programs that use it.
            namespace["dtypes"] = importlib.import_module("thunder.core.dtypes")
        filename = f"{PROGRAM_PREFIX}saved.{self.name} {next(_counter)}>"
        if code is not None:
            found, lines = load_code(code, self.text, filename)
            linecache.cache[filename] = (len(self.text), None, lines, filename)
            return types.FunctionType(found, namespace)
        linecache.cache[filename] = (len(self.text), None, self.text.splitlines(keepends=True), filename)
        exec(compile(self.text, filename, "exec", dont_inherit=True), namespace)
        function = namespace[self.name]
        if not isinstance(function, types.FunctionType):
            raise Refused(f"the text defines no {self.name}")
        return function


class ProgramDecoder(Decoder):
    """Decodes the constants of one entry, also those that contain programs.

    `shared` is what all entries of one callable share: the memory of graphs.
    """

    def __init__(
        self,
        root: Any,
        shared: dict[str, Any],
        signed: Callable[[], bool] = lambda: False,
        *,
        runs_code: bool = False,
    ):
        super().__init__(root, signed=signed)
        self._shared = shared
        self.runs_code = runs_code

    def with_programs(self, tag: str, *parts: Any) -> Any:
        """Return the stretch of a program, or the operation of a source, that programs define."""
        kind = "program" if tag == "graph" else "source"
        functions = [SavedText(x).function(self, kind=kind) for x in parts[:-1]]
        # Imported by name at run time, and only for programs that need it: it belongs to a higher layer.
        module = importlib.import_module(_MODULES[tag])
        if tag == "graph":
            memory = self._shared.setdefault("memory", module.Memory())
            return module.loaded_region(*functions, parts[-1], memory)
        if tag == "checkpoint":
            return module.region_of(*functions, same_random_numbers=parts[-1] is True)
        return module.loaded_function(*functions, parts[-1])


def _is(constant: Any, tag: str, length: int) -> bool:
    return isinstance(constant, list) and len(constant) == length and constant[0] == tag


_MODULES = {"graph": "thunder.transforms.captured_region", "checkpoint": "thunder.passes.checkpoint",
            "custom": "thunder.capture.higher_order.custom_function"}  # fmt: skip
_WITH_PROGRAMS = [[tag] for tag in WITH_PROGRAMS]
_OF_SOURCES = (["checkpoint"], ["custom"])
_FUNCTIONS = ("function ", "memoized ", "builtin_function_or_method ", "method", "wrapper_descriptor ", "classmethod_")


def _memoized(constants: Mapping[str, Any]) -> list[str]:
    """Return the names of weak references to functions under `functools.lru_cache` that a module has by name."""
    return [name for name, x in constants.items() if _is(x, "weak", 2) and _is_memoized(x[1])]


def _is_memoized(x: Any) -> bool:
    named = _is(x, "ref", 4) and type(x[1]) is str and all(step[:1] == ["member"] for step in x[2])
    return named and str(x[3]).startswith("memoized function ")


def _is_foreign_function(constant: Any) -> bool:
    """Check whether a constant is a function that a helper could call although the program may not call it."""
    if not _is(constant, "ref", 4) or not str(constant[3]).startswith(_FUNCTIONS):
        return False
    return not _may_be_called(constant)


def _may_be_called(constant: Any) -> bool:
    """Check whether a program may call a constant: an operator of torch that has no public name in programs."""
    if _is(constant, "region", 3) or (isinstance(constant, list) and constant[:1] in _WITH_PROGRAMS):
        return True
    if _is(constant, "symbol", 2):
        return _may_be_called(constant[1])
    if _is(constant, "derived", 4):
        return _may_be_called(constant[2])
    if _is(constant, "operator", 2):
        return type(constant[1]) is str and constant[1].split(".")[:2] not in _READING_FILES
    if not _is(constant, "ref", 4) or type(constant[1]) is not str:
        return False
    if constant[1].partition(".")[0] in plugin_packages():
        return True  # a kernel of an executor
    if constant[1] not in _OF_TORCH:
        return False
    names = [step[1] for step in constant[2] if step[:1] == ["member"]]
    if (
        len(names) != len(constant[2])
        or not names
        or names[:-1] not in ([], ["Tensor"], ["TensorBase"], ["_VariableFunctions"])
    ):
        return False
    name = names[-1]
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name in _NAMES or names[-1] in _NAMES


# -- layouts of nodes -------------------------------------------------------------------------------------------------
_FIELDS = tuple(name for name in NodeLayout._fields if name not in ("constants", "device"))
_IN_BUILT, _IN_FLAT = frozenset({"t", "x", "c"}), frozenset({"o", "s", "hidden"})


def describe_layout(layout: NodeLayout, groups: Mapping[int, set[int]], encode: Encoder) -> dict[str, Any]:
    """Return the layout of a node as JSON. `groups` are the saved values that groups of outputs need."""
    return {
        **{name: getattr(layout, name) for name in _FIELDS},
        "constants": [encode(x) for x in layout.constants],
        "device": str(layout.device),
        "groups": [[str(bits), sorted(needed)] for bits, needed in groups.items()],
    }


def read_layout(content: Mapping[str, Any], decode: Decoder) -> NodeLayout:
    """Return the layout of a node that `describe_layout` has described."""
    fields: dict[str, Any] = {name: content[name] for name in _FIELDS}
    fields["saved_outputs"] = [(int(i), int(j)) for i, j in fields["saved_outputs"]]
    for name, names in (("built", _IN_BUILT), ("flat", _IN_FLAT), ("flat_natively", _IN_FLAT)):
        _check_expression(fields[name], names)
    return NodeLayout(
        **fields, constants=[decode(x) for x in content["constants"]], device=decode(["device", content["device"]])
    )


def _check_expression(text: Any, names: frozenset[str]) -> None:
    """Raise `Refused` unless a text is an expression that takes values out of containers and puts them into others."""
    if type(text) is not str:
        raise Refused("damaged")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Refused(f"not an expression: {text[:40]}") from None
    if not all(_is_allowed(node, names) for node in _nodes(tree)):
        raise Refused(f"an expression that no layout has: {text[:40]}")


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    return (node for node in ast.walk(tree) if isinstance(node, (ast.expr, ast.stmt, ast.comprehension, ast.keyword)))


def _is_allowed(node: ast.AST, names: frozenset[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Call):  # `*hidden(s)`
        return isinstance(node.func, ast.Name) and node.func.id == "hidden" and not node.keywords
    if isinstance(node, ast.Attribute):
        return node.attr == "data"
    return isinstance(node, (ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Subscript, ast.Starred, ast.UnaryOp))
