# SPDX-License-Identifier: Apache-2.0
"""Attention: which calls torch's fused kernels support. `kernel` is the kernel that torch chose while tracing."""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
from thunder.executors.torchex.base import torch_impl
from thunder.runtime.kernels import attention
from thunder.runtime.kernels.attention import is_supported


def _check_forward(
    query: Any, key: Any, value: Any, attn_mask: Any, is_causal: bool, scale: float, kernel: str
) -> bool | str:
    return is_supported(query, key, attn_mask, is_causal, kernel)


def _check_backward(
    grad: Any, query: Any, key: Any, value: Any, attn_mask: Any, out: Any, lse: Any, is_causal: bool, scale: float,
    kernel: str,
) -> bool | str:  # fmt: skip
    return is_supported(query, key, attn_mask, is_causal, kernel)


def _check_backward_of_mask(*args: Any) -> bool | str:
    efficient = args[-1] == "efficient" and args[1].device.type == "cuda"
    return efficient or "only the efficient kernel computes the gradient of a mask"


torch_impl(ltorch.attention_forward, checker=_check_forward)(attention.attention_forward)
torch_impl(ltorch.attention_backward, checker=_check_backward)(attention.attention_backward)
torch_impl(ltorch.attention_backward_of_mask, checker=_check_backward_of_mask)(attention.attention_backward_of_mask)
