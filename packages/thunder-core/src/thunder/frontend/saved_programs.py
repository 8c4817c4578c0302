# SPDX-License-Identifier: Apache-2.0
"""Saved programs of a jitted function: the lookup of a call that no cached program accepts.

`SavedPrograms` belongs to one `JitFunction`. It reads the entries of the function's key from the store, and the
prologue of each of them decides whether it is for the call. `saving.py` writes the entries. Neither this file nor what
it imports loads a language, the tracer or an executor.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from thunder.core.events import Event, EventLog
from thunder.core.state import registrants, registrations
from thunder.frontend.cache import NOT_FOR_THIS_CALL
from thunder.frontend.options import Options
from thunder.frontend.paths import Path
from thunder.frontend.specialization import Specialization
from thunder.runtime.autocast import no_autocast
from thunder.runtime.autograd.node import Key
from thunder.runtime.autograd.program import AutogradProgram
from thunder.runtime.autograd.requires_grad import switching_requires_grad
from thunder.runtime.decisions import Decision, same_answer
from thunder.runtime.lock import collection_paused
from thunder.saved.constants import Decoder
from thunder.saved.keys import call_text, is_importable, key_of, plugin_packages
from thunder.saved.programs import ProgramDecoder, SavedText, backward_folder, key_text, read_layout
from thunder.saved.references import Stale
from thunder.saved.store import SWITCH_VARIABLE, Store, default_directory
from thunder.saved.verify import Refused

__all__ = ["SavedAutograd", "SavedPrograms", "read_specialization"]

_DAMAGED = (KeyError, TypeError, ValueError, IndexError, AttributeError)


class SavedPrograms:
    """The saved programs of one jitted function."""

    def __init__(self, fn: Any, options: Options, transforms: Sequence[Any], log: EventLog, *, autograd: bool):
        self._fn = fn
        self._options = options
        self._transforms = transforms
        self._autograd = autograd
        self._log = log
        self.known: set[str] = set()  # the names of entries that are in the cache, or that this process cannot use
        self._epoch = registrations[0]
        self._shared: dict[str, Any] = {}
        self.off = self._reason_for_off()
        self.store = None if self.off is not None else Store(_directory(options))  # type: ignore[arg-type]

    @property
    def is_on(self) -> bool:
        """Whether programs are read and saved."""
        return self.store is not None

    @property
    def always(self) -> bool:
        """Whether the user asked to save all programs, not only those that took long to compile."""
        return self._options.save is not None

    def _reason_for_off(self) -> str | None:
        """Return why no program of this function is saved or read, or None."""
        if _directory(self._options) is None:
            return "saving is off"
        if self._options.cache in ("same input", "no caching"):
            return f'programs with cache="{self._options.cache}" are not saved'
        if self._options.bucketing != "never":
            return "programs whose ranks agree on merged collectives are not saved"
        for transform in self._transforms:
            if transform.saved_key() is None:
                return f"the transform {transform.name} does not say what it depends on (Transform.saved_key)"
        if os.environ.get("THUNDER_VERIFY", "0") not in ("", "0"):
            return "THUNDER_VERIFY is set"
        return None

    def key(self) -> str:
        """Return the key of the function's entries."""
        options = self._options
        return key_of(
            self._fn,
            {
                "executors": None if options.executors is None else [getattr(x, "name", x) for x in options.executors],
                "options": [
                    options.cache,
                    options.remat,
                    str(options.measured),
                    options.check_ranks,
                    options.kept_parameters,
                    options.overlap_memory,
                    options.cuda_graphs,
                    options.exact,
                    options.own_name,
                ],
                "extra": {name: repr(value) for name, value in options.extra.items()},
                "transforms": [[type(t).__module__, type(t).__qualname__, t.saved_key()] for t in self._transforms],
                "autograd": self._autograd,
            },
        )

    def foreign(self) -> str | None:
        """Return why programs depend on what only this process has registered, or None."""
        others = registrants - plugin_packages()
        return f"{min(others)} has registered executors or rules, which are no plugin" if others else None

    def note(self, reason: str, seconds: float | None = None, **details: Any) -> Event:
        """Record what became of a lookup or of a program that may be saved."""
        return self._log.add("saved", reason, seconds=seconds, details=details)

    # -- reading ------------------------------------------------------------------------------------------------------
    @collection_paused()
    def find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], observed: Sequence[Any]
    ) -> tuple[Specialization, Any] | None:
        """Return a saved program whose prologue accepts a call, and its inputs.

        If answers of decisions were `observed`, the program must be a path that begins with them.
        """
        if self.store is None or not os.path.isdir(self.store.directory):
            return None
        if registrations[0] != self._epoch:  # the cache drops what was read before, e.g. when the compiler is loaded
            self._epoch = registrations[0]
            self.known.clear()
        start, foreign = time.perf_counter(), self.foreign()
        if foreign is not None:
            self.note(f"miss: {foreign}")
            return None
        try:
            key = self.key()
            names = [name for name in self.store.names(key) if name not in self.known]
        except (Refused, OSError) as error:
            self.note(f"miss: {error}")
            return None
        call = call_text(args, kwargs) if names else ""
        reasons: dict[str, None] = {}
        for name in names:
            found = self._try(key, name, call, args, kwargs, observed)
            if isinstance(found, str):
                reasons[found] = None
                continue
            self.known.add(name)
            self.store.used(key, name)
            found[0].event = self.note(f"hit: {name[:12]}", time.perf_counter() - start, name=name)
            return found
        # A function that was never saved is no news, unless the user asked to save it.
        quiet = not reasons and not self.always
        self.note(f"miss: {next(iter(reasons), 'no program of this function is saved')}", quiet=quiet)
        return None

    def _try(
        self, key: str, name: str, call: str, args: Any, kwargs: Any, observed: Sequence[Any]
    ) -> tuple[Specialization, Any] | str:
        """Return the program of an entry and its inputs, or why it is not for this call."""
        assert self.store is not None
        try:
            content, signed = self.store.read_signed(key, name)
            if content["kind"] != "program":
                raise Refused("no program")
            if content["call"] != call and not content["symbolic"]:
                return "the saved programs are for other arguments"
            if not _begins_with(content, observed):
                return "the saved programs are other paths"
            for module, found in content["modules"].items():
                if is_importable(module) != found:
                    return f"whether the module {module} can be imported has changed"
            if not all(_has_order(*map(Decoder(None), part)) for part in content["orders"]):
                return "the elements of a set have another order in this process"
            decode = ProgramDecoder(self._fn, self._shared, signed, runs_code=self.store.is_of_user)
            prologue = SavedText(content["programs"]["prologue"]).function(decode, kind="prologue")
            try:
                inputs = prologue(*args, **kwargs)
            except NOT_FOR_THIS_CALL as failure:
                return f"{failure}"
            return read_specialization(content, decode, prologue, self._parts(name, content)), inputs
        except Stale as error:
            return f"{error}"
        except (Refused, OSError) as error:
            self.known.add(name)
            return f"{name[:12]}: {error}"
        except _DAMAGED as error:
            self.known.add(name)
            return f"{name[:12]}: damaged ({type(error).__name__}: {error})"

    def _parts(self, name: str, content: Mapping[str, Any]) -> _Parts:
        return _Parts(
            lambda: self._backward_of(name),
            # Imported by name at run time: only a program that was not saved loads the compiler.
            lambda decode: importlib.import_module("thunder.frontend.saving").rebuilt(
                content, decode, self._options, self._transforms, self._log
            ),
        )

    def _backward_of(self, name: str) -> Iterator[tuple[Mapping[str, Any], Callable[[], bool]]]:
        """Yield the saved backward programs of an entry, and functions that check their signatures."""
        store, folder = self.store, backward_folder(name)
        assert store is not None
        with contextlib.suppress(Refused, OSError):
            for other in store.names(folder):
                with contextlib.suppress(Refused, OSError):
                    yield store.read_signed(folder, other)


