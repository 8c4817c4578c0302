# SPDX-License-Identifier: Apache-2.0
"""`thunder.examine.report(fn, *args)`: one zip with all that a maintainer needs to understand a failure.

It contains versions, options, states of plugins, traces, guards, events, and a script that reproduces the failure with
random inputs of the same metadata. It contains no element of a tensor. Texts contain what a trace contains: names,
lines of source code, shapes, and the numbers and strings that the program depends on. The path of the home directory is
replaced by `~`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from thunder.core.events import KINDS
from thunder.core.trace import Trace
from thunder.core.tracebacks import all_frames
from thunder.frontend.differentiable import DifferentiableProgram
from thunder.frontend.jit import JitFunction, jitted_of
from thunder.frontend.specialization import Specialization
from thunder.plugins import manager
from thunder.reproduce import Reproduction, Script, repro
from thunder.reproduce.outcome import call_outcome
from thunder.reproduce.variants import jit_function, variant
from thunder.runtime.torch_private import autocast_devices, matmul_precision

__all__ = ["Archive", "add_call", "failing_call", "report"]

_DISTRIBUTIONS = re.compile(r"(pytorch-)?(torch|thunder|triton|numpy|nvidia|cuda|nvfuser|apex|transformer|optree)")
_VARIABLES = re.compile(r"THUNDER_|TORCH|PYTORCH_|TRITON_|CUDA_|NVFUSER_|CUBLAS_|OMP_NUM_THREADS$")
_README = """\
A report of thunder. It contains no element of a tensor.

summary.txt        what was found
environment.json   versions of Python, torch, thunder and what they use, the GPUs, and environment variables
plugins.json       the plugins that are installed, their states, and why
"""
_README_OF_FUNCTION = """\
{folder}
  options.json     the options of thunder.jit, and the modes of torch
  explain.txt      what was compiled, recompiled or ran eagerly
  events.json      the record of events from which the explanation is made
  guards.py        the conditions under which a call runs the compiled program
  epilogue.py      the assignments that a call repeats, if there are any
  forward/         the traces of the program, one for each pass
  backward/        the traces of the backward program, if gradients flow
  reproduce.py     a script that runs the program on random inputs, and compares with eager mode
