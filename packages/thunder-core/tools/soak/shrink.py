# SPDX-License-Identifier: Apache-2.0
"""Make a failing program smaller while it fails in the same way."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from soak.program import Program, script
from soak.run import Verdict

MOST_ATTEMPTS = 80


def shrink(program: Program, verdict: Verdict, judge: Callable[[Program], Verdict]) -> tuple[Program, Verdict]:
    """Return a smaller program with the same kind of failure, and its verdict."""
    attempts = 0
    smaller = True
    while smaller and attempts < MOST_ATTEMPTS:
        smaller = False
        for candidate in candidates(program):
            attempts += 1
            found = judge(candidate)
            if found.kind == verdict.kind:
                program, verdict, smaller = candidate, found, True
                break
            if attempts >= MOST_ATTEMPTS:
                break
    return program, verdict


def candidates(program: Program) -> Iterator[Program]:
    """Yield programs that are simpler by one thing, the largest things first."""
    replace = dataclasses.replace
    if len(program.uses) > 1:
        for i in range(len(program.uses)):
            yield _without(program, i)
    for i, use in enumerate(program.uses):
        for simpler in (replace(use, write=-1), replace(use, wrapper="plain")):
            if simpler != use:
                yield replace(program, uses=(*program.uses[:i], simpler, *program.uses[i + 1 :]))
    if program.cache != "constant values":
        yield replace(program, cache="constant values")
    entries = [e for e in ("function", "method") if all(e in use.feature.entries for use in program.uses)]
    if entries and program.entry not in entries[:1]:
        yield replace(program, entry=entries[0])
    if program.returns_values:
        yield replace(program, returns_values=False)
    for length in (8, 4, 2, 1):
        for start in range(len(program.steps) - length, -1, -1):
            steps = program.steps[:start] + program.steps[start + length :]
            if any(step[0] == "call" for step in steps):
                yield replace(program, steps=steps)
    if any(step[0] == "call" and step[1] for step in program.steps):
        yield replace(program, steps=tuple(("call", 0) if s[0] == "call" else s for s in program.steps))


def _without(program: Program, index: int) -> Program:
    steps: list[tuple[Any, ...]] = []
    for step in program.steps:
        if step[0] == "call":
            steps.append(step)
        elif step[1] != index:
            steps.append((step[0], step[1] - (step[1] > index), step[2]))
    uses = program.uses[:index] + program.uses[index + 1 :]
    return dataclasses.replace(program, uses=uses, steps=tuple(steps))


def described(program: Program, verdict: Verdict) -> str:
    """Return the failure and a script that shows it."""
    calls = [i for i, step in enumerate(program.steps) if step[0] == "call"]
    comments = {}
    if 0 <= verdict.step < len(calls):
        comments[calls[verdict.step]] = f"{verdict.kind} differs: eager {verdict.eager} | thunder {verdict.thunder}"
    heading = f"# {verdict.kind}: {program}\n"
    if not comments or verdict.kind == "error":
        heading += textwrap.indent(f"{verdict.thunder}\n{verdict.detail}", "# ", lambda line: True) + "\n"
    return heading + script(program, comments)
