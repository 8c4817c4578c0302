# SPDX-License-Identifier: Apache-2.0
"""cuDNN's graphs for attention, forward and backward, built from shapes, strides and flags.

A `Call` holds everything that a graph depends on, so it is also the cache key of the graph's plan. Tensors are (batch,
heads, length, width) here. cuDNN supports any strides if the last dimension is contiguous.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch

from thunder_ex_cudnn.plans import (
    Context,
    Description,
    Ints,
    Layout,
    Plan,
    library,
    packed_strides,
    require_deterministic_attention,
    type_of,
)

__all__ = ["Call", "Causal", "backward_plan", "fits", "forward_plan", "side_and_window"]

_ALIGNED = 16  # the required alignment of tensors and their rows, in bytes


# The alignment of a causal mask, "top-left" or "bottom-right". For a sliding window, a pair of the alignment and the
# number of visible keys, including the key at the query's position.
Causal: TypeAlias = str | tuple[str, int] | None


def side_and_window(causal: Causal) -> tuple[str | None, int | None]:
    """Return the corner and the window of a causal mask."""
    return causal if isinstance(causal, tuple) else (causal, None)


class Call(NamedTuple):
    """Everything that a plan depends on.

    Layouts are (shape, strides), or None for tensors that the call does not have.
    """

    dtype: torch.dtype
    query: Layout
    key: Layout
    value: Layout
    bias: Layout | None
    causal: Causal
    scale: float
    dropout_p: float
    grad: Layout | None = None
    out: Layout | None = None
    bias_dtype: torch.dtype | None = None
    bias_grad: bool = False
    deterministic: bool = False


def fits(shape: Ints, strides: Ints, itemsize: int) -> bool:
    """Check whether cuDNN supports the layout of a query, key or value, or of a gradient of these."""
    if strides[-1] != 1:
        return False
    step = _ALIGNED // itemsize
    return all(n == 1 or (s > 0 and s % step == 0) for n, s in zip(shape[:-1], strides[:-1]))


class _Description(Description):
    def input(self, name: str, layout: Layout, dtype: torch.dtype, *, exact: bool = False) -> Any:
        shape, strides = layout
        # The stride of a dimension of size 1 is arbitrary, so normalize it. (`exact`: cuDNN checks such strides, too.)
        dense = strides if exact else packed_strides(shape, strides)
        steps = tuple([d if n == 1 else s for n, s, d in zip(shape, strides, dense)])
        return self.tensor(name, (shape, steps), dtype)

    def number(self, name: str) -> Any:
        return self.input(name, ((1, 1, 1, 1), (1, 1, 1, 1)), torch.int64)


def _options(call: Call, d: _Description) -> dict[str, Any]:
    """Return the options of masks and dropout, which are equal in both directions. Their tensors come in this order."""
    cudnn = library()
    how: dict[str, Any] = {"attn_scale": call.scale}
    if call.bias is not None:
        how["bias"] = d.input("bias", call.bias, call.bias_dtype or call.dtype)
    if call.dropout_p:
        how["dropout"] = (call.dropout_p, d.number("seed"), d.number("offset"))
    side, window = side_and_window(call.causal)
    if side is not None:
        sides = cudnn.diagonal_alignment
        how["diagonal_alignment"] = sides.TOP_LEFT if side == "top-left" else sides.BOTTOM_RIGHT
        how["diagonal_band_right_bound"] = 0
    if window is not None:
        how["diagonal_band_left_bound"] = window
    return how


def _out_layout(call: Call) -> Layout:
    """Return the layout of the result, which equals the layout of the queries."""
    shape = (*call.query[0][:3], call.value[0][3])
    return shape, packed_strides(shape, call.query[1])


def _sums_layout(call: Call) -> Layout:
    b, h, s, _ = call.query[0]
    return (b, h, s, 1), (h * s, s, 1, 1)


def forward_plan(context: Context, call: Call, *, sums: bool) -> Plan:
    """Plan forward.

    Its tensors are query, key, value, the tensors of the options, the result and, if requested, log-sum-exp.
    """
    d = _Description(context, call.dtype)
    q, k, v = (d.input(n, getattr(call, n), call.dtype) for n in ("query", "key", "value"))
    out, stats = d.graph.sdpa(q, k, v, generate_stats=sums, **_options(call, d))
    d.result(out, _out_layout(call), call.dtype)
    if sums:
        shape, strides = _sums_layout(call)
        d.result(stats, (shape, strides), torch.float32)
        d.outputs[-1] = (shape[:3], strides[:3], torch.float32)  # callers omit the last dimension
    return d.plan()


def backward_plan(context: Context, call: Call) -> Plan:
    """Plan backward.

    Its tensors are query, key, value, out, grad, sums, the tensors of the options, and the gradients.
    """
    assert call.grad is not None and call.out is not None
    if call.deterministic:
        require_deterministic_attention(context.device, bias_grad=call.bias_grad)
    d = _Description(context, call.dtype)
    names = ("query", "key", "value", "out", "grad")
    q, k, v, out, grad = (d.input(n, getattr(call, n), call.dtype) for n in names)
    stats = d.input("sums", _sums_layout(call), torch.float32, exact=True)
    how = _options(call, d)
    of_bias = None
    if call.bias_grad and call.bias is not None:
        dense = packed_strides(call.bias[0], (4, 3, 2, 1))
        of_bias = d.graph.tensor(
            name="of_bias", dim=list(call.bias[0]), stride=list(dense), data_type=type_of(call.dtype)
        )
        how["dBias"] = of_bias
    if call.deterministic:
        how["use_deterministic_algorithm"] = True
    made = d.graph.sdpa_backward(q, k, v, out, grad, stats, **how)
    for gradient, (shape, strides) in zip(made, (call.query, call.key, call.value)):
        d.result(gradient, (shape, packed_strides(shape, strides)), call.dtype)
    if of_bias is not None and call.bias is not None:
        d.result(of_bias, (call.bias[0], packed_strides(call.bias[0], (4, 3, 2, 1))), call.dtype)
    return d.plan()
