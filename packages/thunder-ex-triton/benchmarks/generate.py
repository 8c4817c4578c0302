# SPDX-License-Identifier: Apache-2.0
"""`generate` of Transformers with a static cache: 128 tokens of a Llama of 1B parameters in bfloat16, on a GPU.

    python packages/thunder-ex-triton/benchmarks/generate.py [--json FILE]
    python packages/thunder-ex-triton/benchmarks/generate.py --device cpu --tiny     # to try it

thunder runs `thunder.jit(model).generate(...)`. For the others, `generate` compiles the model for each token itself, as
it does by default with a static cache (`mode="reduce-overhead"`), or with `torch.compile`'s default mode. Each
candidate has a process of its own, which starts with empty caches; they compile at the same time and are measured in
turns. Random weights make many nearly equal logits, so that tokens may differ from eager mode's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from turns import Child, Measured, serve

CANDIDATES = {
    "thunder": "thunder",
    "reduce-overhead": "torch.compile, reduce-overhead",
    "compile": "torch.compile",
    "eager": "eager",
}
LIMIT = 0.9  # of torch.compile's better mode
PROMPT, TOKENS = 32, 128


class Generation(Measured):
    """A function that generates tokens, and can say which ones."""

    RECORDED = 1

    def round(self, calls: int) -> dict[str, float]:
        """Return the time of a call in milliseconds."""
        start = time.perf_counter()
        for _ in range(calls):
            self.function()
        self.wait()
        return {"time": (time.perf_counter() - start) / calls * 1e3}

    def tokens(self) -> list[int]:
        """Return the generated tokens."""
        found: list[int] = self.function()[0, PROMPT:].tolist()
        return found


def build(candidate: str, given: argparse.Namespace) -> Generation:
    """Return a model's generation, which has been called."""
    from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM  # type: ignore[import-not-found]

    vocabulary, width, hidden, layers, heads = (97, 64, 96, 2, 4) if given.tiny else (128256, 2048, 8192, 16, 32)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device(given.device):
        model: Any = LlamaForCausalLM(config).to(torch.bfloat16).eval()
        prompt = torch.randint(0, vocabulary, (1, PROMPT))
    options: dict[str, Any] = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    options |= {"cache_implementation": "static", "pad_token_id": 0, "attention_mask": torch.ones_like(prompt)}
    if candidate == "compile":
        options["compile_config"] = CompileConfig(mode="default")
    else:
        options["disable_compile"] = candidate != "reduce-overhead"
    if candidate == "thunder":
        import thunder

        model = thunder.jit(model)
    return Generation(lambda: model.generate(prompt, **options), given.device == "cuda")


def main() -> None:
    """Measure all candidates in turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--candidate", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--tiny", action="store_true", help="a model of a tiny size")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=300, help="seconds that the first call may take")
    parser.add_argument("--logs", default=tempfile.gettempdir(), help="folder for what candidates write to stderr")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.candidate:
        serve(partial(build, given.candidate, given), 1)
        return
    options = [__file__, "--device", given.device, *(["--tiny"] if given.tiny else [])]
    started = {c: Child([*options, "--candidate", c], Path(given.logs) / f"generate-{c}.log") for c in CANDIDATES}
    ready = {c: child for c, child in started.items() if child.ready(given.patience)}
    found = measure(ready, given.rounds)
    for candidate, child in started.items():
        child.end()
        if candidate not in ready:
            print(f"{candidate}: see {child.log}")
    print(table(found))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


def measure(children: dict[str, Child], rounds: int) -> dict[str, dict[str, Any]]:
    """Return the measures of each candidate, in turns."""

    def ask(what: str, child: Child) -> Any:
        child.ask(what)
        return child.answer()

    times = [{c: ask("round", child)["time"] for c, child in children.items()} for _ in range(rounds)]
    found = {c: {"tokens": ask("tokens", child), **ask("record", child)} for c, child in children.items()}
    for child in children.values():
        child.ask("kernels")
    for candidate, child in children.items():
        found[candidate].update(child.answer())
        found[candidate]["time"] = statistics.median(turn[candidate] for turn in times)
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return a table with a row for each candidate, and how thunder compares with the best of torch.compile."""
    lines = ["| generate | 128 tokens, ms | a token, ms | its kernels, ms | their number | first, s | as eager |"]
    lines += ["|" + "---|" * 7]
    expected = found.get("eager", {}).get("tokens", [])
    for candidate, of in found.items():
        equal = sum(a == b for a, b in zip(of["tokens"], expected))
        lines.append(
            f"| {CANDIDATES[candidate]} | {of['time']:.1f} | {of['time'] / TOKENS:.3f} | "
            f"{of.get('GPU', 0) / TOKENS:.3f} | {of.get('kernels', 0) / TOKENS:.0f} | {of['first']:.1f} | {equal} |"
        )
    peers = [found[c]["time"] for c in ("compile", "reduce-overhead") if c in found]
    if peers and "thunder" in found:
        ratio = found["thunder"]["time"] / min(peers)
        lines.append(f"thunder: {ratio:.2f} of torch.compile's better mode, at most {LIMIT}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
