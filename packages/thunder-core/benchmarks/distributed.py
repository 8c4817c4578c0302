# SPDX-License-Identifier: Apache-2.0
"""Training steps on several ranks: eager, torch.compile and thunder, with DDP, fully_shard and tensor parallelism.

    python packages/thunder-core/benchmarks/distributed.py [--ranks 2] [--backend gloo|nccl] [--layers N] [--width N]
        [--tokens N] [--steps N] [--rows TEXT] [--json FILE]

Starts one process for each rank on this machine. The model is a stack of transformer blocks in float32 on a CPU and in
bfloat16 on GPUs. A step is forward, backward and AdamW. All candidates run in the same processes, interleaved. Times
are wall times of rank 0, with a barrier before each step; "first" is the time of the first step, with compilation.
"peak" is the memory of a candidate alone: what the others hold meanwhile is subtracted. "collectives" are those of a
program, or those that eager mode's DTensors call. With tensor parallelism, all ranks have the same data.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from measuring import machine
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

import thunder
from thunder.core.symbol import OpTags

WARM = 3  # steps before the measurement: AdamW's state, and numbers that become inputs


class Block(nn.Module):
    """A transformer block: attention and a SwiGLU."""

    def __init__(self, width: int):
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(width) for _ in range(2)])
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 8 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (y.view(b, t, -1, 64).transpose(1, 2) for y in self.qkv(self.norms[0](x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)


class SeparateBlock(nn.Module):
    """The same block with a linear layer for each projection, so that ranks can divide heads."""

    def __init__(self, block: Block):
        super().__init__()
        self.norms, self.out, self.down = block.norms, block.out, block.down
        self.q, self.k, self.v = (_linear(w) for w in block.qkv.weight.chunk(3))
        self.gate, self.up = (_linear(w) for w in block.up.weight.chunk(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        a = self.norms[0](x)
        q, k, v = (linear(a).view(b, t, -1, 64).transpose(1, 2) for linear in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        a = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(a)) * self.up(a))


def _linear(weight: torch.Tensor) -> nn.Linear:
    with torch.device(weight.device):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    linear.weight = nn.Parameter(weight.detach().clone())
    return linear


def model_of(args: argparse.Namespace, device: torch.device) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(args.width) for _ in range(args.layers)]).to(device)
    return model.bfloat16() if device.type == "cuda" else model


def input_of(args: argparse.Namespace, seed: int, device: torch.device) -> torch.Tensor:
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.randn(2, args.tokens // 2, args.width, device=device, dtype=dtype)


def step_of(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    kinds: dict[type, list[nn.Parameter]] = {}  # foreach=True does not take DTensors and other tensors together
    for p in model.parameters():
        kinds.setdefault(type(p.data), []).append(p)
    groups = [{"params": parameters} for parameters in kinds.values()]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, foreach=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step.model = model  # type: ignore[attr-defined]
    return step


def data_parallel(model: nn.Module, **options: Any) -> DistributedDataParallel:
    devices = [torch.cuda.current_device()] if next(model.parameters()).is_cuda else None
    return DistributedDataParallel(model, device_ids=devices, **options)


def sharded(model: nn.Sequential, block: Callable[[nn.Module], nn.Module], device: torch.device) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model = nn.Sequential(*[block(child) for child in model])
    for child in model:
        fully_shard(child, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model: nn.Sequential, device: torch.device) -> nn.Module:
    """Divide heads and the hidden layer of each block among all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    columns, rows = ("q", "k", "v", "gate", "up"), ("out", "down")
    plan = {**{name: ColwiseParallel() for name in columns}, **{name: RowwiseParallel() for name in rows}}
    model = nn.Sequential(*[SeparateBlock(block) for block in model])
    for block in model:
        parallelize_module(block, mesh, plan)
    return model


def jitted_forward(block: nn.Module) -> nn.Module:
    block.forward = thunder.jit(block.forward)  # type: ignore[method-assign]
    return block


def compiled_in_place(block: nn.Module) -> nn.Module:
    block.compile()
    return block


CANDIDATES: dict[str, Callable[[Any, torch.device], Any]] = {
    "DDP, eager": lambda m, d: step_of(data_parallel(m)),
    "DDP, torch.compile": lambda m, d: step_of(torch.compile(data_parallel(m))),
    "DDP, thunder, model": lambda m, d: step_of(data_parallel(thunder.jit(m))),
    "DDP, thunder, whole step": lambda m, d: thunder.jit(step_of(data_parallel(m))),
    "fully_shard, eager": lambda m, d: step_of(sharded(m, lambda block: block, d)),
    "fully_shard, torch.compile per block": lambda m, d: step_of(sharded(m, compiled_in_place, d)),
    "fully_shard, thunder, model": lambda m, d: step_of(thunder.jit(sharded(m, lambda block: block, d))),
    "fully_shard, thunder, whole step": lambda m, d: thunder.jit(step_of(sharded(m, lambda block: block, d))),
    "fully_shard, thunder per block": lambda m, d: step_of(sharded(m, jitted_forward, d)),
    "tensor parallel, eager": lambda m, d: step_of(tensor_parallel(m, d)),
    "tensor parallel, torch.compile": lambda m, d: step_of(torch.compile(tensor_parallel(m, d))),
    "tensor parallel, thunder, model": lambda m, d: step_of(thunder.jit(tensor_parallel(m, d))),
    "tensor parallel, thunder, whole step": lambda m, d: thunder.jit(step_of(tensor_parallel(m, d))),
}


