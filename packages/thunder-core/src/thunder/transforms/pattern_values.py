# SPDX-License-Identifier: Apache-2.0
"""Symbolic values without shapes, which record the operations of a pattern.

`written_by(fn)` calls a pattern's function once with parameters and returns its result, which consists of `Value`s. A
`Value` stores the call that computes it. The arguments of a call are values, parameters and literals. Calls are
normalized as in traces (`core/binder.py`), so that they can be compared with calls of a program.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from thunder.core.errors import ThunderError
from thunder.core.proxies import OPERATORS
from thunder.core.state import state, tracectx
from thunder.core.symbol import Symbol
from thunder.core.trace import Trace
from thunder.torch.base import language, torch_function_map

__all__ = ["Call", "Parameter", "Picked", "Value", "written_by"]


class Call:
    """One operation of a pattern."""

    def __init__(self, id: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.id = id
        self.name = name
        self.args = args
        self.kwargs = kwargs


class Value:
    """The result of a call in a pattern. Applying torch functions, methods or operators to it records further calls."""

    def __init__(self, call: Call):
        self.call = call

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found: Any = getattr(torch.Tensor, name, None)
        if found is None:
            raise AttributeError(f"tensors have no attribute {name!r}")
        if callable(found) and not isinstance(found, property):
            return partial(_method, found, self)
        prop = language.properties.get(name)
        if isinstance(prop, Symbol):
            return prop(self)
        raise ThunderError(
            f"a pattern reads .{name} of a tensor, but a pattern knows no shapes, dtypes or devices. Make values that "
            "depend on them parameters of the pattern"
        )

    def __getitem__(self, key: Any) -> Any:
        return Picked(self, key)

    def __iter__(self) -> Any:
        raise ThunderError("a pattern cannot unpack a result of unknown length: write result[0], result[1]")

    def __bool__(self) -> bool:
        raise ThunderError("a pattern cannot have branches: write one pattern for each case")

    __hash__ = object.__hash__


class Parameter(Value):
    """A parameter of a pattern, which matches any value."""

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Picked(Value):
    """`x[key]`: one of the results if the call that computes `x` has several, otherwise an indexing operation."""

    def __init__(self, of: Value, key: Any):
        self.of = of
        self.key = key
        self._call: Call | None = None

    @property
    def call(self) -> Call:  # type: ignore[override]
        """The call of the indexing operation."""
        if self._call is None:
            recorded = _record(language.methods["getitem"], (self.of, self.key), {})
            self._call = recorded.call
        return self._call


def _operator(method: str, *, swapped: bool = False) -> Callable[..., Any]:
    def apply(self: Value, *others: Any) -> Any:
        return _record(language.methods[method], (*others, self) if swapped else (self, *others), {})

    return apply


for _dunder, _name in OPERATORS.items():
    setattr(Value, _dunder, _operator(_name))
    if _dunder.strip("_") not in ("neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge"):
        setattr(Value, f"__r{_dunder.strip('_')}__", _operator(_name, swapped=True))


def _reciprocal_times(self: Value, other: Any) -> Value:
    """Record `other / self` as the capture layer does."""
    return _record(language.methods["mul"], (_record(language.methods["reciprocal"], (self,), {}), other), {})


Value.__rtruediv__ = _reciprocal_times  # type: ignore[attr-defined]


class _Recorder:
    """Replaces the capture layer while a pattern runs."""

    def call_symbol(self, sym: Symbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
        """Return a `Value` for the result of a call of a symbol."""
        args, kwargs = sym.bind(args, dict(kwargs))
        return Value(Call(sym.id, sym.name, args, kwargs))

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a `Value` for the result of a call of a torch function."""
        return _called(func, args, kwargs)


def _record(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(fn, Symbol):
        return _Recorder().call_symbol(fn, args, kwargs)
    return fn(*args, **kwargs)


def _method(func: Any, x: Value, *args: Any, **kwargs: Any) -> Any:
    return _called(func, (x, *args), kwargs)


def _called(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a `Value` for the result of a call of a torch function."""
    name = getattr(func, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        raise ThunderError(f"a pattern calls {name}, which writes to its argument. Use the out-of-place operation")
    sym = torch_function_map().get(func)
    if sym is None and getattr(torch.Tensor, name, None) is func:
        sym = language.methods.get(name)  # type: ignore[assignment]
    if sym is not None:
        return _record(sym, tuple(args), dict(kwargs))
    if inspect.isfunction(func):
        raise ThunderError(
            f"a pattern calls {name}, which traces contain as several operations. Call these operations instead"
        )
    return Value(Call(("opaque", func), name, tuple(args), dict(kwargs)))


def written_by(fn: Callable[..., Any]) -> Any:
    """Return the result of a pattern's function, called with parameters."""
    parameters = [Parameter(name) for name in inspect.signature(fn).parameters]
    trace = Trace("pattern")
    with tracectx(trace):
        before, state.frontend = state.frontend, _Recorder()
        try:
            return fn(*parameters)
        finally:
            state.frontend = before
