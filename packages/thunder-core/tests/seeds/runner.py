# SPDX-License-Identifier: Apache-2.0
"""Runs a document that specifies the system and compares what each cell prints with what is shown (see README.md)."""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib.util
import io
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
BLOCK = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$|^<!-- (.*?) -->$", re.M | re.S)
TRACE = re.compile(r"^(?=# Constructed by|import thunder|import torch$)", re.M)
RANDOM = "random numbers"  # a note: those of the next text are not compared
NUMBER = re.compile(r" *-?\d+\.\d*(e[+-]\d+)? *")


def _compare() -> Any:
    """The module beside this one. (Tests are imported by path, so none finds its neighbours.)"""
    spec = importlib.util.spec_from_file_location("seeds_compare", HERE / "compare.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compare = _compare()


def run(
    document: str, *, device: str = "cpu", has: Collection[str] = (), replace: Mapping[str, str] | None = None
) -> None:
    """Run the cells that need no executor but those of `has`; `replace` is what else is different on this device."""
    path = HERE / f"{document}.md"
    module = ModuleType(document.replace("-", "_"))
    module.__file__ = str(path)
    in_cells = {f"{quote}cuda{quote}": f"{quote}{device}{quote}" for quote in "\"'"} | dict(replace or {})
    in_texts = {"cuda:0": "cpu" if device == "cpu" else "cuda:0"} | dict(replace or {})
    needs, printed, values = "", "", dict(in_texts)
    with restored(module):
        for kind, text, line in blocks_of(path):
            if text.startswith("needs: "):
                needs = text.removeprefix("needs: ")
            elif not set(needs.split()) <= set(has):
                continue
            elif kind == "python":
                printed = output_of(replaced(text, in_cells), line, module)
            elif kind == "text":
                same(replaced(text, values), printed, f"{path.name}:{line}", numbers=RANDOM not in values)
                values = dict(in_texts)
            elif not kind:  # what something in the next text is
                shown, _, expression = text.partition(": ")
                values[shown] = str(eval(expression, vars(module))) if expression else shown


@contextlib.contextmanager
def restored(module: ModuleType) -> Iterator[None]:
    """What a document declares, also in place of thunder's own, is taken back when it has run."""
    import thunder.clang.base as clang
    import thunder.core.prims.base as prims
    import thunder.torch.base as ltorch
    from thunder.executors.torchex import ex
    from thunder.extend import deregister_executor, get_all_executors
    from thunder.passes import autodiff
    from thunder.tests import opinfos

    tables: list[Any] = [prims._prims, clang.clang_ops, clang.clangctx.methods, autodiff._registered, ex.implmap]
    tables += [ex.opmap, ltorch._symbols, ltorch._function_map, ltorch.language.methods, opinfos._derived]
    tables += [*opinfos.LISTS.values(), opinfos.opinfos, sys.path]
    before = [table.copy() for table in tables]
    executors = {executor.name for executor in get_all_executors()}
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        for executor in get_all_executors():
            if executor.name not in executors:
                deregister_executor(executor)
        for table, content in zip(tables, before):
            table.clear()
            table.extend(content) if isinstance(table, list) else table.update(content)
        del sys.modules[module.__name__]


def blocks_of(path: Path) -> list[tuple[str, str, int]]:
    """The kind, text and line of each block and note, without those that another stands `here` for."""
    found: list[tuple[str, str, int]] = []
    document = path.read_text(encoding="utf-8")
    for match in BLOCK.finditer(document):
        kind, info, text, note = match.groups(default="")
        if info.startswith("here:"):
            assert found.pop()[0] == kind, f"what does this stand for? {info}"
        found.append((kind, text or note, document.count("\n", 0, match.start()) + 1))
    return found


def replaced(text: str, by: Mapping[str, str]) -> str:
    """The text as it is on this device. Tensors of the CPU do not print theirs."""
    for old, new in by.items():
        text = text.replace(f", device='{old}'", "" if new == "cpu" else f", device='{new}'").replace(old, new)
    return text


def output_of(source: str, line: int, module: ModuleType) -> str:
    """What a cell prints, and the value of its last expression; errors name lines of the document."""
    tree, name = ast.parse("\n" * line + source), module.__file__ or ""
    last: Any = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(tree, name, "exec"), vars(module))
        value = None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), vars(module))
        print("" if value is None else shown_value(value))
    return output.getvalue()


def shown_value(value: Any) -> str:
    """A value as a notebook shows it: a tuple of tensors with each on lines of its own."""
    if type(value) is tuple and "\n" in repr(value):
        return "(" + ",\n".join(shown_value(x) for x in value).replace("\n", "\n ") + ")"
    return repr(value)


def same(shown: str, printed: str, where: str, *, numbers: bool = True) -> None:
    """Fail unless two texts are the same; traces that have been compiled are `normalised` before, others are not."""
    texts = []
    for text in (shown, printed):
        plain, *traces = TRACE.split(re.sub(" +$", "", text, flags=re.M), 1)
        plain = plain if numbers else NUMBER.sub(" 0.", plain)
        texts.append(
            [plain.strip(), *(compare.normalised(t) if t.startswith("# Constructed") else t.strip() for t in traces)]
        )
    if texts[0] != texts[1]:
        shown_lines, printed_lines = ("\n".join(text).split("\n") for text in texts)
        diff = difflib.unified_diff(shown_lines, printed_lines, where, "printed", lineterm="", n=99)
        raise AssertionError("\n".join(diff))
    if "# Constructed" in printed:
        compare.check_form(TRACE.split(shown, 1)[1], TRACE.split(printed, 1)[1])
