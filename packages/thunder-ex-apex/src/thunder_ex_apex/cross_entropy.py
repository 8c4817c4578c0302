# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy with class indices by apex's `xentropy_cuda`: the checker and the implementation.

apex computes the loss and the log-sum-exp of each row. The log-sum-exp is saved for backward. apex does not support
`ignore_index` and does not check class indices, so this module does both.
"""

from __future__ import annotations

from typing import Any

import torch

import thunder.torch as ltorch
from thunder.extend import dtypes, get_grad, put_grad
from thunder.toolkit.claiming import loss_reduction
from thunder.toolkit.launch import on_its_device
from thunder_ex_apex.probe import CROSS_ENTROPY, extension, unusable_device

__all__ = ["DTYPES", "TAKEN", "backward", "backward_like", "forward", "forward_like", "profitable", "register", "takes"]

# With bfloat16 logits apex saves each row's statistics in bfloat16, and gradients are off by up to 6 %.
DTYPES = ("float32", "float16")
TAKEN = (dtypes.float32, dtypes.float16)
# A thread block has at least 32 threads. In shorter rows they read out of bounds.
FEWEST_CLASSES = 32
# In backward a row's offset is computed in 32 bits.
MOST_LOGITS = 2**32
# Bytes of logits. Below this size, launching the small kernels before and after apex's kernel costs more than apex
# saves (docs/performance.md).
LARGE = 300_000_000
# The smallest number of classes that was measured. A thread block processes one row, even if the row is short.
MEASURED_CLASSES = 1000

# The default of `ignore_index`.
IGNORED = -1


def takes(
    input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> bool | str:  # fmt: skip
    """Return True, or the reason why apex does not compute the same result as torch."""
    if input.ndim != 2 or target.ndim != 1:
        return "apex supports only a matrix of logits and one class index per row"
    if input.dtype not in TAKEN:
        return f"apex's cross-entropy is correct only for logits in {' and '.join(DTYPES)}, not {input.dtype}"
    if target.dtype != dtypes.int64:
        return f"apex supports class indices in int64, not {target.dtype}"
    if weight is not None:
        return "apex does not support class weights"
    if target.device != input.device:
        return "the tensors are on several devices"
    if input.shape[0] == 0:
        return "the logits have no rows"
    if input.shape[1] < FEWEST_CLASSES:
        return f"apex reads out of bounds in rows of fewer than {FEWEST_CLASSES} classes"
    if input.shape[0] * input.shape[1] >= MOST_LOGITS:
        return "apex's gradient is wrong for 2**32 or more logits"
    return unusable_device(CROSS_ENTROPY, input.device) or True


def profitable(input: Any, *args: Any, **kwargs: Any) -> bool | str:
    """Check whether apex is faster than torch."""
    if input.shape[1] < MEASURED_CLASSES:
        return f"is not known to be faster than torch for fewer than {MEASURED_CLASSES} classes"
    size = input.shape[0] * input.shape[1] * input.dtype.bytes
    return size >= LARGE or f"torch is as fast for logits of less than {LARGE // 1_000_000} MB"


# -- the operators -----------------------------------------------------------------------------------------------------
def forward_like(
    logits: Any, labels: Any, reduction: str, label_smoothing: float, ignore_index: int = IGNORED
) -> tuple[Any, Any]:
    """Decompose into torch's loss, and the log-sum-exp of each row."""
    return ltorch.cross_entropy_forward(logits, labels, None, ignore_index, reduction, label_smoothing)


@on_its_device
def forward(
    logits: torch.Tensor, labels: torch.Tensor, reduction: str, label_smoothing: float, ignore_index: int = IGNORED
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run apex's kernel. Mask and reduce the losses."""
    counts = labels != ignore_index
    labels = torch.where(counts, labels, 0)
    picked = logits.gather(1, labels[:, None])[:, 0]  # this comes before apex's kernel, because it checks bounds
    half = logits.dtype is torch.float16
    losses, lse = extension(CROSS_ENTROPY).forward(logits.contiguous(), labels, label_smoothing, half)
    if not label_smoothing:  # apex multiplies the sum of the logits, which may be infinite, by 0
        losses = torch.where(losses.isnan(), lse - picked, losses)
    losses = torch.where(counts, losses, 0.0)
    if reduction == "mean":
        losses = losses.sum() / counts.sum()
    elif reduction == "sum":
        losses = losses.sum()
    return losses.to(logits.dtype), lse


def backward_like(g: Any, logits: Any, *, target: Any, max_log_sum_exp: Any, label_smoothing: float) -> Any:
    """Decompose the gradient of the logits, for the cotangent of each row's loss."""
    classes = logits.shape[1]
    softmax = ltorch.exp(ltorch.to(logits, torch.float32) - ltorch.unsqueeze(max_log_sum_exp, 1))
    numbers = ltorch.arange(classes, device=logits.device)
    hit = ltorch.unsqueeze(target, 1) == ltorch.unsqueeze(numbers, 0)
    wanted = ltorch.where(hit, 1.0 - label_smoothing, 0.0) + label_smoothing / classes
    return ltorch.to(ltorch.unsqueeze(g, 1) * (softmax - wanted), logits.dtype)


@on_its_device
def backward(
    g: torch.Tensor, logits: torch.Tensor, *, target: torch.Tensor, max_log_sum_exp: torch.Tensor,
    label_smoothing: float,
) -> torch.Tensor:  # fmt: skip
    """Run apex's kernel. It ignores strides and assumes that logits are contiguous."""
    return extension(CROSS_ENTROPY).backward(
        g.contiguous(), logits.contiguous(), max_log_sum_exp.contiguous(), target.contiguous(), label_smoothing
    )


def register(registry: Any, executor: str) -> None:
    """Register the operators, and implement cross-entropy with them."""
    apply = registry.register_operator("apex_cross_entropy", executor=executor, like=forward_like, fn=forward)
    differentiate = registry.register_operator(
        "apex_cross_entropy_backward", executor=executor, like=backward_like, fn=backward
    )

    def run(input: Any, target: Any, reduction: str, label_smoothing: float, ignore_index: int) -> Any:
        ignored = () if ignore_index == IGNORED else (ignore_index,)
        return apply(input, target, reduction, label_smoothing, *ignored)

    def execution(
        input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
        reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
    ) -> Any:  # fmt: skip
        reduction = loss_reduction(reduction, size_average, reduce)
        return run(input, target, reduction, label_smoothing, ignore_index)[0]

    def gradient(
        input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
        reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
    ) -> Any:  # fmt: skip
        reduction = loss_reduction(reduction, size_average, reduce)
        loss, lse = run(input, target, reduction, label_smoothing, ignore_index)
        counts = ltorch.ne(target, ignore_index)
        g = ltorch.to(get_grad(loss), torch.float32)
        if reduction == "mean":
            g = g / ltorch.sum(counts)
        if reduction != "none":
            g = ltorch.expand(ltorch.unsqueeze(g, 0), target.shape)
        of_rows = ltorch.where(counts, g, 0.0)
        logits = ltorch.contiguous(input)
        put_grad(
            input,
            differentiate(of_rows, logits, target=target, max_log_sum_exp=lse, label_smoothing=label_smoothing),
        )
        return loss

    registry.register_implementation(
        ltorch.cross_entropy,
        executor=executor,
        checker=takes,
        profitable=profitable,
        execution_transform=execution,
        grad_transform=gradient,
    )
