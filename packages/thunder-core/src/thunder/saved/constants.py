# SPDX-License-Identifier: Apache-2.0
"""Constants of saved programs as JSON. What has no tag here is not saved, and an unknown tag is not read.

Strings, integers, booleans and None are themselves. All other values are lists that begin with a tag. Objects are
references (`references.py`): they are found again in the process that reads them.
"""

from __future__ import annotations

import base64
import collections
import copy
import dataclasses
import enum
import functools
import importlib
import json
import pathlib
import sys
import types
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from thunder.runtime.guards import class_attributes
from thunder.runtime.tensor_check import TensorCheck
from thunder.saved.digests import is_of_library
from thunder.saved.keys import plugin_packages
from thunder.saved.made_functions import TAG, describe_function, make_function
from thunder.saved.references import CALLABLE, Stale, Unsavable, fingerprint, follow, module_called, named_path
from thunder.saved.tensor_checks import SavedTensorCheck

__all__ = ["WITH_PROGRAMS", "Decoder", "Encoder", "Path", "opaque_symbol"]

#: A root (an object) and the steps from it to another object.
Path = tuple[Any, list[list[Any]]]

_PLAIN = (str, bool, type(None))
_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)
_CONTAINERS: dict[type, str] = {tuple: "tuple", list: "list", set: "set", frozenset: "frozenset"}
#: The tags of constants that contain programs: CUDA graphs, checkpointed regions and custom functions.
WITH_PROGRAMS = ("graph", "checkpoint", "custom")
_SINGLETONS = {"Ellipsis": ..., "NotImplemented": NotImplemented}
MAX_TENSOR_BYTES = 1 << 24