class Candidate:
    """One way to run the step, and its measurements."""

    def __init__(
        self, build: Callable[[Any, torch.device], Any], model: nn.Module, device: torch.device,
        counts_eagerly: bool = False,
    ):  # fmt: skip
        self.device, self.counts_eagerly = device, counts_eagerly
        self.times: list[float] = []
        self.others = _allocated(device)  # what other candidates hold
        self.step = build(copy.deepcopy(model), device)
        self.held = 0  # by this candidate between steps
        self.memory = 0

    def timed(self, x: torch.Tensor) -> tuple[float, float]:
        """Run a step, and return its time and its loss."""
        dist.barrier()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        before, start = _allocated(self.device), perf_counter()
        loss = self.step(x)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            seconds = perf_counter() - start
            self.memory = torch.cuda.max_memory_allocated() - before + self.held
            return seconds, float(loss)
        return perf_counter() - start, float(loss)

    def warm(self, x: torch.Tensor) -> dict[str, float]:
        """Run the first steps, and return what the table shows of them."""
        first, _ = self.timed(x)
        losses = [self.timed(x)[1] for _ in range(WARM)]
        gc.collect()
        self.held = _allocated(self.device) - self.others
        return {"first": first, "loss": losses[-1]}

    def collectives(self, x: torch.Tensor) -> str:
        """Return the number of collectives of a program, or of a step of eager DTensors. All ranks call this."""
        model = getattr(self.step, "model", None)
        if isinstance(self.step, thunder.frontend.jit.JitFunction):
            return str(_collectives(thunder.last_traces(self.step)))
        if isinstance(model, thunder.frontend.module.ThunderModule):
            return str(_collectives(thunder.last_traces(model)) + _collectives(thunder.last_backward_traces(model)))
        if self.counts_eagerly:
            with CommDebugMode() as debug:
                self.step(x)
            return str(debug.get_total_counts())
        return "-"


def _collectives(traces: Any) -> int:
    """Return how many collectives a program starts."""
    program = traces[-1].bound_symbols if traces else []
    return sum(OpTags.COLLECTIVE in op.sym.tags and op.sym.name != "wait" for op in program)


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def join(args: argparse.Namespace, rank: int) -> torch.device:
    """Join the process group, and return the device of this rank."""
    cuda = args.backend == "nccl"
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        args.backend, init_method=f"file://{args.store}", rank=rank, world_size=args.ranks,
        device_id=device if cuda else None,
    )  # fmt: skip
    return device


def on_rank(args: argparse.Namespace, rank: int) -> None:
    """Measure on one rank, and print the table on rank 0."""
    device = join(args, rank)
    model = model_of(args, device)
    own, shared = [input_of(args, seed, device) for seed in (1 + rank, 1)]
    chosen = {name: build for name, build in CANDIDATES.items() if args.rows in name}
    rows: dict[str, Any] = {}
    candidates, inputs = {}, {}
    for name, build in chosen.items():
        inputs[name] = x = shared if name.startswith("tensor parallel") else own
        try:
            candidate = Candidate(build, model, device, counts_eagerly=name == "tensor parallel, eager")
            rows[name] = candidate.warm(x)
        except Exception as error:  # e.g. no C++ compiler for torch.compile: all ranks fail alike
            rows[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
            continue
        candidates[name] = candidate
        if rank == 0:
            seconds = rows[name]["first"]
            print(f"{name}: first step {seconds:.1f} s", file=sys.stderr)  # what is known if the run is cut off
    gc.collect()  # once, because it takes longer than a step
    for _ in range(args.steps):
        for name, candidate in candidates.items():
            candidate.times.append(candidate.timed(inputs[name])[0])
    for name, candidate in candidates.items():
        count = candidate.collectives(inputs[name])
        rows[name].update(step=statistics.median(candidate.times), collectives=count, memory=candidate.memory)
    if rank == 0:
        print(table(args, rows))
        if args.json:
            Path(args.json).write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1), encoding="utf-8")
    dist.barrier()
    os._exit(0)


def table(args: argparse.Namespace, rows: dict[str, Any]) -> str:
    lines = [
        f"{args.ranks} ranks, {args.backend}, {args.layers} blocks of {args.width}, {args.tokens} tokens a rank",
        machine(),
        "",
        "| step | ms | of eager | first, s | peak, MiB | collectives | loss |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        if "error" in row:
            lines.append(f"| {name} | {row['error'][:80]} | | | | | |")
            continue
        eager = rows.get(f"{name.partition(',')[0]}, eager", {}).get("step")
        ratio = f"{row['step'] / eager:.2f}" if eager else "-"
        memory = f"{row['memory'] / 2**20:.0f}" if row["memory"] else "-"
        lines.append(
            f"| {name} | {row['step'] * 1e3:.1f} | {ratio} | {row['first']:.1f} | {memory} | {row['collectives']} "
            f"| {row['loss']:.6f} |"
        )
    return "\n".join(lines)


def run_ranks(count: int) -> int:
    """Run this script once for each rank, and return the highest exit status."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *sys.argv, "--store", f"{folder}/store"]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(count)]
        return max(rank.wait() for rank in ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="nccl" if torch.cuda.is_available() else "gloo")
    parser.add_argument("--layers", type=int, default=16 if torch.cuda.is_available() else 2)
    parser.add_argument("--width", type=int, default=2048 if torch.cuda.is_available() else 128)
    parser.add_argument("--tokens", type=int, default=8192 if torch.cuda.is_available() else 128)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--json", default="", help="also write the numbers to this file")
    parser.add_argument("--rank", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        on_rank(args, args.rank)
        return
    sys.exit(run_ranks(args.ranks))


if __name__ == "__main__":
    main()
