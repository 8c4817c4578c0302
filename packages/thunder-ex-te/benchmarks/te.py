# SPDX-License-Identifier: Apache-2.0
"""fp8 linear layers and a training step through `thunder.jit`, beside bf16 and beside TransformerEngine's own modules.

    python benchmarks/te.py linear [--size 8192] [--markdown FILE]
    python benchmarks/te.py kernels [--size 8192] [--markdown FILE]
    python benchmarks/te.py step [--layers 4] [--width 4096] [--length 4096] [--markdown FILE]
    python benchmarks/te.py loss [--steps 200] [--markdown FILE]

`linear`: forward and backward of one layer; `kernels`: where its time goes. `step`: forward, backward and AdamW of the
Llama of thunder-core's benchmarks, in bf16 by eager and by thunder, and by thunder with each recipe; the executors are
those that are installed. `loss`: the losses of `--steps` steps on sequences in which a word mostly decides the next,
each run from the same weights on the same batches. Times are GPU times by events, host time included where that takes
longest: medians of alternating repetitions, each of which runs every contender (`step`: of one model after the other).
"""

from __future__ import annotations

import argparse
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
from thunder.tests.measuring import by_events, in_turns

RECIPES = {
    "Float8CurrentScaling": recipes.Float8CurrentScaling,
    "DelayedScaling": recipes.DelayedScaling,
    "Float8BlockScaling": recipes.Float8BlockScaling,
}


LENGTH, BATCH = 512, 8  # of the corpus


def table(head: str, found: dict[str, float], base: str) -> list[str]:
    """Each time, and how many times faster than `base` it is."""
    lines = [f"| {head} | ms | {base} / this |", "|---|---|---|"]
    return lines + [f"| {name} | {ms:.3f} | {found[base] / ms:.2f} |" for name, ms in found.items()]


# -- one layer ---------------------------------------------------------------------------------------------------------
def linear(options: Any) -> list[str]:
    """Forward and backward of a layer: every time with a new weight, or with one that has not changed since."""
    import transformer_engine.pytorch as te

    n = options.size
    make = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(n, n, **make).requires_grad_()
    g = torch.randn(n, n, **make)
    layer = torch.nn.Linear(n, n, bias=False, **make)

    def of(f: Any, w: Any) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(f(x), (x, w), g)

    contenders: dict[str, Callable[[], Any]] = {"bf16": of(layer, layer.weight)}
    theirs = te.Linear(n, n, bias=False, params_dtype=torch.bfloat16)
    for name, make_recipe in RECIPES.items():
        recipe = make_recipe()

        def run(x: Any, recipe: Any = recipe, first: Any = None) -> Any:
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
    """The kernels that one forward and backward of a layer launches, by their names, and their times."""
    from torch.profiler import ProfilerActivity, profile

    n, lines = options.size, ["| recipe | kernel | calls | ms |", "|---|---|---|---|"]
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


# -- a model -----------------------------------------------------------------------------------------------------------
def llama(width: int, layers: int, length: int) -> Any:
    """The Llama of thunder-core's benchmarks, in bf16."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "thunder-core" / "benchmarks"))
    from llama import Llama

    torch.manual_seed(0)
    with torch.device("cuda"):
        return Llama(layers, width, length).to(torch.bfloat16)


def trained(model: Any, f: Any, batches: Callable[[], Any], rate: float) -> Callable[[], Any]:
    """One step of training."""
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
    """A whole step of each, one model after the other: two do not fit beside their optimizers."""
    shape = (options.batch, options.length + 1)
    batch = torch.randint(0, 320, shape, device="cuda")
    kinds: dict[str, Any] = {"bf16, eager": None, "bf16, thunder": {}}
    kinds.update({f"{name}, thunder": {"te_recipe": make()} for name, make in RECIPES.items()})
    found, memory = {}, {}
    for name, how in kinds.items():
        model = llama(options.width, options.layers, options.length)
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
    """Batches of sequences in which a word decides the next in nine of ten cases."""
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
    """The mean loss of the last tenth of the steps, from the same weights, on the same batches."""
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
    """Measures and prints."""
    parts = {"linear": linear, "kernels": kernels, "step": step, "loss": loss}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=parts)
    parser.add_argument("--markdown")
    for name, default in (
        ("size", 8192),
        ("layers", 4),
        ("width", 4096),
        ("length", 4096),
        ("batch", 2),
        ("steps", 200),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    text = "\n".join(parts[options.what](options))
    print(text)
    if options.markdown:
        with open(options.markdown, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
