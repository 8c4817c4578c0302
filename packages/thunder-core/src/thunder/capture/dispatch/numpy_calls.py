# SPDX-License-Identifier: Apache-2.0
"""Calls of NumPy in a traced program, on arrays from outside and on arrays of tensors (`x.numpy()`).

NumPy first runs the call on arrays of ones, which determines the class, the shape and the dtype of the result. Then

1. a function that returns a view (`reshape`, indexing) becomes the operation of torch on the tensor of the array, so
   that the view shares memory with it;
2. a function of thunder's NumPy language becomes its operation, if the operation has the same result type;
3. another function in `_BY_SHAPE`, whose result type does not depend on values, becomes an operation that NumPy runs;
4. any other call ends the trace, and the program runs eagerly.
"""

from __future__ import annotations

import functools
import operator
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from thunder.capture.base.fallback import RunsEagerly, fall_back, torch_error
from thunder.capture.dispatch.opaque import call_opaque
from thunder.capture.dispatch.registry import handles
from thunder.capture.numbers.overrides import ANSWERS
from thunder.capture.tensors.arrays import ArrayHandle, call_numpy, is_array_handle
from thunder.capture.tensors.tracer import Tracer
from thunder.core.devices import cpu
from thunder.core.dtypes import to_dtype, to_torch_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.state import state
from thunder.core.symbol import NON_DIFFERENTIABLE, OpTags, Symbol, map_proxies
from thunder.core.symint.numbers import specialized
from thunder.executors.torchex.base import ex as torch_executor
from thunder.runtime.arrays import dtype_of, from_numpy, shared_tensor

__all__ = ["constant_array", "is_array", "replaced_functions", "tensor_of_array"]

_PLAIN = (bool, int, float, complex, str, type(None), type(Ellipsis))


class _NotTraced(Exception):
    """A call that no operation can express."""


