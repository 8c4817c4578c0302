# SPDX-License-Identifier: Apache-2.0
"""The NumPy language (`import thunder.numpy as lnp`): a small set of operations with NumPy's names and promotion."""

from typing import TYPE_CHECKING

from thunder.core.families import import_families
from thunder.numpy.arrays import *  # noqa: F403
from thunder.numpy.base import all_npsymbols, language, npctx, npsymbol
from thunder.numpy.elementwise import *  # noqa: F403
from thunder.numpy.promotion import promote_types, result_type

if TYPE_CHECKING:  # at run time, the primitives' declarations create these names
    from thunder.core.prims import (
        add,
        bitwise_and,
        bitwise_or,
        bitwise_xor,
        cos,
        exp,
        expm1,
        floor_divide,
        log,
        log1p,
        maximum,
        minimum,
        remainder,
        sin,
        sqrt,
        tanh,
    )
    from thunder.core.prims import bitwise_not as invert
    from thunder.core.prims import div as divide
    from thunder.core.prims import eq as equal
    from thunder.core.prims import ge as greater_equal
    from thunder.core.prims import gt as greater
    from thunder.core.prims import le as less_equal
    from thunder.core.prims import lt as less
    from thunder.core.prims import mul as multiply
    from thunder.core.prims import ne as not_equal
    from thunder.core.prims import neg as negative
    from thunder.core.prims import pow as power
    from thunder.core.prims import sub as subtract

import_families(__name__)

__all__ = ["all_npsymbols", "language", "npctx", "npsymbol", "promote_types", "result_type"]
__all__.extend(sorted({symbol.name for symbol in all_npsymbols().values()} - {*__all__}))
