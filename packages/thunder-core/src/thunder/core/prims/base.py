# SPDX-License-Identifier: Apache-2.0
"""The declaration of primitives: the body is the meta function, and the rules follow directly below it.

    @prim(torch="torch.linalg.inv")
    def inverse(a: TensorProxy, /) -> TensorProxy:
        '''Return the inverse of each matrix in the last two dimensions.'''
        check(a.ndim >= 2 and a.shape[-1] == a.shape[-2], lambda: f"A must be square matrices, not {list(a.shape)}")
        return TensorProxy(like=a)

    @inverse.vjp
    def _(g, out, a):
        return -(out.mH @ g @ out.mH)

    @inverse.samples
    def _(make):
        yield SampleInput(make((3, 3)))

`torch` is the name of the torch function with the same arguments. This function is the torch executor's implementation
and the conformance suite's reference. Code outside of thunder can declare a primitive with `make_prim` and any id.
`elementwise_base.py` declares elementwise operations in all languages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from thunder.core.symbol import OpTags, Symbol

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from thunder.core.facts import FactOptions

__all__ = ["PrimID", "PrimIDs", "all_prims", "make_prim", "prim"]

MODULE = "thunder.core.prims"


class PrimID:
    """The id of one of thunder's primitives, which prints as e.g. `PrimIDs.ADD`."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return f"PrimIDs.{self.name}"

    __str__ = __repr__

    def __reduce__(self) -> Any:
        return (_id_by_name, (self.name,))


def _id_by_name(name: str) -> PrimID:
    return getattr(PrimIDs, name)  # type: ignore[no-any-return]


class _PrimIDs:
    """The ids of all declared primitives, e.g. `PrimIDs.ADD`. The declaration of a primitive creates its id."""

    def __init__(self) -> None:
        self._ids: dict[str, PrimID] = {}

    def _declare(self, name: str) -> PrimID:
        if name in self._ids:
            raise ValueError(f"the primitive {name} is already declared: choose another name or id")
        self._ids[name] = PrimID(name)
        return self._ids[name]

    def __getattr__(self, name: str) -> PrimID:
        try:
            return self.__dict__["_ids"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"there is no primitive {name}") from None

    def __iter__(self) -> Iterator[PrimID]:
        return iter(list(self._ids.values()))

    def __contains__(self, x: object) -> bool:
        return x in self._ids.values()

    def __len__(self) -> int:
        return len(self._ids)

    def __dir__(self) -> list[str]:
        return list(self._ids)


PrimIDs = _PrimIDs()

_prims: dict[Any, Symbol] = {}


def all_prims() -> dict[Any, Symbol]:
    """Return every primitive by its id, including primitives that are declared outside of thunder."""
    return dict(_prims)


def make_prim(
    id: Any,
    name: str,
    *,
    meta: Callable[..., Any],
    tags: Sequence[OpTags] = (),
    torch: str | Sequence[str] = (),
    module: str | None = MODULE,
    printer: Callable[..., list[str]] | None = None,
    **facts: Unpack[FactOptions],
) -> Symbol:
    """Create a primitive. `id` is any hashable object; `meta` checks the inputs and creates the output proxies.

    `facts` are properties that passes and executors may rely on (`thunder.core.facts`).
    """
    names = (torch,) if isinstance(torch, str) else tuple(torch)
    sym = Symbol(
        name, meta, id=id, module=module, is_prim=True, tags=tags, torch_names=names, printer=printer, facts=facts
    )
    if module == MODULE and getattr(meta, "__module__", "").split(".")[0] != "thunder":
        # A primitive that is declared elsewhere is not an attribute of thunder's module: traces call it by its name.
        sym.module = None
    if sym.module == MODULE:
        # Traces print `prims.name`, so the name must be an attribute of `thunder.core.prims`.
        setattr(sys.modules[MODULE], name, sym)
    _prims[id] = sym
    return sym


def prim(
    *,
    torch: str | Sequence[str] = (),
    tags: Sequence[OpTags] = (),
    id: str | None = None,
    printer: Callable[..., list[str]] | None = None,
    **facts: Unpack[FactOptions],
) -> Callable[[Callable[..., Any]], Symbol]:
    """Declare one of thunder's primitives. Its id is `PrimIDs.<id>`; the default of `id` is its name in capitals.

    `facts` are properties that passes and executors may rely on (`thunder.core.facts`).
    """

    def declare(meta: Callable[..., Any]) -> Symbol:
        name = meta.__name__
        prim_id = PrimIDs._declare(id or name.upper())
        return make_prim(prim_id, name, meta=meta, tags=tags, torch=torch, printer=printer, **facts)

    return declare
