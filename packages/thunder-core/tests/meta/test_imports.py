# SPDX-License-Identifier: Apache-2.0
"""Imports go one way: no circles, none hidden in a function without a reason. (The floors are in pyproject.toml.)"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]


def _modules() -> dict[str, Path]:
    """Every module of every package by its name."""
    found = {}
    for source in sorted((ROOT / "packages").glob("*/src")):
        for path in sorted(source.rglob("*.py")):
            name = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
            found[name] = path
    return found


MODULES = _modules()
OWN = [path for name, path in MODULES.items() if name.partition(".")[0] == "thunder"]


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _imports(tree: ast.AST) -> Iterator[tuple[ast.AST, list[str]]]:
    """The statements that import modules of ours, with those modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module for name in names]
        else:
            continue
        names = [name for name in names if name in MODULES]
        if names:
            yield node, names


def _circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected parts of more than one module, by Tarjan's algorithm without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []
    for root in graph:
        work = [] if root in index else [(root, iter(graph[root]))]
        if work:
            index[root] = low[root] = len(index)
            stack.append(root)
        while work:
            module, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    work.append((other, iter(graph[other])))
                    break
                if other in stack:
                    low[module] = min(low[module], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[module])
                if low[module] == index[module]:
                    at = stack.index(module)
                    part, stack[at:] = stack[at:], []
                    if len(part) > 1:
                        found.append(sorted(part))
    return found


def test_circles_are_found() -> None:
    """What finds them does."""
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == [["a", "b", "c"]]
    assert _circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Counted are imports within functions, those for annotations, and a package's imports of its own modules."""
    graph = {
        name: {other for _, others in _imports(ast.parse(path.read_text(encoding="utf-8"))) for other in others}
        - {name}
        for name, path in MODULES.items()
    }
    assert not _circles(graph)


def _says_why(lines: list[str], number: int) -> bool:
    """Whether a line, or what stands above it and the imports before it, has a comment that is no mark for a tool."""
    first = number - 1
    while lines[first - 1].strip().startswith(("import ", "from ")):
        first -= 1
    comments = [text.partition("#")[2].strip() for text in lines[max(first - 1, 0) : number]]
    return any(comment and not comment.startswith(("noqa", "type:", "fmt:")) for comment in comments)


def test_imports_within_functions_say_why() -> None:
    """Imports stand at the top of the file; the few others have a comment on their line or the line above."""
    wrong = []
    for path in OWN:
        lines = path.read_text(encoding="utf-8").splitlines()
        functions = [n for n in ast.walk(_tree(path)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        at = {node.lineno for function in functions for node, _ in _imports(function)}  # type: ignore[attr-defined]
        wrong += [f"{path.relative_to(ROOT)}:{n}" for n in sorted(at) if not _says_why(lines, n)]
    assert not wrong, "\n".join(wrong)


def test_what_is_imported_by_a_computed_name_says_why() -> None:
    """The linter does not see it: each call of `import_module` in thunder says what it is for."""
    wrong = []
    for path in OWN:
        lines = path.read_text(encoding="utf-8").splitlines()
        wrong += [
            f"{path.relative_to(ROOT)}:{node.lineno}"
            for node in ast.walk(_tree(path))
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("importlib.import_module", "import_module", "__import__")
            and not _says_why(lines, node.lineno)
        ]
    assert not wrong, "\n".join(wrong)
