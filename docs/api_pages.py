# SPDX-License-Identifier: Apache-2.0
"""Writes two pages of the reference from the sources: all public names, and all options of `thunder.jit`.

conf.py calls `write` before the pages are read. Names come from the `__all__` of the public modules, options from the
signature and the docstring of `thunder.jit`, and environment variables from `frontend/environment.py`.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

# The public modules whose names have a page of the reference. Operations have a page of their own (operator_page.py).
MODULES = (
    "thunder", "thunder.examine", "thunder.dynamo", "thunder.transforms", "thunder.extend", "thunder.plugins",
    "thunder.toolkit.claiming", "thunder.toolkit.fusion", "thunder.toolkit.launch", "thunder.toolkit.layouts",
    "thunder.toolkit.measuring",
    "thunder.toolkit.conformance", "thunder.toolkit.testing", "thunder.toolkit.benchmarking",
)  # fmt: skip

NAMES = """\
# All public names

Each name of the public modules, with the first sentence of its documentation. This page is written from the sources.
What is not listed here is internal, and may change.
"""

OPTIONS = """\
# Options

This page is written from the sources.

## thunder.jit

`thunder.compile` has the same options, and uses exactly the executors that are listed.

"""


def write(folder: Path) -> None:
    """Write both pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("names.md", names_page()), ("options.md", options_page())):
        page = folder / name
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def names_page() -> str:
    """Return the table of all names of all public modules."""
    text = NAMES
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        page = module_name.split(".")[1] if "." in module_name else "thunder"
        text += f"\n## [`{module_name}`](../reference/{page}.md)\n\n| name | what it is |\n|---|---|\n"
        for name, kind, summary in public_names(module):
            shown = f"{name}()" if kind == "function" else name
            says = ". ".join(filter(None, ("" if kind == "function" else f"*{kind.capitalize()}*", summary)))
            text += f"| {{py:obj}}`{shown} <{module_name}.{name}>` | {says} |\n"
    return text


def public_names(module: ModuleType) -> Iterator[tuple[str, str, str]]:
    """Yield each name of a module's `__all__` with its kind and the first sentence of its documentation."""
    for name in sorted(module.__all__, key=str.lower):
        if name.startswith("__"):
            continue
        value = getattr(module, name)
        yield name, _kind(value), _summary(value)


def _kind(value: Any) -> str:
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if inspect.isroutine(value) else "value"


def _summary(value: Any) -> str:
    """Return the first sentence of a docstring, safe in a cell of a table. Values of plain types have none."""
    if not (inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value)):
        if type(value).__doc__ and type(value).__module__.startswith("thunder"):
            return _cell(inspect.getdoc(type(value)) or "")
        return ""
    return _cell(inspect.getdoc(value) or "")


def _cell(text: str) -> str:
    first = text.split("\n\n")[0].replace("\n", " ").partition(". ")[0].rstrip(".")
    parts = first.replace("|", "\\|").split("`")
    parts[::2] = [part.replace("*", "\\*").replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def options_page() -> str:
    """Return the tables of options, of options of plugins that core declares, and of environment variables."""
    import thunder

    described = described_options(thunder.jit)
    text = OPTIONS + "| option | default | |\n|---|---|---|\n"
    for name, parameter in inspect.signature(thunder.jit).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            text += f"| `{name}` | `{parameter.default!r}` | {described.pop(name)} |\n"
    for name, says in described.items():
        text += f"| `{name}` | | {says} |\n"
    text += (
        "\nExecutors declare further options; `python -m thunder plugins` lists them. Those of the packages of this "
        "repository are on their pages: [TransformerEngine](../te.md#supported-layers), [Triton](../triton.md), "
        "[nvFuser](../nvfuser.md).\n\n## Environment variables\n\n"
    )
    table = importlib.import_module("thunder.frontend.environment").__doc__ or ""
    rows = [line for line in table.splitlines() if line.startswith("|")]
    return text + "\n".join(re.sub(r" \(`[\w/.]+\.py`\)", "", row) for row in rows) + "\n"


def described_options(function: Any) -> dict[str, str]:
    """Return what a docstring's list (``- `name`: text``) says of each name. An entry may name several."""
    entries = re.split(r"\n- ", (inspect.getdoc(function) or "").partition("\n\n- ")[2])
    described = {}
    for entry in entries:
        names, _, says = " ".join(entry.split()).partition(": ")
        if re.fullmatch(r"`\w+`(, `\w+`)*", names):
            for name in re.findall(r"\w+", names):
                described[name] = says.replace("|", "\\|")
    return described
