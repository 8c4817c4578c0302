# SPDX-License-Identifier: Apache-2.0
"""The declaration of operations of the NumPy language: the body is the decomposition, name and arguments are NumPy's.

    @npsymbol(method_name="sum")
    def sum(a: TensorProxy, axis=None, *, dtype=None, keepdims=False) -> TensorProxy:
        '''The sum over `axis`.'''
        ...

With `langctx("numpy")` around it, `a + b` on proxies promotes as NumPy does and `a.size` is the number of elements; in
torch's language the same expressions mean what torch says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.core.langctx import LanguageContext, langctx, register_langctx
from thunder.core.symbol import OpTags, Symbol

__all__ = ["all_npsymbols", "npctx", "npsymbol"]

MODULE = "thunder.numpy"

language = register_langctx(LanguageContext("numpy"))

# A decorator that sets the NumPy language for a function's body, whatever the caller's language.
npctx = langctx("numpy")

_symbols: dict[Any, Symbol] = {}


def all_npsymbols() -> dict[Any, Symbol]:
    """Return all operations of the NumPy language by id, including those that other packages declared."""
    return dict(_symbols)


def npsymbol(
    *, method_name: str | Sequence[str] = (), is_property: bool = False, id: Any = None, tags: Sequence[OpTags] = ()
) -> Callable[[Callable[..., Any]], Symbol]:
    """Declare an operation of the NumPy language.

    `method_name` has the names of it as a method or operator of arrays, or with `is_property` as an attribute. `id`
    defaults to `numpy.` and the name.
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