class _Parts:
    """How the parts of an entry are found that not every call needs."""

    def __init__(
        self,
        backward: Callable[[], Iterator[tuple[Mapping[str, Any], Callable[[], bool]]]],
        rebuild: Callable[[Decoder], Any],
    ):
        self.backward = backward
        self.rebuild = rebuild


def _directory(options: Options) -> str | None:
    """Return the directory of saved programs, or None if saving is off."""
    if options.save is False or os.environ.get(SWITCH_VARIABLE, "").strip().lower() in ("0", "false", "no", "off"):
        return None
    if options.save is None or options.save is True:
        return default_directory()
    return os.path.abspath(os.path.expanduser(options.save))


def _has_order(kind: str, given: Sequence[Any], order: Sequence[Any]) -> bool:
    """Check whether a set that is made of a list has its elements in an order."""
    return [*{"set": set, "frozenset": frozenset}[kind](given)] == order


def _begins_with(content: Mapping[str, Any], observed: Sequence[Any]) -> bool:
    """Check whether an entry is a path that begins with the answers of decisions that were observed."""
    if not observed:
        return True
    path = content["path"]
    if path is None or len(path["decisions"]) < len(observed):
        return False
    decode = Decoder(None)
    return all(same_answer(x, decode(d["answer"])) for x, d in zip(observed, path["decisions"]))


