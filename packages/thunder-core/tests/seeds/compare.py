# SPDX-License-Identifier: Apache-2.0
"""Printed traces, brought into one form: two that print the same in it are the same program, told the same way.

Left out is what may differ: how values are called, how many milliseconds a pass took, in which order lines stand that
do not need one another, and whether a call that is made twice with the same arguments is written twice. All else stays:
imports and decorators, the types in comments, every operator with its arguments, what it decomposes into, what is
returned. Where values are deleted depends on the order of lines, so of `del` the rule is checked: right after the last
use, everything but what is returned.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["normalised", "same_trace"]

INPUT = re.compile(r'^# (?P<name>\w+): "(?P<type>.*)"$')
TYPE = re.compile(r'\s+# \w+: "(?P<type>[^"]*)"$')


@dataclass
class Line:
    """One operation of a trace."""

    statement: ast.stmt
    type: str | None
    below: list[Line] = field(default_factory=list)

    @property
    def call(self) -> ast.expr:
        """Its right side."""
        assert isinstance(self.statement, (ast.Assign, ast.Expr)), ast.unparse(self.statement)
        return self.statement.value

    @property
    def made(self) -> list[str]:
        """The values it makes, `_` for those that nobody reads."""
        targets = self.statement.targets if isinstance(self.statement, ast.Assign) else []
        return [name for target in targets for name in names_in(target)]


@dataclass
class Program:
    """A parsed trace."""

    header: list[str]
    inputs: list[str]
    types: dict[str, str]
    lines: list[Line]
    deleted: list[tuple[int, str]]  # after how many lines, which value
    result: ast.expr


def names_in(node: ast.AST) -> list[str]:
    """The names in a piece of Python, from left to right, each as often as it occurs."""
    found = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    return [n.id for n in sorted(found, key=lambda n: (n.lineno, n.col_offset))]


def parse(text: str) -> Program:
    """Reads the text of a trace."""
    head, _, body = text.strip().partition("\ndef ")
    header = [
        re.sub(r"\(took \d+ milliseconds\)", "(took)", line.rstrip()) for line in head.splitlines() if line.strip()
    ]
    signature, *lines = body.splitlines()
    inputs = re.findall(r"\w+", signature[signature.index("(") :])
    program = Program(header, inputs, {}, [], [], ast.Constant(None))
    stack: list[list[Line]] = [program.lines]
    for line in filter(str.strip, lines):
        depth, content = (len(line) - len(line.lstrip())) // 2 - 1, line.strip()
        found = INPUT.match(content)
        if found:
            program.types[found["name"]] = found["type"]
            continue
        assert (depth > 0) == content.startswith("# "), f"neither an operation nor a comment below one: {line}"
        statement = _statement(content.removeprefix("# "), program)
        if statement is not None:
            del stack[depth + 1 :]
            stack[-1].append(statement)
            stack.append(statement.below)
    return program


def _statement(content: str, program: Program) -> Line | None:
    if content.startswith("return"):
        program.result = ast.parse(content.removeprefix("return").strip() or "None", mode="eval").body
        return None
    if content.startswith("del "):
        program.deleted += [(len(program.lines), name) for name in re.findall(r"\w+", content[4:])]
        return None
    comment = TYPE.search(content)
    statement = ast.parse(content[: comment.start()] if comment else content).body[0]
    return Line(statement, comment["type"] if comment else None)


class Renamer(ast.NodeTransformer):
    """Renames the values of a program; what is no value (modules, functions, constants of the context) stays."""

    def __init__(self, names: dict[str, str]):
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)


def renamed(node: ast.AST, names: dict[str, str]) -> str:
    """A piece of Python with its values renamed."""
    return ast.unparse(Renamer(names).visit(ast.parse(ast.unparse(node))))


class Writer:
    """Writes a program in the one form: from what is returned backwards, each call once."""

    def __init__(self, program: Program):
        self.program = program
        self.names = {name: f"input{i}" for i, name in enumerate(program.inputs)}
        self.makers = {name: line for line in program.lines for name in line.made if name != "_"}
        self.read = {n for line in program.lines for n in names_in(line.call)} | set(names_in(program.result))
        self.known: dict[str, list[str]] = {}  # what a call's results are called
        self.written: set[int] = set()
        self.out: list[tuple[list[str], str]] = []  # what a line makes, and the rest of it

    def value(self, name: str) -> None:
        """Writes what makes a value, unless it is written."""
        if name not in self.names and name in self.makers:
            self.line(self.makers[name])

    def line(self, line: Line) -> None:
        """Writes an operation, and before it what it reads."""
        if id(line) in self.written:
            return
        self.written.add(id(line))
        for name in names_in(line.call):
            self.value(name)
        call = renamed(line.call, self.names)
        first = call not in self.known
        results = self.known.setdefault(call, ["_"] * len(line.made))
        for i, name in enumerate(line.made):
            if name in self.read:
                if results[i] == "_":
                    results[i] = f"value{len(set(self.names.values()))}"
                self.names[name] = results[i]
        if first:
            self.out.append((results, call + comment_of(line)))
            self.out += [([], f"  {text}") for text in self.comments(line.below, {})]

    def comments(self, lines: list[Line], parts: dict[str, str]) -> Iterator[str]:
        """The lines that an operation decomposes into; `parts` are values that it makes on the way."""
        for line in lines:
            for name in line.made:
                if name != "_" and name not in self.names:
                    parts.setdefault(name, f"part{len(parts)}")
            yield renamed(line.statement, {**self.names, **parts}) + comment_of(line)
            for text in self.comments(line.below, dict(parts)):
                yield f"  {text}"

    def text(self) -> list[str]:
        """What was written."""
        return [f"{', '.join(results)} = {rest}" if results else rest for results, rest in self.out]


def comment_of(line: Line) -> str:
    """The type that stands behind an operation."""
    return f"  # {line.type}" if line.type else ""


def check_deletes(program: Program) -> None:
    """Each value but what is returned is deleted right after the line that uses it last."""
    last: dict[str, int] = {}
    for i, line in enumerate(program.lines):
        for name in (*names_in(line.call), *line.made):
            if name in program.inputs or any(name in other.made for other in program.lines):
                last[name] = i + 1
    kept = {"_", *names_in(program.result)}
    wanted = sorted((i, name) for name, i in last.items() if name not in kept)
    assert sorted(program.deleted) == wanted, f"deleted are {sorted(program.deleted)}, and last used {wanted}"


def normalised(text: str, *, deletes: bool = True) -> str:
    """The text of a trace in the one form; `deletes` says whether it must delete its values."""
    program = parse(text)
    if deletes:
        check_deletes(program)
    writer = Writer(program)
    for name in names_in(program.result):
        writer.value(name)
    for line in program.lines:  # what is run for its effect
        writer.line(line)
    inputs = [f"  input{i}: {program.types[name]}" for i, name in enumerate(program.inputs)]
    lines = [*program.header, "inputs", *inputs, *writer.text(), f"return {renamed(program.result, writer.names)}"]
    return "\n".join(lines)


def same_trace(shown: str, printed: object, *, deletes: bool = True, given_twice: dict[str, str] | None = None) -> None:
    """Fails unless a trace prints what a document shows.

    `given_twice` says which inputs that the document tells apart were one tensor, which is one input: `{"t_2": "t_0"}`.
    """
    for again, first in (given_twice or {}).items():
        shown = re.sub(rf'^ *# {again}: ".*"\n', "", shown, flags=re.MULTILINE)
        shown = re.sub(rf"(def .*), {again}\b", r"\1", shown)
        shown = re.sub(rf"^( *del .*), {again}\b", r"\1", shown, flags=re.MULTILINE)
        shown = re.sub(rf"\b{again}\b", first, shown)
    assert normalised(str(printed), deletes=deletes) == normalised(shown, deletes=deletes)
