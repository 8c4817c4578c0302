# SPDX-License-Identifier: Apache-2.0
"""The core language: broadcasting, type promotion and indexing over primitives, with one module per family.

The package exports its operations. It also exports the functions of `thunder.clang.base` that declare an operation.
"""

from typing import TYPE_CHECKING

from thunder.clang.base import clang_ops as _operations
from thunder.clang.base import clangop, maybe_broadcast, maybe_convert_to_dtype
from thunder.clang.base import elementwise_binary as _elementwise_binary_wrapper  # documented under this name
from thunder.clang.creation import *  # noqa: F403
from thunder.clang.elementwise import *  # noqa: F403
from thunder.clang.indexing import *  # noqa: F403
from thunder.clang.matmul import *  # noqa: F403
from thunder.clang.reductions import *  # noqa: F403
from thunder.clang.shape import *  # noqa: F403
from thunder.core.families import import_families as _import_families

if TYPE_CHECKING:  # at run time, the declarations create these names; two helpers there shadow names of base
    from thunder.core.prims.elementwise_binary import *  # type: ignore[assignment]  # noqa: F403
    from thunder.core.prims.elementwise_binary import div as true_divide
    from thunder.core.prims.elementwise_comparison import *  # type: ignore[assignment]  # noqa: F403
    from thunder.core.prims.elementwise_complex import *  # noqa: F403
    from thunder.core.prims.elementwise_math import *  # noqa: F403
    from thunder.core.prims.elementwise_rounding import *  # noqa: F403
    from thunder.core.prims.elementwise_special import *  # type: ignore[assignment]  # noqa: F403

_import_families(__name__)
globals().update(_operations)
del TYPE_CHECKING

__all__ = ["clangop", "maybe_broadcast", "maybe_convert_to_dtype"]
__all__.extend(sorted(_operations))
