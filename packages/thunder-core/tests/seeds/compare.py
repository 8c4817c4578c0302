# SPDX-License-Identifier: Apache-2.0
"""Brings printed traces into one form: two that print the same in it are the same program.

What may differ is left out: the names of values, the milliseconds that a pass took, the order of lines that do not need
one another, and calls that are made twice with the same arguments. All else stays: imports, types, every operation with
its arguments, what it decomposes into, what is returned.
"""

from __future__ import annotations

import re

DECORATORS = ("from thunder.executors.torchex import no_autocast", "@torch.no_grad()", "@no_autocast")
INPUT = re.compile(r'# (\w+): "(.*)" *')
OPERATION = re.compile(r'(?:(?P<outs>[^"\'=]+) = )?(?P<call>[^#]+?)(?:  # \w+: (?P<type>"[^"]*"))?')
NAME = re.compile(r"(?<![\w.\"'])[A-Za-z_]\w*(?![\w=])")  # no attribute, string or keyword


class Operation:
    """A line of a trace, and the comments below it."""

    def __init__(self, outs: list[str], call: str, type: str):
        self.outs, self.call, self.type = outs, call, type
        self.below: list[str] = []

    @property
    def args(self) -> list[str]:
        """The names in its call."""
        return NAME.findall(self.call)


class Program:
    """The parsed text of a trace."""

    def __init__(self, text: str):
        head, _, body = text.replace("'", '"').partition("\ndef ")
        self.header = [re.sub(r"took \d+", "took 0", line) for line in head.splitlines() if line]
        signature, *lines = body.rstrip().splitlines()
        self.name = signature.partition("(")[0]
        self.inputs: list[str] = NAME.findall(signature.partition("(")[2])
        self.types: dict[str, str] = {}
        self.comments: dict[str, int] = {}  # above which operation the comment of an input stands
        self.operations: list[Operation] = []
        self.deleted: list[tuple[int, str]] = []  # after how many operations, which value
        self.result = ""
        for line in lines:
            self._read(line.strip(), (len(line) - len(line.lstrip())) // 2 - 1)

    def _read(self, line: str, depth: int) -> None:
        if depth:
            assert line.startswith("# "), f"neither an operation nor a comment below one: {line}"
            self.operations[-1].below.append("  " * depth + line)
        elif found := INPUT.fullmatch(line):
            self.types[found[1]], self.comments[found[1]] = found[2], len(self.operations)
        elif line.startswith("del "):
            self.deleted += [(len(self.operations), name) for name in NAME.findall(line)[1:]]
        elif line.startswith("return"):
            self.result = line
        else:
            found = OPERATION.fullmatch(line)
            assert found, f"not an operation: {line}"
            self.operations.append(Operation(NAME.findall(found["outs"] or ""), found["call"], found["type"] or ""))

    def check_deletes(self) -> None:
        """Fail unless each value but what is returned is deleted right after the line that uses it last."""
        values = {*self.inputs, *(name for op in self.operations for name in op.outs)}
        last = {name: i for i, op in enumerate(self.operations, 1) for name in (*op.args, *op.outs) if name in values}
        kept = {"_", *NAME.findall(self.result)}
        wanted = sorted((i, name) for name, i in last.items() if name not in kept)
        assert sorted(self.deleted) == wanted, f"deleted are {sorted(self.deleted)}, and last used {wanted}"

    def first_uses(self) -> dict[str, int]:
        """The operation that reads each input first; those that none reads stand at the top."""
        uses = {n: i for i, op in reversed([*enumerate(self.operations)]) for n in op.args}
        return {name: uses.get(name, 0) for name in self.comments}

    def normalised(self) -> str:
        """The one form: from what is returned backwards, each call once."""
        self.check_deletes()
        names = {name: f"input{i}" for i, name in enumerate(self.inputs)}
        makers = {name: op for op in self.operations for name in op.outs if name != "_"}
        read = {name for op in self.operations for name in op.args} | {*NAME.findall(self.result)}
        results: dict[str, list[str]] = {}  # what the results of a call are called
        written: list[tuple[list[str], str]] = []
        done: set[Operation] = set()

        def write(op: Operation) -> None:
            if op in done:
                return
            done.add(op)
            for name in op.args:
                if name in makers:
                    write(makers[name])
            call = renamed(op.call, names)
            again, outs = call in results, results.setdefault(call, ["_"] * len(op.outs))
            for i, name in enumerate(op.outs):
                if name in read and name != "_":
                    names[name] = outs[i] = outs[i] if outs[i] != "_" else f"value{len({*names.values()})}"
            if not again:
                written.extend([(outs, f"{call}  # {op.type}"), *[([], line) for line in below(op, names)]])

        for name in NAME.findall(self.result):
            if name in makers:
                write(makers[name])
        for op in self.operations:  # what is run for its effect
            write(op)
        header = [line for line in self.header if line not in DECORATORS]
        inputs = [f"  {names[name]}: {self.types[name]}" for name in self.inputs]
        lines = [f"{', '.join(outs)} = {text}" if outs else text for outs, text in written]
        return "\n".join([*header, self.name, *inputs, *lines, renamed(self.result, names)])


def renamed(text: str, names: dict[str, str]) -> str:
    """The text with its values renamed."""
    return NAME.sub(lambda match: names.get(match[0], match[0]), text)


def below(op: Operation, names: dict[str, str]) -> list[str]:
    """What an operation decomposes into; values that it makes on the way are its parts."""
    parts = dict(names)
    for line in op.below:
        for name in NAME.findall(line.partition(" = ")[0]):
            parts.setdefault(name, f"part{len(parts)}")
    return [renamed(line, parts) for line in op.below]


def normalised(text: str) -> str:
    """The text of a trace in the one form."""
    return Program(text).normalised()


def check_form(shown: str, printed: str) -> None:
    """Fail unless a trace of ours has its decorators, and the comments of its inputs where those of a document have.

    Where those of the document do not all stand at the top, ours stand at the first use of each input.
    """
    theirs, ours = Program(shown), Program(printed)
    assert set(DECORATORS) <= set(ours.header), ours.header
    wanted = ours.first_uses() if any(theirs.comments.values()) else dict.fromkeys(ours.comments, 0)
    assert ours.comments == wanted, f"the comments of inputs stand above {ours.comments}, not {wanted}"
