# SPDX-License-Identifier: Apache-2.0
"""Operations whose result has a shape that depends on values: while tracing they are errors that name the way out."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from thunder.core.errors import TracingError
from thunder.core.samples import SampleInput
from thunder.core.symbol import NON_DIFFERENTIABLE, Symbol
from thunder.torch.base import torchsymbol


def _refused(name: str, fn: Any, what: str, way_out: str) -> Symbol:
    message = (
        f"{name} gives as many elements as {what}, which is not known while tracing. {way_out}, or leave this part out "
        "of the traced function"
    )

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise TracingError(message)

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"An error while tracing, since it gives as many elements as {what}."
    sym = torchsymbol(fn, executed_by_torch=False, tags=(NON_DIFFERENTIABLE,))(refuse)
    sym.errors(lambda make: iter([(SampleInput(make((3,))), TracingError, "which is not known while tracing")]))
    return sym


_WITH_MASK = "Compute with the mask itself (torch.where(mask, a, b), a.masked_fill(mask, value)), which keeps the shape"
_SORTED = (
    "Sort instead (torch.sort) and compare neighbours, or count over a known range (torch.zeros(n).scatter_add(...))"
)

masked_select = _refused("masked_select", torch.masked_select, "the mask has true ones", _WITH_MASK)
nonzero = _refused("nonzero", torch.nonzero, "the input has nonzero ones", f"{_WITH_MASK}; or use torch.nonzero_static")
argwhere = _refused("argwhere", torch.argwhere, "the input has nonzero ones", _WITH_MASK)
unique = _refused("unique", torch.unique, "the input has different ones", _SORTED)
unique_consecutive = _refused(
    "unique_consecutive", torch.unique_consecutive, "the input has runs of equal ones", _SORTED
)
