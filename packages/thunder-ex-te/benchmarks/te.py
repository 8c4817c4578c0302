# SPDX-License-Identifier: Apache-2.0
"""fp8 linear layers and a training step through `thunder.jit`, beside bf16 and beside TransformerEngine's own modules.

    python benchmarks/te.py linear [--size 8192] [--markdown FILE]
    python benchmarks/te.py step [--layers 4] [--width 4096] [--length 4096] [--markdown FILE]
    python benchmarks/te.py loss [--steps 200] [--markdown FILE]

`linear`: forward and backward of one layer. `step`: forward, backward and AdamW of a Llama of Transformers, eager bf16,
thunder bf16 and thunder with each recipe; `loss`: the losses of `--steps` steps on a corpus of sentences that follow a
pattern, each run from the same weights and the same batches. Times are GPU times by events, host time included where
that takes longest: medians of alternating repetitions, each of which runs every contender.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from transformer_engine.common import recipe as recipes

import thunder

RECIPES = {
    "Float8CurrentScaling": recipes.Float8CurrentScaling,
    "DelayedScaling": recipes.DelayedScaling,
    "Float8BlockScaling": recipes.Float8BlockScaling,
}


def timed(fn: Callable[[], Any], calls: int) -> float:
    """Milliseconds a call, by events."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        fn()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def medians(contenders: dict[str, Callable[[], Any]], repetitions: int = 5, calls: int = 10) -> dict[str, float]:
    """The median time of each."""
    for fn in contenders.values():
        for _ in range(3):
            fn()
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, fn in contenders.items():
            found[name].append(timed(fn, calls))
    return {name: statistics.median(times) for name, times in found.items()}


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
    return table(f"linear {n}x{n}x{n}, forward and backward", medians(contenders), "bf16")


# -- a model -----------------------------------------------------------------------------------------------------------
def llama(width: int, layers: int, vocabulary: int, length: int) -> Any:
    """A Llama of Transformers in bf16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width, intermediate_size=width * 7 // 2, num_hidden_layers=layers, vocab_size=vocabulary,
        num_attention_heads=width // 128, num_key_value_heads=max(1, width // 512), max_position_embeddings=length,
        use_cache=False, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("cuda"):
        return LlamaForCausalLM(config).to(torch.bfloat16)


def trained(model: Any, f: Any, ids: Callable[[], Any]) -> Callable[[], Any]:
    """One step of training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> Any:
        batch = ids()
        logits = f(input_ids=batch).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def step(options: Any) -> list[str]:
    """A whole step of each, one model after the other: two do not fit beside their optimizers."""
    vocabulary, found, memory = 32000, {}, {}
    batch = torch.randint(0, vocabulary, (options.batch, options.length), device="cuda")
    kinds: dict[str, Any] = {"bf16, eager": None, "bf16, thunder": {}}
    kinds.update({f"{name}, thunder": {"te_recipe": make()} for name, make in RECIPES.items()})
    for name, how in kinds.items():
        model = llama(options.width, options.layers, vocabulary, options.length)
        run = trained(model, model if how is None else thunder.jit(model, **how), lambda: batch)
        torch.cuda.reset_peak_memory_stats()
        found.update(medians({name: run}, repetitions=3, calls=5))
        memory[name] = torch.cuda.max_memory_allocated() / 2**30
        print(name, found[name], memory[name], flush=True)
        del model, run
        torch.cuda.empty_cache()
    head = f"step of {options.layers} layers, {options.width} wide, {options.batch}x{options.length} tokens"
    lines = table(head, found, "bf16, thunder")
    return [f"{line} {memory[name]:.1f} |" if name in memory else line
            for line in [f"{lines[0]} GiB |", f"{lines[1]}---|", *lines[2:]]
            for name in [line.split(" | ")[0].removeprefix("| ")]]  # fmt: skip


def corpus(vocabulary: int, length: int, batch: int) -> Callable[[], Any]:
    """Batches of sequences in which each word follows from the two before it, mostly: something that can be learnt."""
    generator = torch.Generator(device="cuda").manual_seed(1)
    a, b = (torch.randint(0, vocabulary, (vocabulary,), device="cuda", generator=generator) for _ in range(2))

    def draw() -> Any:
        words = [torch.randint(0, vocabulary, (batch,), device="cuda", generator=generator) for _ in range(2)]
        noise = torch.rand(length, batch, device="cuda", generator=generator) < 0.1
        other = torch.randint(0, vocabulary, (length, batch), device="cuda", generator=generator)
        for i in range(length - 2):
            words.append(torch.where(noise[i], other[i], (a[words[-1]] + b[words[-2]]) % vocabulary))
        return torch.stack(words, 1)

    return draw


def loss(options: Any) -> list[str]:
    """The mean loss of the last tenth of the steps, from the same weights, on the same batches."""
    length, size, vocabulary = 512, 8, 512
    draw = corpus(vocabulary, length, size)
    batches = [draw() for _ in range(options.steps)]
    lines = ["| steps | first loss | mean of the last tenth | of bf16's |", "|---|---|---|---|"]
    kinds: dict[str, Any] = {"bf16": {}, **{name: {"te_recipe": make()} for name, make in RECIPES.items()}}
    bf16 = 0.0
    for name, how in kinds.items():
        model = llama(1024, 4, vocabulary, length)
        left = iter(batches)
        run = trained(model, thunder.jit(model, **how), lambda left=left: next(left))
        losses = [float(run()) for _ in range(options.steps)]
        last = statistics.mean(losses[-options.steps // 10 :])
        bf16 = bf16 or last
        lines.append(f"| {options.steps}, {name} | {losses[0]:.4f} | {last:.4f} | {last / bf16:.4f} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("linear", "step", "loss"))
    parser.add_argument("--markdown")
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    text = "\n".join({"linear": linear, "step": step, "loss": loss}[options.what](options))
    print(text)
    if options.markdown:
        with open(options.markdown, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
