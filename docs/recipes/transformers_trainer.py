# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT-2 of Transformers with its `Trainer`; only the line with `thunder.jit` is about thunder.

Needs `pip install transformers accelerate`. Nothing is downloaded: weights are random, and the text is a copy
of some pages of the documentation. Takes less than a minute on a CPU.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import thunder

TEXT = Path(__file__).resolve().parent / "text" / "pages.txt"


class Pages(torch.utils.data.Dataset):
    """Excerpts of the documentation, as bytes."""

    def __init__(self, length: int = 64):
        self.text, self.length = torch.tensor(list(TEXT.read_bytes())), length

    def __len__(self) -> int:
        return len(self.text) // self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        excerpt = self.text[index * self.length : (index + 1) * self.length]
        return {"input_ids": excerpt, "labels": excerpt}


def main(arguments: list[str] | None = None) -> list[float]:
    """Run the recipe; returns the logged losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    model = thunder.jit(model)  # an instance of the model's class: Trainer finds its methods and its signature
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, max_steps=options.steps, per_device_train_batch_size=16, learning_rate=3e-3,
            logging_steps=max(1, options.steps // 4), save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(model=model, args=settings, train_dataset=Pages())
        trainer.train()
    print(thunder.explain(model))
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    main()
