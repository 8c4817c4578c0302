# SPDX-License-Identifier: Apache-2.0
"""Language contexts: they define the meaning of `a + b`, `a.size` or `a.shape` on a proxy.

A `LanguageContext` is a table of methods by name. `thunder.torch` and `thunder.numpy` each register a language.
Operators and methods of proxies are looked up in the current language; the default is `thunder.torch`.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = ["LanguageContext", "get_langctx", "langctx", "register_langctx", "resolve_method", "set_langctx"]

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT = "torch"


class LanguageContext:
    """A language's name and its methods and properties on proxies."""

    def __init__(self, name: str):
        self.name = name
        self.methods: dict[str, Callable[..., Any]] = {}
        self.properties: dict[str, Callable[[Any], Any]] = {}

    def add_method(self, name: str, fn: Callable[..., Any]) -> None:
        """Let `proxy.name(...)`, or the operator called `name`, call `fn(proxy, ...)`."""
        self.methods[name] = fn

    def add_property(self, name: str, fn: Callable[[Any], Any]) -> None:
        """Let `proxy.name` return `fn(proxy)`."""
        self.properties[name] = fn


class _Current(threading.local):
    language: LanguageContext | None = None


_OWN = ("torch", "numpy", "clang")
_languages: dict[str, LanguageContext] = {}
_current = _Current()


def register_langctx(language: LanguageContext) -> LanguageContext:
    """Register `language` under its name."""
    _languages[language.name] = language
    return language


def resolve_language(language: str | LanguageContext) -> LanguageContext:
    """Return the language that is registered under the name `language`."""
    if isinstance(language, LanguageContext):
        return language
    found = _languages.get(language)
    if found is not None:
        return found
    if language in _OWN:
        # Imported by name at run time: languages belong to a higher layer and register themselves on import.
        importlib.import_module(f"thunder.{language}")
    try:
        return _languages[language]
    except KeyError:
        known = ", ".join(sorted({*_languages, *_OWN}))
        raise ValueError(f"there is no language {language!r}; the languages are {known}") from None


def get_langctx() -> LanguageContext:
    """Return the current language, which defines operators and methods of proxies."""
    return _current.language or resolve_language(DEFAULT)


@contextmanager
def set_langctx(language: str | LanguageContext) -> Iterator[LanguageContext]:
    """Set the current language within a context."""
    before = _current.language
    _current.language = found = resolve_language(language)
    try:
        yield found
    finally:
        _current.language = before


def set_language(language: LanguageContext | None) -> None:
    """Set the current language until the next change; None selects the default."""
    _current.language = language


def current_language() -> LanguageContext | None:
    """Return the language that was set, or None if it is the default."""
    return _current.language


def langctx(language: str | LanguageContext) -> Callable[[F], F]:
    """Decorate a function so that it runs with `language` as the current language."""

    def decorate(fn: F) -> F:
        @functools.wraps(fn)
        def in_language(*args: Any, **kwargs: Any) -> Any:
            # Like `set_langctx`, without the overhead of a context manager: this runs for each traced operation.
            before = _current.language
            _current.language = resolve_language(language)
            try:
                return fn(*args, **kwargs)
            finally:
                _current.language = before

        return in_language  # type: ignore[return-value]

    return decorate


def resolve_method(name: str) -> Callable[..., Any]:
    """Return the current language's method `name`, or raise an AttributeError that names the language."""
    language = get_langctx()
    method = language.methods.get(name)
    if method is None:
        raise AttributeError(f"tensors have no method or operator {name!r} in the language {language.name!r}")
    return method