"""


class Archive:
    """The files of a report, by name. `summary` says what was found, and `path` where the report was written."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.summary: list[str] = []
        self.path: Path | None = None
        self.failed = False  # whether a call differs from eager mode, or an error was raised
        self._readme = [_README]
        loaded = [record.to_dict() for record in manager().records()]
        self.add("environment.json", _json(_environment()))
        self.add("plugins.json", _json(loaded))

    def add(self, name: str, text: str) -> None:
        """Add a text file."""
        home = os.path.expanduser("~")
        self.files[name] = text if len(home) < 2 else text.replace(home, "~")

    def add_function(self, folder: str, jitted: JitFunction[..., Any], found: Reproduction | None = None) -> None:
        """Add what is known of a jitted function: its options, events and traces, and a script."""
        stats = jitted._stats
        self.failed = self.failed or (found is not None and found.failure is not None)
        self._readme.append(_README_OF_FUNCTION.format(folder=folder))
        self.summary.append(f"{folder}: {jitted!r}\n{found or stats.explain()}")
        self.add(f"{folder}/options.json", _json(_options(jitted)))
        self.add(f"{folder}/explain.txt", stats.explain())
        self.add(f"{folder}/events.json", _json([event.to_dict() for event in stats.events.of(*KINDS)]))
        if stats.last is not None:
            for name, text in _programs(stats.last):
                self.add(f"{folder}/{name}", text)
        script = found.script if found is not None and found.script is not None else _script_of(jitted, stats.last)
        if script is not None:
            self.add(f"{folder}/reproduce.py", script)

    def add_error(self, error: BaseException) -> None:
        """Add the traceback of an error, with all frames."""
        self.failed = True
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.add("error.txt", text)
        self.summary.insert(0, f"{type(error).__name__}: {error}")

    def write(self, path: str | Path) -> Archive:
        """Write the zip."""
        self.path = Path(path)
        self.add("summary.txt", "\n\n".join(self.summary) + "\n")
        files = {"README.txt": "\n".join(self._readme), **self.files}
        with zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        return self

    def __str__(self) -> str:
        found = "\n\n".join(self.summary)
        return found if self.path is None else f"{found}\n\nreport: {self.path} ({len(self.files) + 1} files)"

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Return the summary, the names of the files and the path as JSON types."""
        return {"path": None if self.path is None else str(self.path), "summary": self.summary, "files": [*self.files]}


def report(
    fn: Callable[..., Any],
    *args: Any,
    file: str | Path = "thunder_report.zip",
    tolerance: float | None = None,
    **kwargs: Any,
) -> Archive:
    """Write a zip that describes a call of `fn`, and contains a script that reproduces its failure.

    `fn` is a function or module, jitted or not. The call runs several times, on copies of the arguments and the module,
    and is compared with eager mode (`thunder.repro`); a function that changes other objects changes them. Without
    arguments, a jitted function that was called before is described as it is, and nothing runs. The report contains no
    element of a tensor: the inputs of the script are random, with the metadata of the arguments.
    """
    archive = Archive()
    jitted = jitted_of(fn)
    if isinstance(jitted, JitFunction) and jitted._stats.calls and not args and not kwargs:
        archive.add_function("program", jitted)
        return archive.write(file)
    with all_frames():
        add_call(archive, "program", fn, args, kwargs, tolerance)
    return archive.write(file)


def add_call(
    archive: Archive,
    folder: str,
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tolerance: float | None = None,
) -> None:
    """Add a call of a function: its differences from eager mode, and the program that it compiles."""
    given = jit_function(fn)
    made: list[JitFunction[..., Any]] = []

    def prepare(copied: Any) -> Any:
        made.append(variant(given, copied))
        return made[-1]

    outcome = call_outcome(given._fn, prepare, args, kwargs)
    found = repro(fn, *args, file=None, tolerance=tolerance, **kwargs)
    archive.add_function(folder, made[-1], found)
    if outcome.error is not None:
        archive.add_error(outcome.error)


def failing_call(error: BaseException) -> tuple[JitFunction[..., Any], tuple[Any, ...], dict[str, Any]] | None:
    """Return the innermost call of a jitted function in the traceback of an error, which has all frames, or None."""
    entry, found = error.__traceback__, None
    while entry is not None:
        values = entry.tb_frame.f_locals
        jitted = values.get("self")
        if entry.tb_frame.f_code.co_name == "__call__" and isinstance(jitted, JitFunction):
            found = jitted, values["args"], values["kwargs"]
        entry = entry.tb_next
    return found


# -- contents ---------------------------------------------------------------------------------------------------------
def _json(value: Any) -> str:
    return json.dumps(value, indent=2, default=str) + "\n"


def _environment() -> dict[str, Any]:
    found = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    wanted = sorted(name for name in found if name and _DISTRIBUTIONS.match(name.lower()))
    variables = {name: value for name, value in os.environ.items() if _VARIABLES.match(name)}
    return {
        **manager().env.to_dict(),
        "distributions": {name: found[name] for name in wanted},
        "variables": dict(sorted(variables.items())),
        "python_implementation": sys.version,
    }


def _options(jitted: JitFunction[..., Any]) -> dict[str, Any]:
    own = dict(vars(jitted._options))
    own["executors"] = [getattr(e, "name", e) for e in own["executors"]] if own["executors"] is not None else None
    return {
        "options": own,
        "executors": [e.name for e in jitted._options.resolved_executors()],
        "transforms": [t.name for t in jitted._transforms],
        "torch": {
            "grad_enabled": torch.is_grad_enabled(),
            "inference_mode": torch.is_inference_mode_enabled(),
            "autocast": {d: torch.is_autocast_enabled(d) for d in autocast_devices()},
            "default_dtype": str(torch.get_default_dtype()),
            "float32_matmul_precision": matmul_precision(),
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        },
    }


def _programs(found: Specialization) -> Iterator[tuple[str, str]]:
    """Yield the files of a compiled program."""
    if found.prologue_traces:
        yield "guards.py", found.prologue_traces[-1].python()
    if found.epilogue_traces:
        yield "epilogue.py", found.epilogue_traces[-1].python()
    yield from _numbered("forward", found.traces)
    if isinstance(found.differentiable, DifferentiableProgram):
        yield from _numbered("backward", found.differentiable.unrecorded_traces)


def _numbered(folder: str, traces: Sequence[Trace]) -> Iterator[tuple[str, str]]:
    for number, trace in enumerate(traces):
        name = "captured" if trace.provenance is None else trace.provenance.name
        yield f"{folder}/{number:02} {re.sub(r'[^A-Za-z0-9 ()-]', '', name)}.py", trace.python()


def _script_of(jitted: JitFunction[..., Any], found: Specialization | None) -> str | None:
    """Return a script that runs the captured program on random inputs, or None if there is no program."""
    if found is None or not found.traces:  # a program that was loaded has no traces
        return None
    executors = [e.name for e in jitted._options.resolved_executors()]
    return Script.of_program(found.traces[0], executors, jitted._stats.explain()).text
