# SPDX-License-Identifier: Apache-2.0
"""Handles: the tensors that user code holds while it is traced.

A handle is a real `torch.Tensor` (a wrapper subclass, so it is safe for C++ code that relies on `isinstance`). It has a
tensor's metadata, but no data, and refers to a `TensorProxy`. Handles also track views and in-place writes: handles
that share memory share a `Storage`, and each handle stores the view steps from the storage to itself.
"""

from __future__ import annotations

import inspect
import math
import sys
import threading
import types
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import torch

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.fallback import fall_back
from thunder.capture.base.phase import active
from thunder.capture.base.tracing_mode import dispatch
from thunder.capture.numbers.overrides import DISGUISED
from thunder.core import prims
from thunder.core.devices import to_torch_device
from thunder.core.dtypes import is_boolean_dtype, is_inexact_dtype, to_torch_dtype
from thunder.core.locations import is_ours
from thunder.core.proxies import TensorProxy
from thunder.core.state import state
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import Trace
from thunder.runtime.kernels.dtensors import spec_of

__all__ = [
    "FORMATTED", "TEXT_OF_HANDLE", "Handle", "HandleOwner", "Lifted", "Storage", "View", "is_handle", "needs_grad",
]  # fmt: skip


class View(NamedTuple):
    """One step from a base to its view: `sym(base, *args, **kwargs)[part]`."""

    sym: Symbol
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: int | None
    certain: bool  # False if torch returns a view or a copy, depending on strides
    detached: bool = False  # created under no_grad from a tensor that requires grad

    def apply(self, base: TensorProxy) -> TensorProxy:
        """Return the view of `base`."""
        out = self.sym(base, *self.args, **self.kwargs)
        out = out if self.part is None else out[self.part]
        return prims.detach(out) if self.detached else out

    @property
    def hides_writes(self) -> bool:
        """Whether autograd misses writes to the base through this view."""
        if self.sym.name == "view" and any(isinstance(x, torch.dtype) for x in (*self.args, *self.kwargs.values())):
            return True  # torch has no derivative of a view with another dtype
        return self.detached or not self.sym.differentiable

    def put_back(self, base: TensorProxy, new: TensorProxy) -> TensorProxy:
        """Compute `base` with the view's elements replaced by `new`."""
        rule: Callable[..., Any] | None = getattr(self.sym, "view_scatter_rule", None)
        if rule is None:
            fall_back(f"the program writes through a view created by {self.sym.name}, which thunder does not support")
        extra = {} if self.part is None else {"index": self.part}
        return rule(base, new, *self.args, **self.kwargs, **extra)  # type: ignore[no-any-return]


class Storage:
    """The memory that a tensor and its views share: its current value and its number of writes."""

    __slots__ = (
        "__weakref__",
        "hides_gradient",
        "needs_grad",
        "origin",
        "pending",
        "shared_with",
        "source",
        "unordered",
        "value",
        "version",
        "visible",
        "written",
    )

    def __init__(self, value: TensorProxy, source: TensorProxy | None = None):
        self.value = value
        self.origin = value  # the first value, which determines the memory's layout
        # The value before it was copied to the order of the memory; the same as `value` if no copy was needed.
        self.unordered = value
        self.version = 0
        self.source = source  # the input of the program whose memory this is
        self.written = False
        self.visible = False  # whether autograd saw a write to the memory
        self.needs_grad = False  # whether any handle of the memory has required grad
        # Storages that are views of this memory or its base in eager mode, through steps that no `View` expresses.
        self.shared_with: list[weakref.ref[Storage]] = []
        self.hides_gradient = False  # whether a value that requires grad was written through a view that hides writes
        self.pending: tuple[Handle, ...] = ()  # views that a collective in flight writes, at an unknown time


