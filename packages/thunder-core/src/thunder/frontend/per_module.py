# SPDX-License-Identifier: Apache-2.0
"""`thunder.disable`: functions that stay Python, and partly eager execution of programs that call such a function.

thunder knows nothing about a disabled function: its results, its side effects and its errors. A program that calls one
is therefore not traced as a whole. It runs *partly eager*: the jitted function runs as Python, and each module that it
calls is compiled separately. A module that calls the disabled function runs partly eager in the same way. Thus, only
the functions on the call path from the jitted function to the disabled function stay Python.

In a partly eager run, a piece replaces each module. A piece is an instance of a subclass of the module's class, and
shares the `__dict__` of the module. Reading and writing attributes therefore affects the module, but calling the piece
runs the compiled program.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Protocol, TypeVar, overload

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.snapshots import cell_value
from thunder.capture.reads.bytecode import assigned_cells, nested_codes, stored_globals
from thunder.core.state import state

__all__ = ["PerModule", "disable"]

F = TypeVar("F")


@overload
def disable(fn: F) -> F: ...
@overload
def disable(fn: None = None) -> Callable[[F], F]: ...
def disable(fn: Any = None) -> Any:
    """Keep a function out of traces: eager PyTorch runs each call of it.

    `disable` is a decorator of functions, methods and module classes. `thunder.disable(fn)` returns a wrapper of `fn`.
    `thunder.disable(module)` returns the same module, whose `forward` stays Python from now on. In a jitted function, a
    disabled function may do anything that Python allows: branch on values, print, raise, change objects, and return any
    object. Gradients flow through it. The functions that call it run as Python too, and the modules that these
    functions call are compiled separately. `thunder.explain` reports this.
    """
    if fn is None:
        return disable
    if isinstance(fn, torch.nn.Module) and not isinstance(fn, torch.jit.ScriptModule):
        fn.forward = types.MethodType(disable(type(fn).forward), fn)
        return fn
    if isinstance(fn, type) and issubclass(fn, torch.nn.Module):
        module_class: Any = fn
        module_class.forward = disable(module_class.forward)
        return module_class
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(disable(fn.__func__))
    if not callable(fn):
        raise TypeError(f"thunder.disable takes a function or a module, not {type(fn).__name__}: {fn!r}")
    title = getattr(fn, "__qualname__", None) or repr(fn)

    def stays_python(*args: Any, **kwargs: Any) -> Any:
        if state.frontend is not None:
            fall_back(f"the program calls {title}, which thunder.disable keeps out of traces", asked=True)
        return fn(*args, **kwargs)

    return functools.wraps(fn)(stays_python) if hasattr(fn, "__name__") else stays_python


# -- globals ----------------------------------------------------------------------------------------------------------
class _Scope(MutableMapping[str, Any], dict[str, Any]):  # type: ignore[misc, metaclass]  # the methods of the first base count
    """The globals of a function, with pieces in place of modules.

    All other variables are those of the function, as they are when they are read. The interpreter reads names such as
    `__builtins__` from the dict itself, which contains only these.
    """

    __slots__ = ("live", "pieces")

    def __init__(self, live: dict[str, Any], pieces: dict[str, tuple[Any, Any]]):
        live.setdefault("__warningregistry__", {})
        special = {name: value for name, value in live.items() if name.startswith("__")}
        dict.__init__(self, special)  # type: ignore[call-overload]
        self.live = live
        self.pieces = pieces  # each with the module that it replaces

    def __getitem__(self, name: str) -> Any:
        found = self.live[name]
        module, piece = self.pieces.get(name, (None, None))
        return piece if module is not None and found is module else found

    def __setitem__(self, name: str, value: Any) -> None:
        self.live[name] = value

    def __delitem__(self, name: str) -> None:
        del self.live[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.live)

    def __len__(self) -> int:
        return len(self.live)


def _bypasses_scope(code: types.CodeType) -> bool:
    """Check whether code may read or assign globals past the methods of `_Scope`, as the body of a class does."""
    is_class_body = not code.co_flags & inspect.CO_OPTIMIZED
    return is_class_body or bool(stored_globals(code)) or not {"exec", "eval"}.isdisjoint(code.co_names)


# -- pieces -----------------------------------------------------------------------------------------------------------
class Jitted(Protocol):
    """The interface of the jitted function (`JitFunction`) that `PerModule` needs."""

    def program_of_module(self, module: torch.nn.Module) -> Any:
        """Return the program of a module that the function calls."""


class PerModule:
    """Runs a jitted callable as Python, with a compiled program for each module that it calls."""

    def __init__(self, jitted: Jitted):
        self._jitted = jitted
        self._programs: dict[int, Any] = {}  # by the ids of the modules, which they keep alive
        self._whole: torch.nn.Module | None = None  # the piece of the callable, if that is a module
        self.calls = 0

    def __call__(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute `fn(*args, **kwargs)` with pieces in place of modules."""
        self.calls += 1
        if isinstance(fn, torch.nn.Module):
            return type(fn).__call__(fn if has_legacy_hooks(fn) else self._piece_of_callable(fn), *args, **kwargs)
        if isinstance(fn, types.MethodType) and isinstance(fn.__self__, torch.nn.Module):
            return fn.__func__(self.piece(fn.__self__), *args, **kwargs)
        given = [self.piece(x) if isinstance(x, torch.nn.Module) else x for x in args]
        named = {k: self.piece(x) if isinstance(x, torch.nn.Module) else x for k, x in kwargs.items()}
        return self._that_finds_pieces(fn)(*given, **named)

    def _that_finds_pieces(self, fn: Any) -> Any:
        """Return a copy of `fn` with pieces in place of the modules in its global and closure variables."""
        if not isinstance(fn, types.FunctionType):
            return fn
        scope: Any = fn.__globals__
        codes = [fn.__code__, *nested_codes(fn.__code__)]
        named = {n: m for c in codes for n in c.co_names if issubclass(type(m := scope.get(n)), torch.nn.Module)}
        if named and not any(map(_bypasses_scope, codes)):
            scope = _Scope(scope, {name: (module, self.piece(module)) for name, module in named.items()})
        cells = []
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
            content = cell_value(cell)
            kept = not isinstance(content, torch.nn.Module) or any(name in assigned_cells(code) for code in codes)
            cells.append(cell if kept else types.CellType(self.piece(content)))
        if scope is fn.__globals__ and all(a is b for a, b in zip(cells, fn.__closure__ or ())):
            return fn
        out = types.FunctionType(fn.__code__, scope, fn.__name__, fn.__defaults__, tuple(cells))
        out.__kwdefaults__ = fn.__kwdefaults__
        return out

    def piece(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the piece of a module, or the module itself if it is not compiled separately."""
        if hasattr(type(module), "_thunder_model") or isinstance(module, torch.jit.ScriptModule) or _is_single(module):
            return module
        piece = object.__new__(_class_of_pieces(type(module)))
        object.__setattr__(piece, "__dict__", module.__dict__)
        object.__setattr__(piece, "_thunder_piece", (self, module))
        return piece  # type: ignore[no-any-return]

    def _piece_of_callable(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the piece of the callable. It stays alive, because e.g. autograd's graph may refer to it weakly."""
        whole = self._whole
        if whole is None or original_of(whole) is not module or type(whole) is not _class_of_pieces(type(module)):
            whole = self._whole = self.piece(module)
        return whole

    def call(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the program of a module."""
        found = self._programs.get(id(module))
        if found is None:
            found = self._programs[id(module)] = self._jitted.program_of_module(module)
        return found(*args, **kwargs)

    @property
    def programs(self) -> list[Any]:
        """The programs of the modules, in the order of the first calls."""
        return list(self._programs.values())


def has_legacy_hooks(fn: Any) -> bool:
    """Check whether `fn` is a module with legacy backward hooks. It runs as Python, together with its submodules."""
    if not isinstance(fn, torch.nn.Module):
        return False
    every: Any = torch.nn.modules.module
    return (fn._is_full_backward_hook is False and bool(fn._backward_hooks)) or (
        every._global_is_full_backward_hook is False and bool(every._global_backward_hooks)
    )


def _is_single(module: torch.nn.Module) -> bool:
    """Check whether a module is one of torch without children: mostly one operation, so compiling gains nothing."""
    return not module._modules and type(module).__module__.startswith("torch.nn.modules.")


class _Children(dict[str, Any]):
    """The table of children of a module, with pieces as values. Writes also change the table of the module."""

    def __init__(self, pieces: PerModule, table: dict[str, Any]):
        super().__init__({k: pieces.piece(v) if isinstance(v, torch.nn.Module) else v for k, v in table.items()})
        self._table = table

    def __setitem__(self, name: str, value: Any) -> None:
        self._table[name] = value
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        del self._table[name]
        super().__delitem__(name)

    def pop(self, name: str, *default: Any) -> Any:
        self._table.pop(name, None)
        return super().pop(name, *default)

    def clear(self) -> None:
        self._table.clear()
        super().clear()

    def update(self, *others: Any, **named: Any) -> None:
        for name, value in dict(*others, **named).items():
            self[name] = value


def _children(self: Any) -> Any:
    pieces, module = object.__getattribute__(self, "_thunder_piece")
    return _Children(pieces, module.__dict__["_modules"])


def _attribute(self: Any, name: str) -> Any:
    pieces, module = object.__getattribute__(self, "_thunder_piece")
    found = super(type(self), self).__getattr__(name)
    return pieces.piece(found) if module.__dict__["_modules"].get(name) is found is not None else found


def _called(self: Any, *args: Any, **kwargs: Any) -> Any:
    pieces, module = object.__getattribute__(self, "_thunder_piece")
    return pieces.call(module, args, kwargs)


def _original(self: Any, *_: Any) -> Any:
    return object.__getattribute__(self, "_thunder_piece")[1]


# The class of pieces for each module class. Both references are weak, because the piece class refers to its base class.
_classes: weakref.WeakKeyDictionary[type, weakref.ref[type]] = weakref.WeakKeyDictionary()


def _class_of_pieces(cls: type) -> type:
    known = _classes.get(cls)
    found = None if known is None else known()
    if found is None:
        found = _make_class(cls)
        _classes[cls] = weakref.ref(found)
    return found


def _make_class(cls: type) -> type:
    content = {
        "__slots__": ("_thunder_piece",), "__module__": cls.__module__, "__qualname__": cls.__qualname__,
        "_modules": property(_children), "__getattr__": _attribute, "__call__": _called,
        "__class__": property(lambda self: cls), "__deepcopy__": _copied,
        "__reduce_ex__": lambda self, protocol: _original(self).__reduce_ex__(protocol),
        "__eq__": lambda self, other: _original(self) == original_of(other),
        "__hash__": lambda self: hash(_original(self)),
    }  # fmt: skip
    return type(cls.__name__, (cls,), content)


def _copied(piece: Any, memo: Any) -> Any:
    import copy

    return copy.deepcopy(_original(piece), memo)


def original_of(x: Any) -> Any:
    """Return the module that a piece replaces, or `x` if it is not a piece."""
    return _original(x) if isinstance(getattr(type(x), "_thunder_piece", None), types.MemberDescriptorType) else x
