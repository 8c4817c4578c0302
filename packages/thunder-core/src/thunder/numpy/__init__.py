# SPDX-License-Identifier: Apache-2.0
"""The NumPy language (users write `import thunder.numpy as lnp`): a small one, with NumPy's names and promotion."""

from thunder.numpy.arrays import *  # noqa: F403
from thunder.numpy.base import all_npsymbols, language, npctx, npsymbol
from thunder.numpy.elementwise import *  # noqa: F403
from thunder.numpy.promotion import promote_types, result_type

__all__ = ["all_npsymbols", "language", "npctx", "npsymbol", "promote_types", "result_type"]
__all__.extend(sorted({symbol.name for symbol in all_npsymbols().values()} - {*__all__}))
