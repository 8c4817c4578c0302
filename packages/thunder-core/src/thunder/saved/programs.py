# SPDX-License-Identifier: Apache-2.0
"""Programs read from an entry: their texts are checked, compiled and run without the tracer."""

from __future__ import annotations

import builtins
import importlib
import itertools
import linecache
import math
import operator
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from thunder.core.tracebacks import PROGRAM_PREFIX
from thunder.runtime.autocast import no_autocast
from thunder.runtime.autograd.node import Key, NodeLayout, autograd_function
from thunder.runtime.autograd.results import FlatItem, Slot, builder, flattener
from thunder.runtime.autograd.saved_tensor_retention import SavedTensorRetention
from thunder.runtime.autograd.staged_backward import StagedBackward
from thunder.runtime.guards import GuardFailed, TensorsDiffer
from thunder.runtime.torch_originals import namespaces, original_torch
from thunder.saved.constants import Decoder, Encoder
from thunder.saved.operators import HELPERS, OPERATORS
from thunder.saved.references import Stale
from thunder.saved.verify import Names, Refused, verify

__all__ = ["SavedDifferentiable", "SavedText", "describe_layout", "key_text", "read_layout"]

_counter = itertools.count()
_BUILTINS = ("len", "type", "tuple", "list", "dict", "float", "complex", "slice", "bool", "int", "str", "bytes", "set",
             "hasattr", "sorted")  # fmt: skip
# Modules of torch's C functions that programs call by names of their own, if the name is one of torch's operators.
_C_MODULES = frozenset({"torch", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft", "torch._C._nn",
                        "torch._C._special", "torch._C._linalg", "torch._C._fft"})  # fmt: skip
_NAMES = frozenset(name.rpartition(".")[2] for name in OPERATORS)
_PREFIXES = ("special_", "linalg_", "fft_")


class SavedText:
    """The text of one program with its constants as JSON."""

    def __init__(self, name: str, content: Mapping[str, Any]):
        self.name = name
        self.text: str = content["text"]
        self.constants: dict[str, Any] = content["constants"]
        if type(self.text) is not str or type(self.constants) is not dict:
            raise Refused("damaged")

    def __str__(self) -> str:
        return self.text

    def python(self, **options: Any) -> str:
        """Return the text, like `Trace.python`."""
        return self.text

    def check(self, *, guards: bool = False) -> None:
        """Raise `Refused` unless the text is one that the printer writes."""
        names = Names(
            {name for name, constant in self.constants.items() if _may_be_called(constant)},
            {name for name, constant in self.constants.items() if _is(constant, "weak", 2)},
            {name: x[1] for name, x in self.constants.items() if _is(x, "ref", 4) and x[2] == []},
            self.constants.keys(),
        )
        if not _RESERVED.isdisjoint(self.constants):
            raise Refused("a constant with the name of a module or a function")
        verify(self.text, names, guards=guards)

    def function(self, decode: Decoder, *, guards: bool = False) -> Callable[..., Any]:
        """Check and compile the text, and return the function that it defines."""
        self.check(guards=guards)
        namespace = {name: decode(constant) for name, constant in self.constants.items()}
        namespace.update(_roots(self.text))
        filename = f"{PROGRAM_PREFIX}saved.{self.name} {next(_counter)}>"
        exec(compile(self.text, filename, "exec", dont_inherit=True), namespace)
        function = namespace[self.name]
        if not isinstance(function, types.FunctionType):
            raise Refused(f"the text defines no {self.name}")
        linecache.cache[filename] = (len(self.text), None, self.text.splitlines(keepends=True), filename)
        return function


_RESERVED = frozenset({*_BUILTINS, "__builtins__", "torch", "Tensor", "operator", "math", "torchex", "dtypes", "devices"})


