# SPDX-License-Identifier: Apache-2.0
"""Views of memory: torch's functions that implement operations of other names."""

from __future__ import annotations

from typing import Any

import torch

import thunder.torch as ltorch
from thunder.core import dtypes
from thunder.executors.torchex.base import ex, torch_impl, torch_operator
from thunder.runtime.kernels import shape

torch_impl(ltorch.as_strided)(shape.as_strided)


def _is_shape(input: Any, shape: Any) -> bool | str:
    return not isinstance(shape, (torch.dtype, dtypes.dtype)) or "the view reads the memory as another dtype"


# A view of a fused operation's result may need a copy, although a view of torch's result would not: the strides may
# differ.
ex.register_implementation(ltorch.view, torch_operator(torch.reshape), checker=_is_shape)
