# SPDX-License-Identifier: Apache-2.0
"""Writes the page of operations from their declarations, so that it is never behind them.

conf.py calls `write` before the pages are read. Each operation is one row: what it is for, what it answers to in torch,
where its gradient comes from, and what passes may assume of it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

INTRODUCTION = """\
# Operations

This page is written from the declarations of the operations each time the documentation is built. A call of a
function of torch that is not listed is not an error: it runs in torch, as one opaque operation of the trace.

*Since* is the version of thunder-core that added the operation. If its arguments or its decomposition have changed
after that, the version that changed them last follows.

*Gradient*: `own` is a rule written for the operation, `parts` comes from what the operation is made of, and `none` says
that no gradient flows through it.
"""


VERSIONS = Path(__file__).resolve().parents[1] / "packages" / "thunder-core" / "operators.json"


def write(folder: Path) -> Path:
    """Write the page into a folder; returns its path."""
    import thunder.clang
    import thunder.torch  # noqa: F401  (declares the operations)
    from thunder.clang.base import clang_ops
    from thunder.core.prims.base import all_prims
    from thunder.torch.base import all_torchsymbols, torch_function_map

    answers_to: dict[int, list[str]] = {}
    for function, symbol in torch_function_map().items():
        if name := _torch_name(function):
            answers_to.setdefault(id(symbol), []).append(name)
    languages = list(all_torchsymbols().values())
    primitives = list(all_prims().values())
    versions = json.loads(VERSIONS.read_text(encoding="utf-8"))
    columns = ("operation", "what it is", "gradient", "since", "in torch")
    text = INTRODUCTION
    text += f"\n## The torch language\n\n{len(languages)} operations.\n\n"
    text += _table(columns, map(_symbol_row(answers_to, versions), languages))
    text += f"\n## Primitives\n\n{len(primitives)} operations.\n\n"
    text += _table(columns, map(_symbol_row({}, versions), primitives))
    text += f"\n## The core language\n\n{len(clang_ops)} functions over primitives.\n\n"
    text += _table(("function", "what it is"), ((f"`{name}`", _summary(fn)) for name, fn in clang_ops.items()))
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "operations.md"
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        page.write_text(text, encoding="utf-8")
    return page


def _symbol_row(answers_to: dict[int, list[str]], versions: Any) -> Callable[[Any], tuple[str, ...]]:
    def row(symbol: Any) -> tuple[str, ...]:
        names = list(dict.fromkeys(answers_to.get(id(symbol), symbol.torch_names)))
        entry = versions.get(str(symbol.id), {})
        since = ", changed in ".join(entry[what] for what in ("since", "changed") if what in entry)
        return f"`{symbol.id}`", _summary(symbol), _gradient(symbol), since, ", ".join(f"`{name}`" for name in names)

    return row


def _gradient(symbol: Any) -> str:
    if symbol.grad_rule is not None or symbol.vjp_rule is not None:
        return "own"
    if not symbol.differentiable:
        return "none"
    return "none" if symbol.is_prim else "parts"


def _torch_name(function: Any) -> str | None:
    """How a user writes a function of torch; None for what has no public name."""
    import torch

    name = getattr(function, "__name__", None)
    if name is None or (name.startswith("_") and not name.startswith("__")):
        return None
    if getattr(torch.Tensor, name, None) is function:
        return f"Tensor.{name}"
    for module, prefix in ((torch.nn.functional, "nn.functional."), (torch, "torch."), (torch.special, "special.")):
        if getattr(module, name, None) is function:
            return prefix + name
    return None


def _summary(documented: Any) -> str:
    """The first sentence of a docstring, safe in a cell of a table."""
    text = inspect.getdoc(documented) or ""
    first = text.split("\n\n")[0].replace("\n", " ")
    prose_and_code = first.replace("|", "\\|").split("`")
    prose_and_code[::2] = [prose.replace("*", "\\*").replace("<", "&lt;") for prose in prose_and_code[::2]]
    return "`".join(prose_and_code)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    lines = [header, ["---"] * len(header), *sorted(map(list, rows))]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
