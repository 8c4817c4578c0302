# SPDX-License-Identifier: Apache-2.0
"""Element types of tensors, and the categories that Python's number types share with them.

Each torch dtype has one interned `dtype` of the same name, e.g. `float32`, which traces print as `dtypes.float32`.
Dtypes are compared by identity. This module does not import torch: the two maps to and from torch's objects are filled
at their first use. A Python number's type (`bool`, `int`, `float`, `complex`) is *weak*: type promotion uses only its
category.
"""

from __future__ import annotations

from functools import cache
from typing import Any, overload

__all__ = ["dtype", "to_dtype", "to_torch_dtype"]

# Categories in the order of promotion: a number of a higher category promotes a tensor of a lower one.
BOOL, INTEGER, FLOAT, COMPLEX = range(4)


class dtype:
    """The element type of a tensor: `name`, `short` (`f32`), `bytes` per element and `category` (bool, integer …)."""

    __slots__ = ("bytes", "category", "is_signed", "is_weak", "name", "short")

    def __init__(self, name: str, short: str, nbytes: int, category: int, *, signed: bool = True, weak: bool = False):
        self.name = name
        self.short = short
        self.bytes = nbytes
        self.category = category
        self.is_signed = signed
        self.is_weak = weak

    @property
    def itemsize(self) -> int:
        """Bytes per element; the property has torch's name."""
        return self.bytes

    @property
    def is_floating_point(self) -> bool:
        """True for a real floating point type; the property has torch's name."""
        return self.category == FLOAT

    @property
    def is_complex(self) -> bool:
        """True for a complex type; the property has torch's name."""
        return self.category == COMPLEX

    def __repr__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        # A torch dtype of the same name is equal, so that checkers may compare with a dtype of thunder or of torch.
        if self is other:
            return True
        if isinstance(other, dtype):
            return False
        return type(other).__module__ == "torch" and str(other) == "torch." + self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (_by_name, (self.name, self.is_weak))


def _by_name(name: str, weak: bool) -> dtype:
    return weak_dtypes[_NUMBER_OF_CATEGORY[_BY_NAME[name].category]] if weak else _BY_NAME[name]


bool8 = dtype("bool", "b8", 1, BOOL, signed=False)
uint8 = dtype("uint8", "ui8", 1, INTEGER, signed=False)
uint16 = dtype("uint16", "ui16", 2, INTEGER, signed=False)
uint32 = dtype("uint32", "ui32", 4, INTEGER, signed=False)
uint64 = dtype("uint64", "ui64", 8, INTEGER, signed=False)
int8 = dtype("int8", "i8", 1, INTEGER)
int16 = dtype("int16", "i16", 2, INTEGER)
int32 = dtype("int32", "i32", 4, INTEGER)
int64 = dtype("int64", "i64", 8, INTEGER)
float8_e4m3fn = dtype("float8_e4m3fn", "f8_e4m3fn", 1, FLOAT)
float8_e4m3fnuz = dtype("float8_e4m3fnuz", "f8_e4m3fnuz", 1, FLOAT)
float8_e5m2 = dtype("float8_e5m2", "f8_e5m2", 1, FLOAT)
float8_e5m2fnuz = dtype("float8_e5m2fnuz", "f8_e5m2fnuz", 1, FLOAT)
float8_e8m0fnu = dtype("float8_e8m0fnu", "f8_e8m0fnu", 1, FLOAT, signed=False)
float4_e2m1fn_x2 = dtype("float4_e2m1fn_x2", "f4_e2m1fn_x2", 1, FLOAT)
bfloat16 = dtype("bfloat16", "bf16", 2, FLOAT)
float16 = dtype("float16", "f16", 2, FLOAT)
float32 = dtype("float32", "f32", 4, FLOAT)
float64 = dtype("float64", "f64", 8, FLOAT)
complex32 = dtype("complex32", "c32", 4, COMPLEX)
bcomplex32 = dtype("bcomplex32", "bc32", 4, COMPLEX)  # requires torch >= 2.14
complex64 = dtype("complex64", "c64", 8, COMPLEX)
complex128 = dtype("complex128", "c128", 16, COMPLEX)

all_dtypes: tuple[dtype, ...] = tuple(v for v in list(globals().values()) if isinstance(v, dtype))
_BY_NAME: dict[str, dtype] = {d.name: d for d in all_dtypes}

float8_dtypes = frozenset(d for d in all_dtypes if d.short.startswith("f8"))
low_precision_dtypes = float8_dtypes | {bfloat16, float16, float4_e2m1fn_x2}
# torch's other names for these dtypes: `dtypes.bool`, `dtypes.half` …
_ALIASES = {
    "half": float16, "float": float32, "double": float64, "short": int16, "int": int32, "long": int64,
    "cfloat": complex64, "cdouble": complex128, "chalf": complex32, "bool": bool8,
}  # fmt: skip

# Types of Python numbers, and the weak dtypes that promotion uses for them.
number_types: tuple[type, ...] = (bool, int, float, complex)
_CATEGORY_OF_NUMBER: dict[type, int] = {bool: BOOL, int: INTEGER, float: FLOAT, complex: COMPLEX}
_NUMBER_OF_CATEGORY: dict[int, type] = {v: k for k, v in _CATEGORY_OF_NUMBER.items()}
weak_dtypes: dict[type, dtype] = {
    bool: dtype("bool", "b8", 1, BOOL, signed=False, weak=True),
    int: dtype("int64", "i64", 8, INTEGER, weak=True),
    float: dtype("float32", "f32", 4, FLOAT, weak=True),
    complex: dtype("complex64", "c64", 8, COMPLEX, weak=True),
}


