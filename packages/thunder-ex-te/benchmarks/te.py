# SPDX-License-Identifier: Apache-2.0
"""Benchmark of fp8 linear layers and a training step: `thunder.jit`, bf16, and TransformerEngine's own modules.

    python benchmarks/te.py linear [--size 8192] [--markdown FILE]
    python benchmarks/te.py kernels [--size 8192] [--markdown FILE]
    python benchmarks/te.py norm [--size 4096] [--rows 16384] [--markdown FILE]
    python benchmarks/te.py groups [--size 2048] [--rows 1024] [--groups 8] [--markdown FILE]
    python benchmarks/te.py step [--layers 4] [--width 4096] [--length 4096] [--norms] [--markdown FILE]
    python benchmarks/te.py loss [--steps 200] [--markdown FILE]

`linear`: forward and backward of one layer; `kernels`: its kernels and their times. `norm`: a layer that reads an RMS
norm of a sum, as in transformers, forward alone and with backward. `groups`: layers of row groups of one matrix.
`step`: forward, backward and AdamW of the Llama of thunder-core's benchmarks, in bf16 by eager and by thunder, and by
thunder with each recipe and all installed executors; `--norms`: with torch's norm module, which may write its result in
fp8. `loss`: the losses of `--steps` steps on sequences in which a word mostly determines the next, each run from the
same weights on the same batches. Times are GPU times by events, which include host time where it dominates: medians of
interleaved repetitions, each of which runs every contender (`step`: one model after the other).
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from transformer_engine.common import recipe as recipes

import thunder
from thunder.toolkit.benchmarking import by_events, in_turns, parser, report

RECIPES = {
    "Float8CurrentScaling": recipes.Float8CurrentScaling,
    "DelayedScaling": recipes.DelayedScaling,
    "Float8BlockScaling": recipes.Float8BlockScaling,
}


LENGTH, BATCH = 512, 8  # of the corpus


def table(head: str, found: dict[str, float], base: str) -> list[str]:
    """Format each time, and its speedup over `base`."""
    lines = [f"| {head} | ms | {base} / this |", "|---|---|---|"]
    return lines + [f"| {name} | {ms:.3f} | {found[base] / ms:.2f} |" for name, ms in found.items()]


# -- one layer ---------------------------------------------------------------------------------------------------------
def linear(options: Any) -> list[str]:
    """Measure forward and backward of a layer, with a weight that changes between calls and one that does not."""
    import transformer_engine.pytorch as te

    n = options.size or 8192
    make = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(n, n, **make).requires_grad_()
    g = torch.randn(n, n, **make)
    layer = torch.nn.Linear(n, n, bias=False, **make)

    def of(f: Any, w: Any) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(f(x), (x, w), g)

    contenders: dict[str, Callable[[], Any]] = {"bf16": of(layer, layer.weight)}
    for name, make_recipe in RECIPES.items():
        recipe = make_recipe()
        theirs = te.Linear(n, n, bias=False, params_dtype=torch.bfloat16)

        def run(x: Any, recipe: Any = recipe, theirs: Any = theirs, first: Any = None) -> Any:
            with te.autocast(recipe=recipe):
                return theirs(x) if first is None else theirs(x, is_first_microbatch=first)

        ours = thunder.jit(layer, te_recipe=recipe)
        anew = thunder.jit(layer, te_recipe=recipe, te_keep_weights=False)
        contenders[f"{name}, te.Linear"] = of(run, theirs.weight)
        contenders[f"{name}, thunder"] = of(anew, layer.weight)
        run(x, first=True)
        contenders[f"{name}, te.Linear, weight kept"] = of(lambda x, run=run: run(x, first=False), theirs.weight)
        contenders[f"{name}, thunder, weight kept"] = of(ours, layer.weight)
    return table(f"linear {n}x{n}x{n}, forward and backward", in_turns(contenders, 15), "bf16")


def kernels(options: Any) -> list[str]:
    """List the kernels of forward and backward of a layer, and their times."""
    from torch.profiler import ProfilerActivity, profile

    n, lines = options.size or 8192, ["| recipe | kernel | calls | ms |", "|---|---|---|---|"]
    make = {"device": "cuda", "dtype": torch.bfloat16}
    x, g = torch.randn(n, n, **make).requires_grad_(), torch.randn(n, n, **make)
    layer = torch.nn.Linear(n, n, bias=False, **make)
    runs: dict[str, Any] = {"bf16": layer}
    for name, make_recipe in RECIPES.items():
        runs[name] = thunder.jit(layer, te_recipe=make_recipe(), te_keep_weights=False)
    for name, f in runs.items():
        for _ in range(3):
            torch.autograd.grad(f(x), (x, layer.weight), g)
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            torch.autograd.grad(f(x), (x, layer.weight), g)
            torch.cuda.synchronize()
        rows = sorted(seen.key_averages(), key=lambda row: -row.device_time_total)[:7]
        lines += [f"| {name} | {row.key[:60]} | {row.count} | {row.device_time_total / 1000:.3f} |" for row in rows]
    return lines


class _Normed(torch.nn.Module):
    """Apply a layer to the norm of a sum; return the sum, too."""

    def __init__(self, n: int):
        super().__init__()
        self.norm = torch.nn.RMSNorm(n, eps=1e-5)
        self.layer = torch.nn.Linear(n, n, bias=False)

    def forward(self, x: Any, y: Any) -> Any:
        x = x + y
        return x, self.layer(self.norm(x))


def norm(options: Any) -> list[str]:
    """Measure a norm and the layer that reads it."""
    import transformer_engine.pytorch as te

    rows, n = options.rows or 16384, options.size or 4096
    make = {"device": "cuda", "dtype": torch.bfloat16}
    x, y, g, h = (torch.randn(rows, n, **make) for _ in range(4))
    x.requires_grad_()
    y.requires_grad_()
    module = _Normed(n).to(**make)

    def trained(f: Any, parameters: Any) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(f(x, y), (x, y, *parameters), (g, h))

    def called(f: Any) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad():
                return f(x, y)

        return run

    forward = {"bf16, thunder": called(thunder.jit(module))}
    both = {"bf16, thunder": trained(thunder.jit(module), module.parameters())}
    for name, make_recipe in RECIPES.items():
        recipe = make_recipe()
        theirs = te.LayerNormLinear(n, n, normalization="RMSNorm", bias=False, params_dtype=torch.bfloat16)

        def of_library(x: Any, y: Any, recipe: Any = recipe, theirs: Any = theirs) -> Any:
            x = x + y
            with te.autocast(recipe=recipe):
                return x, theirs(x, is_first_microbatch=False)

        with te.autocast(recipe=recipe):
            theirs(x.detach(), is_first_microbatch=True)
        contenders = {f"{name}, te.LayerNormLinear": (of_library, theirs.parameters())}
        for fuse in (False, True):
            f = thunder.jit(module, te_recipe=recipe, te_fuse_norms=fuse)
            contenders[f"{name}, thunder, te_fuse_norms={fuse}"] = f, module.parameters()
        for label, (f, parameters) in contenders.items():
            forward[label] = called(f)
            both[label] = trained(f, [*parameters])
    by = ", ".join(ex.name for ex in thunder.extend.get_default_executors())
    head = f"sum, norm and layer, {rows}x{n}x{n}; {by}"
    return [
        *table(f"{head}; forward", in_turns(forward, 15), "bf16, thunder"),
        "",
        *table(f"{head}; forward and backward", in_turns(both, 15), "bf16, thunder"),
    ]


class _Experts(torch.nn.Module):
    """Apply a layer to each row group."""

    def __init__(self, number: int, n: int):
        super().__init__()
        self.each = torch.nn.ModuleList([torch.nn.Linear(n, n, bias=False) for _ in range(number)])

    def forward(self, x: Any, sizes: Any) -> Any:
        return torch.cat([layer(piece) for layer, piece in zip(self.each, torch.split(x, sizes))])


def groups(options: Any) -> list[str]:
    """Measure layers of the row groups of one matrix: one by one, and grouped."""
    import transformer_engine.pytorch as te

    rows, n, number = options.rows or 1024, options.size or 2048, options.groups
    make = {"device": "cuda", "dtype": torch.bfloat16}
    sizes = [rows] * number
    x, g = torch.randn(rows * number, n, **make).requires_grad_(), torch.randn(rows * number, n, **make)
    module = _Experts(number, n).to(**make)
    stacked = torch.randn(number, n, n, **make).requires_grad_()
    offsets = torch.tensor(sizes, device="cuda").cumsum(0).int()
    splits = torch.tensor(sizes)

    def of(f: Any, parameters: Any) -> Callable[[], Any]:
        parameters = [*parameters]
        return lambda: torch.autograd.grad(f(x), (x, *parameters), g)

    contenders = {
        "bf16, eager": of(lambda x: module(x, sizes), module.parameters()),
        "bf16, grouped_mm": of(lambda x: torch._grouped_mm(x, stacked, offs=offsets), [stacked]),
    }
    for name, make_recipe in RECIPES.items():
        recipe = make_recipe()
        theirs = te.GroupedLinear(number, n, n, bias=False, params_dtype=torch.bfloat16)

        def run(x: Any, recipe: Any = recipe, theirs: Any = theirs, first: bool = False) -> Any:
            with te.autocast(recipe=recipe):
                return theirs(x, splits, is_first_microbatch=first)

        run(x, first=True)
        contenders[f"{name}, te.GroupedLinear"] = of(run, theirs.parameters())
        for group in (False, True):
            f = thunder.jit(module, te_recipe=recipe, te_group_layers=group)
            contenders[f"{name}, thunder, te_group_layers={group}"] = of(
                lambda x, f=f: f(x, sizes), module.parameters()
            )
    return table(f"{number} layers of {rows}x{n}x{n}, forward and backward", in_turns(contenders, 15), "bf16, eager")


# -- a model -----------------------------------------------------------------------------------------------------------
def llama(width: int, layers: int, length: int, norms: bool = False) -> Any:
    """Make the Llama of thunder-core's benchmarks, in bf16, with its own norms or torch's."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "thunder-core" / "benchmarks"))
    import llama as model

    if norms:
        model.RMSNorm = torch.nn.RMSNorm
    torch.manual_seed(0)
    with torch.device("cuda"):
        return model.Llama(layers, width, length).to(torch.bfloat16)


