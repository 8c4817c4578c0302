# SPDX-License-Identifier: Apache-2.0
"""Handles: what user code holds while it is traced.

A handle is a real `torch.Tensor` (a wrapper subclass, so C++ code that trusts `isinstance` is safe) that has the
metadata of a tensor and no data. It points at a `TensorProxy`. Views and in-place writes are kept track of here:
handles that share memory share a `Storage`, and each remembers how it is seen from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import torch

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.fallback import fall_back
from thunder.capture.base.tracing_mode import dispatch
from thunder.core import prims
from thunder.core.devices import to_torch_device
from thunder.core.dtypes import to_torch_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import Trace

__all__ = ["Handle", "HandleOwner", "Lifted", "Storage", "View", "is_handle", "needs_grad"]


class View(NamedTuple):
    """One step from a storage's base to a view of it: `sym(base, *args, **kwargs)[part]`."""

    sym: Symbol
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: int | None
    certain: bool  # False where torch answers a view or a copy, depending on strides
    detached: bool = False  # made under no_grad of something that requires grad

    def apply(self, base: TensorProxy) -> TensorProxy:
        """Return the view of `base`."""
        out = self.sym(base, *self.args, **self.kwargs)
        out = out if self.part is None else out[self.part]
        return prims.detach(out) if self.detached else out

    @property
    def hides_writes(self) -> bool:
        """Whether autograd does not see, on the base, what is written through it."""
        return self.detached or not self.sym.differentiable

    def put_back(self, base: TensorProxy, new: TensorProxy) -> TensorProxy:
        """Compute `base` with the view's elements replaced by `new`."""
        rule: Callable[..., Any] | None = getattr(self.sym, "view_scatter_rule", None)
        if rule is None:
            fall_back(f"the program writes through a view that {self.sym.name} makes")
        extra = {} if self.part is None else {"index": self.part}
        return rule(base, new, *self.args, **self.kwargs, **extra)  # type: ignore[no-any-return]


class Storage:
    """The memory that a tensor and its views share: its present value, and how often it has been written."""

    __slots__ = ("needs_grad", "origin", "source", "value", "version", "visible", "written")

    def __init__(self, value: TensorProxy, source: TensorProxy | None = None):
        self.value = value
        self.origin = value  # what it held first: has the layout of the memory
        self.version = 0
        self.source = source  # the input of the program whose memory this is
        self.written = False
        self.visible = False  # whether autograd saw a write to it
        self.needs_grad = False  # whether anything that shares it has required grad


class Handle(torch.Tensor):
    """A tensor that only records."""

    _tracer: HandleOwner
    _storage: Storage
    _views: tuple[View, ...]
    _parent: Handle | None  # what it is a view of, as long as it is not certain that it is
    _value: TensorProxy
    _version_seen: int
    _needs_grad: bool  # what `requires_grad` says, without going through torch's dispatch

    @staticmethod
    def make(
        tracer: HandleOwner, value: TensorProxy, *, requires_grad: bool, storage: Storage | None = None,
        views: tuple[View, ...] = (),
    ) -> Handle:  # fmt: skip
        """Return the handle of `value`, with memory of its own or as a view of `storage`."""
        shape: Any = value.shape
        options: dict[str, Any] = {}
        if any(type(n) is not int for n in shape):
            # C++ has some size, but asks `__torch_dispatch__` for it.
            shape = tuple([n if type(n) is int else getattr(n, "hint", None) or 2 for n in shape])
            options["dispatch_sizes_strides_policy"] = "sizes"
        handle: Handle = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            Handle,
            shape,
            dtype=to_torch_dtype(value.dtype),
            device=to_torch_device(value.device),
            requires_grad=requires_grad,
            **options,
        )
        handle._tracer = tracer
        handle._value = value
        handle._storage = Storage(value) if storage is None else storage
        handle._version_seen = handle._storage.version
        handle._views = views
        handle._parent = None
        handle._needs_grad = requires_grad
        handle._storage.needs_grad |= requires_grad
        tracer.handles.add(handle)
        return handle

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Nothing may reach the dispatcher but questions of symbolic sizes: anything else was not recorded.
        if isinstance(args[0], Handle):
            if func is torch.ops.aten.detach.default:
                return args[0]
            answer = _SIZES.get(func)
            if answer is not None:
                return answer(args[0]._value.shape)
        if func is torch.ops.aten.alias.default:  # as_subclass
            fall_back("the program makes a tensor of a class that says itself what torch's functions do with it")
        return fall_back(f"the program calls {func} in a way that no trace can record")

    def __getattr__(self, name: str) -> Any:
        """Attributes that the user has given to the tensor that it stands for."""
        own = object.__getattribute__(self, "__dict__")
        if "_tracer" in own and not name.startswith("__"):
            found = own["_tracer"].attribute_of(self, name)
            if found is not ABSENT:
                return found
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")

    @property
    def given_attributes(self) -> dict[str, Any]:
        """Attributes that the program has given it."""
        own = _OWN if self._storage.source is None or self._views else _OF_INPUTS
        return {k: v for k, v in object.__getattribute__(self, "__dict__").items() if k not in own}

    def __deepcopy__(self, memo: Any) -> Any:
        return self.clone()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"<traced tensor {self._value.name}: {self._value.type_string()}>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)


