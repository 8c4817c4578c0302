# SPDX-License-Identifier: Apache-2.0
"""Proxies: the values of the IR. A proxy has a name and metadata, but no data.

`TensorProxy` is immutable: each operation creates new proxies. The current language (`core/langctx.py`) defines its
operators and methods. Traced user code does not see proxies, but handles that point at them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from thunder.core import devices, dtypes
from thunder.core.errors import TracingError
from thunder.core.langctx import get_langctx, resolve_method
from thunder.core.layouts import Layout
from thunder.core.state import state
from thunder.core.symint.numbers import text_of

__all__ = [
    "AnyProxy",
    "CollectionProxy",
    "DictProxy",
    "NumberProxy",
    "Proxy",
    "TensorProxy",
    "TupleProxy",
]


class Proxy:
    """A named value of a trace. If `name` is missing, the current trace creates a new name."""

    __slots__ = ("__weakref__", "name")
    prefix = "p"

    def __init__(self, name: str | None = None):
        if name is None:
            trace = state.trace
            if trace is None:
                raise TracingError(f"a {type(self).__name__} without a name can only be created while tracing")
            name = trace.make_name(self.prefix)
        self.name: str = name

    def type_string(self) -> str:
        """Return the type in the format of comments in printed traces."""
        return "Any"

    def replace_name(self, name: str) -> Proxy:
        """Return the same value under another name."""
        out = object.__new__(type(self))
        for cls in type(self).__mro__:
            for slot in getattr(cls, "__slots__", ()):
                if slot != "__weakref__" and hasattr(self, slot):
                    object.__setattr__(out, slot, getattr(self, slot))
        out.name = name
        return out

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.type_string()}>"


class AnyProxy(Proxy):
    """A value of unknown type."""

    __slots__ = ("value",)
    prefix = "any"

    def __init__(self, value: Any = None, name: str | None = None):
        super().__init__(name)
        self.value = value


class CollectionProxy(Proxy):
    """A container that is an input of a trace; `value` contains its items."""

    __slots__ = ("value",)
    prefix = "C"

    def __init__(self, value: Any, name: str | None = None):
        super().__init__(name)
        self.value = value

    def type_string(self) -> str:
        return "Collection"

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, key: Any) -> Any:
        return self.value[key]

    def __iter__(self) -> Any:
        return iter(self.value)


class TupleProxy(CollectionProxy):
    """A tuple input."""

    __slots__ = ()
    prefix = "tup"


class DictProxy(CollectionProxy):
    """A dict input."""

    __slots__ = ()
    prefix = "d"


class NumberProxy(Proxy):
    """A Python number: an input, whose `value` is known, or a result of the program, whose `value` is None.

    `symbol` is the number's symbol, if the number is a leaf of symbolic expressions (`core/symint/symbols.py`).
    """

    __slots__ = ("python_type", "symbol", "value")
    prefix = "n"

    def __init__(self, value: Any = None, python_type: type | None = None, name: str | None = None):
        super().__init__(name)
        self.value = value
        self.symbol: Any = None
        self.python_type: type = python_type or type(value)

    def type_string(self) -> str:
        if self.symbol is not None:
            return self.python_type.__name__
        return f"{self.python_type.__name__} {'?' if self.value is None else self.value}"

    def known(self) -> Any:
        """Return the value, or raise an error with workarounds if the value is data-dependent."""
        if self.value is None:
            _raise_data_dependent(self.name)
        return self.value

    def __bool__(self) -> bool:
        return bool(self.known())

    def __int__(self) -> int:
        return int(self.known())

    __index__ = __int__

    def __float__(self) -> float:
        return float(self.known())

    def __complex__(self) -> complex:
        return complex(self.known())

    def __hash__(self) -> int:
        return object.__hash__(self)


def _raise_data_dependent(name: str) -> NoReturn:
    raise TracingError(
        f"the program computes the number {name}, so its value is not known while tracing. Use a tensor instead "
        "(torch.where), or move this part out of the traced function"
    )


def number_value(x: Any) -> Any:
    """Return `x`, or its value if it is a NumberProxy."""
    return x.known() if isinstance(x, NumberProxy) else x


def number_type(x: Any) -> type:
    """Return the Python number type of `x` (a number, a symbolic number or a NumberProxy)."""
    return x.python_type if isinstance(x, NumberProxy) else x.__class__


def _number_operator(fn: Callable[..., Any], *, swapped: bool = False) -> Callable[..., Any]:
    def apply(self: NumberProxy, *others: Any) -> Any:
        if others and isinstance(others[0], TensorProxy):
            return NotImplemented
        values = [number_value(x) for x in (self, *others)]
        return fn(*(reversed(values) if swapped else values))

    return apply


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift"):
    _dunder = _name.rstrip("_")
    setattr(NumberProxy, f"__{_dunder}__", _number_operator(getattr(operator, _name)))
    setattr(NumberProxy, f"__r{_dunder}__", _number_operator(getattr(operator, _name), swapped=True))
for _name in ("neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(NumberProxy, f"__{_name}__", _number_operator(getattr(operator, _name)))


class TensorProxy(Proxy):
    """A tensor with `name`, `shape` (ints or symbolic numbers), `dtype`, `device` and `requires_grad`.

    `like` is another tensor whose shape, dtype and device are the defaults. A DTensor has a
    `dtensor_layout`.
    """

    __slots__ = ("device", "dtensor_layout", "dtype", "ndim", "requires_grad", "shape")
    prefix = "t"

    def __init__(
        self,
        name: str | None = None,
        *,
        like: TensorProxy | None = None,
        shape: Sequence[int] | None = None,
        device: Any = None,
        dtype: Any = None,
        requires_grad: bool | None = None,
        dtensor_layout: Layout | None = None,
    ):
        if name is None:
            trace = state.trace
            if trace is None:
                raise TracingError("a TensorProxy without a name can only be created while tracing")
            name = trace.make_name("t")
        self.name = name
        if like is not None:
            if shape is None:
                shape = like.shape
            if device is None:
                device = like.device
            if dtype is None:
                dtype = like.dtype
        elif shape is None or device is None or dtype is None:
            raise TypeError("TensorProxy needs shape=, device= and dtype=, or like= another tensor")
        self.shape: tuple[int, ...] = shape if type(shape) is tuple else tuple(shape)
        self.device: devices.Device = (
            device if type(device) is devices.Device else devices.to_device(device)  # type: ignore[assignment]
        )
        self.dtype: dtypes.dtype = dtype if type(dtype) is dtypes.dtype else dtypes.to_dtype(dtype)
        self.requires_grad: bool = bool(requires_grad)
        self.ndim: int = len(self.shape)
        self.dtensor_layout = dtensor_layout

    def replace_name(self, name: str) -> TensorProxy:
        new = object.__new__(TensorProxy)
        new.name, new.shape, new.device, new.dtype = name, self.shape, self.device, self.dtype
        new.requires_grad, new.ndim, new.dtensor_layout = self.requires_grad, self.ndim, self.dtensor_layout
        return new

    def type_string(self) -> str:
        return f"{self.device} {self.dtype.short}[{', '.join(map(text_of, self.shape))}]"

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __iter__(self) -> Any:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d tensor")
        return iter([self[i] for i in range(self.shape[0])])

    def __bool__(self) -> bool:
        raise TracingError(
            f"data-dependent control flow: this branch needs the value of the tensor {self.name}, which is not known "
            "while tracing. Use torch.where or masks, or move the branch out of the traced function"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        language = get_langctx()
        prop = language.properties.get(name)
        if prop is not None:
            return prop(self)
        method = language.methods.get(name)
        if method is None:
            raise AttributeError(f"tensors have no attribute {name!r} in the language {language.name!r}")
        return partial(method, self)

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __getitem__(self, key: Any) -> Any:
        return resolve_method("getitem")(self, key)


def _tensor_operator(method: str, *, swapped: bool = False) -> Callable[..., Any]:
    def apply(self: TensorProxy, *others: Any) -> Any:
        args = (*others, self) if swapped else (self, *others)
        return resolve_method(method)(*args)

    return apply


# The language's method that implements each Python operator.
OPERATORS: dict[str, str] = {
    "__add__": "add", "__sub__": "sub", "__mul__": "mul", "__truediv__": "true_divide", "__floordiv__": "floor_divide",
    "__mod__": "remainder", "__pow__": "pow", "__matmul__": "matmul", "__and__": "bitwise_and", "__or__": "bitwise_or",
    "__xor__": "bitwise_xor", "__lshift__": "bitwise_left_shift", "__rshift__": "bitwise_right_shift",
    "__neg__": "neg", "__pos__": "positive", "__abs__": "abs", "__invert__": "bitwise_not",
    "__eq__": "eq", "__ne__": "ne", "__lt__": "lt", "__le__": "le", "__gt__": "gt", "__ge__": "ge",
}  # fmt: skip
_REFLECTED = {
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
}
for _dunder, _method in OPERATORS.items():
    setattr(TensorProxy, _dunder, _tensor_operator(_method))
    if _dunder.strip("_") in _REFLECTED:
        setattr(TensorProxy, f"__r{_dunder.strip('_')}__", _tensor_operator(_method, swapped=True))