def trained(model: Any, f: Any, batches: Callable[[], Any], rate: float) -> Callable[[], Any]:
    """Return a function that runs one training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)

    def step() -> Any:
        batch = batches()
        logits = f(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def step(options: Any) -> list[str]:
    """Measure a training step of each, one model after the other: two do not fit in memory with their optimizers."""
    shape = (options.batch, options.length + 1)
    batch = torch.randint(0, 320, shape, device="cuda")
    kinds: dict[str, Any] = {"bf16, eager": None, "bf16, thunder": {}}
    for name, make in RECIPES.items():
        kinds[f"{name}, thunder"] = {"te_recipe": make()}
        if options.norms:
            kinds[f"{name}, thunder, te_fuse_norms"] = {"te_recipe": make(), "te_fuse_norms": True}
    found, memory = {}, {}
    for name, how in kinds.items():
        model = llama(options.width, options.layers, options.length, options.norms)
        run = trained(model, model if how is None else thunder.jit(model, **how), lambda: batch, 1e-5)
        run()
        torch.cuda.reset_peak_memory_stats()
        found.update(in_turns({name: run}, measure=partial(by_events, calls=5)))
        memory[name] = torch.cuda.max_memory_allocated() / 2**30
        print(name, found[name], memory[name], flush=True)
        del model, run
        gc.collect()
        torch.cuda.empty_cache()
    by = ", ".join(ex.name for ex in thunder.extend.get_default_executors())
    head = f"step of {options.layers} layers, {options.width} wide, {options.batch}x{options.length} tokens; {by}"
    lines = [f"| {head} | ms | best bf16 / this | GiB |", "|---|---|---|---|"]
    best = min(found["bf16, eager"], found["bf16, thunder"])
    return lines + [f"| {name} | {ms:.1f} | {best / ms:.2f} | {memory[name]:.1f} |" for name, ms in found.items()]


def corpus() -> Callable[[], Any]:
    """Make batches of sequences in which a word determines the next one in nine of ten cases."""
    generator = torch.Generator(device="cuda").manual_seed(1)

    def draw(*shape: int) -> Any:
        return torch.randint(0, 320, shape, device="cuda", generator=generator)

    follows = draw(320)

    def batch() -> Any:
        words, other = [draw(BATCH)], draw(LENGTH, BATCH)
        noise = torch.rand(LENGTH, BATCH, device="cuda", generator=generator) < 0.1
        for i in range(LENGTH):
            words.append(torch.where(noise[i], other[i], follows[words[-1]]))
        return torch.stack(words, 1)

    return batch


def loss(options: Any) -> list[str]:
    """Measure the mean loss of the last tenth of the steps, from the same weights, on the same batches."""
    draw = corpus()
    batches = [draw() for _ in range(options.steps)]
    lines = ["| steps | first loss | half way | mean of the last tenth | of bf16's |", "|---|---|---|---|---|"]
    kinds: dict[str, Any] = {"bf16": {}, **{name: {"te_recipe": make()} for name, make in RECIPES.items()}}
    bf16 = 0.0
    for name, how in kinds.items():
        model = llama(1024, 4, LENGTH)
        left = iter(batches)
        run = trained(model, thunder.jit(model, **how), lambda left=left: next(left), 3e-4)
        losses = [float(run()) for _ in range(options.steps)]
        last = statistics.mean(losses[-options.steps // 10 :])
        bf16 = bf16 or last
        half = losses[options.steps // 2]
        lines.append(f"| {options.steps}, {name} | {losses[0]:.4f} | {half:.4f} | {last:.4f} | {last / bf16:.4f} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Run a benchmark and print its results."""
    parts = {"linear": linear, "kernels": kernels, "norm": norm, "groups": groups, "step": step, "loss": loss}
    arguments = parser(__doc__, repetitions=None)
    arguments.add_argument("what", choices=parts)
    arguments.add_argument("--norms", action="store_true")
    for name, default in (
        ("size", 0),
        ("rows", 0),
        ("groups", 8),
        ("layers", 4),
        ("width", 4096),
        ("length", 4096),
        ("batch", 2),
        ("steps", 200),
    ):
        arguments.add_argument(f"--{name}", type=int, default=default)
    options = arguments.parse_args()
    text = "\n".join(parts[options.what](options))
    report(text, options)


if __name__ == "__main__":
    main()
