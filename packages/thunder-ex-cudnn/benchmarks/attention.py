# SPDX-License-Identifier: Apache-2.0
"""Benchmark of attention and norms on a GPU: this executor, torch's kernels, FlexAttention and Triton's fusions.

    python benchmarks/attention.py [--markdown FILE] [--only kernels|host|small|norms] [--repetitions 5]

Times of attention are by events, the median of interleaved repetitions, each of which runs every contender; those of
norms are kernel times, by torch's profiler. Attention is causal in bfloat16, in the layout of a projection's result
(heads next to widths); forward counts half of 4 B H T T D operations, backward two and a half times that. Host time is
that of the calling thread, while the GPU is idle.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import thunder
from thunder.extend import get_all_executors
from thunder.toolkit.benchmarking import by_kernels, in_turns, on_host, parser, replayed, report, table
from thunder_ex_cudnn.attention import run

aten = torch.ops.aten
# (batch, heads, heads of keys, length, width)
ROWS = ((2, 32, 32, 4096, 64), (2, 32, 32, 4096, 128), (1, 32, 32, 16384, 64), (1, 32, 32, 16384, 128))
SHARED = ((2, 32, 8, 4096, 128), (1, 32, 8, 16384, 128))
NORMS = ((16384, 4096), (8192, 8192), (32768, 2048))


def heads(b: int, h: int, t: int, d: int) -> torch.Tensor:
    """Return a random tensor in the layout of a projection's result."""
    return torch.randn(b, t, h, d, device="cuda", dtype=torch.bfloat16).transpose(1, 2)


def of_torch(kind: str, q: Any, k: Any, v: Any, g: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return forward and backward of one of torch's kernels, without autograd."""
    scale, t = q.shape[-1] ** -0.5, q.shape[2]
    if kind == "cudnn":
        run_forward = partial(aten._scaled_dot_product_cudnn_attention, q, k, v, None, True, 0.0, True, False)
        forward = partial(run_forward, scale=scale)
        o = forward()
        how = (o[6], o[7], None, None, None, t, t, 0.0, True)
        back = aten._scaled_dot_product_cudnn_attention_backward
    else:
        forward = partial(aten._scaled_dot_product_flash_attention, q, k, v, 0.0, True, False, scale=scale)
        o = forward()
        how = (None, None, t, t, 0.0, True, o[6], o[7])
        back = aten._scaled_dot_product_flash_attention_backward
    return forward, partial(back, g, q, k, v, o[0], o[1], *how, scale=scale)


def of_flex(q: Any, k: Any, v: Any, g: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return forward and backward of FlexAttention, compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    t = q.shape[2]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, t, t, device="cuda")
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    how = {"block_mask": mask, "enable_gqa": q.shape[1] != k.shape[1]}
    out = compiled(q, k, v, **how)
    return (
        lambda: compiled(q, k, v, **how),
        lambda: torch.autograd.grad(out, (q, k, v), g, retain_graph=True),
    )


def of_ours(q: Any, k: Any, v: Any, g: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return forward and backward of this executor's operators."""
    scale = q.shape[-1] ** -0.5
    forward = partial(run.attention_forward, q, k, v, None, "top-left", scale)
    out, sums = forward()
    return forward, partial(run.attention_backward, g, q, k, v, out, sums, None, "top-left", scale, False)


def kernels(repetitions: int) -> str:
    """Measure TFLOP/s, forward / backward."""
    names = ["thunder-ex-cudnn", "torch cuDNN", "torch flash", "FlexAttention"]
    rows = []
    for b, h, hk, t, d in (*ROWS, *SHARED):
        q, g = heads(b, h, t, d), heads(b, h, t, d)
        k, v = heads(b, hk, t, d), heads(b, hk, t, d)
        made: dict[str, Any] = {}
        for name, make in zip(
            names, (of_ours, lambda *a: of_torch("cudnn", *a), lambda *a: of_torch("flash", *a), of_flex)
        ):
            try:
                made[name] = make(q, k, v, g)
            except Exception as error:
                print(f"{name} {b}x{h}/{hk}x{t}x{d}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
        work = 2 * b * h * t * t * d
        both = [in_turns({n: fns[i] for n, fns in made.items()}, repetitions) for i in (0, 1)]
        cells = [
            f"{work / both[0][n] / 1e9:.0f} / {2.5 * work / both[1][n] / 1e9:.0f}"
            if n in both[0] and n in both[1]
            else "—"
            for n in names
        ]
        rows.append([f"{b}x{h}{'' if h == hk else f'/{hk}'}x{t}x{d}", *cells])
        print(*rows[-1], flush=True)
    return table(["causal attention, TFLOP/s forward / backward", *names], rows)


def host(repetitions: int) -> str:
    """Measure the microseconds of the calling thread."""
    q, k, v, g = (heads(2, 8, 128, 64) for _ in range(4))
    cudnn, ours = of_torch("cudnn", q, k, v, g), of_ours(q, k, v, g)
    grads = [x.detach().requires_grad_() for x in (q, k, v)]
    jitted = thunder.jit(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), executors=["cudnn"])

    def eager(*tensors: Any) -> Any:
        return F.scaled_dot_product_attention(*tensors, is_causal=True)

    def step(f: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(f(*grads), grads, g)

    contenders: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "forward, operator": (ours[0], cudnn[0]),
        "forward without sums, operator": (
            lambda: run.attention(q, k, v, None, "top-left", 0.125),
            lambda: aten._scaled_dot_product_cudnn_attention(q, k, v, None, False, 0.0, True, False, scale=0.125),
        ),
        "backward, operator": (ours[1], cudnn[1]),
        "forward, function": (lambda: jitted(q, k, v), lambda: eager(q, k, v)),
        "forward and backward, function": (step(jitted), step(eager)),
    }
    rows = []
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for name, pair in contenders.items():
            best = in_turns({"ours": pair[0], "torch's": pair[1]}, repetitions, on_host, min)
            rows.append([name, *(f"{x:.1f} µs" for x in best.values())])
    return table(["host time of a call, 2x8x128x64", "thunder-ex-cudnn", "torch cuDNN"], rows)


def small(repetitions: int) -> str:
    """Measure the GPU time of small calls, replayed from CUDA graphs so that it includes no host time."""
    names = ["thunder-ex-cudnn", "torch's choice", "torch flash"]
    rows = []
    for b, h, hk, s, t, d in ((1, 32, 8, 1, 4096, 128), (8, 32, 32, 1, 1024, 128), (8, 12, 12, 256, 256, 64)):
        q, k, v = heads(b, h, s, d), heads(b, hk, t, d), heads(b, hk, t, d)

        def flash(q: Any = q, k: Any = k, v: Any = v) -> Any:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])

        made = {
            names[0]: lambda q=q, k=k, v=v: run.attention(q, k, v, None, None, q.shape[-1] ** -0.5),
            names[1]: lambda q=q, k=k, v=v: F.scaled_dot_product_attention(
                q, k, v, enable_gqa=q.shape[1] != k.shape[1]
            ),
            names[2]: flash,
        }
        times = in_turns({n: replayed(fn) for n, fn in made.items()}, repetitions)
        rows.append([f"{b}x{h}/{hk}, {s} of {t}x{d}", *(f"{times[n] * 1e3 / 20:.1f} µs" for n in names)])
    return table(["attention that is not causal, forward", *names], rows)


