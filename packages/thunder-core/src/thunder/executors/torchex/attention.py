# SPDX-License-Identifier: Apache-2.0
"""Attention: which calls torch's fused kernels support. `kernel` is the kernel that torch chose while tracing."""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes
from thunder.executors.torchex.base import torch_impl
from thunder.runtime.kernels import attention
from thunder.runtime.kernels.attention import is_supported

_HALF = (dtypes.float16, dtypes.bfloat16)
_TAKEN = {"flash": _HALF, "cudnn": _HALF, "efficient": (*_HALF, dtypes.float32)}  # on a GPU


def _check_forward(
    query: Any, key: Any, value: Any, attn_mask: Any, is_causal: bool, scale: float, kernel: str
) -> bool | str:
    if query.device.type == "cuda" and query.dtype not in _TAKEN[kernel]:
        return f"the {kernel} kernel does not support {query.dtype}"
    return is_supported(query, key, attn_mask, is_causal, kernel)


def _check_backward(
    grad: Any, query: Any, key: Any, value: Any, attn_mask: Any, out: Any, lse: Any, is_causal: bool, scale: float,
    kernel: str,
) -> bool | str:  # fmt: skip
    return _check_forward(query, key, value, attn_mask, is_causal, scale, kernel)


def _check_backward_of_mask(*args: Any) -> bool | str:
    if args[-1] != "efficient" or args[1].device.type != "cuda":
        return "only the efficient kernel computes the gradient of a mask"
    return _check_backward(*args)


torch_impl(ltorch.attention_forward, checker=_check_forward)(attention.attention_forward)
torch_impl(ltorch.attention_backward, checker=_check_backward)(attention.attention_backward)
torch_impl(ltorch.attention_backward_of_mask, checker=_check_backward_of_mask)(attention.attention_backward_of_mask)