class Handle(torch.Tensor):
    """A tensor without data that records operations instead of computing them."""

    _tracer: HandleOwner
    _storage: Storage
    _views: tuple[View, ...]
    _parent: Handle | None  # the base, while it is not certain that this handle is a view of the base
    _derived: list[weakref.ref[Handle]]  # the handles that have had this one as `_parent`
    _value: TensorProxy
    _version_seen: int
    _is_new: bool = False  # whether it is another tensor object in eager mode, although it has the value of its base
    _class: type = torch.Tensor  # the class of the real tensor
    _freed: str | None = None  # "whole" or "part": how much of its graph an earlier `backward()` has freed
    _spec: Any  # torch's description of the layout, if it is a DTensor
    _local: Handle | None = None  # the local tensor of a DTensor, once it is known
    _made_of: TensorProxy | None = None  # the local tensor's value from which `_value` was made; None for an input
    _needs_grad: bool  # the value of `requires_grad`, readable without torch's dispatch

    @staticmethod
    def make(
        tracer: HandleOwner, value: TensorProxy, *, requires_grad: bool, storage: Storage | None = None,
        views: tuple[View, ...] = (),
    ) -> Handle:  # fmt: skip
        """Return a handle of `value`, with its own memory or as a view of `storage`."""
        shape: Any = value.shape
        options: dict[str, Any] = {}
        if any(type(n) is not int for n in shape):
            # C++ stores a concrete size for each symbolic one, and calls `__torch_dispatch__` for the actual sizes.
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
        handle._derived = []
        handle._needs_grad = requires_grad
        handle._storage.needs_grad |= requires_grad
        if value.dtensor_layout is not None:
            handle._class = torch.distributed.tensor.DTensor
            handle._spec = spec_of(value.dtensor_layout, to_torch_dtype(value.dtype))
        tracer.handles.add(handle)
        return handle

    def set_parent(self, parent: Handle | None) -> None:
        """Set the base of which it is not certain that this handle is a view."""
        self._parent = parent
        if parent is not None:
            parent._derived.append(weakref.ref(self))

    @property
    def possible_views(self) -> list[Handle]:
        """The handles whose `_parent` this handle is."""
        return [x for x in [ref() for ref in self._derived] if x is not None and x._parent is self]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Only queries of symbolic sizes may use the dispatcher. The tracer has missed any other operation.
        if isinstance(args[0], Handle):
            if func is torch.ops.aten.detach.default:
                return args[0]
            answer = _SIZES.get(func)
            if answer is not None:
                return answer(args[0]._value.shape)
        if func is torch.ops.aten.alias.default:  # as_subclass
            fall_back("the program creates a tensor of a subclass of torch.Tensor")
        return fall_back(f"the program calls {func} in a way that no trace can record")

    @property
    def __class__(self) -> type:  # isinstance() and dispatch by class use it
        return object.__getattribute__(self, "_class")  # type: ignore[no-any-return]

    @__class__.setter
    def __class__(self, cls: type) -> None:
        fall_back(f"the program assigns the class {cls.__qualname__} to a tensor")

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that the user has set on the real tensor of this handle."""
        own = object.__getattribute__(self, "__dict__")
        if "_tracer" in own and not name.startswith("__"):
            found = own["_tracer"].attribute_of(self, name)
            if found is not ABSENT:
                return found
            cls = own.get("_class")
            if cls is not None and hasattr(cls, name):  # an attribute of a plain subclass, guarded as a whole
                found = inspect.getattr_static(cls, name)
                return found.__get__(self, cls) if hasattr(type(found), "__get__") else found
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")

    @property
    def given_attributes(self) -> dict[str, Any]:
        """Attributes that the program has set on the handle."""
        own = _OWN if self._storage.source is None or self._views else _OF_INPUTS
        return {k: v for k, v in object.__getattribute__(self, "__dict__").items() if k not in own}

    def forget_attributes(self) -> None:
        """Delete the attributes that the program has set, after the epilogue has recorded them."""
        for name in self.given_attributes:
            del self.__dict__[name]

    def __deepcopy__(self, memo: Any) -> Any:
        return self.clone()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        _refuse_text(sys._getframe(1))
        return f"{TEXT_OF_HANDLE}{self._value.name}: {self._value.type_string()}>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        if state.frontend is self._tracer and self.dim() == 0 and not is_inexact_dtype(self._value.dtype):
            value = bool(self) if is_boolean_dtype(self._value.dtype) else self.__index__()
            return format(value, spec)  # a decision, e.g. the index in the name of an expert
        _refuse_text(sys._getframe(1))
        return repr(self)


def _refuse_text(frame: types.FrameType) -> None:
    """Fall back if user code formats a tensor, because the text may be measured, compared or stored."""
    if active.thread == threading.get_ident() and not is_ours(frame.f_code.co_filename):
        fall_back(FORMATTED)


class Lifted:
    """A real tensor that became an input of the program because the program used it."""

    __slots__ = ("handle", "proxy", "tensor")

    def __init__(self, tensor: torch.Tensor, proxy: TensorProxy, handle: Handle):
        self.tensor = tensor
        self.proxy = proxy
        self.handle = handle


class WriteObserver(Protocol):
    """A part of the program that is traced separately, because a transform is applied to it."""

    name: str  # of the transform
    forward_mode: bool  # whether the transform computes tangents

    def check_write(self, handle: Handle, name: str) -> None:
        """Raise an error for an in-place operation that the transform does not support."""


class HandleOwner(Protocol):
    """The tracer's interface for handles and for the modules about their memory, layout and gradients."""

    trace: Trace
    handles: WeakSet[Handle]
    subclasses: set[type]
    inputs: list[Lifted]
    parts: list[WriteObserver]
    detaching: bool
    meta_tensors: dict[str, torch.Tensor]
    unknown_layouts: set[str]
    stand_ins: dict[str, tuple[TensorProxy, int | None]]
    undo_later: Callable[..., None] | None

    def is_leaf(self, tensor: torch.Tensor) -> bool:
        """Return whether a real tensor is a leaf of autograd's graph, and guard the result."""

    def input_with(self, handle: Handle) -> Lifted | None:
        """Return the input of which a handle is the handle, or None."""

    def owner_of(self, handle: Handle) -> Lifted | None:
        """Return the input whose memory a tensor is in, or None for memory that the program allocated."""

    def producer(self, value: TensorProxy) -> BoundSymbol | None:
        """Return the operation that computed a value, or None for an input."""

    def attribute_of(self, handle: Handle, name: str) -> Any:
        """Return an attribute that the user has set on an input, or `ABSENT`."""

    def recording(self) -> AbstractContextManager[None]:
        """Return a context in which operations on proxies are recorded and no user code runs."""


FORMATTED = "the program formats a tensor as text"
TEXT_OF_HANDLE = "<traced tensor "


def needs_grad(tensor: torch.Tensor) -> bool:
    """Return a tensor's `requires_grad`. For a handle, torch's dispatch is not called."""
    return tensor._needs_grad if type(tensor) is Handle else tensor.requires_grad


_ASKED = {
    f"_{kind}_capsule{length}" for kind in ("sizes", "strides", "sym_sizes", "sym_strides") for length in ("", "_len")
}
_OWN = frozenset({*Handle.__annotations__, "_backward_hooks", *_ASKED})  # with attributes in which C++ caches sizes
_OF_INPUTS = _OWN | {"_is_param", "_is_buffer"}


def _contiguous_strides(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([math.prod(shape[i + 1 :]) for i in range(len(shape))])


_aten = torch.ops.aten
# Answers to C++ queries of a handle with symbolic sizes. The strides are always contiguous. This is safe because
# programs that query strides get them from `layout.py` instead of these functions.
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


DISGUISED.add(Handle)


def is_handle(x: Any) -> bool:
    """Check for a handle."""
    return type(x) is Handle