def _roots(text: str) -> dict[str, Any]:
    """Return the names of a program that are no constants: torch as it was, and a few functions of Python."""
    found = {
        "__builtins__": {name: getattr(builtins, name) for name in _BUILTINS},
        "torch": original_torch,
        "Tensor": namespaces["torch.Tensor"],
        "operator": operator,
        "math": math,
        "GuardFailed": GuardFailed,
        "TensorsDiffer": TensorsDiffer,
    }
    for name, module in (("torchex", "thunder.executors.torchex"), ("dtypes", "thunder.core.dtypes")):
        if f"{name}." in text:
            # Imported by name at run time, and only for programs that use it: the module belongs to a higher layer.
            found[name] = importlib.import_module(module)
    return found


def _is(constant: Any, tag: str, length: int) -> bool:
    return isinstance(constant, list) and len(constant) == length and constant[0] == tag


def _may_be_called(constant: Any) -> bool:
    """Check whether a program may call a constant: a function of thunder's list, or an operator of torch."""
    if not _is(constant, "ref", 4) or type(constant[1]) is not str:
        return False
    names = [step[1] for step in constant[2] if step[:1] == ["member"]]
    if len(names) != len(constant[2]) or not names:
        return False
    if f"{constant[1]}:{'.'.join(names)}" in HELPERS:
        return True
    if constant[1] not in _C_MODULES or len(names) > 2 or (len(names) == 2 and names[0] != "Tensor"):
        return False
    name = names[-1]
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name in _NAMES or names[-1] in _NAMES


# -- differentiated programs ------------------------------------------------------------------------------------------
_FIELDS = ("single", "plain", "count", "returned", "tensors", "numbers", "saved_outputs", "arriving",
           "non_differentiable", "gradient_of", "wanted", "edges", "guarded", "prunes", "result_dependencies",
           "hidden")  # fmt: skip


def describe_layout(layout: NodeLayout, groups: Mapping[int, set[int]], device: Any, encode: Encoder) -> dict[str, Any]:
    """Return the layout of a node as JSON. `groups` are the saved values that groups of outputs need."""
    found = {name: encode_plain(getattr(layout, name)) for name in _FIELDS}
    stages, retention = layout.stages, layout.retention
    return {
        **found,
        "template": _written(layout.template, encode),
        "items": [[list(item.path), item.own] for item in layout.items],
        "stages": None if stages is None else {"stages": encode_plain(stages.stages), "device": str(device)},
        "retention": None if retention is None else [[str(bits), sorted(needed)] for bits, needed in groups.items()],
    }


def encode_plain(x: Any) -> Any:
    """Return nested lists of numbers and booleans as JSON."""
    return [encode_plain(i) for i in x] if isinstance(x, (list, tuple)) else x


def _written(template: Any, encode: Encoder) -> Any:
    if isinstance(template, Slot):
        return [template.kind, template.index]
    if isinstance(template, (tuple, list)):
        return [type(template).__name__ if type(template) is list else "tuple", [_written(x, encode) for x in template]]
    if isinstance(template, dict):
        return ["dict", [[encode(k), _written(x, encode)] for k, x in template.items()]]
    return ["c", encode(template)]


def _template(x: Any, decode: Decoder) -> Any:
    kind, content = x
    if kind in ("t", "x"):
        return Slot(kind, int(content))
    if kind in ("tuple", "list"):
        items = [_template(i, decode) for i in content]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return {decode(k): _template(i, decode) for k, i in content}
    if kind == "c":
        return decode(content)
    raise Refused("damaged")


def read_layout(content: Mapping[str, Any], decode: Decoder) -> NodeLayout:
    """Return the layout of a node that `describe_layout` has described."""
    fields = {name: content[name] for name in _FIELDS}
    template = _template(content["template"], decode)
    items = [FlatItem(tuple(path), bool(own)) for path, own in content["items"]]
    if any(type(key) not in (str, int) for item in items for key in item.path):
        raise Refused("damaged")
    fields["saved_outputs"] = [(i, j) for i, j in fields["saved_outputs"]]
    stages, retention, wanted = content["stages"], content["retention"], fields["wanted"]
    needs = {} if retention is None else {int(bits): {*needed} for bits, needed in retention}
    return NodeLayout(
        **fields,
        template=template,
        items=items,
        build=builder(template, fields["single"]),
        flatten=flattener(items, fields["hidden"], fields["single"]),
        stages=None if stages is None else StagedBackward(stages["stages"], wanted, torch.device(stages["device"])),
        retention=None
        if retention is None
        else SavedTensorRetention(fields["returned"], lambda: needs, fields["tensors"]),
    )


