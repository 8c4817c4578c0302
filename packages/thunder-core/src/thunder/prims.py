# SPDX-License-Identifier: Apache-2.0
"""`thunder.prims`: the primitives, which live in `thunder.core.prims`."""

from thunder.core.prims import *  # noqa: F403
from thunder.core.prims import PrimIDs, make_prim, prim  # noqa: F401
