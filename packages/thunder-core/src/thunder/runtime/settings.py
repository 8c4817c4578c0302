# SPDX-License-Identifier: Apache-2.0
"""Settings that prologues read by a call, if the program that was traced has read them."""

from __future__ import annotations

import decimal
from typing import Any

from thunder.runtime.torch_private import attention_order, kernels_enabled

__all__ = ["attention_kernels", "decimal_settings"]

_KERNELS: dict[tuple[Any, ...], tuple[Any, ...]] = {}


def attention_kernels() -> tuple[Any, ...]:
    """Return which attention kernels are enabled (`torch.nn.attention.sdpa_kernel`), and their order of priority."""
    flash, efficient, math, cudnn = kernels_enabled
    found = (flash(), efficient(), math(), cudnn(), *attention_order())
    return _KERNELS.setdefault(found, found)  # one object per value, so guards can compare by identity


def decimal_settings() -> tuple[Any, ...]:
    """Return the settings of the decimal context."""
    context = decimal.getcontext()
    traps = tuple([bool(trapped) for trapped in context.traps.values()])
    return context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp, traps
