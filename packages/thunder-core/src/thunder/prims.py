# SPDX-License-Identifier: Apache-2.0
"""`thunder.prims`: the primitives, which live in `thunder.core.prims`."""

from typing import TYPE_CHECKING, Any

import thunder.core.prims
from thunder.core.prims import *  # noqa: F403
from thunder.core.prims import PrimIDs, make_prim, prim  # noqa: F401

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # What a family of another folder declared since.
        return getattr(thunder.core.prims, name)
