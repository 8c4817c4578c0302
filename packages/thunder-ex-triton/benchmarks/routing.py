# SPDX-License-Identifier: Apache-2.0
"""Benchmark of routing on a GPU: the order of tokens by expert, and a layer of experts, forward and backward.

    python benchmarks/routing.py [--markdown FILE] [--only TEXT] [--repetitions 5]

The first columns are the sort of the ids, its inverse and the ends of the experts' parts: as Transformers computes them
in eager mode, and by `triton_route`. The others are a layer (routing, gathers, the activation, weighted sums; without
the grouped products, which are the same kernels) in bfloat16, forward and backward: eager, torch.compile and thunder.
Times are milliseconds by events, of CUDA graphs: the median of interleaved repetitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton

import thunder
from thunder.toolkit.benchmarking import in_turns, parser, replayed, report, step, table
from thunder_ex_triton.routing.counting_sort import route

# (tokens, experts, choices, features)
LAYERS = (
    (4096, 8, 2, 1024), (16384, 8, 2, 1024), (65536, 8, 2, 1024), (4096, 64, 8, 2048), (16384, 64, 8, 2048),
    (65536, 64, 4, 1024),
)  # fmt: skip
CALLS = 10


def order_of(ids: Any, experts: int) -> Any:
    found, order = torch.sort(ids)
    counts = torch.histc(found.int(), bins=experts, min=0, max=experts - 1)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.size(0), device=order.device)
    return order, inverse, torch.cumsum(counts, 0, dtype=torch.int32)


def layer(x: Any, logits: Any, choices: int, experts: int) -> Any:
    weights, ids = torch.topk(logits.float().softmax(-1), choices, dim=-1)
    weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype).reshape(-1)
    order, inverse, ends = order_of(ids.reshape(-1), experts)
    y = torch.nn.functional.silu(x[order // choices]) * weights[order].unsqueeze(-1)
    return y[inverse].view(x.shape[0], choices, -1).sum(dim=1) + ends[-1]


def measured(tokens: int, experts: int, choices: int, features: int, times: int) -> list[str]:
    logits = torch.randn(tokens, experts, device="cuda", dtype=torch.bfloat16)
    ids = torch.topk(logits, choices).indices.reshape(-1)
    x = torch.randn(tokens, features, device="cuda", dtype=torch.bfloat16)
    leaves = x.clone().requires_grad_(), logits.clone().requires_grad_()
    _, order, inverse, ends = route(ids, experts)
    assert torch.equal(order, ids.sort(stable=True).indices) and torch.equal(
        order[inverse], torch.arange(len(ids)).cuda()
    )
    assert torch.equal(ends, torch.bincount(ids, minlength=experts).cumsum(0, dtype=torch.int32))
    g = torch.randn_like(x)

    def whole(x: Any, logits: Any) -> Any:
        return layer(x, logits, choices, experts)

    ours, compiled = thunder.jit(whole), torch.compile(whole)
    gradients = [torch.autograd.grad(f(*leaves), leaves, g) for f in (ours, whole)]
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-2)
    contenders: dict[str, Callable[[], Any]] = {
        "sort, eager": lambda: order_of(ids, experts),
        "triton_route": lambda: route(ids, experts),
        "eager": step(whole, leaves, leaves, g),
        "torch.compile": step(compiled, leaves, leaves, g),
        "thunder": step(ours, leaves, leaves, g),
    }
    for run in contenders.values():
        run()
    graphs = {each: replayed(run, CALLS) for each, run in contenders.items()}
    found = {each: time / CALLS for each, time in in_turns(graphs, times).items()}
    name = f"{tokens} tokens of {features}, {choices} of {experts} experts"
    return [name, *(f"{found[each]:.3f}" for each in contenders)]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", default="", help="measure only the rows whose name contains this")
    options = arguments.parse_args()
    rows = []
    for tokens, experts, choices, features in LAYERS:
        if options.only in f"{tokens} tokens of {features}, {choices} of {experts} experts":
            rows.append(measured(tokens, experts, choices, features, options.repetitions))
            torch.cuda.empty_cache()
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}"
    head = ["ms", "sort, eager", "triton_route", "eager", "torch.compile", "thunder"]
    report(f"{table(head, rows)}\n\n{machine}", options)


if __name__ == "__main__":
    main()
