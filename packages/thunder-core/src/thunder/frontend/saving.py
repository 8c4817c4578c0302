# SPDX-License-Identifier: Apache-2.0
"""Saved programs of a jitted function: which of its programs are saved, and the lookup of a call in the store.

`SavedPrograms` belongs to one `JitFunction`. A call that no cached program accepts is looked up in the store before it
is traced. A compiled program is saved if all that it refers to has a name in another process, and if compiling it took
long enough. Backward programs are saved when they are compiled.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from thunder.capture.base import sources
from thunder.capture.base.sources import Argument, Root, Source
from thunder.capture.reads.guard_kinds import HasType, IsAlive, IsObject
from thunder.core.devices import to_torch_device
from thunder.core.events import EventLog
from thunder.core.printer import PrintContext, trace_text
from thunder.core.trace import Trace, verification_level
from thunder.frontend.differentiable import DifferentiableProgram
from thunder.frontend.options import Options
from thunder.frontend.pipeline import Specialization, needs_decorators
from thunder.saved.constants import Decoder, Encoder, Path
from thunder.saved.keys import call_text, key_of
from thunder.saved.programs import SavedText, describe_layout, key_text
from thunder.saved.references import Stale, Unsavable
from thunder.saved.specialization import SavedSpecialization
from thunder.saved.store import SWITCH_VARIABLE, Store, default_directory
from thunder.saved.verify import Refused
from thunder.transforms.captured_region import CapturedRegion

__all__ = ["MIN_SECONDS", "SavedPrograms"]

# A program is saved by default if compiling it took at least so many seconds.
MIN_SECONDS = 1.0


class SavedPrograms:
    """The saved programs of one jitted function."""

    def __init__(self, fn: Any, options: Options, transforms: Sequence[Any], log: EventLog, *, autograd: bool):
        self._fn = fn
        self._log = log
        self._options = options
        self._transforms = transforms
        self._autograd = autograd
        self._pending: tuple[Specialization, Any, str, float] | None = None  # a program that will be saved
        self._tried: set[str] = set()  # the names of entries that are in the cache, or that this process cannot use
        self.directory = _directory(options)
        self.off = self._reason_for_off()
        self._store = None if self.off is not None else Store(self.directory)  # type: ignore[arg-type]

    def _reason_for_off(self) -> str | None:
        """Return why no program of this function is saved or read, or None."""
        if self.directory is None:
            return "saving is off"
        if self._options.cache in ("same input", "no caching"):
            return f'programs with cache="{self._options.cache}" are not saved'
        for transform in self._transforms:
            if transform.saved_key() is None:
                return f"the transform {transform.name} does not say what it depends on (Transform.saved_key)"
        if verification_level():
            return "THUNDER_VERIFY is set"
        return None

    # -- the key ------------------------------------------------------------------------------------------------------
    def _key_now(self) -> str:
        options = self._options
        extra = {name: repr(value) for name, value in options.extra.items()}
        described = {
            "executors": None if options.executors is None else [getattr(x, "name", x) for x in options.executors],
            "options": [options.cache, options.remat, options.cuda_graphs, options.exact, options.name_for(self._fn)],
            "extra": extra,
            "transforms": [[type(t).__module__, type(t).__qualname__, t.saved_key()] for t in self._transforms],
            "autograd": self._autograd,
        }
        return key_of(self._fn, described)

    # -- reading ------------------------------------------------------------------------------------------------------
    def find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], observed: Sequence[Any], refusals: tuple[type[Exception], ...]
    ) -> tuple[Any, Any] | None:
        """Return a saved program whose prologue accepts a call, and its inputs."""
        if self._store is None or observed or not os.path.isdir(self._store.directory):
            return None
        start = time.perf_counter()
        try:
            key = self._key_now()
            names = [name for name in self._store.names(key) if name not in self._tried]
        except (Refused, OSError) as error:
            self._note(f"miss: {error}")
            return None
        call = call_text(args, kwargs) if names else ""
        reason = "no program of this function is saved"
        for name in names:
            found = self._entry(key, name, call)
            if isinstance(found, str):
                reason = found
                continue
            specialization = found
            try:
                inputs = specialization.prologue(*args, **kwargs)
            except refusals as failure:
                reason = f"{failure}"
                continue
            try:
                specialization.load()
            except (Refused, Stale, KeyError, TypeError, ValueError, IndexError) as error:
                self._tried.add(name)
                reason = f"{name[:12]}: {error}"
                continue
            self._tried.add(name)
            self._store.used(key, name)
            self._note(f"hit: {name[:12]}", seconds=time.perf_counter() - start, name=name)
            return specialization, inputs
        self._note(f"miss: {reason}")
        return None

    def _entry(self, key: str, name: str, call: str) -> SavedSpecialization | str:
        """Return the specialization of an entry, or why it is not for this call."""
        assert self._store is not None
        try:
            content = self._store.read(key, name)
            if content["kind"] != "program":
                raise Refused("no program")
            if content["call"] != call and not content["symbolic"]:
                return "the saved programs are for other arguments"
            decode = Decoder(self._fn)
            return SavedSpecialization(content, decode, lambda: self._backward_of(name, decode), self._rebuild)
        except (Refused, OSError) as error:
            self._tried.add(name)
            return f"{name[:12]}: {error}"
        except Stale as error:
            return f"{error}"
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            self._tried.add(name)
            return f"{name[:12]}: damaged ({type(error).__name__})"

    def _backward_of(self, name: str, decode: Decoder) -> Iterator[tuple[str, SavedText, Decoder]]:
        assert self._store is not None
        with contextlib.suppress(Refused, OSError):
            for other in self._store.names(_backward_key(name)):
                with contextlib.suppress(Refused, OSError, KeyError, TypeError):
                    content = self._store.read(_backward_key(name), other)
                    if content["kind"] == "backward":
                        yield content["key"], SavedText(content["name"], content["program"]), decode

    def _rebuild(self, content: Mapping[str, Any], decode: Decoder) -> Any:
        raise Refused("a combination of gradients that was not saved")

    # -- writing ------------------------------------------------------------------------------------------------------
    def keep(self, specialization: Specialization, captured: Any, args: Any, kwargs: Any, seconds: float) -> None:
        """Remember a program that has just been compiled, if saving it pays. `compiled` then saves it."""
        if self._store is not None and (self._options.save is not None or seconds >= MIN_SECONDS):
            self._pending = specialization, captured, call_text(args, kwargs), seconds

    def compiled(self, specialization: Specialization) -> None:
        """Save a program once the traced function's objects are as they were before the trace."""
        pending, self._pending = self._pending, None
        if pending is not None and pending[0] is specialization:
            self._save(*pending)

    def _save(self, specialization: Specialization, captured: Any, call: str, seconds: float) -> None:
        assert self._store is not None
        try:
            writer = _Writer(self._fn, specialization)
            content = writer.content(captured, call, seconds)
            key = self._key_now()
            name = self._store.write(key, content)
        except (Unsavable, Refused, OSError) as error:
            self._note(f"not saved: the program refers to {error}" if isinstance(error, Unsavable) else f"not saved: {error}")
            return
        self._tried.add(name)
        self._note(f"saved: {name[:12]}", name=name)
        if specialization.differentiable is not None:
            specialization.differentiable.on_backward = lambda key, traces: self._save_backward(name, writer, key, traces)

    def _save_backward(self, name: str, writer: _Writer, key: Any, traces: Sequence[Trace]) -> None:
        assert self._store is not None
        try:
            program = writer.program(traces[-1])
            content = {"kind": "backward", "key": key_text(key), "name": traces[-1].name, "program": program}
            self._store.write(_backward_key(name), content)
        except (Unsavable, Refused, OSError) as error:
            self._note(f"backward not saved: {error}")

    def _note(self, reason: str, seconds: float | None = None, **details: Any) -> None:
        self._log.add("saved", reason, seconds=seconds, details=details)