def norms(repetitions: int) -> str:
    """Measure TB/s of the minimal memory traffic, forward / backward, through autograd."""
    executors = {"thunder-ex-cudnn": ["cudnn"], "torch": ["torch"]}
    if "triton" in [ex.name for ex in get_all_executors()]:
        executors["Triton fusion"] = ["triton"]
    rows = []
    for kind in ("RMSNorm", "LayerNorm"):
        for n, c in NORMS:
            x = torch.randn(n, c, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            w, b = (torch.randn(c, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
            g = torch.randn_like(x)
            args = (x, w) if kind == "RMSNorm" else (x, w, b)

            def f(x: Any, w: Any, b: Any = None) -> Any:
                return F.rms_norm(x, w.shape, w, 1e-5) if b is None else F.layer_norm(x, w.shape, w, b, 1e-5)

            forward, backward = {}, {}
            for name, chosen in executors.items():
                jitted = thunder.jit(f, executors=chosen)
                forward[name] = lambda jitted=jitted: jitted(*args)
                out = jitted(*args)
                backward[name] = lambda out=out: torch.autograd.grad(out, args, g, retain_graph=True)
            times = [
                {
                    e: statistics.median(by_kernels(fn, 20).milliseconds for _ in range(repetitions))
                    for e, fn in fns.items()
                }
                for fns in (forward, backward)
            ]
            size = n * c * 2
            cells = [f"{2 * size / times[0][e] / 1e9:.2f} / {3 * size / times[1][e] / 1e9:.2f}" for e in executors]
            rows.append([f"{kind} {n}x{c}", *cells])
    return table(["bfloat16, TB/s forward / backward", *executors], rows)


def main() -> None:
    """Print the tables, and write them to the file of `--markdown`."""
    arguments = parser(__doc__)
    arguments.add_argument("--only", choices=["kernels", "host", "small", "norms"], action="append")
    options = arguments.parse_args()
    tables = []
    for name, make in (("kernels", kernels), ("host", host), ("small", small), ("norms", norms)):
        if options.only and name not in options.only:
            continue
        try:
            tables.append(make(options.repetitions))
        except Exception as error:
            tables.append(f"{name} fails: {type(error).__name__}: {error}")
    report("\n\n".join(tables), options)


if __name__ == "__main__":
    main()
