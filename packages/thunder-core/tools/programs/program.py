# SPDX-License-Identifier: Apache-2.0
"""A program of another project: what `thunder.jit` gets, and where its documentation shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Built", "Program", "Project"]


@dataclasses.dataclass
class Built:
    """A program that is ready to be called: a function or module, its inputs, and the modules that it uses."""

    fn: Any
    inputs: Callable[[], Any]  # fresh arguments: a tuple, or a dict of keyword arguments
    modules: tuple[Any, ...] = ()  # besides `fn`: their parameters and buffers are compared with eager

    @staticmethod
    def of(made: Any) -> Built:
        """Return what a builder made: `fn, inputs` or `fn, inputs, *modules`."""
        fn, inputs, *modules = made
        return Built(fn, inputs, tuple(modules))

    def call(self, fn: Any, inputs: Any) -> Any:
        """Call `fn`, which is the program's function or a compiled form of it."""
        return fn(**inputs) if isinstance(inputs, dict) else fn(*inputs)


@dataclasses.dataclass(frozen=True)
class Program:
    """A program: its project, its name, the place of its example, and the function that builds it."""

    project: str
    name: str
    example: str
    build: Callable[[], Any]
    trains: bool = False  # the example trains: the backward pass belongs to the call

    def built(self) -> Built:
        """Build the program. Builds with the same seed are alike."""
        return Built.of(self.build())


class Project:
    """The programs of a project, in the order in which its file declares them."""

    def __init__(self, name: str, *, rank: int | None, requires: Sequence[str], without_dependencies: bool = False,
                 limit: int = 16):  # fmt: skip
        self.name = name
        self.rank = rank  # in the list of downloads; None for a project that was added for another reason
        self.requires = tuple(requires)  # requirements for pip
        self.without_dependencies = without_dependencies
        self.limit = limit  # of programs
        self.programs: dict[str, Program] = {}

    def program(self, name: str, example: str, *, trains: bool = False) -> Callable[[Callable[[], Any]], Any]:
        """Declare the decorated builder as a program. `example` is the place of the example in the documentation."""

        def declare(build: Callable[[], Any]) -> Callable[[], Any]:
            self.add(name, example, build, trains=trains)
            return build

        return declare

    def add(self, name: str, example: str, build: Callable[[], Any], *, trains: bool = False) -> None:
        """Add a program, unless there are enough of the project."""
        if name in self.programs:
            raise ValueError(f"{self.name} has two programs {name!r}")
        if len(self.programs) < self.limit:
            self.programs[name] = Program(self.name, name, example, build, trains)
