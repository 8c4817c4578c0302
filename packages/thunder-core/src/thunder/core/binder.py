# SPDX-License-Identifier: Apache-2.0
"""The canonical form of a call's arguments.

A call can be written in many ways, and a trace contains only one of them, the canonical form. Arguments are positional
if the signature allows it. Arguments equal to their default are omitted, and arguments after an omitted one are
keywords. For example, `add(a, b)`, `add(a, other=b, alpha=1)` and `add(input=a, other=b)` become the same bound symbol.
Common subexpression elimination, patterns and checkers rely on the canonical form.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["Binder"]

# Every torch function also accepts NumPy's parameter names, and `input` or `self` for the first parameter.
_SPELLINGS = {"axis": "dim", "keepdims": "keepdim", "dim": "axis", "keepdim": "keepdims"}
_FIRST = ("input", "self", "tensor")
_SECOND = ("other",)
_EMPTY = inspect.Parameter.empty


def _same(value: Any, default: Any) -> bool:
    if value is default:
        return True
    if type(value) is not type(default) or not isinstance(value, (bool, int, float, str, tuple)):
        return False
    return bool(value == default) and not (type(value) is float and value == 0.0 and str(value) != str(default))


class Binder:
    """Canonicalizes the arguments of calls of one function."""

    def __init__(self, fn: Callable[..., Any], name: str, *, explicit: bool = False):
        self.name = name
        self.explicit = explicit
        params = list(inspect.signature(fn).parameters.values())
        self.positional = [p for p in params if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self.keyword = [p for p in params if p.kind is p.KEYWORD_ONLY]
        self.variadic = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in params)
        self.names = [p.name for p in self.positional]
        self.defaults = [p.default for p in self.positional]
        self.required = sum(d is _EMPTY for d in self.defaults)
        self.positional_only = sum(p.kind is p.POSITIONAL_ONLY for p in self.positional)
        self.known = {p.name for p in self.positional} | {p.name for p in self.keyword}
        self.has_keyword_defaults = any(p.default is not _EMPTY for p in self.keyword)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.variadic or (not kwargs and len(args) == self.required and not self.explicit):
            return args, kwargs
        if kwargs:
            kwargs = self._respell(args, kwargs)
        values = self._fill(args, kwargs)
        return self._write(values, kwargs)

    def accepts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Check whether the signature allows this number of arguments and these keywords; values are not checked."""
        if self.variadic:
            return True
        if len(args) > len(self.names):
            return False
        return all(
            key in self.known
            or _SPELLINGS.get(key) in self.known
            or (key in _FIRST and not args)
            or (key in _SECOND and len(self.names) > 1)
            for key in kwargs
        )

    def _respell(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        # Names of the signature take precedence over aliases.
        out = {}
        for key, value in kwargs.items():
            if key not in self.known:
                other = _SPELLINGS.get(key)
                if other is not None and other in self.known:
                    key = other
                elif key in _FIRST and self.names and not args:
                    key = self.names[0]
                elif key in _SECOND and len(self.names) > 1:
                    key = self.names[1]
                else:
                    raise TypeError(f"{self.name}() got an unexpected keyword argument {key!r}")
            if key in out:
                raise TypeError(f"{self.name}() got multiple values for argument {key!r}")
            out[key] = value
        return out

    def _fill(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        names = self.names
        if len(args) > len(names):
            raise TypeError(f"{self.name}() takes {len(names)} positional arguments but {len(args)} were given")
        values = list(args)
        for i in range(len(args)):
            if names[i] in kwargs:
                raise TypeError(f"{self.name}() got multiple values for argument {names[i]!r}")
        for i in range(len(args), len(names)):
            value = kwargs.pop(names[i], _EMPTY) if kwargs else _EMPTY
            if value is _EMPTY:
                value = self.defaults[i]
                if value is _EMPTY:
                    raise TypeError(f"{self.name}() missing the required argument {names[i]!r}")
            values.append(value)
        return values

    def _write(self, values: list[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        defaults, names = self.defaults, self.names
        if self.explicit:
            for p in self.keyword:
                if p.name not in kwargs and p.default is not _EMPTY:
                    kwargs[p.name] = p.default
            return tuple(values), kwargs
        if kwargs and self.has_keyword_defaults:
            for p in self.keyword:
                if p.name in kwargs and _same(kwargs[p.name], p.default):
                    del kwargs[p.name]
        positional = self.required
        rest: dict[str, Any] = {}
        for i in range(self.required, len(values)):
            if _same(values[i], defaults[i]):
                continue
            if i == positional:
                positional += 1
            else:
                rest[names[i]] = values[i]
        if rest and positional < self.positional_only:
            return tuple(values), kwargs
        return tuple(values[:positional]), {**rest, **kwargs}