def key_text(key: Key) -> str:
    """Return the text of a backward program's key."""
    return "|".join("".join("1" if x else "0" for x in part) for part in key)


class SavedDifferentiable:
    """A saved program that torch's autograd can differentiate.

    Backward programs are read when gradients first arrive. `rebuild` compiles the program anew from its source, for a
    combination of gradients of which no backward program was saved.
    """

    def __init__(
        self,
        layout: NodeLayout,
        forward: Callable[..., Any],
        backward: Callable[[], Iterator[tuple[str, SavedText, Decoder]]],
        rebuild: Callable[[], Any],
    ):
        self.layout = layout
        self.ran: Any = None
        self._read = backward
        self._texts: dict[str, tuple[SavedText, Decoder]] | None = None
        self._backward: dict[Key, Callable[..., Any]] = {}
        self._rebuild = rebuild
        self._rebuilt: Any = None
        self._lock = threading.RLock()
        apply = autograd_function(self, forward)
        build = layout.build
        self.run = apply if layout.plain else lambda *inputs: build(apply(*inputs), inputs)

    @property
    def everything(self) -> Key:
        """The key of the backward program for gradients of all results, with respect to all inputs."""
        hidden = len(self.layout.arriving) - self.layout.returned
        return (True,) * self.layout.returned + (False,) * hidden, (True,) * len(self.layout.wanted)

    @property
    def rebuilt(self) -> Any:
        """The program compiled anew from its source."""
        with self._lock:
            if self._rebuilt is None:
                self._rebuilt = self._rebuild()
            return self._rebuilt

    def texts(self) -> dict[str, tuple[SavedText, Decoder]]:
        """Return the saved backward programs by the texts of their keys."""
        with self._lock:
            if self._texts is None:
                self._texts = {key: (text, decode) for key, text, decode in self._read()}
            return self._texts

    def key(self, present: tuple[bool, ...], wanted: tuple[bool, ...]) -> Key:
        """Return the key of the backward program for the gradients that arrive and are wanted.

        A saved program that computes more gradients than are wanted is taken before a program is compiled.
        """
        key = present, wanted
        if key in self._backward or key_text(key) in self.texts():
            return key
        whole = present, (True,) * len(wanted)
        if key_text(whole) in self.texts():
            return whole
        return self.rebuilt.key(present, wanted)  # type: ignore[no-any-return]

    def backward_program(self, key: Key) -> Callable[..., Any]:
        """Return the function `(saved, *gradients) -> gradients` of a key. With stages, the function is a generator."""
        found = self._backward.get(key)
        if found is None:
            with self._lock:
                found = self._saved_backward(key) or self.rebuilt.backward_program(key)
                self._backward[key] = found
        return found

    def _saved_backward(self, key: Key) -> Callable[..., Any] | None:
        saved = self.texts().get(key_text(key))
        if saved is None:
            return None
        text, decode = saved
        try:
            return no_autocast(text.function(decode))
        except (Refused, Stale):
            return None

    def recorded_backward(self, key: Key) -> Any:
        """Return the backward program as a differentiable program, or the error if it cannot be differentiated."""
        return self.rebuilt.recorded_backward(key)

    def natively(self, *inputs: Any) -> Any:
        """Compute the node's outputs with torch's own operations."""
        return self.rebuilt.natively(*inputs)

    # -- reports ------------------------------------------------------------------------------------------------------
    @property
    def backward_traces(self) -> Sequence[Any]:
        """The text of the backward program that ran last, or of the one for all gradients if none has run."""
        key = self.everything if self.ran is None or not isinstance(self.ran, tuple) else self.ran
        saved = self.texts().get(key_text(key))
        if saved is None:
            self.rebuilt.backward_program(key)
            return self.rebuilt._backward_traces[key]  # type: ignore[no-any-return]
        return [saved[0]]

    unrecorded_traces = backward_traces
    programs: Sequence[Any] = ()
