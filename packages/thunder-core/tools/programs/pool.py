# SPDX-License-Identifier: Apache-2.0
"""Runs programs in processes of their own, so that a crash or a time limit ends only one program.

This process imports torch and thunder, and forks a server for each project. The server imports the project, and forks a
process for each program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from programs.results import Result

__all__ = ["load", "prepare", "run"]

_STARTS = 300.0  # seconds for the imports of a project


def load(module: str) -> Any:
    """Return the `Project` of a module of `programs.projects`."""
    return importlib.import_module(f"programs.projects.{module}").PROJECT


def run(module: str, names: Sequence[str], *, timeout: float, how: str) -> Iterator[Result]:
    """Yield the results of programs of a project, one after the other. Each may take `timeout` seconds."""
    context = multiprocessing.get_context("fork")
    pending = list(names)
    while pending:
        connection, other = context.Pipe()
        server = context.Process(target=_serve, args=(other, module, timeout, how))
        server.start()
        other.close()
        try:
            while pending:
                name = pending.pop(0)
                connection.send(name)
                result = Result(load(module).name, name, reason="the project cannot be imported")
                alive = connection.poll(_STARTS + 2 * timeout)
                if alive:
                    try:
                        result = connection.recv()
                    except EOFError:
                        alive = False
                yield result
                if not alive:
                    break
        finally:
            connection.close()
            server.kill()
            server.join()


def prepare(how: str) -> None:
    """Import torch and thunder, and compile something: imports that every first call needs are no part of its time."""
    import torch

    torch.set_num_threads(1)
    if how != "eager":
        import thunder

        thunder.jit(torch.sin)(torch.ones(2))
    if how == "dynamo":
        torch.compile(torch.sin, backend="aot_eager")(torch.ones(2))


def _serve(connection: Connection, module: str, timeout: float, how: str) -> None:
    """Run the programs whose names arrive."""
    project = load(module)
    for requirement in project.requires:  # import once what all programs need
        with contextlib.suppress(Exception):
            importlib.import_module(re.split(r"[=<>!~]", requirement)[0].replace("-", "_").removesuffix("_ppl"))
    while True:
        try:
            name = connection.recv()
        except EOFError:
            return
        connection.send(_in_child(project.programs[name], Result(project.name, name), timeout, how))


def _in_child(program: Any, result: Result, timeout: float, how: str) -> Result:
    """Examine a program in a forked process."""
    context = multiprocessing.get_context("fork")
    connection, other = context.Pipe()
    with tempfile.TemporaryFile("w+") as log:
        child = context.Process(target=_examine, args=(other, program, result, how, log.fileno()))
        child.start()
        other.close()
        try:
            while connection.poll(timeout):
                result = connection.recv()
        except EOFError:
            child.join()
            if result.verdict == "ended":
                log.seek(max(0, log.seek(0, 2) - 500))
                result.reason = f"the process ended with exit code {child.exitcode}: {log.read()}"
        else:
            result.reason += f" (no result after {timeout:g} seconds)"
        finally:
            child.kill()
            child.join()
            connection.close()
    return result


def _examine(connection: Connection, program: Any, result: Result, how: str, log: int) -> None:
    from programs.examine import examine

    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        os.dup2(log, 1)  # what examples print
        os.dup2(log, 2)
        examine(program, result, how=how, save=lambda partial: connection.send(dataclasses.replace(partial)))
        connection.send(result)
        connection.close()
        sys.stdout.flush()
        os._exit(0)
