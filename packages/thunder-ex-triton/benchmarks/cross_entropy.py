# SPDX-License-Identifier: Apache-2.0
"""Benchmark of cross-entropy on a GPU, forward and backward through autograd: thunder, eager, torch.compile, Liger.

    python benchmarks/cross_entropy.py [--markdown FILE] [--only ROW] [--repetitions 5]

Times are GPU times by events: the median of interleaved repetitions, each of which runs every contender. The floor is
the minimal memory traffic (logits read twice, gradient written once) at the bandwidth of a copy, measured in the same
run. Peak memory is what a step allocates besides its inputs, parameters and their gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

import thunder
from thunder.toolkit.benchmarking import copy_bandwidth, in_turns, parser, report

LOSS_ROWS = (
    ((2048, 50257), torch.float32, torch.contiguous_format),
    ((8192, 128256), torch.bfloat16, torch.contiguous_format),
    ((16384, 32000), torch.bfloat16, torch.contiguous_format),
    ((1 << 20, 150), torch.bfloat16, torch.contiguous_format),
    ((1 << 20, 10), torch.bfloat16, torch.contiguous_format),
    ((4, 150, 512, 512), torch.bfloat16, torch.contiguous_format),  # SegFormer
    ((4, 150, 512, 512), torch.bfloat16, torch.channels_last),
)
LINEAR_ROWS = ((8192, 2048, 128256, torch.bfloat16),)


def step(loss: Callable[..., Any], inputs: tuple[Any, ...], parameters: tuple[Any, ...]) -> Callable[[], Any]:
    """Return a function that runs forward and backward once."""

    def run() -> None:
        for p in parameters:
            p.grad = None
        loss(*inputs).backward()

    return run


def peak(fn: Callable[[], Any], parameters: tuple[Any, ...]) -> float:
    """Return the peak memory in GiB, without the memory allocated before and the gradients."""
    for p in parameters:
        p.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fn()
    torch.cuda.synchronize()
    gradients = sum(p.grad.numel() * p.grad.element_size() for p in parameters if p.grad is not None)
    return (torch.cuda.max_memory_allocated() - before - gradients) / 2**30


def liger_loss() -> Callable[..., Any] | None:
    """Return Liger's kernel, if installed. It overwrites its input with the gradient, so the input is copied."""
    try:
        from liger_kernel.transformers.functional import liger_cross_entropy
    except Exception:
        return None
    return lambda x, t: liger_cross_entropy(x.clone(), t)


def loss_row(
    shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, bandwidth: float, repetitions: int
) -> list[str]:
    """Measure cross-entropy alone."""
    x = torch.randn(shape, device="cuda", dtype=dtype).contiguous(memory_format=layout).requires_grad_()
    t = torch.randint(0, shape[1], (*shape[:1], *shape[2:]), device="cuda")
    losses: dict[str, Callable[..., Any] | None] = {
        "thunder": thunder.jit(F.cross_entropy), "eager": F.cross_entropy, "torch.compile": compiled(F.cross_entropy),
        "Liger": liger_loss() if len(shape) == 2 else None,
    }  # fmt: skip
    contenders = {name: step(f, (x, t), (x,)) for name, f in losses.items() if f is not None}
    times = in_turns(contenders, repetitions)
    floor = 3 * x.numel() * x.element_size() / bandwidth * 1e3
    name = f"cross-entropy {'x'.join(map(str, shape))} {str(dtype).rpartition('.')[2]}"
    if layout is torch.channels_last:
        name += ", channels-last"
    return [name, f"{floor:.3f}", *(_cell(times, contenders, c, floor, (x,)) for c in losses)]


def linear_row(
    tokens: int, features: int, classes: int, dtype: torch.dtype, bandwidth: float, repetitions: int
) -> list[str]:
    """Measure a linear layer and the cross-entropy of its result."""
    x = torch.randn(tokens, features, device="cuda", dtype=dtype, requires_grad=True)
    w = (torch.randn(classes, features, device="cuda", dtype=dtype) / features**0.5).requires_grad_()
    t = torch.randint(0, classes, (tokens,), device="cuda")

    def loss(x: Any, w: Any, t: Any) -> Any:
        return F.cross_entropy(F.linear(x, w), t)

    losses: dict[str, Callable[..., Any] | None] = {
        "thunder": thunder.jit(loss), "eager": loss, "torch.compile": compiled(loss), "Liger": liger_linear(),
    }  # fmt: skip
    contenders = {name: step(f, (x, w, t), (x, w)) for name, f in losses.items() if f is not None}
    times = in_turns(contenders, repetitions)
    floor = matmuls(x.detach(), w.detach(), repetitions)
    name = f"linear + cross-entropy {tokens}x{features}→{classes} {str(dtype).rpartition('.')[2]} (floor: its matmuls)"
    return [name, f"{floor:.3f}", *(_cell(times, contenders, c, floor, (x, w)) for c in losses)]


def matmuls(x: torch.Tensor, w: torch.Tensor, repetitions: int) -> float:
    """Measure the matmuls of a linear layer, forward and backward."""
    a = torch.randn(x.shape[0], w.shape[0], device="cuda", dtype=x.dtype)

    def run() -> None:
        F.linear(x, w)
        torch.mm(a, w)
        torch.mm(a.t(), x)

    return in_turns({"matmuls": run}, repetitions)["matmuls"]


def liger_linear() -> Callable[..., Any] | None:
    """Return Liger's fused operator, if installed."""
    try:
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy
    except Exception:
        return None
    return liger_fused_linear_cross_entropy


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `fn` by torch.compile for static shapes."""
    torch._dynamo.reset()
    return torch.compile(fn, dynamic=False)


def _cell(
    times: dict[str, float], contenders: dict[str, Callable[[], Any]], name: str, floor: float, inputs: tuple[Any, ...]
) -> str:
    if name not in times:
        return "—"
    return f"{times[name]:.3f} ({times[name] / floor:.2f} x), {peak(contenders[name], inputs):.2f} GiB"


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", default="", help="run only the rows whose name contains this")
    options = arguments.parse_args()
    bandwidth = copy_bandwidth()
    head = ["ms (x floor), peak memory", "floor", "thunder", "eager", "torch.compile", "Liger"]
    lines = [" | ".join(["", *head, ""]).strip(), " | ".join(["", *["---"] * len(head), ""]).strip()]
    rows = [("cross-entropy", functools.partial(loss_row, *row)) for row in LOSS_ROWS]
    rows += [("linear", functools.partial(linear_row, *row)) for row in LINEAR_ROWS]
    for kind, row in rows:
        if options.only in kind:
            lines.append(" | ".join(["", *row(bandwidth, options.repetitions), ""]).strip())
            torch.cuda.empty_cache()
    import triton

    lines.append("")
    lines.append(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}; a copy runs at "
        f"{bandwidth / 1e12:.2f} TB/s"
    )
    text = "\n".join(lines)
    report(text, options)


if __name__ == "__main__":
    main()
