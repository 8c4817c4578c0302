# SPDX-License-Identifier: Apache-2.0
"""`thunder.prims`: the primitives. `thunder.core.prims` defines them."""

from typing import TYPE_CHECKING, Any

import thunder.core.prims
from thunder.core.prims import *  # noqa: F403
from thunder.core.prims import OpTags, PrimIDs, all_prims, get_grad, make_prim, prim, put_grad, put_grads

__all__ = ["OpTags", "PrimIDs", "all_prims", "get_grad", "make_prim", "prim", "put_grad", "put_grads"]
__all__.extend(sorted({_prim.name for _prim in all_prims().values()} - {*__all__}))

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # Primitives that a family in another folder declared later.
        return getattr(thunder.core.prims, name)
