# SPDX-License-Identifier: Apache-2.0
"""Passes that insert `triton_linear_crossentropy` into a trace, and remove its unused gradients.

The first pass runs before differentiation. It replaces `cross_entropy(linear(x, w, b), labels)`, with optional reshapes
and a cast between both calls, by one operator. The logits must have no other use and must be large enough. The second
pass runs after differentiation, and removes unused gradients from the forward operator.
"""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
from thunder.extend import (
    BoundSymbol,
    Proxy,
    Trace,
    dtypes,
    get_grad,
    put_grad,
    rewrite,
)
from thunder_ex_triton.cross_entropy.chains import Chains, loss_arguments
from thunder_ex_triton.cross_entropy.linear import LinearLoss, LinearLossForward, profitable, workspace
from thunder_ex_triton.probe import unusable_device

__all__ = ["OPTION", "register"]

OPTION = "triton_linear_cross_entropy"

_FUSED = tuple(getattr(dtypes, name) for name in ("float64", "float32", "float16", "bfloat16"))


def register(registry: Any, executor: str) -> None:
    """Register the operators, the passes and the option."""
    loss = registry.register_operator(
        "triton_linear_crossentropy",
        executor=executor,
        like=LinearLoss.like,
        fn=LinearLoss.run,
        workspace=workspace,
    )
    forward = registry.register_operator(
        "triton_linear_crossentropy_forward",
        executor=executor,
        like=LinearLossForward.like,
        fn=LinearLossForward.run,
        workspace=workspace,
    )

    def gradient(
        x: Any, w: Any, bias: Any, labels: Any, weight: Any, ignore_index: int, reduction: str, label_smoothing: float,
        loss_dtype: str | None,
    ) -> Any:  # fmt: skip
        how = (weight, ignore_index, reduction, label_smoothing, loss_dtype)
        wanted = (True, True, bias is not None)
        out, total, *gradients = forward(x, w, bias, labels, *how, wanted)
        scale = ltorch.to(get_grad(out), total.dtype)
        if reduction == "mean":
            scale = scale / total
        for of, unscaled in zip((x, w, bias), gradients):
            put_grad(of, ltorch.to(unscaled * scale, of.dtype))
        return out

    registry.register_implementation(loss, loss, executor=executor, grad_transform=gradient)
    registry.register_option(
        OPTION,
        type=(bool, type(None)),
        help="whether to fuse a linear layer with the cross-entropy of its result (None: if profitable)",
    )

    def fuse(trace: Trace, context: Any) -> Trace:
        asked = context.options.get(OPTION)
        if asked is False:
            return trace
        return rewrite(trace, "Linear cross-entropy", _Matcher(trace, loss, always=asked is True))

    def prune(trace: Trace, context: Any) -> Trace:
        used = {name for op in trace.bound_symbols for name in op.arg_names}

        def without_unused(op: BoundSymbol) -> Any:
            if op.sym is not forward:
                return None
            *args, wanted = op.args
            names = iter(op.output[2:])
            needed = tuple(want and next(names).name in used for want in wanted)
            if needed == wanted:
                return None
            if not any(needed) and op.output[1].name not in used:
                return loss(*args), *[None] * (len(op.output) - 1)
            out, total, *gradients = forward(*args, needed)
            made = iter(gradients)
            return out, total, *[next(made) if p.name in used else None for p in op.output[2:]]

        return rewrite(trace, "Unused gradients", without_unused)

    registry.register_transform("triton_linear_crossentropy", fuse, phase="before_grad", executor=executor)
    registry.register_transform("triton_linear_crossentropy_unused", prune, phase="before_execution")


class _Matcher:
    """Matches `cross_entropy(linear(x, w, b), labels)` in one trace."""

    def __init__(self, trace: Trace, loss: Any, *, always: bool):
        self.loss = loss
        self.always = always
        self.chains = Chains(trace)

    def __call__(self, op: BoundSymbol) -> Any:
        if op.sym.id != "torch.cross_entropy":
            return None
        target, weight, ignore_index, reduction, smoothing = loss_arguments(*op.args, **op.kwargs)
        logits = op.args[0]
        if logits.ndim != 2 or target.shape == logits.shape or target.ndim != 1 or reduction == "none":
            return None
        linear = self.linear_of(logits)
        if linear is None or not self.fits(linear, logits):
            return None
        x, w, bias = (*linear.args, *linear.kwargs.values(), None)[:3]
        loss_dtype = None if logits.dtype is w.dtype else str(logits.dtype).rpartition(".")[2]
        return self.loss(x, w, bias, target, weight, ignore_index, reduction, smoothing, loss_dtype)

    def linear_of(self, logits: Proxy) -> BoundSymbol | None:
        """Return the linear layer that computes the logits; None if an intermediate value has another use."""
        for p in self.chains.of(logits):
            op = self.chains.made_by.get(p.name)
            if op is not None and op.sym.id == "torch.linear":
                return op if self.chains.is_read_once(p) else None
        return None

    def fits(self, linear: BoundSymbol, logits: Any) -> bool:
        """Check whether the kernels support the fused call, and whether it is profitable."""
        x, w = linear.args[0], linear.args[1]
        if w.ndim != 2 or x.dtype not in _FUSED or x.dtype is not w.dtype or unusable_device(x.device) is not None:
            return False
        rows, classes = logits.shape
        if not rows or not classes or not x.shape[-1]:
            return False
        return self.always or profitable(rows, classes, x.dtype.bytes)