class Encoder:
    """Encodes the constants of one entry. `paths` names objects by the id of the object, for those without a name."""

    def __init__(
        self,
        root: Any,
        paths: Mapping[int, Path],
        save_region: Callable[[Any], Any] = lambda x: None,
        *,
        libraries_only: bool = False,
        functions: Mapping[int, weakref.ref[Any]] = types.MappingProxyType({}),
    ):
        self._root = root
        self._libraries_only = libraries_only  # whether only objects of Python and torch may be referred to
        self._save_region = save_region
        self._paths = paths
        self._prints: dict[int, str] = {}
        self._functions = functions  # those that the program has made, by their ids
        self._numbers: dict[int, int] = {}  # of those that were encoded, and of their defaults: each is made once
        self._parts: dict[int, list[Any]] = {}
        self.tensors: dict[str, torch.Tensor] = {}

    def __call__(self, x: Any) -> Any:
        """Return the JSON of a constant, or raise `Unsavable`."""
        kind = type(x)
        if kind in _PLAIN or kind is int:
            return x
        if kind is tuple and x and id(x) in self._paths and (found := fingerprint(x, self._prints)) is not None:
            return self._by_path(x, found)  # a guard compares it by identity
        write = _WRITERS.get(kind)
        if write is not None:
            return write(self, x)
        if kind is types.FunctionType and hasattr(x, "derivation"):
            what, function, more = x.derivation
            return ["derived", what, self(function), self(more)]
        if kind.__module__ == "torch._ops" and isinstance(x, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            return ["operator", str(x)]
        if kind.__name__ == "PyTreeSpec" and kind.__module__.startswith("optree"):
            return self.structure(x)
        if x is self._root and x is not None:
            return [CALLABLE]
        if isinstance(x, torch.Tensor):
            return self._tensor(x)
        if isinstance(x, (pathlib.PurePath, uuid.UUID)):
            return ["text", self.reference(kind), str(x)]
        if kind.__module__ == "numpy" and hasattr(x, "dtype") and hasattr(x, "tobytes") and x.ndim == 0:
            return ["number", x.dtype.str, base64.b64encode(x.tobytes()).decode()]
        if isinstance(x, types.MappingProxyType):
            return self._variables(x)
        if isinstance(x, (torch.finfo, torch.iinfo)):
            return [kind.__name__, self(getattr(torch, x.dtype))]
        return self.reference(x)

    def reference(self, x: Any) -> list[Any]:
        """Return the reference of an object."""
        if isinstance(x, enum.Enum):
            return ["enum", self.reference(type(x)), x.name, fingerprint(x, self._prints)]
        if isinstance(x, torch.Generator):
            return self._generator(x)
        mark = fingerprint(x, self._prints)
        if mark is None and (saved := self._save_region(x)) is not None:
            return ["region", *saved]
        if mark is None:
            raise Unsavable(f"a {type(x).__module__}.{type(x).__qualname__}")
        named = named_path(x)
        if named is not None:
            module, names = named
            if self._libraries_only and not is_of_library(module):
                raise Unsavable(f"{_described(x)} of {module}, which is neither Python's nor torch's")
            return ["ref", module, [["member", name] for name in names], mark]
        made = self._functions.get(id(x))
        if made is not None and made() is x:
            return self._made(x)
        return self._by_path(x, mark)

    @property
    def makes_functions(self) -> bool:
        """Whether a constant is a function that the program has made."""
        return bool(self._numbers)

    def _made(self, x: Any) -> list[Any]:
        known = id(x) in self._numbers
        number = self._number(x)
        if not known:
            self._parts[number] = describe_function(x, self, self._number)
        if number not in self._parts:
            raise Unsavable(f"the function {x.__qualname__}, which refers to itself")
        return [TAG, number, *self._parts[number]]

    def _number(self, x: Any) -> int:
        return self._numbers.setdefault(id(x), len(self._numbers))

    def _by_path(self, x: Any, mark: str) -> list[Any]:
        found = self._paths.get(id(x))
        if found is None:
            raise Unsavable(f"{_described(x)}, which has no name and no path from the callable")
        root, steps = found
        return ["ref", CALLABLE if root is self._root else self.reference(root), steps, mark]

    def _generator(self, x: torch.Generator) -> list[Any]:
        if x is torch.default_generator:
            return ["generator", "cpu"]
        if x.device.type == "cuda" and x is torch.cuda.default_generators[x.device.index or 0]:
            return ["generator", str(x.device)]
        found = self._paths.get(id(x))
        if found is None or found[0] is not self._root:
            raise Unsavable("a torch.Generator")
        return ["ref", CALLABLE, found[1], fingerprint(x, self._prints)]

    def _tensor(self, x: torch.Tensor) -> list[Any]:
        if type(x) is not torch.Tensor or x.requires_grad or x.layout is not torch.strided or x.is_quantized:
            raise Unsavable(f"a constant tensor of the class {type(x).__name__}")
        if x.numel() * x.element_size() > MAX_TENSOR_BYTES:
            raise Unsavable(f"a constant tensor of {x.numel() * x.element_size()} bytes")
        name = f"t{len(self.tensors)}"
        self.tensors[name] = x.detach().cpu().contiguous()
        return ["tensor", name, str(x.device), list(x.shape), list(x.stride())]

    def _variables(self, x: Any) -> list[Any]:
        for cls in (torch.Tensor,):
            if x == vars(cls):
                return ["variables", self.reference(cls)]
        raise Unsavable("a mappingproxy")

    def mapping(self, x: Mapping[Any, Any]) -> list[Any]:
        """Encode a dict. The attributes of a class are those that the class has in the process that reads them."""
        cls = _class_with(x)
        if cls is not None:
            return ["attributes", self.reference(cls)]
        return ["dict", [[self(k), self(v)] for k, v in x.items()]]

    def structure(self, spec: Any) -> list[Any]:
        """Encode the structure of nested containers."""
        pytree = _pytree()
        tree = pytree.tree_unflatten(range(spec.num_leaves), spec)
        text = self._tree(tree)
        if pytree.tree_flatten(_tree(Decoder(self._root), text))[1] != spec:
            raise Unsavable(f"the structure of an argument, {spec}")
        return ["structure", text]

    def _tree(self, x: Any) -> Any:
        kind = type(x)
        if kind is int:
            return x
        if kind in (tuple, list):
            return [kind.__name__, [self._tree(i) for i in x]]
        if kind in (dict, collections.OrderedDict):
            return [kind.__name__, [[self(k), self._tree(v)] for k, v in x.items()]]
        if kind is collections.defaultdict:
            return ["defaultdict", self(x.default_factory), [[self(k), self._tree(v)] for k, v in x.items()]]
        if kind is collections.deque:
            return ["deque", x.maxlen, [self._tree(i) for i in x]]
        if isinstance(x, tuple):
            return ["namedtuple", self.reference(kind), [self._tree(i) for i in x]]
        if dataclasses.is_dataclass(x) and isinstance(x, dict):
            return ["output", self.reference(kind), [[k, self._tree(v)] for k, v in x.items()]]
        if dataclasses.is_dataclass(x):
            names = [f.name for f in dataclasses.fields(x) if hasattr(x, f.name)]
            names += [n for n in getattr(x, "__dict__", ()) if n not in names]
            return ["object", self.reference(kind), [[n, self._tree(getattr(x, n))] for n in names]]
        raise Unsavable(f"an argument that is a {kind.__qualname__}")

    def tensor_check(self, x: TensorCheck) -> list[Any]:
        """Encode the metadata that a prologue expects of tensors."""
        classes = {cls: self.reference(cls) for cls in {cls for cls, *_ in x.expected}}
        rows = []
        for (cls, *metadata), dims, keys in zip(x.expected, x.dims, x.dispatch_keys):
            rows.append([classes[cls], self(tuple(metadata)), sorted(dims), keys])
        return ["tensors", rows, [str(name) for name in x.names], self(x.same)]


def _described(x: Any) -> str:
    name = getattr(x, "__qualname__", None)
    return (
        f"the {type(x).__name__} {name}" if isinstance(name, str) else f"a {type(x).__module__}.{type(x).__qualname__}"
    )


def _class_with(x: Mapping[Any, Any]) -> type | None:
    """Return the class whose attributes a dict contains, or None."""
    if "__module__" not in x:
        return None
    for value in x.values():
        name = getattr(value, "__qualname__", "")
        if isinstance(value, types.FunctionType) and "." in name:
            found: Any = sys.modules.get(value.__module__)
            for part in name.split(".")[:-1]:
                found = getattr(found, part, None)
            if isinstance(found, type) and class_attributes(vars(found)) == x:
                return found
    return None


def _container(encode: Encoder, x: Any) -> list[Any]:
    tag = _CONTAINERS[type(x)]
    return [tag, [encode(i) for i in (sorted(x, key=repr) if tag.endswith("set") else x)]]


_WRITERS: dict[type, Callable[[Encoder, Any], Any]] = {
    float: lambda e, x: ["float", x.hex()],
    complex: lambda e, x: ["complex", x.real.hex(), x.imag.hex()],
    bytes: lambda e, x: ["bytes", base64.b64encode(x).decode()],
    slice: lambda e, x: ["slice", e(x.start), e(x.stop), e(x.step)],
    range: lambda e, x: ["range", x.start, x.stop, x.step],
    type(...): lambda e, x: ["singleton", "Ellipsis"],
    type(NotImplemented): lambda e, x: ["singleton", "NotImplemented"],
    torch.device: lambda e, x: ["device", str(x)],
    torch.Size: lambda e, x: ["size", list(x)],
    dict: Encoder.mapping,
    weakref.ref: lambda e, x: ["weak", e(_alive(x))],
    weakref.ReferenceType: lambda e, x: ["weak", e(_alive(x))],
    TensorCheck: Encoder.tensor_check,
    SavedTensorCheck: Encoder.tensor_check,
    **dict.fromkeys(_OF_TORCH, lambda e, x: ["torch", str(x).removeprefix("torch.")]),
    **dict.fromkeys(_CONTAINERS, _container),
}


def _alive(ref: Any) -> Any:
    found = ref()
    if found is None:
        raise Unsavable("an object that no longer exists")
    return found


# -- reading ----------------------------------------------------------------------------------------------------------
class Decoder:
    """Decodes the constants of one entry. Raises `Stale` if an object is missing or another one."""

    def __init__(
        self,
        root: Any,
        tensors: Mapping[str, torch.Tensor] | None = None,
        *,
        signed: Callable[[], bool] = lambda: False,
    ):
        self._root = root
        self.runs_code = False  # whether the bytecode of a signed entry may run
        self._signed = signed  # asked only if the entry contains what no list of operations can check
        self._tensors = tensors or {}
        self._prints: dict[int, str] = {}
        self._found: dict[str, Any] = {}
        self._made: dict[int, Any] = {}

    def __call__(self, x: Any) -> Any:
        """Return the value of a constant."""
        if not isinstance(x, list):
            if type(x) not in (str, int, bool, type(None)):
                raise Stale("a constant is no JSON of ours")
            return x
        try:
            read = _READERS[x[0]]
        except (KeyError, IndexError, TypeError):
            raise Stale(f"unknown constant {str(x)[:40]}") from None
        try:
            return read(self, *x[1:])
        except (TypeError, ValueError, AttributeError, KeyError, IndexError, RuntimeError, OverflowError,
                ImportError) as error:  # fmt: skip
            raise Stale(f"damaged constant {str(x)[:40]} ({error})") from None

    def reference(self, root: Any, steps: list[Any], mark: str) -> Any:
        """Return the object of a reference."""
        key = json.dumps([root, steps])
        if key in self._found:
            x = self._found[key]
        else:
            if root == CALLABLE:
                start = self._root
            else:
                start = module_called(root) if isinstance(root, str) else self(root)
            x = self._found[key] = follow(start, steps)
        now = fingerprint(x, self._prints)
        if now != mark:
            was, is_now = mark.rpartition(" ")[0] or mark, (now or type(x).__name__).rpartition(" ")[0] or now
            changed = was if was == is_now else f"{was} is {is_now} now"
            raise Stale(f"{changed} has changed")
        return x

    def member_of(self, cls: Any, name: str, mark: str) -> Any:
        """Return a member of an enumeration."""
        found = self(cls).__members__[name]
        if fingerprint(found, self._prints) != mark:
            raise Stale(f"{name} of {cls} has changed")
        return found

    def generator(self, device: str) -> torch.Generator:
        """Return the default generator of a device."""
        kind, _, index = device.partition(":")
        return torch.default_generator if kind == "cpu" else torch.cuda.default_generators[int(index or 0)]

    @functools.cached_property
    def signed(self) -> bool:
        """Whether the entry is signed, so that it may load kernels and call functions of the user."""
        return self._signed()

    def function(self, number: int, *parts: Any) -> types.FunctionType:
        """Return a function that the program makes."""
        if not self.signed:
            raise Stale("a function that the program makes, in a file that is not signed")
        if number not in self._made:
            self._made[number] = make_function(self, self._made, *parts)
        return self._made[number]  # type: ignore[no-any-return]

    def of_file(self, signed: Callable[[], bool]) -> Decoder:
        """Return a decoder for another file of the same entry, which has a signature of its own."""
        other = copy.copy(self)
        other.__dict__.pop("signed", None)
        other._signed = signed
        return other

    def region(self, module: str, data: Any) -> Any:
        """Return the callable of a fusion, which a plugin has described."""
        if not self.signed or module.partition(".")[0] not in plugin_packages():
            raise Stale(f"a fusion of {module}, which is no plugin here, or whose kernels nobody has signed")
        # Imported by name at run time: it is a module of a plugin.
        return importlib.import_module(module).load_region(data)

    def with_programs(self, tag: str, *parts: Any) -> Any:
        """Return a constant that programs define: see `programs.py`."""
        raise Stale(f"a constant of the kind {tag}")

    def tensor(self, name: str, device: str, shape: list[int], stride: list[int]) -> torch.Tensor:
        """Return a constant tensor."""
        found = self._tensors[name].to(device).reshape(shape)
        out = torch.empty_strided(shape, stride, dtype=found.dtype, device=device)
        return out.copy_(found)

    def number(self, dtype: str, data: str) -> Any:
        """Return a number of NumPy."""
        numpy = module_called("numpy")
        return numpy.frombuffer(base64.b64decode(data), dtype=numpy.dtype(dtype))[0]

    def tensor_check(self, rows: list[Any], names: list[str], same: Any) -> SavedTensorCheck:
        """Return the check of tensors."""
        expected = [(self(cls), *self(metadata)) for cls, metadata, _, _ in rows]
        dims = [frozenset(map(int, d)) for _, _, d, _ in rows]
        return SavedTensorCheck(expected, [str(n) for n in names], dims, [keys for *_, keys in rows], self(same))


def _pytree() -> Any:
    # Imported by name at run time: only arguments in containers need it.
    return importlib.import_module("thunder.core.pytree")


def _tree(decode: Decoder, x: Any) -> Any:
    """Return containers of the structure that `Encoder._tree` has described."""
    if type(x) is int:
        return x
    kind, *rest = x
    if kind in ("tuple", "list"):
        items = [_tree(decode, i) for i in rest[0]]
        return items if kind == "list" else tuple(items)
    if kind in ("dict", "OrderedDict"):
        pairs = [(decode(k), _tree(decode, v)) for k, v in rest[0]]
        return dict(pairs) if kind == "dict" else collections.OrderedDict(pairs)
    if kind == "defaultdict":
        return collections.defaultdict(decode(rest[0]), [(decode(k), _tree(decode, v)) for k, v in rest[1]])
    if kind == "deque":
        return collections.deque([_tree(decode, i) for i in rest[1]], rest[0])
    cls = decode(rest[0])
    if not isinstance(cls, type):
        raise Stale("a structure has no class")
    if kind == "namedtuple" and issubclass(cls, tuple):
        return tuple.__new__(cls, [_tree(decode, i) for i in rest[1]])
    if not dataclasses.is_dataclass(cls):
        raise Stale(f"{cls.__qualname__} is no dataclass")
    values = {str(k): _tree(decode, v) for k, v in rest[1]}
    if kind == "output" and issubclass(cls, dict):
        return cls(**values)
    out = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(out, name, value)
    return out


def _of_torch(decode: Decoder, name: str) -> Any:
    found = vars(torch).get(name)
    if not isinstance(found, _OF_TORCH):
        raise Stale(f"torch has no {name}")
    return found


def opaque_symbol(function: Any) -> Any:
    """Return the operation that runs a function of torch."""
    derivation = getattr(function, "derivation", None)
    if derivation is not None:
        return _derived_symbol(*derivation)
    # Imported by name at run time: only a program that is compiled anew needs it.
    return importlib.import_module("thunder.capture.dispatch.opaque_operations").opaque_symbol(function)


def _derived_symbol(what: str, function: Any, more: Any) -> Any:
    """Return the operation that runs e.g. the gradient of a function of torch."""
    # Imported by name at run time: only operations that thunder does not look into need them. Handlers of functions
    # register formulas of gradients.
    importlib.import_module("thunder.capture.handlers")
    # Imported by name at run time, for the same reason.
    return importlib.import_module("thunder.capture.dispatch.opaque_operations").derived_symbol(what, function, more)


def _operator(name: str) -> Any:
    """Return an operator of `torch.ops` that is registered: `aten.add` or `aten.add.Tensor`."""
    namespace, operator, *overload = name.split(".")
    packet = getattr(getattr(torch.ops, namespace), operator)
    return getattr(packet, overload[0]) if overload else packet


def _text(decode: Decoder, cls: Any, text: str) -> Any:
    found = decode(cls)
    if not (isinstance(found, type) and issubclass(found, (pathlib.PurePath, uuid.UUID))):
        raise Stale("a path has another class")
    return found(text)


_READERS: dict[str, Callable[..., Any]] = {
    CALLABLE: lambda d: d._root,
    "ref": Decoder.reference,
    "enum": Decoder.member_of,
    "weak": lambda d, x: weakref.ref(d(x)),
    "float": lambda d, x: float.fromhex(x),
    "complex": lambda d, x, y: complex(float.fromhex(x), float.fromhex(y)),
    "bytes": lambda d, x: base64.b64decode(x, validate=True),
    "slice": lambda d, x, y, z: slice(d(x), d(y), d(z)),
    "range": lambda d, x, y, z: range(x, y, z),
    "singleton": lambda d, x: _SINGLETONS[x],
    "device": lambda d, x: torch.device(x),
    "size": lambda d, x: torch.Size(x),
    "torch": _of_torch,
    "finfo": lambda d, x: torch.finfo(d(x)),
    "iinfo": lambda d, x: torch.iinfo(d(x)),
    "text": _text,
    "number": Decoder.number,
    "tensor": Decoder.tensor,
    "tensors": Decoder.tensor_check,
    "generator": Decoder.generator,
    "region": Decoder.region,
    TAG: Decoder.function,
    **{tag: lambda d, *parts, tag=tag: d.with_programs(tag, *parts) for tag in WITH_PROGRAMS},
    "symbol": lambda d, x: opaque_symbol(d(x)),
    "derived": lambda d, what, function, more: _derived_symbol(what, d(function), d(more)).fn,
    "operator": lambda d, name: _operator(name),
    "structure": lambda d, x: _pytree().tree_flatten(_tree(d, x))[1],
    "variables": lambda d, x: vars(d(x)),
    "attributes": lambda d, x: class_attributes(vars(d(x))),
    "dict": lambda d, x: {d(k): d(v) for k, v in x},
    "tuple": lambda d, x: tuple([d(i) for i in x]),
    "list": lambda d, x: [d(i) for i in x],
    "set": lambda d, x: {d(i) for i in x},
    "frozenset": lambda d, x: frozenset([d(i) for i in x]),
}
