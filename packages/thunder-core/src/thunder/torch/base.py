# SPDX-License-Identifier: Apache-2.0
"""How operations of the torch language are declared: a function with its decomposition as body, and rules below it.

    @torchsymbol(torch.nn.functional.hardswish, is_method=False)
    def hardswish(input: TensorProxy, inplace: bool = False) -> TensorProxy:
        '''input * relu6(input + 3) / 6.'''
        return input * relu6(input + 3) / 6

The first argument of the decorator names the torch functions that the operation represents. Four things are derived
from it: the map that tracing uses, the tensor method, the torch executor's implementation, and the reference for
conformance tests. Parameters have the same names as in torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from thunder.core.langctx import LanguageContext, langctx, register_langctx
from thunder.core.symbol import OpTags, Symbol

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from thunder.core.facts import FactOptions

__all__ = [
    "PerDimension",
    "all_torchsymbols",
    "for_dims",
    "named",
    "operations",
    "torch_function_map",
    "torchctx",
    "torchsymbol",
]

F = TypeVar("F", bound=Callable[..., Any])
MODULE = "thunder.torch"

language = register_langctx(LanguageContext("torch"))

# A decorator: run the function's body in the torch language, regardless of the caller's language.
torchctx = langctx("torch")

# The operations of the language by name, for calls between families. A family cannot import the package, because the
# package imports the families.
operations = SimpleNamespace()

_symbols: dict[Any, Symbol] = {}
_function_map: dict[Any, Symbol] = {}


def all_torchsymbols() -> dict[Any, Symbol]:
    """Return every operation of the torch language by its id, including operations declared by plugins."""
    return dict(_symbols)


def torch_function_map() -> dict[Any, Symbol]:
    """Return the map from torch functions to symbols. It is live: declaring an operation adds entries."""
    return _function_map


def _spellings(name: str, fns: Sequence[Any]) -> list[str]:
    """Return the names of the tensor method: the operation's name, and its aliases in torch (e.g. `multiply`)."""
    names = [name]
    for fn in fns:
        other = getattr(fn, "__name__", name)
        if other not in names and getattr(torch, other, None) is fn and hasattr(torch.Tensor, other):
            names.append(other)
    return names


def named(name: str) -> Any:
    """Return the torch object with a dotted name, e.g. `torch.special.erf`."""
    return functools.reduce(getattr, name.split(".")[1:], torch)


def torchsymbol(
    *torch_functions: Any,
    id: Any = None,
    is_method: bool | None = None,
    method_name: str | None = None,
    is_property: bool = False,
    tags: Iterable[OpTags] = (),
    explicit: bool = False,
    executed_by_torch: bool = True,
    **facts: Unpack[FactOptions],
) -> Callable[[Callable[..., Any]], Symbol]:
    """Declare an operation of the torch language.

    `torch_functions` are the torch functions that the operation represents. The torch executor runs the first one,
    unless `executed_by_torch` is False. `id` defaults to `torch.` and the name. `is_method` determines whether tensors
    have it as a method; the default is the same as for torch's tensors. With `explicit`, traces also print default
    arguments. `facts` are properties that passes and executors rely on (`thunder.core.facts`).
    """

    def declare(fn: Callable[..., Any]) -> Symbol:
        name = fn.__name__
        method = method_name or name
        as_method = hasattr(torch.Tensor, method) if is_method is None else is_method
        sym = Symbol(
            name,
            torchctx(fn),
            id=id if id is not None else f"torch.{name}",
            module=MODULE if fn.__module__.startswith("thunder.torch") else None,
            tags=tags,
            explicit=explicit,
            facts=facts,
        )
        sym.reference = torch_functions[0] if torch_functions and executed_by_torch else None
        _symbols[sym.id] = sym
        if sym.module is not None:
            setattr(operations, name, sym)
        for target in torch_functions:
            _function_map[target] = sym
        if is_property:
            language.add_property(method, sym)
        if as_method:
            for spelling in _spellings(method, torch_functions):
                if hasattr(torch.Tensor, spelling):
                    _function_map[getattr(torch.Tensor, spelling)] = sym
                if not is_property:
                    language.add_method(spelling, sym)
        return sym

    return declare


class PerDimension(tuple[Symbol, ...]):
    """One operation for several numbers of spatial dimensions, with a symbol for each (see `for_dims`)."""

    dims: tuple[int, ...]

    def samples(self, generator: F) -> F:
        """Decorate the generator `(spatial, make) -> SampleInput…` of valid inputs for each of the operations."""
        for spatial, sym in zip(self.dims, self):
            sym.samples(functools.partial(generator, spatial))
        return generator

    def errors(self, generator: F) -> F:
        """Decorate the generator of invalid inputs: `(spatial, make) -> (SampleInput, exception type, pattern)…`."""
        for spatial, sym in zip(self.dims, self):
            sym.errors(functools.partial(generator, spatial))
        return generator


_SIZES = {1: "length", 2: "height, width", 3: "depth, height, width"}


def for_dims(
    *dims: int, name: str, torch: str | Sequence[str], **declaration: Any
) -> Callable[[Callable[..., Any]], PerDimension]:
    """Decorate the body `(spatial, *arguments)` of an operation that torch has for several numbers of dimensions.

    `{}` stands for the number of dimensions in `name` and in the names `torch` of the represented functions. Torch must
    have the first function for each number of dimensions; the others are optional. `{sizes}` in the docstring stands
    for the names of the spatial dimensions. `declaration` contains further arguments of `torchsymbol`.
    """
    templates = (torch,) if isinstance(torch, str) else tuple(torch)

    def declare(body: Callable[..., Any]) -> PerDimension:
        symbols = []
        for spatial in dims:
            first, *others = (template.format(spatial) for template in templates)
            functions = [named(first), *(named(other) for other in others if _exists(other))]
            fn: Any = functools.partial(body, spatial)
            fn.__name__ = fn.__qualname__ = name.format(spatial)
            fn.__module__, fn.__doc__ = body.__module__, (body.__doc__ or "").format(spatial, sizes=_SIZES[spatial])
            symbols.append(torchsymbol(*functions, is_method=False, **declaration)(fn))
        found = PerDimension(symbols)
        found.dims = dims
        return found

    return declare


def _exists(name: str) -> bool:
    try:
        return named(name) is not None
    except AttributeError:
        return False
