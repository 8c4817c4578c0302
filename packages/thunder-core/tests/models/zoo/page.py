# SPDX-License-Identifier: Apache-2.0
"""The page of models: what the suites checked, and how it went."""

from __future__ import annotations

import importlib
import importlib.metadata
import re

import torch

from zoo.entry import Entry

__all__ = ["Outcomes"]

TABLES = ("zoo.transformers_models", "zoo.litgpt_models", "zoo.own_models")
CHECKS = ("outputs", "training", "generate", "refused", "key_value_cache", "windows_in_the_cache")

TOP = """\
# Models

`python -m nox -s models` builds these models small, from their configurations, and compares them with eager PyTorch
under `thunder.jit`: float64 with tight tolerances where a model allows it. It also wrote this page
(`-- --models-page docs/models.md`).

- **outputs**: in eval mode, with padding masks where a model takes them; key-value caches and all else that is
  returned is compared. A second call of the same kind is answered by the cached program, and other shapes and masks get
  a program of their own.
- **gradients**: three steps in train mode, with labels, and eager's random numbers for dropout: losses, gradients and
  buffers.
- **generation**: the tokens are eager's, with a cache that grows (dynamic), of a fixed size (static), or none
  (uncached), greedy and with seeded sampling. There are fewer programs than tokens, and later runs trace none.

What is called on a jitted model runs its programs too: `thunder.jit(model).generate(...)` is all there is to do.

Models that thunder refuses, because the program branches on a value that only running it tells, are listed last with
the reason. The error names the line, and the model is left as it was.
"""


def tables() -> tuple[list[Entry], list[Entry]]:
    """The entries of all tables whose library is installed, and those that are refused."""
    checked: list[Entry] = []
    refused: list[Entry] = []
    for name in TABLES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        checked += module.MODELS
        refused += getattr(module, "REFUSED", [])
    return checked, refused


class Outcomes:
    """Which tests passed, by check and model."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], bool] = {}

    def add(self, nodeid: str, passed: bool) -> None:
        """The outcome of a test `test_check[model]`."""
        match = re.search(r"::test_(\w+)\[(.*)\]$", nodeid)
        if match is not None and match[1] in CHECKS:
            key = match[1], match[2]
            self.found[key] = passed and self.found.get(key, True)

    def _cell(self, check: str, name: str) -> str:
        passed = self.found.get((check, name))
        return "" if passed is None else "yes" if passed else "**no**"

    def _generation(self, entry: Entry) -> str:
        modes = {mode: self._cell("generate", f"{entry}-{mode}") for mode in entry.generate}
        modes["static"] = modes.get("static") or self._cell("key_value_cache", entry.name)
        return ", ".join(f"{mode}{'' if cell == 'yes' else ': no'}" for mode, cell in modes.items() if cell)

    def page(self) -> str:
        """The whole page."""
        checked, refused = tables()
        versions = [f"PyTorch {torch.__version__.partition('+')[0]}"]
        for package in ("transformers", "litgpt"):
            try:
                versions.append(f"{package} {importlib.metadata.version(package)}")
            except importlib.metadata.PackageNotFoundError:
                continue
        lines = [TOP, f"Written with {', '.join(versions)}: {len(checked)} models.", ""]
        lines += ["| family | model | outputs | gradients | generation | remarks |", "|---|---|---|---|---|---|"]
        for entry in checked:
            note = entry.note or ("in float32" if entry.dtype is torch.float32 else "")
            cells = [entry.family, entry.name, self._cell("outputs", entry.name), self._cell("training", entry.name)]
            lines.append(f"| {' | '.join([*cells, self._generation(entry), note])} |".replace("|  |", "| |"))
        lines += ["", "| refused | why |", "|---|---|"]
        lines += [f"| {entry.name} | {entry.note} |" for entry in refused]
        return "\n".join(lines) + "\n"