def _backward_key(name: str) -> str:
    return f"{name[:38]}.b"


def _directory(options: Options) -> str | None:
    """Return the directory of saved programs, or None if saving is off."""
    if options.save is False or os.environ.get(SWITCH_VARIABLE, "").strip().lower() in ("0", "false", "no", "off"):
        return None
    if options.save is None or options.save is True:
        return default_directory()
    return os.path.abspath(os.path.expanduser(options.save))


class _Writer:
    """Describes a specialization and its backward programs as JSON."""

    def __init__(self, fn: Any, specialization: Specialization):
        self._specialization = specialization
        guards = () if specialization.guarded is None else specialization.guarded.guards.values()
        self._encode = Encoder(fn, _Paths(guards))

    def content(self, captured: Any, call: str, seconds: float) -> dict[str, Any]:
        """Return the content of the entry."""
        s, differentiable = self._specialization, self._specialization.differentiable
        if s.path is not None:
            raise Unsavable("answers of branches on values")
        if captured.uses_hashes:
            raise Unsavable("hashes or the order of a set, which differ between processes")
        programs = {"prologue": self.program(s.prologue_traces[-1], guards=True)}
        last = s.traces[-1] if differentiable is None else differentiable.traces[-1]
        programs["computation"] = self.program(last)
        if s.epilogue_traces:
            programs["epilogue"] = self.program(s.epilogue_traces[-1])
        layout = None
        if differentiable is not None:
            layout = self._layout(differentiable)
        return {
            "kind": "program",
            "name": last.name,
            "call": call,
            "symbolic": "symbols" in captured.computation.info,
            "seconds": round(seconds, 3),
            "operations": 0 if s.event is None else s.event.details["operations"],
            "executors": {} if s.event is None else s.event.details["executors"],
            "programs": programs,
            "layout": layout,
            "flags": {
                "no_grad": differentiable is None and needs_decorators(last),
                "no_autocast": differentiable is not None and differentiable.without_autocast,
                "enable_grad": differentiable is not None and s.enables_grad,
                "switched": [list(x) for x in captured.switched],
            },
        }

    def _layout(self, differentiable: DifferentiableProgram) -> dict[str, Any]:
        split, layout = differentiable.split, differentiable.layout
        groups = split.output_groups() if layout.retention is not None else {}
        return describe_layout(layout, groups, to_torch_device(split.wrt[0].device), self._encode)

    def program(self, trace: Trace, *, guards: bool = False) -> dict[str, Any]:
        """Return the text of a trace and its constants."""
        if any(isinstance(op.sym.fn, CapturedRegion) for op in trace.bound_symbols):
            raise Unsavable("a CUDA graph")
        context = PrintContext()
        text = trace_text(trace, depth=0, decorators=False, context=context)
        lines = text[text.index("def ") :].split("\n")
        text = "\n".join([_without_comment(line) for line in lines if not line.lstrip().startswith("#")])
        text = text.encode("ascii", "backslashreplace").decode()
        constants = {
            name: self._encode(x) for name, x in context.objects.items() if name not in ("GuardFailed", "TensorsDiffer")
        }
        program = {"text": text, "constants": constants}
        SavedText(trace.name, program).check(guards=guards)
        return program


