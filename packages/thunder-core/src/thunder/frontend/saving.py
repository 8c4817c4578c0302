# SPDX-License-Identifier: Apache-2.0
"""Saving: which compiled programs are written to the store, and how they are described.

`saved_programs.py` reads them.

A program is saved if all that it refers to has a name in another process, and if compiling it took long enough.
Backward programs are saved when they are compiled. The source of a differentiated program is saved, too: a later
process compiles it anew for a combination of gradients that no process before it has seen.
"""

from __future__ import annotations

import functools
import os
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from thunder import plugins
from thunder.capture.base import sources
from thunder.capture.base.sources import Argument, Root, Source
from thunder.capture.capture import Captured
from thunder.capture.higher_order.branching import Branch
from thunder.capture.higher_order.custom_function import CustomPrograms
from thunder.capture.higher_order.gradient_hooks import Node
from thunder.capture.reads.guard_kinds import HasType, IsAlive, IsObject
from thunder.capture.reads.memoized_functions import CallMemoized
from thunder.core import prims
from thunder.core.devices import Device, to_device, to_torch_device
from thunder.core.dtypes import to_dtype, to_torch_dtype
from thunder.core.errors import ThunderError
from thunder.core.events import EventLog
from thunder.core.printer import PrintContext, trace_text
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.symint.expressions import number_of
from thunder.core.symint.numbers import SymbolicNumber
from thunder.core.symint.symbols import symbols_of
from thunder.core.trace import Trace
from thunder.extend import Compilation, compiling
from thunder.frontend.differentiable import DifferentiableProgram
from thunder.frontend.options import Options
from thunder.frontend.pipeline import Passes, graph_transforms, needs_decorators
from thunder.frontend.saved_programs import SavedPrograms
from thunder.frontend.specialization import Specialization
from thunder.passes.checkpoint import Region
from thunder.passes.kept_parameters import keep_parameters
from thunder.passes.split import Split
from thunder.runtime.lock import collection_paused
from thunder.runtime.names import HELPERS
from thunder.runtime.torch_private import at_end_of_backward
from thunder.saved.bytecode import dump_code
from thunder.saved.constants import WITH_PROGRAMS, Decoder, Encoder, Path
from thunder.saved.keys import call_text, is_importable
from thunder.saved.programs import ProgramDecoder, SavedText, backward_folder, describe_layout, key_text
from thunder.saved.references import Unsavable
from thunder.saved.source_names import SourceLines
from thunder.saved.store import Store
from thunder.saved.verify import CALL_MEMOIZED, Refused
from thunder.transforms.captured_region import CapturedRegion

__all__ = ["MIN_SECONDS", "Saving", "describe_program", "rebuilt"]

# A program is saved by default if compiling it took at least so many seconds.
MIN_SECONDS = 1.0


class _Facts(NamedTuple):
    """What a capture says about its program. The capture itself would keep the inputs of the call alive."""

    symbolic: bool
    varies: bool
    orders: Sequence[tuple[str, list[Any], list[Any]]]
    not_loaded: frozenset[str]
    enables_grad: bool
    switched: tuple[tuple[int, ...], tuple[int, ...]]
    functions: Mapping[int, weakref.ref[Any]]


