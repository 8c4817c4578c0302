# SPDX-License-Identifier: Apache-2.0
"""Array handles: the NumPy arrays and NumPy numbers that user code holds while it is traced.

An array handle wraps a tensor with the same memory: a handle, or the tensor of an array from outside. NumPy's functions
and operators pass array handles to thunder through NumPy's own protocols (`__array_ufunc__`, `__array_function__`). C
code that needs a real array calls `__array__`, which ends the trace.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.sources import Source
from thunder.capture.numbers.overrides import DISGUISED
from thunder.core.state import state
from thunder.runtime.arrays import dtype_of

__all__ = ["ArrayHandle", "call_numpy", "is_array_handle"]


def call_numpy(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of NumPy for the traced program; dispatch has a handler for this function."""
    return state.frontend.dispatch(call_numpy, (function, args, kwargs), {})  # type: ignore[union-attr]


def _ufunc(name: str, *, reflected: bool = False) -> Any:
    def method(self: Any, other: Any) -> Any:
        operands = (other, self) if reflected else (self, other)
        return call_numpy(getattr(_numpy(), name), operands, {})

    return method


def _in_place(name: str) -> Any:
    def method(self: Any, other: Any) -> Any:
        if self._thunder_scalar:
            return call_numpy(getattr(_numpy(), name), (self, other), {})
        return call_numpy(getattr(_numpy(), name), (self, other), {"out": (self,)})

    return method


def _unary(name: str) -> Any:
    return lambda self: call_numpy(getattr(_numpy(), name), (self,), {})


def _numpy() -> Any:
    return sys.modules["numpy"]


class ArrayHandle:
    """A NumPy array, or with `scalar` a NumPy number, whose operations are recorded.

    `origin` is the source of an array from outside and the array itself.
    """

    dtype: Any
    __slots__ = ("__weakref__", "_thunder_origin", "_thunder_scalar", "_thunder_tensor", "dtype")
    __array_priority__ = 10_000.0

    def __init__(self, tensor: torch.Tensor, *, scalar: bool = False, origin: tuple[Source, Any] | None = None):
        object.__setattr__(self, "_thunder_tensor", tensor)
        object.__setattr__(self, "dtype", dtype_of(tensor.dtype))
        object.__setattr__(self, "_thunder_scalar", scalar)
        object.__setattr__(self, "_thunder_origin", origin)

    # -- NumPy's protocols --------------------------------------------------------------------------------------------
    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        return call_numpy(ufunc if method == "__call__" else getattr(ufunc, method), args, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return call_numpy(function, args, kwargs)

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        fall_back("the program passes a NumPy array to a function that thunder cannot trace")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _INDEXING and len(args) > 1:
            args = args[0], _indices(args[1]), *args[2:]
        return function(*_numbers(args), **_numbers(kwargs or {}))

    # -- metadata -----------------------------------------------------------------------------------------------------
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.dtype.type if self._thunder_scalar else _numpy().ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return tuple(self._thunder_tensor.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._thunder_tensor.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._thunder_tensor.numel()

    @property
    def itemsize(self) -> int:
        """The number of bytes of an element."""
        return self._thunder_tensor.element_size()

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements."""
        return self.size * self.itemsize

    @property
    def T(self) -> Any:
        """The transposed array."""
        return call_numpy(_numpy().transpose, (self,), {})

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __getattr__(self, name: str) -> Any:
        if name in ("__array_struct__", "__array_interface__"):  # NumPy then calls `__array__`
            raise AttributeError(name)
        method = getattr(type(self.dtype.type(0)) if self._thunder_scalar else _numpy().ndarray, name)
        if not callable(method):
            fall_back(f"the program reads the attribute `{name}` of a NumPy array")
        return lambda *args, **kwargs: call_numpy(method, (self, *args), kwargs)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        fall_back(f"the program sets the attribute `{name}` of a NumPy array")

    # -- items --------------------------------------------------------------------------------------------------------
    def __getitem__(self, index: Any) -> Any:
        return call_numpy(operator.getitem, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        call_numpy(operator.setitem, (self, index, value), {})

    def __iter__(self) -> Iterator[Any]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return iter([self[i] for i in range(len(self))])

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    # -- Python's values ----------------------------------------------------------------------------------------------
    def item(self, *index: Any) -> Any:
        """Return one element as a Python number."""
        return (call_numpy(operator.getitem, (self, index), {}) if index else self)._thunder_tensor.item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self._thunder_tensor.tolist()

    def __bool__(self) -> bool:
        return self._thunder_tensor.__bool__()

    def __int__(self) -> int:
        return self._thunder_tensor.__int__()

    def __float__(self) -> float:
        return self._thunder_tensor.__float__()

    def __complex__(self) -> complex:
        return self._thunder_tensor.__complex__()

    def __index__(self) -> int:
        return self._thunder_tensor.__index__()

    def __repr__(self) -> str:
        if state.frontend is not None:
            fall_back("the program formats a NumPy array as text")
        return f"<traced array {self._thunder_tensor!r}>"

    def __str__(self) -> str:
        return self.__repr__()

    def __format__(self, spec: str) -> str:
        return self.__repr__()

    def __hash__(self) -> int:
        if self._thunder_scalar:
            fall_back("the program hashes a NumPy number")
        raise TypeError("unhashable type: 'numpy.ndarray'")

    def __copy__(self) -> Any:
        return call_numpy(_numpy().copy, (self,), {})

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__copy__()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        fall_back("the program pickles a NumPy array")

    # -- operators ----------------------------------------------------------------------------------------------------
    __neg__, __pos__, __abs__, __invert__ = _unary("negative"), _unary("positive"), _unary("absolute"), _unary("invert")
    __lt__, __le__, __gt__, __ge__ = _ufunc("less"), _ufunc("less_equal"), _ufunc("greater"), _ufunc("greater_equal")
    __eq__ = _ufunc("equal")  # type: ignore[assignment]
    __ne__ = _ufunc("not_equal")  # type: ignore[assignment]


_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift", "divmod": "divmod",
}  # fmt: skip
for _name, _function in _OPERATORS.items():
    setattr(ArrayHandle, f"__{_name}__", _ufunc(_function))
    setattr(ArrayHandle, f"__r{_name}__", _ufunc(_function, reflected=True))
    if _name != "divmod":
        setattr(ArrayHandle, f"__i{_name}__", _in_place(_function))

DISGUISED.add(ArrayHandle)


def is_array_handle(x: Any) -> bool:
    """Check for an array handle, which `isinstance` takes for an array."""
    return type(x) is ArrayHandle


_INDEXING = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)


def _indices(key: Any) -> Any:
    """Return an index of a tensor in which arrays are tensors, as torch converts them: to int64, or boolean masks."""
    if type(key) is tuple:
        return tuple([_indices(i) if type(i) is ArrayHandle else i for i in key])
    if type(key) is not ArrayHandle or key._thunder_scalar or not key.shape or key.dtype.kind not in "bi":
        return key
    return key._thunder_tensor if key.dtype.kind == "b" else key._thunder_tensor.long()


def _numbers(x: Any) -> Any:
    """Return arguments of a torch function in which NumPy numbers are Python numbers."""
    if type(x) is ArrayHandle:
        if not x._thunder_scalar:
            fall_back("the program passes a NumPy array to a function of torch")
        return x._thunder_tensor.item()
    if type(x) in (tuple, list):
        return type(x)([_numbers(i) for i in x])
    return {k: _numbers(v) for k, v in x.items()} if type(x) is dict else x