def __getattr__(name: str) -> dtype:
    try:
        return _ALIASES[name]
    except KeyError:
        raise AttributeError(f"thunder.dtypes has no type named {name!r}; it has {', '.join(_BY_NAME)}") from None


def is_boolean_dtype(d: dtype | type) -> bool:
    """Check whether `d` (a dtype or a Python number type) is boolean."""
    return category(d) == BOOL


def is_exact_dtype(d: dtype | type) -> bool:
    """Check whether `d` is boolean or an integer type."""
    return category(d) <= INTEGER


def is_nonboolean_integer_dtype(d: dtype | type) -> bool:
    """Check whether `d` is an integer type and not boolean."""
    return category(d) == INTEGER


def is_unsigned_dtype(d: dtype) -> bool:
    """Check whether `d` is an unsigned integer type."""
    return d.category == INTEGER and not d.is_signed


def is_float_dtype(d: dtype | type) -> bool:
    """Check whether `d` is a real floating point type."""
    return category(d) == FLOAT


def is_complex_dtype(d: dtype | type) -> bool:
    """Check whether `d` is a complex type."""
    return category(d) == COMPLEX


def is_inexact_dtype(d: dtype | type) -> bool:
    """Check whether `d` is a floating point or complex type, and therefore differentiable."""
    return category(d) >= FLOAT


def is_low_precision_dtype(d: dtype) -> bool:
    """Check whether `d` is a floating point type of fewer than 32 bits."""
    return d in low_precision_dtypes


def category(d: dtype | type) -> int:
    """Return the promotion category of a dtype or a Python number type, including subclasses such as an IntEnum."""
    if isinstance(d, dtype):
        return d.category
    found = _CATEGORY_OF_NUMBER.get(d)
    if found is None:
        found = next((c for t, c in _CATEGORY_OF_NUMBER.items() if issubclass(d, t)), None)
    if found is None:
        raise TypeError(f"expected a number, got an object of type {d.__name__}")
    return found


def dtype_to_numbertype(d: dtype | type) -> type:
    """Return the Python number type of the elements of `d`."""
    return _NUMBER_OF_CATEGORY[category(d)]


_COMPLEX_OF_REAL = {float16: complex32, bfloat16: complex64, float32: complex64, float64: complex128}
_REAL_OF_COMPLEX = {complex32: float16, bcomplex32: bfloat16, complex64: float32, complex128: float64}


def corresponding_real_dtype(d: dtype) -> dtype:
    """Return the type of the real part of a complex `d`; return a real type unchanged."""
    return _REAL_OF_COMPLEX.get(d, d)


def corresponding_complex_dtype(d: dtype) -> dtype:
    """Return the complex type whose parts have type `d`; return a complex type unchanged."""
    if d.category == COMPLEX:
        return d
    if d not in _COMPLEX_OF_REAL:
        raise RuntimeError(f"Unknown Complex ScalarType for {d}: no complex type has parts of type {d}")
    if d is bfloat16 and bcomplex32 in _torch_maps()[1]:
        return bcomplex32
    return _COMPLEX_OF_REAL[d]


@cache
def _torch_maps() -> tuple[dict[Any, dtype], dict[dtype, Any]]:
    import torch

    to_torch = {d: getattr(torch, d.name) for d in all_dtypes if hasattr(torch, d.name)}
    from_torch = {t: d for d, t in to_torch.items()}
    return from_torch, to_torch


@overload
def to_dtype(x: None) -> None: ...
@overload
def to_dtype(x: Any) -> dtype: ...
def to_dtype(x: Any) -> dtype | None:
    """Convert a torch dtype, a Python number type, a number or an object with a `.dtype` to a thunder dtype."""
    if x is None or isinstance(x, dtype):
        return x
    if isinstance(x, type) and x in _CATEGORY_OF_NUMBER:
        return _torch_type_of_number(x)
    from_torch, _ = _torch_maps()
    try:
        return from_torch[x]
    except (KeyError, TypeError):
        pass
    if isinstance(x, (bool, int, float, complex)):
        return weak_dtypes[type(x)]
    if hasattr(x, "dtype"):
        found: dtype = to_dtype(x.dtype)
        return found
    if type(x).__module__ == "torch" and type(x).__name__ == "dtype":
        raise ValueError(f"{x} is a storage type without operations: thunder computes in {', '.join(_BY_NAME)}")
    raise ValueError(f"{x!r} is not a dtype: use a torch.dtype, a thunder.dtypes type or bool, int, float, complex")


def _torch_type_of_number(t: type) -> dtype:
    # torch interprets `dtype=float` as float64 and `dtype=int` as int64.
    return {bool: bool8, int: int64, float: float64, complex: complex128}[t]


def to_torch_dtype(x: Any) -> Any:
    """Convert a dtype, or any other argument that `to_dtype` accepts, to a torch dtype; return None for None."""
    if x is None:
        return None
    _, to_torch = _torch_maps()
    if isinstance(x, dtype):
        try:
            return to_torch[x]
        except KeyError:
            if x.is_weak:
                return to_torch[_BY_NAME[x.name]]
            raise ValueError(f"this version of torch has no dtype {x.name}; a newer version may have it") from None
    return to_torch_dtype(to_dtype(x))