def _without_comment(line: str) -> str:
    """Return a line without the type of its result."""
    at = line.rfind('  # ')
    return line[:at] if at > 0 and line.endswith('"') and line.startswith(f"  {line[at + 4 :].partition(':')[0]} = ") else line


class _Paths(Mapping[int, Path]):
    """The paths of objects that guards found, by the ids of the objects. They are computed when one is asked for."""

    def __init__(self, guards: Any):
        self._guards = guards
        self._found: dict[int, Path] | None = None

    def _all(self) -> dict[int, Path]:
        if self._found is None:
            self._found = {}
            for guard in self._guards:
                x, step = guard.operand, []
                if isinstance(guard, IsAlive):
                    x = guard.operand()
                elif isinstance(guard, HasType):
                    step = [["type"]]
                elif not isinstance(guard, IsObject):
                    continue
                path = _path_of(guard.source)
                if path is not None:
                    self._found.setdefault(id(x), (path[0], [*path[1], *step]))
        return self._found

    def __getitem__(self, key: int) -> Path:
        return self._all()[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


_STEPS: dict[type[Source], Callable[[Any], list[Any]]] = {
    sources.Attr: lambda s: ["attr", s.name],
    sources.Variables: lambda s: ["dict"],
    sources.Item: lambda s: ["item", s.key],
    sources.ModuleVariable: lambda s: ["item", s.key],
    sources.Global: lambda s: ["item", s.name],
    sources.Scope: lambda s: ["attr", s.attribute],
    sources.Cell: lambda s: ["cell", s.index],
    sources.CellContents: lambda s: ["contents"],
    sources.DictKeys: lambda s: ["keys"],
    sources.DictValues: lambda s: ["values"],
}


def _path_of(source: Source) -> Path | None:
    """Return the root of a source and the steps from it, or None if the source begins at an argument or calls code."""
    steps: list[list[Any]] = []
    while source.parent is not None:
        step = _STEPS.get(type(source))
        if step is None or source.operands:
            return None
        steps.append(step(source))
        source = source.parent
    if isinstance(source, Argument) or not isinstance(source, Root):
        return None
    return source.value, steps[::-1]
