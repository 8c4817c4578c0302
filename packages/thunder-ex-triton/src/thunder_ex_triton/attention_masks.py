# SPDX-License-Identifier: Apache-2.0
"""A pass that stores masks of attention as torch's kernel reads them, if a fusion computes them.

The rows of an additive mask must begin at multiples of 16 elements. Otherwise torch copies the mask to such memory, in
two kernels, at each call and for each gradient. With windows of 49 pixels, the masks are as large as the scores. The
pass pads the rows of a mask where it is computed. Attention reads the mask without the padding, as a view.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import thunder.torch as ltorch
from thunder.extend import (
    BoundSymbol,
    Executor,
    OpTags,
    Saved,
    TensorProxy,
    Trace,
    current_trace,
    dtypes,
    is_left_to_torch,
    proxies_in,
    rewrite,
)
from thunder_ex_triton.probe import unusable_device

__all__ = ["register"]

_STEP = 16  # the alignment of rows, in elements
_DTYPES = (dtypes.float32, dtypes.float16, dtypes.bfloat16)
# The operations of attention, and the position of the mask among their arguments. Queries are the argument before keys
# and values, which the mask follows.
_MASKS = {
    "torch.scaled_dot_product_attention": 3,
    "torch.attention_forward": 3,
    "torch.attention_backward": 4,
    "torch.attention_backward_of_mask": 4,
}


def register(registry: Any, executor: str) -> None:
    """Register the pass."""

    def align(trace: Trace, context: Any) -> Trace:
        masks = _masks(trace, context.executors)
        return rewrite(trace, "Rows of masks", _Aligned(masks)) if masks else trace

    registry.register_transform("triton_attention_masks", align, phase="before_execution", executor=executor)


def _masks(trace: Trace, executors: Sequence[Executor]) -> set[str]:
    """Return the masks that fusions store, and that only torch's attention reads."""
    computed: set[str] = set()
    found: set[str] = set()
    read: set[str] = set()  # by other operations
    for op in trace.bound_symbols:
        mask = _mask_of(op)
        if mask is not None and mask.name in computed and is_left_to_torch(op, executors):
            found.add(mask.name)
            at = _MASKS[op.sym.id]
            read.update(p.name for p in proxies_in((op.args[:at], op.args[at + 1 :], op.kwargs)))
        elif not op.sym.is_return:
            read.update(op.arg_names)
        if len(op.out_names) == 1 and _is_stored(op, computed):
            computed.update(op.out_names)
    results = trace.output
    if isinstance(results, tuple) and len(results) == 2 and isinstance(results[1], Saved):
        results = results[0]
    return found - read - {p.name for p in proxies_in(results)}


def _is_stored(op: BoundSymbol, computed: Set[str]) -> bool:
    """Check whether a fusion can store the result of an operation, or a tensor that it is a reshape of."""
    if OpTags.VIEW_OP in op.sym.tags and op.sym is not ltorch.contiguous:
        return op.sym.facts.keeps_order and not computed.isdisjoint(op.arg_names)
    return OpTags.ELEMENTWISE_OP in op.sym.tags or op.sym is ltorch.contiguous


def _mask_of(op: BoundSymbol) -> TensorProxy | None:
    """Return the mask of attention if its rows are not aligned."""
    at = _MASKS.get(op.sym.id)
    if at is None or len(op.args) <= at:
        return None
    mask, query = op.args[at], op.args[at - 3]
    if not isinstance(mask, TensorProxy) or mask.ndim < 2 or mask.dtype is not query.dtype:
        return None
    length = mask.shape[-1]
    if mask.dtype not in _DTYPES or any(type(n) is not int for n in mask.shape) or length % _STEP == 0 or length == 1:
        return None
    return mask if unusable_device(mask.device) is None else None


class _Aligned:
    """Replaces masks by views of padded masks."""

    def __init__(self, masks: set[str]):
        self.masks = masks

    def __call__(self, op: BoundSymbol) -> Any:
        if self.masks.isdisjoint(op.out_names):
            return None
        trace: Any = current_trace()
        mask: Any = op.output
        new = mask.replace_name(trace.make_name())
        trace.record(op.substitute({mask.name: new}))
        length = mask.shape[-1]
        return ltorch.pad(new, (0, -length % _STEP))[..., :length]
