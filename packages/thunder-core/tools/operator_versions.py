# SPDX-License-Identifier: Apache-2.0
"""`nox -s operator_versions [-- --write]`: the version in which each operation was added, and last changed.

`operators.json` beside the changelog of thunder-core lists all operations of the torch language and all primitives. An
entry has the operation's signature, and a digest of the signature and the source of its decomposition (for a primitive,
its meta function). Executors that claim an operation rely on its arguments and its meaning. If it changes after a
release, the changelog must name it in a line: `` `torch.silu` ``. `--write` updates the file.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import functools
import hashlib
import inspect
import json
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["FILE", "check", "digest_of", "main", "operations", "read", "signature_of", "updated"]

PACKAGE = Path(__file__).resolve().parents[1]
FILE, CHANGELOG = PACKAGE / "operators.json", PACKAGE / "CHANGELOG.md"
COMMAND = "python -m nox -s operator_versions -- --write"

_LATE = ("changed", "removed")

Entries = Mapping[str, Mapping[str, str]]


# -- what an operation is ---------------------------------------------------------------------------------------------
def operations() -> dict[str, Any]:
    """Return the symbols of thunder's own operations, by id."""
    # The imports are local because the check of a file needs no torch.
    import thunder.torch  # noqa: F401  (declares the operations)
    from thunder.core.prims.base import all_prims
    from thunder.torch.base import all_torchsymbols

    found = [*all_torchsymbols().values(), *all_prims().values()]
    ours = [sym for sym in found if (inspect.unwrap(sym.meta).__module__ or "").startswith("thunder.")]
    return {str(sym.id): sym for sym in sorted(ours, key=lambda sym: str(sym.id))}


def signature_of(symbol: Any) -> str:
    """Return the names, kinds and defaults of an operation's parameters, without annotations."""
    plain = [p.replace(annotation=p.empty) for p in inspect.signature(symbol).parameters.values()]
    return str(inspect.Signature(plain))


