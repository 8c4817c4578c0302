# SPDX-License-Identifier: Apache-2.0
"""Benchmark of scans on a GPU: those of selective state space models, forward and backward, and torch's scans.

    python benchmarks/scans.py [--markdown FILE] [--only TEXT] [--repetitions 5]

The first rows are the scans of Mamba (130M and 1.4B) with what their operands are computed from, in float32: torch's
`associative_scan` as eager mode computes it, torch.compile (if it has compiled within a minute; it has no gradient),
and thunder. Times are milliseconds by events, of CUDA graphs where the call can be captured. The floor is the memory
traffic of the scan alone (its operands and its result once) at the bandwidth of a copy, measured in the same run.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch._higher_order_ops.associative_scan import associative_scan

import thunder
from thunder.toolkit.benchmarking import copy_bandwidth, in_turns, parser, replayed, report, step, table

# (name, batch, channels, length, states)
MODELS = (
    ("Mamba-130M, 1 x 2048", 1, 1536, 2048, 16),
    ("Mamba-130M, 8 x 512", 8, 1536, 512, 16),
    ("Mamba-1.4B, 1 x 2048", 1, 4096, 2048, 16),
    ("Mamba-1.4B, 4 x 512", 4, 4096, 512, 16),
)
# (function, shape, dim)
SCANS: tuple[tuple[str, tuple[int, ...], int], ...] = (
    ("cumsum", (4096, 4096), 1), ("cumsum", (4096, 4096), 0), ("cumsum", (64, 512, 1024), 1),
    ("cumprod", (4096, 4096), 1), ("logcumsumexp", (4096, 4096), 1), ("cummax", (4096, 4096), 1),
    ("cummax", (4096, 4096), 0), ("cumsum", (1024, 65536), 1),
)  # fmt: skip
CALLS = 10  # in a CUDA graph
PATIENCE = 60  # seconds for torch.compile


def affine(left: Any, right: Any) -> Any:
    return left[0] * right[0], right[0] * left[1] + right[1]


def selective(dt: Any, a: Any, b: Any, x: Any) -> Any:
    """Return the states of a selective scan."""
    factors = torch.exp(dt[..., None] * a[None, :, None])
    terms = dt[..., None] * b[:, None] * x[..., None]
    return associative_scan(affine, (factors, terms), 2, combine_mode="pointwise")[1]


def selective_eager(dt: Any, a: Any, b: Any, x: Any) -> Any:
    """The same with eager mode's implementation: in pointwise mode, torch would compile it."""
    factors = torch.exp(dt[..., None] * a[None, :, None])
    terms = dt[..., None] * b[:, None] * x[..., None]
    return associative_scan(affine, (factors, terms), 2, combine_mode="generic")[1]


def in_time(run: Callable[[], Any]) -> bool:
    """Check whether a first call ends within a minute."""

    def late(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        run()
    except Exception as error:  # of the compiler, too
        print(f"torch.compile: {type(error).__name__}")
        return False
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return True


def row(name: str, floor: float, contenders: dict[str, Callable[[], Any]], columns: list[str], times: int) -> list[str]:
    for run in contenders.values():
        run()
    graphs = {each: replayed(run, CALLS) for each, run in contenders.items()}
    found = {each: time / CALLS for each, time in in_turns(graphs, times).items()}
    return [name, f"{floor:.3f}", *(f"{found[each]:.3f}" if each in found else "" for each in columns)]


HEAD = ["eager, forward", "torch.compile, forward", "thunder, forward", "eager", "thunder"]


def of_model(name: str, sizes: tuple[int, ...], bandwidth: float, times: int) -> list[str]:
    batch, channels, length, states = sizes
    inputs = (
        torch.rand(batch, channels, length, device="cuda") * 0.1,
        -torch.rand(channels, states, device="cuda"),
        torch.randn(batch, length, states, device="cuda"),
        torch.randn(batch, channels, length, device="cuda"),
    )
    leaves = tuple(t.clone().requires_grad_() for t in inputs)
    ours = thunder.jit(selective)
    found, expected = ours(*inputs), selective_eager(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    g = torch.randn_like(expected)
    contenders = {
        "eager, forward": lambda: selective_eager(*inputs),
        "thunder, forward": lambda: ours(*inputs),
        "eager": step(selective_eager, leaves, leaves, g),
        "thunder": step(ours, leaves, leaves, g),
    }
    compiled = torch.compile(selective)
    if in_time(lambda: compiled(*inputs)):
        contenders["torch.compile, forward"] = lambda: compiled(*inputs)
    floor = 3 * g.numel() * 4 / bandwidth * 1e3
    return row(name, floor, contenders, HEAD, times)


def of_torch(name: str, shape: tuple[int, ...], dim: int, bandwidth: float, times: int) -> list[str]:
    x = torch.rand(shape, device="cuda").to(torch.bfloat16 if name == "cumsum" else torch.float32)
    leaf, scan = x.clone().requires_grad_(), getattr(torch, name)
    first = (lambda x: scan(x, dim)[0]) if name == "cummax" else (lambda x: scan(x, dim))
    ours = thunder.jit(first)
    contenders = {"eager, forward": lambda: first(x), "thunder, forward": lambda: ours(x)}
    if name in ("cumsum", "logcumsumexp"):
        g = torch.randn_like(x)
        contenders |= {"eager": step(first, (leaf,), (leaf,), g), "thunder": step(ours, (leaf,), (leaf,), g)}
    floor = 2 * x.numel() * x.element_size() / bandwidth * 1e3
    title = f"{name} {'x'.join(map(str, shape))}, dimension {dim}, {str(x.dtype).rpartition('.')[2]}"
    return row(title, floor, contenders, HEAD, times)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", default="", help="measure only the rows whose name contains this")
    options = arguments.parse_args()
    bandwidth = copy_bandwidth()
    rows = []
    for name, *sizes in MODELS:
        if options.only in name:
            rows.append(of_model(name, tuple(sizes), bandwidth, options.repetitions))
            torch.cuda.empty_cache()
    for name, shape, dim in SCANS:
        if options.only in name:
            rows.append(of_torch(name, shape, dim, bandwidth, options.repetitions))
            torch.cuda.empty_cache()
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}"
    text = table(["ms", "floor", *HEAD], rows)
    report(f"{text}\n\n{machine}; a copy runs at {bandwidth / 1e12:.2f} TB/s", options)


if __name__ == "__main__":
    main()
