# SPDX-License-Identifier: Apache-2.0
"""The declaration of operations of the NumPy language: names and arguments are NumPy's; the body is the decomposition.

    @npsymbol(method_name="sum")
    def sum(a: TensorProxy, axis=None, *, dtype=None, keepdims=False) -> TensorProxy:
        '''Return the sum over `axis`.'''
        ...

Within `langctx("numpy")`, `a + b` on proxies uses NumPy's type promotion, and `a.size` is the number of elements. In
the torch language, the same expressions have torch's meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.core.langctx import LanguageContext, langctx, register_langctx
from thunder.core.symbol import OpTags, Symbol

__all__ = ["all_npsymbols", "npctx", "npsymbol"]

MODULE = "thunder.numpy"

language = register_langctx(LanguageContext("numpy"))

# A decorator: the body of the decorated function uses the NumPy language, even if the caller uses another language.
npctx = langctx("numpy")

_symbols: dict[Any, Symbol] = {}


def all_npsymbols() -> dict[Any, Symbol]:
    """Return all operations of the NumPy language by id, including operations that other packages declared."""
    return dict(_symbols)


def npsymbol(
    *, method_name: str | Sequence[str] = (), is_property: bool = False, id: Any = None, tags: Sequence[OpTags] = ()
) -> Callable[[Callable[..., Any]], Symbol]:
    """Declare an operation of the NumPy language.

    `method_name` contains the names of the operation as a method or operator of arrays. With `is_property`, they are
    names of attributes. The default of `id` is `numpy.<name>`.
    """

    def declare(fn: Callable[..., Any]) -> Symbol:
        name = fn.__name__
        module = MODULE if fn.__module__.startswith(MODULE) else None
        sym = Symbol(name, npctx(fn), id=id if id is not None else f"numpy.{name}", module=module, tags=tags)
        _symbols[sym.id] = sym
        for method in (method_name,) if isinstance(method_name, str) else method_name:
            if is_property:
                language.add_property(method, sym)
            else:
                language.add_method(method, sym)
        return sym

    return declare
