# SPDX-License-Identifier: Apache-2.0
"""`thunder.prims`: the primitives, which live in `thunder.core.prims`."""

from thunder.core.prims import *  # noqa: F403
from thunder.core.prims import OpTags, PrimIDs, all_prims, get_grad, make_prim, prim, put_grad, put_grads

__all__ = ["OpTags", "PrimIDs", "all_prims", "get_grad", "make_prim", "prim", "put_grad", "put_grads"]
__all__.extend(sorted({_prim.name for _prim in all_prims().values()} - {*__all__}))
