# SPDX-License-Identifier: Apache-2.0
"""The core language: broadcasting, type promotion and indexing over primitives, one file a family."""

from thunder.clang.base import *  # noqa: F403
from thunder.clang.base import clang_ops, clangctx, clangop
from thunder.clang.base import elementwise_binary as _elementwise_binary_wrapper  # a name for contributors
from thunder.clang.creation import *  # noqa: F403
from thunder.clang.elementwise import *  # noqa: F403
from thunder.clang.elementwise_comparison import *  # noqa: F403
from thunder.clang.elementwise_math import *  # noqa: F403
from thunder.clang.indexing import *  # noqa: F403
from thunder.clang.matmul import *  # noqa: F403
from thunder.clang.reductions import *  # noqa: F403
from thunder.clang.shape import *  # noqa: F403

__all__ = ["clangctx", "clangop"]
__all__.extend(sorted(clang_ops))