# -- tensors to arrays, and back --------------------------------------------------------------------------------------
@handles(torch.Tensor.numpy, traced=True)
def _numpy(tracer: Tracer, x: Any, *, force: bool = False) -> Any:
    """Return an array that shares memory with a tensor."""
    x = tracer.handle_of(x)
    tracer.uses_arrays = True
    if force:
        return ArrayHandle(x.detach().cpu())
    if x.requires_grad:
        raise torch_error("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
    if x.device.type != "cpu" or x.dtype is torch.bfloat16 or x.is_conj() or x.is_neg():
        fall_back("the program calls .numpy() on a tensor that has no NumPy array")
    return ArrayHandle(x.detach())


def tensor_of_array(tracer: Tracer, x: Any) -> Any:
    """Return a tensor that shares memory with an array.

    If the program made the array, the array is a constant, because the program made it from guarded values.
    """
    if is_array_handle(x):
        return tracer.handle_of(x._thunder_tensor).detach()
    found = constant_array(tracer, x)
    tracer.constant_arrays.append((x, x.tobytes(), found._storage))
    return found


def is_array(x: Any) -> bool:
    """Check for an array handle, or an array or NumPy number that the program made."""
    if is_array_handle(x):
        return True
    return "numpy" in sys.modules and isinstance(x, (_np().ndarray, _np().generic))


def constant_array(tracer: Tracer, x: Any) -> Any:
    """Return a tensor with the current values of an array or NumPy number that the program made."""
    copy = _np().array(x)
    if shared_tensor(copy) is None:
        raise _NotTraced(f"an array of {copy.dtype}")
    return call_opaque(tracer, torch.tensor, (copy,), {"device": "cpu"})


def replaced_functions() -> list[tuple[Any, str, Any]]:
    """Return replacements of the functions that convert arrays and do not support NumPy's protocols."""
    found: list[tuple[Any, str, Any]] = [(torch, "from_numpy", _from_numpy)]
    if "numpy" in sys.modules:
        found += [(_np(), name, _converter(name)) for name in ("asarray", "asanyarray", "array", "ascontiguousarray")]
    return found


def _from_numpy(x: Any) -> Any:
    return call_numpy(from_numpy, (x,), {})


def _from_numpy_anywhere(x: Any) -> Any:
    return from_numpy(x) if state.frontend is None else _from_numpy(x)


ANSWERS[id(from_numpy)] = _from_numpy_anywhere  # programs may have it under other names


def _converter(name: str) -> Callable[..., Any]:
    original = getattr(_np(), name)

    def convert(x: Any, *args: Any, **kwargs: Any) -> Any:
        if type(x) in (list, tuple) and any(map(is_array_handle, x)):
            x = call_numpy(_np().stack, (list(x),), {})
        if not is_array_handle(x) and not isinstance(x, torch.Tensor):
            return original(x, *args, **kwargs)
        array = x if is_array_handle(x) else x.numpy()
        if array._thunder_scalar:
            array = ArrayHandle(array._thunder_tensor)
        copy = kwargs.pop("copy", name == "array")
        dtype = kwargs.pop("dtype", None) if not args else args[0]
        if kwargs or len(args) > 1 or (name == "ascontiguousarray" and not array.ndim):
            fall_back(f"the program calls numpy.{name} with options that thunder does not trace")
        if name == "ascontiguousarray":
            array = ArrayHandle(array._thunder_tensor.contiguous())
        if dtype is not None and _np().dtype(dtype) != array.dtype:
            return call_numpy(_np().ndarray.astype, (array, dtype), {})
        return call_numpy(_np().copy, (array,), {}) if copy else array

    return convert


def _np() -> Any:
    return sys.modules["numpy"]


# -- calls ------------------------------------------------------------------------------------------------------------
@handles(call_numpy, traced=True)
def _call(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if function is from_numpy:
        return tensor_of_array(tracer, *args)
    name = getattr(function, "__name__", "")
    try:
        return _traced(tracer, function, name, args, dict(kwargs))
    except RunsEagerly:
        raise
    except Exception as error:
        tracer.refusal = None
        return fall_back(f"the program calls numpy.{name}, which thunder cannot trace here ({error})")


def _traced(tracer: Tracer, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if function is operator.setitem:
        return _set_item(tracer, *args)
    if name in _OF_METADATA:
        return function(*_map(_ones, args), **_map(_ones, kwargs))
    out = kwargs.pop("out", None)
    on_ones, is_view = _on_ones(function, args, kwargs)
    view = _VIEWS.get(name)
    if (
        view is not None
        and args
        and is_array_handle(args[0])
        and not (name == "getitem" and _has_negative_step(args[1]))
    ):
        result = _in_arrays(view(tracer, args[0]._thunder_tensor, *args[1:], **kwargs), on_ones)
    elif is_view or name in _BY_SHAPE or isinstance(getattr(function, "__self__", function), _np().ufunc):
        result = _computed(tracer, function, name, args, kwargs, on_ones)
        if is_view:
            _note_copies(tracer, args, result)
    else:
        raise _NotTraced("its result may depend on values in a way that thunder does not know")
    return result if out is None else _written(out[0] if type(out) is tuple else out, result)


def _on_ones(function: Any, args: Any, kwargs: Any) -> tuple[Any, bool]:
    """Return the result of a call on arrays of ones, and whether a part of the result is a view of an argument."""
    given = _map(_ones, args)
    with warnings.catch_warnings(), _np().errstate(all="ignore"):
        warnings.simplefilter("ignore")
        result = function(*given, **_map(_ones, kwargs))
    arrays = [x for x in _flat(given) if isinstance(x, _np().ndarray)]
    results = [x for x in _flat(result) if isinstance(x, _np().ndarray)]
    return result, any(_np().may_share_memory(x, y) for x in arrays for y in results)


def _flat(x: Any) -> list[Any]:
    return [j for i in x for j in _flat(i)] if isinstance(x, (tuple, list)) else [x]


def _has_negative_step(key: Any) -> bool:
    return any(isinstance(x, slice) and isinstance(x.step, int) and x.step < 0 for x in _flat(key))


def _note_copies(tracer: Tracer, args: Any, result: Any) -> None:
    """Record that results are copies of memory in the trace, and views of it in NumPy, e.g. of `a[::-1]`.

    The difference is visible if the program writes to the memory afterwards, or returns the view.
    """
    bases = [tracer.handle_of(x._thunder_tensor)._storage for x in _flat(args) if is_array_handle(x)]
    copies = [tracer.handle_of(x._thunder_tensor)._storage for x in _flat(result) if is_array_handle(x)]
    tracer.copied_views.append(([(base, base.version) for base in bases], copies))


def _ones(x: Any) -> Any:
    if not is_array_handle(x):
        return x
    ones = _np().ones(specialized(x.shape), x.dtype)
    return ones[()] if x._thunder_scalar else ones


def _map(fn: Callable[[Any], Any], x: Any) -> Any:
    if type(x) in (tuple, list):
        return type(x)([_map(fn, i) for i in x])
    return {k: _map(fn, v) for k, v in x.items()} if type(x) is dict else fn(x)


def _computed(tracer: Tracer, function: Any, name: str, args: Any, kwargs: Any, on_ones: Any) -> Any:
    """Record a call whose result is a new array."""
    if function is operator.getitem:
        function, args = _get_item, (args[0], *_items_of_key(args[1]))

    def tensor(x: Any) -> Any:
        if is_array_handle(x):
            return x._thunder_tensor
        if isinstance(x, (_np().ndarray, _np().generic)):
            return constant_array(tracer, x)
        if isinstance(x, _np().dtype) or (isinstance(x, type) and issubclass(x, _np().generic)):
            return _np().dtype(x).name
        if isinstance(x, torch.Tensor):
            raise _NotTraced("it mixes tensors and arrays")
        if not isinstance(x, (*_PLAIN, slice)) and x not in (int, float, bool, complex):
            raise _NotTraced(f"an argument is a {type(x).__name__}")
        return _np().dtype(x).name if isinstance(x, type) else x

    args, kwargs = _map(tensor, args), _map(tensor, kwargs)
    sym = _operation(name)
    plain = isinstance(function, _np().ufunc) or getattr(function, "__self__", None) is None
    if sym is not None and plain and sym.bind.accepts(args, kwargs) and not _has_names(args, kwargs):
        try:
            with torch.autocast("cpu", enabled=False):
                result = tracer.call_symbol(sym, args, kwargs)
            if _same_type(result, on_ones):
                return _in_arrays(result, on_ones)
        except RunsEagerly:
            raise
        except Exception:  # of a dtype that the language does not support
            tracer.refusal = None
    result = tracer.call_symbol(_numpy_symbol(function, name), args, kwargs)
    return _in_arrays(result, on_ones)


@functools.cache
def _operation(name: str) -> Symbol | None:
    """Return the operation of thunder's NumPy language, which is imported by the first program that uses NumPy."""
    from thunder.numpy import all_npsymbols  # most programs do not use NumPy, and its language takes time to import

    return all_npsymbols().get(f"numpy.{_LANGUAGE.get(name, name)}")


def _has_names(args: Any, kwargs: Any) -> bool:
    """Check whether a dtype is among the arguments, by name."""
    return any(isinstance(x, str) for x in (*args, *kwargs.values()))


def _same_type(result: Any, on_ones: Any) -> bool:
    return (
        isinstance(result, torch.Tensor)
        and isinstance(on_ones, (_np().ndarray, _np().generic))
        and tuple(result.shape) == on_ones.shape
        and dtype_of(result.dtype) == on_ones.dtype
    )


def _in_arrays(result: Any, on_ones: Any) -> Any:
    """Return array handles of tensors, in the structure of the result on arrays of ones."""
    if isinstance(on_ones, (tuple, list)):
        items = [_in_arrays(r, o) for r, o in zip(result, on_ones)]
        return type(on_ones)(*items) if hasattr(on_ones, "_fields") else type(on_ones)(items)
    if isinstance(on_ones, (bool, int, float)) and not isinstance(on_ones, _np().generic):
        return result.item()
    return ArrayHandle(result, scalar=isinstance(on_ones, _np().generic))


# -- operations that NumPy runs ---------------------------------------------------------------------------------------
@functools.cache
def _numpy_symbol(function: Any, name: str) -> Symbol:
    """Return the operation that runs a function of NumPy on the arrays of tensors."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return _tensors(function(*_map(_array, args), **_map(_array, kwargs)))

    def meta(*args: Any, **kwargs: Any) -> Any:
        def ones(p: Any) -> Any:
            if not isinstance(p, TensorProxy):
                return p
            return _np().ones(specialized(p.shape), dtype_of(to_torch_dtype(p.dtype)))

        with warnings.catch_warnings(), _np().errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = function(*specialized(map_proxies(args, ones)), **specialized(map_proxies(kwargs, ones)))
        return _proxies(_tensors(found))

    title = f"numpy_{name}"
    run.__name__ = title
    meta.__doc__ = f"NumPy's {name}, which NumPy runs."
    return Symbol(
        title, meta, id=("numpy", function), is_prim=True, executor=torch_executor, fn=run,
        tags=(OpTags.OPAQUE_OP, NON_DIFFERENTIABLE),
    )  # fmt: skip


def _array(x: Any) -> Any:
    return x.detach().numpy() if isinstance(x, torch.Tensor) else x


def _tensors(x: Any) -> Any:
    """Return the results of NumPy as tensors. A result with negative strides is copied."""
    if isinstance(x, (tuple, list)):
        return tuple([_tensors(i) for i in x])
    array = _np().asarray(x)
    if any(n < 0 for n in array.strides) or not array.flags.writeable:
        array = array.copy()
    return from_numpy(array)


def _proxies(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple([_proxies(i) for i in x])
    return TensorProxy(shape=tuple(x.shape), device=cpu, dtype=to_dtype(x.dtype))


# -- views and writes -------------------------------------------------------------------------------------------------
def _key(tracer: Tracer, key: Any) -> Any:
    """Return an index of torch that selects the same elements."""

    def one(x: Any) -> Any:
        if isinstance(x, slice):
            return slice(*[n if n is None else operator.index(n) for n in (x.start, x.stop, x.step)])
        if is_array_handle(x) and x._thunder_scalar:
            return x._thunder_tensor.item()
        if is_array_handle(x) or isinstance(x, (_np().ndarray, list)):
            index = x._thunder_tensor if is_array_handle(x) else constant_array(tracer, _np().asarray(x))
            return index if index.dtype is torch.bool else index.to(torch.int64)
        if x is None or x is Ellipsis or type(x) is int:
            return x
        if isinstance(x, _np().integer):
            return int(x)
        raise _NotTraced(f"it is indexed by a {type(x).__name__}")

    return tuple(map(one, key)) if type(key) is tuple else one(key)


def _items_of_key(key: Any) -> list[Any]:
    """Return the items of an index that consists of integers, slices and `...`."""
    items = list(key) if type(key) is tuple else [key]
    if not all(isinstance(x, (int, slice, type(None), type(Ellipsis))) for x in items):
        raise _NotTraced("a slice with a negative step is combined with arrays")
    return items


def _get_item(x: Any, *key: Any) -> Any:
    return x[key]


def _item(tracer: Tracer, x: Any, key: Any) -> Any:
    return x[_key(tracer, key)]


def _set_item(tracer: Tracer, x: Any, key: Any, value: Any) -> None:
    target = x._thunder_tensor
    if is_array_handle(value):
        value = value._thunder_tensor
    elif isinstance(value, (_np().ndarray, _np().generic, list)):
        value = constant_array(tracer, _np().asarray(value))
    elif not isinstance(value, (bool, int, float)) or (isinstance(value, float) and not target.is_floating_point()):
        raise _NotTraced(f"an item is set to a {type(value).__name__}")
    target[_key(tracer, key)] = value.to(target.dtype) if isinstance(value, torch.Tensor) else value


def _written(target: Any, result: Any) -> Any:
    """Write the result of a call with `out=`."""
    if type(target) is not ArrayHandle or target.shape != result.shape:
        raise _NotTraced("out= is not an array of the result's shape")
    if not _np().can_cast(result.dtype, target.dtype, "same_kind"):
        raise _NotTraced(f"{result.dtype} cannot be written to {target.dtype}")
    target._thunder_tensor.copy_(result._thunder_tensor)
    return target


def _shape(sizes: tuple[Any, ...]) -> Any:
    given = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    return [operator.index(n) for n in given]


def _axes(axis: Any) -> tuple[int, ...]:
    return tuple(map(operator.index, axis)) if isinstance(axis, (tuple, list)) else (operator.index(axis),)


def _reshape(tracer: Tracer, x: Any, *shape: Any, newshape: Any = None) -> Any:
    return x.reshape(_shape((newshape,) if newshape is not None else shape))


def _transpose(tracer: Tracer, x: Any, *axes: Any) -> Any:
    return x.permute(_shape(axes) if axes and axes != (None,) else list(range(x.ndim))[::-1])


def _squeeze(tracer: Tracer, x: Any, axis: Any = None) -> Any:
    return x.squeeze() if axis is None else x.squeeze(_axes(axis))


def _expand_dims(tracer: Tracer, x: Any, axis: Any) -> Any:
    axes = sorted(a % (x.ndim + len(_axes(axis))) for a in _axes(axis))
    for a in axes:
        x = x.unsqueeze(a)
    return x


def _astype(tracer: Tracer, x: Any, dtype: Any, *, copy: bool = True) -> Any:
    kind = getattr(torch, _np().dtype(dtype).name)
    if x.is_complex() and not kind.is_complex:
        raise _NotTraced("complex numbers become real")
    return x.to(kind, copy=copy)


def _fill(tracer: Tracer, x: Any, value: Any) -> Any:
    _set_item(tracer, ArrayHandle(x), Ellipsis, value)


_VIEWS: dict[str, Callable[..., Any]] = {
    "getitem": _item,
    "reshape": _reshape,
    "ravel": lambda tracer, x: x.reshape(-1),
    "flatten": lambda tracer, x: x.reshape(-1).clone(),
    "transpose": _transpose,
    "matrix_transpose": lambda tracer, x: x.mT,
    "swapaxes": lambda tracer, x, a, b: x.transpose(a, b),
    "moveaxis": lambda tracer, x, source, destination: x.movedim(source, destination),
    "squeeze": _squeeze,
    "expand_dims": _expand_dims,
    "astype": _astype,
    "copy": lambda tracer, x: x.clone(memory_format=torch.contiguous_format),
    "fill": _fill,
    "nonzero": lambda tracer, x: x.nonzero(as_tuple=True),
}

# Functions of the metadata of arrays.
_OF_METADATA = frozenset({"shape", "ndim", "size", "result_type", "iscomplexobj", "isrealobj", "isscalar", "can_cast"})
# Names of functions that thunder's NumPy language has under another name.
_LANGUAGE = {"amax": "max", "amin": "min", "true_divide": "divide", "bitwise_not": "invert", "abs": "absolute"}
# Functions whose result has a type that depends on the types of the arrays and on the other arguments only.
_BY_SHAPE = frozenset({
    "sum", "prod", "mean", "std", "var", "max", "min", "amax", "amin", "ptp", "argmax", "argmin", "all", "any",
    "median", "average", "quantile", "percentile", "nanmean", "nansum", "nanprod", "nanstd", "nanvar", "nanmax",
    "nanmin", "nanmedian", "nanargmax", "nanargmin", "count_nonzero", "cumsum", "cumprod", "nancumsum",
    "nancumprod", "sort", "argsort", "clip", "round", "around", "where", "concatenate", "stack", "vstack",
    "hstack", "dstack", "column_stack", "dot", "vdot", "inner", "outer", "matmul", "tensordot", "einsum", "kron",
    "cross", "trace", "diag", "diagflat", "tril", "triu", "repeat", "tile", "roll", "pad", "take",
    "take_along_axis", "diff", "ediff1d", "gradient", "interp", "convolve", "correlate", "searchsorted",
    "digitize", "isclose", "allclose", "array_equal", "nan_to_num", "angle", "sinc", "zeros_like", "ones_like",
    "full_like", "polyval", "vander", "trapezoid", "norm", "det", "inv", "solve", "pinv", "svd", "qr", "eigh",
    "eigvalsh", "cholesky", "slogdet", "matrix_power", "matrix_rank", "multi_dot", "fft", "ifft", "rfft", "irfft",
    "fft2", "ifft2", "fftn", "ifftn", "fftshift", "ifftshift", "histogram", "isin", "i0", "conj", "conjugate",
    "append",
})  # fmt: skip