class Lifted:
    """A real tensor that became an input of the program because the program reached for it."""

    __slots__ = ("handle", "proxy", "tensor")

    def __init__(self, tensor: torch.Tensor, proxy: TensorProxy, handle: Handle):
        self.tensor = tensor
        self.proxy = proxy
        self.handle = handle


class WriteObserver(Protocol):
    """A part of the program that is traced by itself, to be transformed."""

    def check_write(self, handle: Handle, name: str) -> None:
        """Refuse an in-place operation that the transform does not allow."""


class HandleOwner(Protocol):
    """What handles, and the modules about their memory, layout and gradients, need of the tracer that made them."""

    trace: Trace
    handles: WeakSet[Handle]
    inputs: list[Lifted]
    parts: list[WriteObserver]
    detaching: bool
    meta_tensors: dict[str, torch.Tensor]
    stand_ins: dict[str, tuple[TensorProxy, int | None]]

    def producer(self, value: TensorProxy) -> BoundSymbol | None:
        """Return the operation that made a value, None for an input."""

    def attribute_of(self, handle: Handle, name: str) -> Any:
        """Return an attribute that the user has given to an input, or `ABSENT`."""

    def recording(self) -> AbstractContextManager[None]:
        """Record operations on proxies; user code is not running."""


def needs_grad(tensor: torch.Tensor) -> bool:
    """Return a tensor's `requires_grad`, asked of a handle without going through torch's dispatch."""
    return tensor._needs_grad if type(tensor) is Handle else tensor.requires_grad


_ASKED = {
    f"_{kind}_capsule{length}" for kind in ("sizes", "strides", "sym_sizes", "sym_strides") for length in ("", "_len")
}
_OWN = frozenset({*Handle.__annotations__, "_backward_hooks", *_ASKED})  # what C++ keeps of what it was answered, too
_OF_INPUTS = _OWN | {"_is_param", "_is_buffer"}


def _contiguous_strides(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([math.prod(shape[i + 1 :]) for i in range(len(shape))])


_aten = torch.ops.aten
# What C++ asks of a handle whose sizes are symbolic. Its own idea of strides is that nothing is transposed, and it is
# only asked where nobody sees the answer: programs that ask get theirs from `layout.py`.
_SIZES: dict[Any, Callable[[tuple[Any, ...]], Any]] = {
    _aten.dim.default: len,
    _aten.sym_size.default: lambda shape: shape,
    _aten.size.default: lambda shape: tuple([int(n) for n in shape]),
    _aten.sym_numel.default: math.prod,
    _aten.numel.default: lambda shape: int(math.prod(shape)),
    _aten.sym_stride.default: _contiguous_strides,
    _aten.stride.default: lambda shape: tuple([int(n) for n in _contiguous_strides(shape)]),
    _aten.sym_storage_offset.default: lambda shape: 0,
    _aten.is_contiguous.default: lambda shape: True,
    _aten.is_contiguous.memory_format: lambda shape: True,
    _aten.is_non_overlapping_and_dense.default: lambda shape: True,
}


def is_handle(x: Any) -> bool:
    """Check whether a tensor is one that the trace made."""
    return type(x) is Handle
