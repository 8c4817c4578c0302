# SPDX-License-Identifier: Apache-2.0
"""One round: a process runs one version of each change, in forks of itself, and prints a line of JSON for each.

Forks are new processes for the program that runs in them, and do not spend seconds on importing torch.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch

import thunder
from saved_changes.change import Change, changes

_OF_PROCESSES = re.compile(r"<\w+Backward\w*>|0x[0-9a-f]+")  # parts of a text that differ between equal results


class _Program:
    """A source that was imported, and its callable."""

    def __init__(self, module: Any):
        self.module = module
        self.callable, self.arguments = module.make()
        is_module = isinstance(self.callable, torch.nn.Module)
        self.state = copy.deepcopy(self.callable.state_dict()) if is_module else None

    def result(self, function: Callable[..., Any]) -> list[Any]:
        """Return what a call computes, with gradients, as values of JSON; or the error that it raises."""
        try:
            return json.loads(json.dumps(self._result(function)).replace("NaN", '"NaN"'))  # type: ignore[no-any-return]
        except Exception as error:
            return ["error", type(error).__name__, str(error)[:100]]

    def _result(self, function: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        if hasattr(self.module, "reset"):
            self.module.reset()
        elif self.state is not None:
            self.callable.load_state_dict(self.state)
        grad = getattr(self.module, "GRAD", True)
        given = [
            x.clone().requires_grad_(x.is_floating_point() and grad) if isinstance(x, torch.Tensor) else x
            for x in self.arguments
        ]
        out = function(*given)
        outs = out if isinstance(out, (tuple, list)) else [out]
        found: list[Any] = [type(out).__name__, *map(_described, outs)]
        differentiable = [x for x in outs if isinstance(x, torch.Tensor) and x.requires_grad and x.is_floating_point()]
        if differentiable:
            inputs = [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]
            loss = sum((i + 1) * x.sum() for i, x in enumerate(differentiable))
            found += map(_described, torch.autograd.grad(loss, inputs, allow_unused=True))
        return [*found, self.module.after()] if hasattr(self.module, "after") else found


def _described(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return _OF_PROCESSES.sub("", repr(x))
    values = [round(v, 5) for v in x.detach().double().flatten().tolist()]
    return [values, str(x.dtype), list(x.shape), list(x.stride()), x.requires_grad]


def run(change: Change, version: int, folder: Path) -> dict[str, Any]:
    """Run one version of a change in this process; return what went wrong, and what became of the saved program."""
    place = folder / re.sub(r"\W", "_", change.name)
    place.mkdir(exist_ok=True)
    for old in place.glob("*.*"):
        old.unlink()
    for name, text in {"mod.py": change.sources[version], **change.files[version]}.items():
        (place / name).write_text(text)
    os.chdir(place)
    sys.path.insert(0, str(place))
    sys.dont_write_bytecode = True
    program = _Program(importlib.import_module("mod"))
    options = getattr(program.module, "OPTIONS", {})
    jitted = thunder.jit(program.callable, save=str(place / "saved"), executors=["torch"], **options)
    found = [program.result(jitted), program.result(jitted)]
    expected = program.result(program.callable)
    stats = thunder.compile_stats(jitted)
    wrong = "" if found == [expected, expected] else f"expected {expected}, found {found}"
    return {"wrong": wrong, "hits": stats.saved_hits, "notes": [e.reason for e in stats.events.of("saved")]}


def in_fork(change: Change, version: int, folder: Path, out: TextIO) -> None:
    """Run one version of a change in a fork of this process, which writes its report as a line."""
    out.flush()
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if status:
            out.write(json.dumps([change.name, {"wrong": f"died with status {status}", "hits": 0, "notes": []}]) + "\n")
        return
    try:
        try:
            report = run(change, version, folder)
        except BaseException:
            report = {"wrong": traceback.format_exc(), "hits": 0, "notes": []}
        out.write(json.dumps([change.name, report]) + "\n")
        out.flush()
    finally:
        os._exit(0)


def main() -> None:
    """Run one version of the changes with the given names: `rounds.py VERSION FOLDER NAMES`."""
    version, folder, names = int(sys.argv[1]), Path(sys.argv[2]), set(json.loads(sys.argv[3]))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    out = sys.stdout
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (for the programs, as long as this process runs)
    if sys.argv[4:] == ["--compiler"]:  # most programs are compiled, so their forks should find the compiler
        thunder.jit(torch.sin, save=False, executors=["torch"])(torch.ones(1))
    for change in changes():
        if change.name in names:
            in_fork(change, version, folder, out)


if __name__ == "__main__":
    main()
