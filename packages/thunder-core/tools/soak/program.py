# SPDX-License-Identifier: Apache-2.0
"""A program to judge: its features, how they are read, who holds their state, and the steps; and its source text."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

from soak.feature import Feature, assigned_names, prefixed
from soak.wrappers import indented, wrapped

PRELUDE = Path(__file__).with_name("prelude.py")


@dataclasses.dataclass(frozen=True)
class Use:
    """A feature in a program: where it is read, and which of its writes the program runs (-1 for none)."""

    feature: Feature
    wrapper: str = "plain"
    write: int = -1


@dataclasses.dataclass(frozen=True)
class Program:
    """A program and what is done with it.

    A step is ("call", the input's number), ("mutate", use, number of the statement) or ("keep", use, number).
    """

    uses: tuple[Use, ...]
    steps: tuple[tuple[Any, ...], ...]
    entry: str = "function"
    cache: str = "constant values"
    returns_values: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the fields, for a worker."""
        uses = [{"feature": u.feature.to_json(), "wrapper": u.wrapper, "write": u.write} for u in self.uses]
        return {**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)}, "uses": uses}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Program:
        """Return the program that `to_json` described."""
        uses = tuple(Use(Feature.from_json(u["feature"]), u["wrapper"], u["write"]) for u in fields["uses"])
        steps = tuple(tuple(step) for step in fields["steps"])
        return cls(uses, steps, fields["entry"], fields["cache"], fields["returns_values"])

    def __str__(self) -> str:
        uses = "; ".join(f"{u.feature.name} [{u.wrapper}{', writes' if u.write >= 0 else ''}]" for u in self.uses)
        return f"{uses} in {self.entry}" + (", symbolic" if self.cache == "symbolic values" else "")


class Source:
    """The text of a program: a module, the expression that is compiled, its call, its steps and its state."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.features = [use.feature.numbered(i) for i, use in enumerate(program.uses)]
        self.names = [name for f in self.features for name in assigned_names(f.setup)]
        self._prefix = {"module": "self.", "method": "self."}.get(program.entry, "")

    @functools.cached_property
    def module(self) -> str:
        """The whole module, without the prelude."""
        return getattr(self, f"_{self.program.entry}")()

    @property
    def target(self) -> str:
        """The expression of what is compiled."""
        return {"module": "net", "method": "net.run"}.get(self.program.entry, "program")

    @property
    def arguments(self) -> str:
        """The arguments of a call, after the tensor."""
        return "".join(f", {name}" for name in self.names) if self.program.entry == "argument" else ""

    @property
    def state(self) -> str:
        """An expression: a list of what is compared after each call."""
        parts = [*self.names, *(text for f in self.features for text in f.state)]
        if self.program.entry == "closure":
            return "state()"
        return f"[{', '.join(self._outside(f'lambda: ({text})') for text in parts)}]"

    def step(self, step: tuple[Any, ...]) -> str:
        """Return the statement of a step that is no call."""
        kind, number, which = step
        if self.program.entry == "closure":
            return f"{kind}_{number}_{which}()"
        return self._outside(getattr(self.features[number], kind)[which])

    def _outside(self, text: str) -> str:
        return prefixed(text, self.names, "net.") if self._prefix else text

    def _inside(self, text: str) -> str:
        return prefixed(text, self.names, self._prefix) if self._prefix else text

    def _setup(self) -> str:
        return "".join(f.setup.rstrip("\n") + "\n" for f in self.features)

    def _parts(self, declare: str = "") -> tuple[str, str]:
        """Return the definitions that wrappers need, and the body of the program."""
        definitions, body = "", "y = x * 1.5\n"
        rebound: dict[str, None] = {}
        for i, (use, feature) in enumerate(zip(self.program.uses, self.features)):
            defines, reads = wrapped(use.wrapper, i, self._inside(feature.read))
            definitions += defines.rstrip("\n") + "\n" if defines else ""
            body += f"{reads}\ny = fold(y, r{i})\n"
            if use.write >= 0:
                write = feature.write[use.write]
                rebound.update(dict.fromkeys(n for n in assigned_names(write) if n in self.names))
                body += self._inside(write) + "\n"
        if declare and rebound:
            body = f"{declare} {', '.join(rebound)}\n" + body
        returned = "".join(f", r{i}" for i in range(len(self.features))) if self.program.returns_values else ""
        return definitions, body + f"return y{returned}\n"

    def _function(self) -> str:
        definitions, body = self._parts("global")
        return f"{self._setup()}\n{definitions}\ndef program(x):\n{indented(body, 1)}"

    def _closure(self) -> str:
        definitions, body = self._parts("nonlocal")
        text = f"def make():\n{indented(self._setup(), 1)}{indented(definitions, 1)}"
        text += f"    def program(x):\n{indented(body, 2)}"
        called = ["program"]
        for i, feature in enumerate(self.features):
            for kind in ("mutate", "keep"):
                for j, statement in enumerate(getattr(feature, kind)):
                    rebound = [n for n in assigned_names(statement) if n in self.names]
                    text += f"    def {kind}_{i}_{j}():\n"
                    text += f"        nonlocal {', '.join(rebound)}\n" if rebound else ""
                    text += indented(statement, 2)
                    called.append(f"{kind}_{i}_{j}")
        parts = [*self.names, *(part for f in self.features for part in f.state)]
        text += f"    def state():\n        return [{', '.join(f'lambda: ({part})' for part in parts)}]\n"
        called.append("state")
        return f"{text}    return {', '.join(called)}\n{', '.join(called)} = make()\n"

    def _method(self, base: str = "Holder", run: str = "run") -> str:
        definitions, body = self._parts()
        body = indented(definitions + body, 2)
        text = f"{self._setup()}\nclass Net({base}):\n    def {run}(self, x):\n{body}\nnet = Net()\n"
        return text + "".join(f"if {name!r} in globals():\n    net.{name} = {name}\n" for name in self.names)

    def _module(self) -> str:
        return self._method("nn.Module", "forward")

    def _argument(self) -> str:
        definitions, body = self._parts()
        return f"{self._setup()}\ndef program(x{self.arguments}):\n{indented(definitions + body, 1)}"


def script(program: Program, comments: dict[int, str]) -> str:
    """Return a script that runs the program with thunder, or with eager if its argument is `eager`.

    `comments` are printed beside the steps with these numbers.
    """
    source = Source(program)
    text = "torch.manual_seed(0), random.seed(0), np.random.seed(0)\n\n" + source.module
    options = f', cache="{program.cache}"' if program.cache != "constant values" else ""
    text += f"\nrun = {source.target} if 'eager' in sys.argv else thunder.jit({source.target}{options})\n"
    for i, step in enumerate(program.steps):
        line = source.step(step) if step[0] != "call" else f"print(run(X[{step[1]}]{source.arguments}))"
        text += line + (f"  # {comments[i]}" if i in comments else "") + "\n"
    return _needed_prelude(text) + text


def _needed_prelude(text: str) -> str:
    """Return the parts of the prelude that the text uses."""
    prelude = PRELUDE.read_text() + "import thunder\n"
    parts: list[str] = []
    for node in reversed(ast.parse(prelude).body[1:]):
        part = ast.get_source_segment(prelude, node) or ""
        names = [alias.asname or alias.name.partition(".")[0] for alias in getattr(node, "names", ())]
        names += [getattr(node, "name", "X")] if not names else []
        if any(re.search(rf"\b{name}\b", text) for name in names):
            parts.insert(0, part + ("\n" if "import" in part.splitlines()[0] else "\n\n"))
            text += part
    return "".join(parts)
