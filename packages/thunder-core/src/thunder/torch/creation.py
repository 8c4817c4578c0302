# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language that make tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.core import devices, dtypes, prims
from thunder.core.promotion import default_dtype
from thunder.core.symbol import NON_DIFFERENTIABLE
from thunder.torch.base import torchsymbol


@torchsymbol(torch.full, tags=(NON_DIFFERENTIABLE,))
def full(size: Sequence[int], fill_value: Any, *, device: Any = None, dtype: Any = None) -> Any:
    """A tensor of `size` filled with `fill_value`."""
    kind = dtypes.to_dtype(dtype) or (default_dtype() if isinstance(fill_value, float) else dtypes.to_dtype(type(fill_value)))
    where = devices.to_device(device if device is not None else torch.get_default_device())
    return prims.full(tuple(size), fill_value, device=where, dtype=kind)