def digest_of(symbol: Any) -> str:
    """Return a digest of an operation's signature and decomposition.

    The decomposition is the source of the function and of the functions of its module that it calls, and the values
    that they capture. Comments, docstrings and white space do not count.
    """
    text = "\n".join([signature_of(symbol), *_parts(symbol.meta, set())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parts(fn: Any, seen: set[int]) -> Iterator[str]:
    while callable(fn):
        if isinstance(fn, functools.partial):
            yield from (_value(x, seen) for x in (*fn.args, *fn.keywords.values()))
            fn = fn.func
            continue
        code = getattr(fn, "__code__", None)
        if code is None or id(code) in seen:
            return
        seen.add(id(code))
        yield _source(code)
        for cell in fn.__closure__ or ():
            yield _value(cell.cell_contents, seen)
        for name in sorted(_names(code)):
            called = fn.__globals__.get(name)
            if isinstance(called, types.FunctionType) and called.__module__ == fn.__module__:
                yield from _parts(called, seen)
        fn = getattr(fn, "__wrapped__", None)


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*inner)


def _value(x: Any, seen: set[int]) -> str:
    """Describe a value that a function has captured, without addresses."""
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        if id(x) in seen:
            return type(x).__name__
        seen.add(id(x))
        return ", ".join(f"{f.name}={_value(getattr(x, f.name), seen)}" for f in dataclasses.fields(x))
    if isinstance(x, (types.FunctionType, functools.partial)):
        return "\n".join(_parts(x, seen))
    if isinstance(x, enum.Enum):
        return str(x)
    if isinstance(x, (tuple, list)):
        return f"({', '.join(_value(i, seen) for i in x)})"
    if isinstance(x, Mapping):
        return f"{{{', '.join(f'{k}: {_value(v, seen)}' for k, v in x.items())}}}"
    if isinstance(x, (set, frozenset)):
        return f"{{{', '.join(sorted(_value(i, seen) for i in x))}}}"
    if x is None or isinstance(x, (bool, int, float, complex, str)):
        return repr(x)
    return str(getattr(x, "id", None) or getattr(x, "__name__", type(x).__name__))


@functools.cache
def _functions(filename: str) -> tuple[str, dict[int, ast.AST]]:
    text = Path(filename).read_text(encoding="utf-8")
    found: dict[int, ast.AST] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            decorators = getattr(node, "decorator_list", [])
            found.setdefault(decorators[0].lineno if decorators else node.lineno, node)
    return text, found


def _source(code: types.CodeType) -> str:
    """Return a function's source without comments, docstring and white space, which is the same in every Python."""
    text, functions = _functions(code.co_filename)
    node: Any = functions.get(code.co_firstlineno)
    if node is None:
        return code.co_name
    body = node.body if isinstance(node.body, list) else [node.body]
    if ast.get_docstring(node, clean=False) is not None if isinstance(node, ast.FunctionDef) else False:
        body = body[1:]
    segments = [ast.get_source_segment(text, each) or "" for each in body]
    return "".join(re.sub(r"(^|\s)#.*$", "", "\n".join(segments), flags=re.MULTILINE).split())


# -- the file ---------------------------------------------------------------------------------------------------------
def read(file: Path = FILE) -> dict[str, dict[str, str]]:
    """Return the entries of the file, by the id of the operation."""
    found: dict[str, dict[str, str]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found


def updated(entries: Entries, now: Entries, version: str) -> dict[str, dict[str, str]]:
    """Return the entries for the operations as they are `now`, in the version that is being developed."""
    new: dict[str, dict[str, str]] = {}
    for name in sorted({*entries, *now}):
        before, after = entries.get(name), now.get(name)
        if after is None:  # it was removed. What no version had is forgotten
            if before is not None and before["since"] != version:
                new[name] = {**before, "removed": before.get("removed", version)}
        elif before is None or "removed" in before:
            new[name] = {"since": version, **after}
        else:
            kept = {"since": before["since"]}
            same = before["digest"] == after["digest"]
            changed = before.get("changed") if same else version
            if changed is not None and changed != before["since"]:
                kept["changed"] = changed
            new[name] = {**kept, **after}
    return new


def check(entries: Entries, now: Entries, version: str, changelog: str) -> list[str]:
    """Return what is wrong with the entries, given the operations as they are `now` and the changelog."""
    found = []
    wanted = updated(entries, now, version)
    if different := [name for name in sorted({*entries, *wanted}) if entries.get(name) != wanted.get(name)]:
        listed = ", ".join(different[:10]) + (f" and {len(different) - 10} others" if len(different) > 10 else "")
        found.append(f"{listed}: added, removed or changed. Write it down with\n    {COMMAND}")
    late = [(name, what, entry[what]) for name, entry in wanted.items() for what in _LATE if what in entry]
    return found + [
        f"{name} was {what} in {since}, but the changelog of this version has no `{name}`"
        for name, what, since in late if f"`{name}`" not in _section(changelog, since)
    ]  # fmt: skip


def _section(changelog: str, version: str) -> str:
    """Return the part of a changelog about a version."""
    found = re.search(rf"^## {re.escape(version)}\b.*?(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def main(arguments: Sequence[str]) -> int:
    """Check the file or write it, and return 0 if it is right."""
    import thunder

    parser = argparse.ArgumentParser(prog="nox -s operator_versions --", description=__doc__)
    parser.add_argument("--write", action="store_true", help="update the file")
    write = parser.parse_args(arguments).write
    now = {name: {"signature": signature_of(s), "digest": digest_of(s)} for name, s in operations().items()}
    entries = read()
    if write:
        entries = updated(entries, now, thunder.__version__)
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
        FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    problems = check(entries, now, thunder.__version__, CHANGELOG.read_text(encoding="utf-8"))
    print("\n".join(problems) or f"{len(now)} operations of thunder-core {thunder.__version__}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
