# SPDX-License-Identifier: Apache-2.0
"""Lookup of operations by id. Executors register implementations by id."""

from __future__ import annotations

import difflib
from typing import Any

from thunder.core.symbol import Symbol

__all__ = ["id_of", "symbol_of_id"]


def symbol_of_id(id: Any) -> Symbol:
    """Return the operation with that id."""
    # The import is local so that an executor that names no operation does not load the operations.
    from thunder.core.prims import all_prims
    from thunder.torch import all_torchsymbols

    for known in (all_prims(), all_torchsymbols()):
        if id in known:
            return known[id]
    close = difflib.get_close_matches(str(id), [known for known in all_torchsymbols() if isinstance(known, str)], n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"there is no operation with the id {id!r}{hint}")


def id_of(sym_or_id: Symbol | Any) -> Any:
    """Return an operation's id. The argument is its symbol, a function of torch, or the id itself.

    An unknown id is accepted, because it may belong to a package that is not imported yet, or to an opaque operation.
    """
    if isinstance(sym_or_id, Symbol):
        return sym_or_id.id
    if isinstance(sym_or_id, str) and sym_or_id.startswith(("torch.", "prims.")):
        return symbol_of_id(sym_or_id).id
    if callable(sym_or_id):
        from thunder.torch import torch_function_map  # local, for the same reason

        found = torch_function_map().get(sym_or_id)
        return sym_or_id if found is None else found.id
    return sym_or_id
