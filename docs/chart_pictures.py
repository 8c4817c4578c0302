# SPDX-License-Identifier: Apache-2.0
"""Charts of the numbers in docs/measurements/*.json, the files that benchmarks write with `--json`.

A chart says which rows and which candidates of a file it shows. Shorter bars are better, except where `more` is set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from svg_picture import Picture

MEASUREMENTS = Path(__file__).resolve().parent / "measurements"
EAGER_BACKEND = 'torch.compile(backend="eager")'
OURS, PART, OTHER, DARK, LIGHT = "ours", "part", "", "dark", "light"


@dataclass(frozen=True)
class Chart:
    """What a chart shows. `rows` and `candidates` map the names in the file to the words of the chart."""

    title: str
    subject: str
    where: str
    source: str
    rows: Mapping[str, str]
    candidates: Mapping[str, tuple[str, str]]  # the name of each candidate, and the kind of its bar
    part: int = 0  # which number of a cell

    def values(self) -> dict[str, dict[str, float]]:
        """Return the numbers: for each row, that of each candidate. A candidate without a number is left out."""
        measured = json.loads((MEASUREMENTS / f"{self.source}.json").read_text(encoding="utf-8"))
        cells = {row["name"]: row["cells"] for row in measured["rows"]}
        return {
            row: {
                name: float(re.findall(r"[\d.]+", cells[row][name])[self.part])
                for name in self.candidates
                if name in cells[row]
            }
            for row in self.rows
        }


LLAMA_STEP = "a step: 4-layer Llama, 2 x 4096 tokens, width 4096, bfloat16"
STEP = {
    "thunder, its defaults": ("thunder", OURS),
    "torch.compile": ("torch.compile", OTHER),
    "eager": ("eager", OTHER),
}
SUITE = {
    "`thunder.jit(step)`": ("thunder.jit(step)", OURS),
    "its reduce-overhead": ("torch.compile, reduce-overhead", DARK),
    "torch.compile": ("torch.compile", OTHER),
    "eager": ("eager", LIGHT),
}
H200 = "4-layer Llama, width 4096, H200"

# Cards of the landing page: one row each, with the name of each candidate above its bar.
CARDS = {
    "first_call": Chart(
        "Starts fast",
        "first call, forward and backward, ms",
        "16-layer Llama, CPU",
        "acquisition",
        {"first call of a 16-layer Llama, forward and backward": ""},
        {"thunder": ("thunder", OURS), EAGER_BACKEND: (EAGER_BACKEND, OTHER)},
    ),
    "memory": Chart(
        "Saves memory", "peak memory of a training step, MiB", H200, "training", {"its peak memory": ""}, STEP
    ),
    "step": Chart("Is fast", "time of the same training step, ms", H200, "training", {LLAMA_STEP: ""}, STEP),
}

# Charts of the page on performance: several rows, with a legend.
CHARTS = {
    "starting": Chart(
        "First calls",
        "CPU time of a first call, ms; shorter is better",
        "16-layer Llama, width 128, 32 tokens, CPU",
        "acquisition",
        {
            "first call of a 16-layer Llama, forward": "forward",
            "first call of a 16-layer Llama, forward and backward": "forward and backward",
        },
        {"thunder": ("thunder", OURS), EAGER_BACKEND: (EAGER_BACKEND, OTHER)},
    ),
    "lengths": Chart(
        "Many lengths",
        "50 calls with 50 lengths, ms; shorter is better",
        "4-layer Llama, CPU; times contain all compilations",
        "lengths",
        {
            "50 lengths of a 4-layer Llama, forward": "forward",
            "50 lengths of a 4-layer Llama, forward and backward": "forward and backward",
        },
        {
            'thunder, cache="symbolic values"': ('thunder, cache="symbolic values"', OURS),
            "thunder": ("thunder", PART),
            EAGER_BACKEND: (EAGER_BACKEND, OTHER),
            "eager": ("eager", LIGHT),
        },
    ),
    "suite_text": Chart(
        "Training steps: language",
        "time of a step, ms; shorter is better",
        "Transformers' models, bfloat16, AdamW, H200",
        "suite",
        {
            "GPT-2, 124M, 8 x 512 tokens": "GPT-2",
            "Llama, 8 layers of a 1B model, 2 x 1024 tokens": "Llama, 8 layers",
            "Qwen3, 14 layers of a 0.6B model, 4 x 1024 tokens": "Qwen3, 14 layers",
            "Mixtral, 4 layers, 8 experts, 4 x 512 tokens": "Mixtral, 4 layers",
            "BERT, base, 16 x 256 tokens": "BERT",
            "T5, small, 16 x 256 tokens": "T5",
            "Whisper, base, 8 x 30 seconds": "Whisper",
            "Wav2Vec2, base, 8 x 5 seconds": "Wav2Vec2",
        },
        SUITE,
    ),
    "suite_images": Chart(
        "Training steps: images",
        "time of a step, ms; shorter is better",
        "Transformers' models, bfloat16, AdamW, H200",
        "suite",
        {
            "ViT, base, 32 images": "ViT",
            "Swin, tiny, 32 images": "Swin",
            "ConvNeXt, tiny, 32 images": "ConvNeXt",
            "SegFormer, b0, 4 images of 512 pixels": "SegFormer",
            "ResNet, 50, 64 images": "ResNet-50",
            "U-Net, 64 to 256 channels, 8 images of 128 pixels": "U-Net",
            "CLIP, base with patches of 32 pixels, 64 pairs": "CLIP",
        },
        SUITE,
    ),
    "decoding": Chart(
        "Decoding",
        "time of a token, ms; shorter is better",
        "16-layer Llama of 1B parameters, bfloat16, H200",
        "decode",
        {"a token": "one token, batch 1"},
        {
            "thunder": ("thunder", OURS),
            'thunder, `cuda_graphs="never"`': ('thunder, cuda_graphs="never"', PART),
            "torch.compile, reduce-overhead": ("torch.compile, reduce-overhead", DARK),
            "torch.compile": ("torch.compile", OTHER),
            "eager": ("eager", LIGHT),
        },
    ),
    "attention": Chart(
        "Causal attention",
        "forward, TFLOP/s; longer is better",
        "bfloat16, batch x heads x length x width, H200",
        "attention",
        {name: name for name in ("2x32x4096x64", "2x32x4096x128", "1x32x16384x64", "1x32x16384x128")},
        {
            "thunder-ex-cudnn": ("thunder-ex-cudnn", OURS),
            "torch cuDNN": ("torch, cuDNN", DARK),
            "torch flash": ("torch, flash", OTHER),
            "FlexAttention": ("FlexAttention", LIGHT),
        },
    ),
}


def card(chart: Chart) -> Picture:
    """Draw the bars of one row, for a place where three stand side by side."""
    ((_, values),) = chart.values().items()
    names = {name: chart.candidates[name] for name in values}
    says = ", ".join(f"{names[name][0]} {value:g}" for name, value in values.items())
    picture = Picture(241, 76 + 40 * 3 + 24, f"{chart.title}: {chart.subject}: {says}")
    picture.text(18, 32, chart.title, size=17, kind="bold")
    picture.text(18, 52, chart.subject, size=11.5, kind="quiet")
    for number, (name, value) in enumerate(values.items()):
        words, kind = names[name]
        y = 70 + 40 * number
        picture.text(18, y + 10, words, size=12, kind="bold" if kind == OURS else "")
        length = 155 * value / max(values.values())
        picture.bar(18, y + 15, length, 13, f"bar {kind}".strip())
        picture.text(18 + length + 6, y + 26, f"{value:g}", size=12)
    picture.text(18, 206, chart.where, size=11, kind="quiet")
    return picture


def bars(chart: Chart) -> Picture:
    """Draw groups of bars with a legend, for a place where two stand side by side."""
    rows = chart.values()
    top = 74 + 19 * len(chart.candidates)
    heights = [24 + 13 * len(values) + 8 for values in rows.values()]
    picture = Picture(360, top + sum(heights) + 30, f"{chart.title}: {chart.subject}. {chart.where}")
    picture.text(18, 32, chart.title, size=17, kind="bold")
    picture.text(18, 52, chart.subject, size=12, kind="quiet")
    for number, (words, kind) in enumerate(chart.candidates.values()):
        picture.bar(18, 68 + 19 * number, 11, 11, f"bar {kind}".strip())
        picture.text(36, 78 + 19 * number, words, size=12, kind="bold" if kind == OURS else "")
    longest, y = max(max(values.values()) for values in rows.values()), float(top)
    for (row, values), height in zip(rows.items(), heights):
        picture.text(18, y + 14, chart.rows[row], size=12.5, kind="bold")
        for number, (name, value) in enumerate(values.items()):
            length = 270 * value / longest
            picture.bar(18, y + 21 + 13 * number, length, 10.5, f"bar {chart.candidates[name][1]}".strip())
            picture.text(18 + length + 5, y + 30 + 13 * number, f"{value:g}", size=10.5)
        y += height
    picture.text(18, y + 14, chart.where, size=11, kind="quiet")
    return picture


def charts() -> dict[str, Picture]:
    """Return all charts by the name of their file."""
    return {name: card(chart) for name, chart in CARDS.items()} | {name: bars(chart) for name, chart in CHARTS.items()}
