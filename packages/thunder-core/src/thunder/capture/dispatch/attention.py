# SPDX-License-Identifier: Apache-2.0
"""Handler of attention, for kernels chosen by the user (`sdpa_kernel`) and for masks without data (`CausalBias`).

A `torch.nn.attention.bias.CausalBias` is a tensor subclass that describes a causal mask and stores no elements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from thunder.capture.base.modes import with_attention_kernels
from thunder.capture.base.predicates import is_mask
from thunder.capture.base.tracing_mode import TracingMode
from thunder.capture.dispatch.opaque import call_opaque
from thunder.capture.dispatch.registry import handles
from thunder.capture.tensors.tracer import Tracer
from thunder.runtime.settings import attention_kernels

__all__: list[str] = []

_ATTENTION = torch.nn.functional.scaled_dot_product_attention


@handles(_ATTENTION)
def _attention(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    if any(map(is_mask, (*args, *kwargs.values()))):
        return _masked(*args, **kwargs)
    kernels = attention_kernels()
    if tracer.attention_kernels is None:
        tracer.attention_kernels = tracer.kernels_around
    if kernels == tracer.kernels_around:
        return NotImplemented
    return call_opaque(tracer, _attention_by(kernels), args, kwargs)


def _masked(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float = 0.0, is_causal: bool = False, **how: Any
) -> Any:
    """Call attention with a `CausalBias`: as `is_causal` for an upper left triangle, else with a materialized mask."""
    if is_causal:
        raise ValueError("CausalBias should not be used with causal=True")
    with TracingMode():  # torch disables the mode while it calls `__torch_function__`
        top_left = attn_mask.variant.name == "UPPER_LEFT" or attn_mask.seq_len_q == attn_mask.seq_len_kv
        mask = None if top_left else attn_mask._materialize(query.device)
        return _ATTENTION(query, key, value, mask, dropout_p, top_left, **how)


@functools.cache
def _attention_by(kernels: tuple[Any, ...]) -> Callable[..., Any]:
    """Return a function that calls attention with the kernels that user code selects."""

    def attention_by_choice(*args: Any, **kwargs: Any) -> Any:
        with with_attention_kernels(kernels):
            return _ATTENTION(*args, **kwargs)

    return attention_by_choice