class Saving:
    """Writes the programs of one jitted function to the store."""

    def __init__(self, fn: Any, saved: SavedPrograms, log: EventLog):
        self._fn = fn
        self._saved = saved
        self._log = log
        self._pending: tuple[Specialization, _Facts, str, float] | None = None

    def compiled(
        self, specialization: Specialization, captured: Captured, args: Any, kwargs: Any, seconds: float
    ) -> None:
        """Remember a program that has just been compiled, if saving it pays. `finish` then saves it."""
        if self._saved.is_on and (self._saved.always or seconds >= MIN_SECONDS):
            facts = _Facts(
                "symbols" in captured.computation.info,
                captured.varies,
                captured.orders,
                captured.not_loaded,
                captured.enables_grad,
                captured.switched,
                captured.functions,
            )
            self._pending = specialization, facts, call_text(args, kwargs), seconds

    def forget(self) -> None:
        """Do not save the program, because its first call has failed."""
        self._pending = None

    @collection_paused()
    def finish(self) -> None:
        """Save the program after its first call. Plugins describe fusions that have run."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            self._save(*pending)
        except Unsavable as error:
            self._saved.note(f"not saved: the program refers to {error}")
        except (Refused, OSError) as error:
            self._saved.note(f"not saved: {error}")
        except Exception as error:  # the call itself must not fail
            if os.environ.get("THUNDER_STRICT", "0") != "0":
                raise
            self._saved.note(f"not saved: {type(error).__name__}: {error}")

    def _save(self, specialization: Specialization, facts: _Facts, call: str, seconds: float) -> None:
        store, foreign = self._saved.store, self._saved.foreign()
        assert store is not None
        if foreign is not None:
            raise Refused(foreign)
        self._check_fusions(specialization.traces[-1])
        writer = _Writer(self._fn, specialization, store, facts.functions)
        name = store.write(self._saved.key(), writer.content(facts, call, seconds))
        self._saved.known.add(name)
        self._saved.note(f"saved: {name[:12]}", name=name)
        differentiable = specialization.differentiable
        if isinstance(differentiable, DifferentiableProgram):
            save = self._backward_saver(name, writer)
            for key, traces in differentiable._backward_traces.items():  # compiled for constraints of symbolic sizes
                save(key, traces)
            differentiable.on_backward = save

    def _check_fusions(self, trace: Trace) -> None:
        """Refuse to save fusions unless the user asks for it: their kernels are loaded by undocumented functions."""
        if _has_fusions(trace):
            if not self._saved.always:
                raise Refused("it has fusions; save=True saves such programs, too")
            assert self._saved.store is not None
            self._saved.store.check_key("kernels")

    def _backward_saver(self, name: str, writer: _Writer) -> Callable[[Any, Sequence[Trace]], None]:
        """Return the function that saves a backward program of the entry called `name`."""
        saved, store = self._saved, self._saved.store
        assert store is not None

        def save(key: Any, traces: Sequence[Trace]) -> None:
            if _has_fusions(traces[-1]):  # a fusion is described once it has run
                at_end_of_backward(lambda: write(key, traces))
            else:
                write(key, traces)

        def write(key: Any, traces: Sequence[Trace]) -> None:
            try:
                self._check_fusions(traces[-1])
                content = {"kind": "backward", "key": key_text(key), "program": writer.program(traces[-1])}
                store.write(backward_folder(name), content)
            except Unsavable as error:
                saved.note(f"backward not saved: the program refers to {error}")
            except Exception as error:  # the backward pass itself must not fail
                if os.environ.get("THUNDER_STRICT", "0") != "0" and not isinstance(error, (Refused, OSError)):
                    raise
                saved.note(f"backward not saved: {error}")

        return save


def _saved_region(x: Any) -> Any:
    """Return the module and the data with which a plugin describes a fusion, or None."""
    try:
        return plugins.manager().save_region(x)
    except Exception as error:
        raise Unsavable(f"a fusion that cannot be saved ({error})") from None


def _has_fusions(trace: Trace) -> bool:
    for op in trace.bound_symbols:
        if op.sym.is_fusion and not (isinstance(op.sym.fn, CapturedRegion) and not _has_fusions(op.sym.fn.trace)):
            return True
    return False


class _Writer:
    """Describes a specialization and its backward programs as JSON."""

    def __init__(
        self, fn: Any, specialization: Specialization, store: Store, functions: Mapping[int, weakref.ref[Any]]
    ):
        self._fn = fn
        self._store = store
        self._specialization = specialization
        guarded: Any = specialization.guarded
        paths = _Paths(() if guarded is None else guarded.guards)
        self._encode = Encoder(fn, paths, _saved_region, functions=functions)

    def content(self, facts: _Facts, call: str, seconds: float) -> dict[str, Any]:
        """Return the content of the entry."""
        if facts.varies:
            raise Unsavable("hashes, the order of a set or lines of sources, which differ between processes")
        s, differentiable = self._specialization, self._specialization.differentiable
        last = differentiable.traces[-1] if isinstance(differentiable, DifferentiableProgram) else s.traces[-1]
        programs = {"prologue": self._prologue(s.prologue_traces[-1]), "computation": self.program(last)}
        if s.epilogue_traces:
            programs["epilogue"] = self.program(s.epilogue_traces[-1])
        if self._encode.makes_functions:
            self._store.check_key("functions that programs make")
        layout = source = None
        if isinstance(differentiable, DifferentiableProgram):
            groups = differentiable.output_groups() if differentiable.layout.retains else {}
            layout = describe_layout(differentiable.layout, groups, self._encode)
            source = self._source(differentiable)
        event: Any = s.event
        return {
            "kind": "program",
            "title": getattr(self._fn, "__qualname__", type(self._fn).__qualname__),
            "call": call,
            "symbolic": facts.symbolic,
            "seconds": round(seconds, 3),
            "operations": event.details["operations"],
            "executors": event.details["executors"],
            "programs": programs,
            "layout": layout,
            "source": source,
            "path": None if s.path is None else self._path(s.path),
            "leaves": list(s.leaves),
            "orders": [[kind, *map(self._encode, lists)] for kind, *lists in facts.orders],
            "modules": {name: is_importable(name) for name in sorted(facts.not_loaded)},
            "flags": {
                "no_grad": differentiable is None and needs_decorators(last),
                "no_autocast": isinstance(differentiable, DifferentiableProgram) and differentiable.without_autocast,
                "enables_grad": facts.enables_grad,
                "switched": [list(x) for x in facts.switched],
            },
        }

    def _prologue(self, trace: Trace) -> dict[str, Any]:
        try:
            program = self.program(trace, "prologue")
        except Refused:
            guarded: Any = self._specialization.guarded
            for guard in () if guarded is None else guarded.guards:
                source = guard.source
                while source is not None and not isinstance(source, CallMemoized):
                    source = source.parent
                if source is not None:
                    raise Unsavable(f"{source}, a call of a memoized function that no module has by name") from None
            raise
        if CALL_MEMOIZED in program["text"]:
            self._store.check_key("calls of memoized functions")
        return program

    def _path(self, path: Any) -> dict[str, Any]:
        encode = self._encode
        return {
            "decisions": [
                {"answer": encode(d.answer), "question": d.question, "random": d.random} for d in path.decisions
            ],
            "sources": [[encode(_plain_device(x)) for x in source] for source in path.sources],
        }

    def _source(self, differentiable: DifferentiableProgram) -> dict[str, Any]:
        """Describe the program before it was differentiated."""
        trace = differentiable.split.source
        source: dict[str, Any] = {
            "program": self.program(trace, "source"),
            "arguments": [self._argument(p) for p in trace.args],
            "remat": differentiable.remat,
        }
        symbols, constants = trace.info.get("symbols"), source["program"]["constants"].values()
        if symbols is not None:
            source |= self._sizes(differentiable.split, source)
        if symbols is not None or any(isinstance(x, list) and x[0] in WITH_PROGRAMS for x in constants):
            self._check_source(source)
        return source

    def _check_source(self, source: Mapping[str, Any]) -> None:
        """Raise `Unsavable` unless the source leads to the same trace again, with the same constraints."""
        try:
            again = _traced(source, ProgramDecoder(self._fn, {}))
        except Exception as error:
            raise Unsavable(f"a program whose gradients cannot be compiled anew ({error})") from None
        same = _with_common_names(_text_of(again, PrintContext(symbols=True, types=False)))
        if same != _with_common_names(source["program"]["text"]) or not _constraints(again) <= {
            *source.get("constraints", ())
        }:
            raise Unsavable("a program whose gradients cannot be compiled anew: its source does not determine it")

    def _argument(self, p: Any) -> list[Any]:
        if isinstance(p, NumberProxy):
            return [p.name, self._encode(number_of(p).hint)]
        if not isinstance(p, TensorProxy):
            raise Unsavable(f"an input that is a {type(p).__name__}")
        dtype, device = to_torch_dtype(p.dtype), to_torch_device(p.device)
        shape = [[str(n), n.hint] if isinstance(n, SymbolicNumber) else n for n in p.shape]
        return [p.name, shape, self._encode(dtype), str(device), p.requires_grad]

    def _sizes(self, split: Split, source: Mapping[str, Any]) -> dict[str, Any]:
        """Describe the constraints on symbolic sizes, and those that were known before differentiation as a program."""
        symbols = split.source.info["symbols"]
        constraints = [c.text() for c in symbols.constraints]
        lines = [f"  c{i} = {c.text()}" for i, c in enumerate(split.constraints)]
        leaves = [x[0] for a in source["arguments"] for x in (a[1] if len(a) > 2 else [a]) if isinstance(x, list)]
        known = "\n".join([f"def constraints({', '.join(leaves)}):", *lines, "  return None"])
        return {"known": {"name": "constraints", "text": known, "constants": {}}, "constraints": constraints}

    def program(self, trace: Trace, kind: str = "program") -> dict[str, Any]:
        """Return the text of a trace and its constants."""
        return describe_program(trace, self._encode, kind)


def describe_program(trace: Trace, encode: Encoder, kind: str = "program") -> dict[str, Any]:
    """Return the name of a trace, its text and its constants."""
    printed = trace.printed() if kind != "source" else None
    if printed is None:
        context = PrintContext(symbols=kind == "source", types=False)
        printed = trace_text(trace, depth=0, decorators=False, context=context), context.objects
    text, objects = _without_comments(printed[0]), printed[1]
    nested = {id(op.sym): op for op in trace.bound_symbols if kind == "source"}
    constants = {
        name: _composite(nested[id(x)], encode) if id(x) in nested else _constant(x, encode)
        for name, x in objects.items()
        if HELPERS.get(name) is not x
    }
    program = {"name": trace.name, "text": text, "constants": constants}
    code = None if kind == "source" else dump_code(trace.function, printed[0])
    if code is not None:
        program["code"] = code
    SavedText({**program, "text": _different_lines(text)}).check(kind, lambda: True)
    return program


_DIGITS = str.maketrans("123456789", "000000000")


def _different_lines(text: str) -> str:
    """Return one of all lines that differ in digits and in texts between single quotes only.

    Checking these finds out whether a reader will refuse the program. The reader checks all of them.
    """
    kinds = ["".join(line.split("'")[::2]) if "'" in line else line for line in text.translate(_DIGITS).split("\n")]
    return "\n".join(dict(zip(kinds, text.split("\n"))).values())


def _constant(x: Any, encode: Encoder) -> Any:
    if isinstance(x, CapturedRegion):
        return ["graph", describe_program(x.trace, encode), x.settings]
    if isinstance(x, Node):
        raise Unsavable("hooks on gradients, which are functions that no saved program calls")
    if isinstance(x, Branch):
        raise Unsavable("the branches of torch.cond")
    if not isinstance(x, Symbol):
        return encode(x)
    if isinstance(x.id, tuple) and str(x.id[0]).startswith("opaque"):
        return ["symbol", encode(x.fn)]
    raise Unsavable(f"the operation {x.name}")


def _composite(op: BoundSymbol, encode: Encoder) -> Any:
    """Return the JSON of an operation that exists in its program only, with the programs that define it."""
    if isinstance(op.sym, Region):
        inner = Trace("checkpoint", args=op.args)
        inner.names.update(n for part in op.subsymbols for n in (*part.arg_names, *part.out_names))
        inner.bound_symbols += [*op.subsymbols, BoundSymbol(prims.python_return, (op.output,), {}, None)]
        return ["checkpoint", describe_program(inner, encode, "source"), op.sym.same_random_numbers]
    programs = getattr(op.sym, "programs", None)
    if isinstance(programs, CustomPrograms):
        forward, backward = (describe_program(trace, encode, "source") for trace in programs.traces())
        return ["custom", forward, backward, programs.settings()]
    return _constant(op.sym, encode)


def _text_of(trace: Trace, context: PrintContext) -> str:
    """Return the text of a trace without imports and comments, in ASCII."""
    return _without_comments(trace_text(trace, depth=0, decorators=False, context=context))


def _plain_device(x: Any) -> Any:
    return to_torch_device(x) if isinstance(x, Device) else x


_LINE_OF_COMMENT = re.compile(r"\n *#[^\n]*")
_COMMENT = re.compile(r'  # \w+: "[^"\n]*"$', re.MULTILINE)


def _without_comments(text: str) -> str:
    """Return a text without imports, without lines of comments, and without the types of results."""
    text = _COMMENT.sub("", _LINE_OF_COMMENT.sub("", text[text.index("def ") :]))
    text = text if "\n" in text else f"{text}\n  pass"
    return text if text.isascii() else text.encode("ascii", "backslashreplace").decode()


# -- compiling a saved program anew -----------------------------------------------------------------------------------
_LOCAL_NAME = re.compile(r"\b[a-z]+\d+\b")


def rebuilt(
    content: Mapping[str, Any], decode: Decoder, options: Options, transforms: Sequence[Any], log: EventLog
) -> DifferentiableProgram:
    """Compile the differentiated program of an entry from its source.

    Its forward program must be the saved one, whose saved values a backward program receives.
    """
    source = content["source"]
    compilation = Compilation(options.extra)
    executors = options.resolved_executors()
    passes = Passes(executors, compilation, (*transforms, *graph_transforms(options, transforms)), source["remat"])
    with log.active(), compiling(compilation):
        trace = _traced(source, decode)
        keep_parameters(trace, options.kept_parameters)
        split = Split(
            trace,
            executors,
            [p for p in trace.args if isinstance(p, TensorProxy) and p.requires_grad],
            remat=source["remat"],
        )
        program = DifferentiableProgram(split, passes.to_execution, remat=source["remat"])
        if "symbols" in trace.info:
            program.backward_program(program.everything)  # adds constraints, like when it was compiled first
            trace.info["symbols"].closed = True
    found, saved = _text_of(program.traces[-1], PrintContext()), content["programs"]["computation"]["text"]
    constraints = _constraints(trace)
    if _with_common_names(found) != _with_common_names(saved) or not constraints <= {*source.get("constraints", ())}:
        raise ThunderError(
            "gradients arrive for which no backward program was saved, and the saved program cannot be compiled anew: "
            "set THUNDER_CACHE=0, or remove the saved programs with `thunder cache prune --all`"
        )
    return program


def _constraints(trace: Trace) -> set[str]:
    return {c.text() for c in trace.info["symbols"].constraints} if "symbols" in trace.info else set()


def _traced(source: Mapping[str, Any], decode: Decoder) -> Trace:
    """Return the trace of a saved source."""
    function = SavedText(source["program"]).function(decode, kind="source")
    trace = Trace(source["program"]["name"])
    arguments = [_proxy(trace, row, decode) for row in source["arguments"]]
    trace.args = arguments
    with tracectx(trace):
        for p in arguments:
            prims.unpack_trivial(p)
        if "known" in source:
            for p, dim, size in _symbolic_sizes(arguments):
                trace.record(BoundSymbol(prims.size, (p, dim), {}, size.proxy))
            leaves = [size for p in arguments for size in (p.shape if isinstance(p, TensorProxy) else [p.symbol])]
            known = SavedText(source["known"]).function(decode, kind="source")
            known(*[x for x in leaves if isinstance(x, SymbolicNumber)])
        with SourceLines():
            found = function(*map(number_of, arguments))
        prims.python_return(found)
    return trace


def _proxy(trace: Trace, row: Sequence[Any], decode: Decoder) -> Any:
    """Return an argument of a saved source: a tensor, whose sizes may be symbolic, or a number."""
    if len(row) == 2:
        name, value = row
        return symbols_of(trace).number(decode(value), name).proxy
    name, shape, dtype, device, grad = row
    sizes = [symbols_of(trace).size(n[1], n[0]) if isinstance(n, list) else n for n in shape]
    return TensorProxy(
        name=name, shape=tuple(sizes), dtype=to_dtype(decode(dtype)), device=to_device(device), requires_grad=grad
    )


def _symbolic_sizes(arguments: Sequence[Any]) -> Iterator[tuple[TensorProxy, int, Any]]:
    for p in arguments:
        for dim, size in enumerate(p.shape if isinstance(p, TensorProxy) else ()):
            if isinstance(size, SymbolicNumber):
                yield p, dim, size


def _with_common_names(text: str) -> str:
    """Return a text in which values have names that only depend on their order."""
    names: dict[str, str] = {}
    return _LOCAL_NAME.sub(lambda m: names.setdefault(m[0], f"v{len(names)}"), text)


# -- paths of objects -------------------------------------------------------------------------------------------------
class _Paths(Mapping[int, Path]):
    """The paths of objects that guards found, by the ids of the objects. They are computed when one is asked for."""

    def __init__(self, guards: Any):
        self._guards = guards

    @functools.cached_property
    def _found(self) -> dict[int, Path]:
        found: dict[int, Path] = {}
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
                found.setdefault(id(x), (path[0], [*path[1], *step]))
        return found

    def __contains__(self, key: object) -> bool:
        return key in self._found

    def __getitem__(self, key: int) -> Path:
        return self._found[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


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
