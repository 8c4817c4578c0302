# SPDX-License-Identifier: Apache-2.0
"""The pass that lets cross-entropy read logits in half precision, which the program casts to float32 for it.

The kernels compute in float32 in both cases, and the gradient is rounded once in both.
"""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
from thunder.extend import BoundSymbol, Trace, rewrite
from thunder_ex_triton.cross_entropy.chains import Chains, loss_arguments
from thunder_ex_triton.cross_entropy.implementation import takes

__all__ = ["register"]


def register(registry: Any, executor: str) -> None:
    """Register the pass. It runs after the pass that fuses linear layers, because that pass matches the casts, too."""
    loss = registry.operator("triton_crossentropy")

    def remove_casts(trace: Trace, context: Any) -> Trace:
        return rewrite(trace, "Cross-entropy of logits before a cast", _Matcher(trace, loss))

    registry.register_transform(
        "triton_crossentropy_casts", remove_casts, phase="before_grad", after="triton_linear_crossentropy",
        executor=executor,
    )  # fmt: skip


class _Matcher:
    """Replaces `cross_entropy(logits.float(), labels)` in one trace."""

    def __init__(self, trace: Trace, loss: Any):
        self.loss = loss
        self.chains = Chains(trace)

    def __call__(self, op: BoundSymbol) -> Any:
        if op.sym.id != "torch.cross_entropy" or takes(*op.args, **op.kwargs) is not True:
            return None
        logits = op.args[0]
        target, weight, ignore_index, reduction, smoothing = loss_arguments(*op.args, **op.kwargs)
        source = next((p for p in self.chains.of(logits) if p.dtype is not logits.dtype), None)
        if source is None or target.shape == logits.shape or takes(source, target, weight) is not True:
            return None
        if source.shape != logits.shape:
            source = ltorch.reshape(source, logits.shape)
        loss_dtype = str(logits.dtype).rpartition(".")[2]
        return self.loss(source, target, weight, None, ignore_index, None, reduction, smoothing, loss_dtype)
