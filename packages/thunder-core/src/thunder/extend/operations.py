# SPDX-License-Identifier: Apache-2.0
"""Operations by their ids, which is how executors name what they implement."""

from __future__ import annotations

import difflib
from typing import Any

from thunder.core.symbol import Symbol

__all__ = ["id_of", "symbol_of_id"]


def symbol_of_id(id: Any) -> Symbol:
    """Return the operation with that id."""
    # Here: an executor that names no operation loads no language.
    from thunder.core.prims import all_prims
    from thunder.torch import all_torchsymbols

    for known in (all_prims(), all_torchsymbols()):
        if id in known:
            return known[id]
    close = difflib.get_close_matches(str(id), [known for known in all_torchsymbols() if isinstance(known, str)], n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"there is no operation with the id {id!r}{hint}")


def id_of(sym_or_id: Symbol | Any) -> Any:
    """Return the id of the operation that is meant: a function of torch stands for its symbol, and a name is one's.

    Any other id may be an operation's that is not known yet: another package's, or one that thunder does not look into.
    """
    if isinstance(sym_or_id, Symbol):
        return sym_or_id.id
    if isinstance(sym_or_id, str) and sym_or_id.startswith(("torch.", "prims.")):
        return symbol_of_id(sym_or_id).id
    if callable(sym_or_id):
        from thunder.torch import torch_function_map  # here, as above

        found = torch_function_map().get(sym_or_id)
        return sym_or_id if found is None else found.id
    return sym_or_id