def read_specialization(
    content: Mapping[str, Any], decode: Decoder, prologue: Callable[..., Any], parts: Any
) -> Specialization:
    """Return the specialization of an entry whose prologue has accepted a call."""
    programs, flags = content["programs"], content["flags"]
    text = SavedText(programs["computation"])
    program, differentiable = text.function(decode), None
    if content["layout"] is None:
        run = torch.no_grad()(no_autocast(program)) if flags["no_grad"] else program
    else:
        program = no_autocast(program) if flags["no_autocast"] else program
        differentiable = SavedAutograd(content["layout"], decode, program, parts)
        run = torch.enable_grad()(differentiable.run) if flags["enables_grad"] else differentiable.run
    on, off = flags["switched"]
    if on or off:
        run = switching_requires_grad(run, on, off)
    epilogue = SavedText(programs["epilogue"]) if "epilogue" in programs else None
    return Specialization(
        prologue,
        run,
        None if epilogue is None else epilogue.function(decode),
        differentiable=differentiable,
        path=None if content["path"] is None else _path(content["path"], decode),
        leaves=[int(i) for i in content["leaves"]],
        traces=[text],  # type: ignore[list-item]
        prologue_traces=[SavedText(programs["prologue"])],  # type: ignore[list-item]
        epilogue_traces=[] if epilogue is None else [epilogue],  # type: ignore[list-item]
    )


def _path(content: Mapping[str, Any], decode: Decoder) -> Path:
    decisions = [Decision(d["question"], decode(d["answer"]), None, bool(d["random"])) for d in content["decisions"]]
    return Path(decisions, [tuple(decode(x) for x in source) for source in content["sources"]])


class SavedAutograd(AutogradProgram):
    """A saved program that torch's autograd can differentiate.

    Backward programs are read when gradients first arrive. For a combination of gradients without a saved program, the
    program is compiled anew from its source, which the entry contains.
    """

    def __init__(self, layout: Mapping[str, Any], decode: Decoder, program: Callable[..., Any], parts: _Parts):
        self._groups = layout["groups"]
        self._decode = decode
        self._parts = parts
        self._texts: dict[str, SavedText] | None = None
        self._rebuilt: Any = None
        super().__init__(read_layout(layout, decode), program)

    @property
    def texts(self) -> dict[str, SavedText]:
        """The saved backward programs by the texts of their keys."""
        with self._lock:
            if self._texts is None:
                self._texts = {}
                for content, signed in self._parts.backward():
                    with contextlib.suppress(Refused, *_DAMAGED):
                        if content["kind"] == "backward":
                            self._texts[content["key"]] = SavedText(content["program"], signed)
            return self._texts

    @property
    def rebuilt(self) -> Any:
        """The program compiled anew from its source."""
        with self._lock:
            if self._rebuilt is None:
                self._rebuilt = self._parts.rebuild(self._decode)
            return self._rebuilt

    def key(self, present: tuple[bool, ...], wanted: tuple[bool, ...]) -> Key:
        """Return the key of the backward program for the gradients that arrive and are wanted.

        A saved program that computes more gradients than are wanted is taken before a program is compiled.
        """
        key, whole = (present, wanted), (present, (True,) * len(wanted))
        for known in (key, whole):
            if known in self._backward or key_text(known) in self.texts:
                return known
        return super().key(present, wanted)

    @collection_paused()
    def make_backward(self, key: Key) -> Callable[..., Any]:
        """Read the backward program of a key, or compile it."""
        saved = self.texts.get(key_text(key))
        if saved is not None:
            with contextlib.suppress(Refused, Stale, *_DAMAGED):
                return saved.function(self._decode.of_file(saved.signed))
        return self.rebuilt.make_backward(key)  # type: ignore[no-any-return]

    def make_native_backward(self, key: Key) -> Any:
        """Return the backward program of a key by torch's own operations."""
        return self.rebuilt.make_native_backward(key)

    def make_recorded(self, key: Key) -> AutogradProgram | Exception:
        """Differentiate the backward program of a key, and compile it."""
        return self.rebuilt.make_recorded(key)  # type: ignore[no-any-return]

    def make_native(self) -> Callable[..., Any]:
        """Compile the forward program for torch's own operations."""
        return self.rebuilt.make_native()  # type: ignore[no-any-return]

    def output_groups(self) -> dict[int, set[int]]:
        """Return groups of outputs that are differentiated together, and the saved values that each group reads."""
        return {int(bits): {*needed} for bits, needed in self._groups}

    @property
    def backward_traces(self) -> Sequence[Any]:
        """The text of the backward program that ran last, or of the one for all gradients if none has run."""
        key: Any = self.ran if isinstance(self.ran, tuple) else self.everything
        saved = self.texts.get(key_text(key))
        if saved is not None:
            return [saved]
        self.rebuilt.backward_program(key)
        return self.rebuilt._backward_traces[key]  # type: ignore[no-any-return]
