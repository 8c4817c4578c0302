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
CHECKS = ("outputs", "training", "generate", "branching", "key_value_cache", "windows_in_the_cache")

TOP = """\
# Models

`python -m nox -s models` builds small versions of these models from their configurations, and compares `thunder.jit`
with eager PyTorch. Models that can run in float64 run in float64, with tight tolerances. The same command writes this
page (`-- --models-page docs/models.md`).

- **outputs**: eval mode, with padding masks if the model accepts them. Everything that the model returns is compared,
  including key-value caches. A second call of the same kind must be a cache hit. Calls with other shapes or masks
  compile new programs.
- **gradients**: three steps in train mode, with labels and the random numbers that eager draws for dropout. Losses,
  gradients and buffers are compared.
- **generation**: the tokens must equal eager's, with greedy and with seeded sampling. The key-value cache grows
  (dynamic), has a fixed size (static), or is not used (uncached). There must be fewer programs than tokens, and later
  runs must not compile again.

Methods of a jitted model run compiled programs too: `thunder.jit(model).generate(...)` needs no further changes.

"""


def tables() -> tuple[list[Entry], list[Entry]]:
    """The entries of all tables whose library is installed, and those that branch on values."""
    checked: list[Entry] = []
    branching: list[Entry] = []
    for name in TABLES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        checked += module.MODELS
        branching += getattr(module, "BRANCHING", [])
    return checked, branching


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
        checked, branching = tables()
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
        lines += ["", "| model that branches on values | as in eager mode | branch |", "|---|---|---|"]
        lines += [f"| {entry.name} | {self._cell('branching', entry.name)} | {entry.note} |" for entry in branching]
        return "\n".join(lines) + "\n"
