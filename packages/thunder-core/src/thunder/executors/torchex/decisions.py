# SPDX-License-Identifier: Apache-2.0
"""The implementation of decisions: a check that may leave this path of the program."""

from __future__ import annotations

from thunder.core import prims
from thunder.executors.torchex.base import torch_impl
from thunder.runtime import decisions

__all__: list[str] = []

torch_impl(prims.decide)(decisions.decide)
