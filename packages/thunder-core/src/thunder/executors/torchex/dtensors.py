# SPDX-License-Identifier: Apache-2.0
"""The implementations of the border between DTensors and local tensors."""

from __future__ import annotations

from thunder.core import prims
from thunder.executors.torchex.base import torch_impl
from thunder.runtime.kernels import dtensors

__all__: list[str] = []

torch_impl(prims.local_of)(dtensors.local_of)
torch_impl(prims.dtensor_of)(dtensors.dtensor_of)
