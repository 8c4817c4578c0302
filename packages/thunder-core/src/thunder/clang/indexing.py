# SPDX-License-Identifier: Apache-2.0
"""`a[key]` and `a[key] = value`: torch's indexing over primitives.

A key is parsed into a plan of two parts. Basic indexing (integers, slices, None, …) creates a view with one slice, one
squeeze and one broadcast. Advanced indexing (tensors and lists of indices) then selects elements of the view with one
index primitive. A write computes the same steps, and then scatters the results back in reverse order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from thunder.clang.base import (
    clangop,
    compute_broadcast_shape,
    demand,
    expand,
    is_one,
    is_same_size,
    maybe_convert_to_dtype,
)
from thunder.clang.shape import reshape, stack
from thunder.core import dtypes, prims
from thunder.core.errors import TracingError, check
from thunder.core.prims.indexing import indexed_shape
from thunder.core.prims.metas import canonicalize_dim, is_number
from thunder.core.proxies import NumberProxy, TensorProxy, number_type, number_value
from thunder.core.symint.numbers import converted, greater, index, is_unbacked, same_shape

__all__ = ["getitem", "setitem", "take", "take_along_axis"]

_MASKS = (dtypes.bool8, dtypes.uint8)


def is_basic_index(key: Any) -> bool:
    """Check whether `a[key]` is a view: the key contains only integers, 0-d tensors, slices, None and Ellipsis."""
    if isinstance(key, tuple):
        return all(is_basic_index(k) for k in key)
    if key is None or key is Ellipsis or isinstance(key, (int, slice, NumberProxy)):
        return not isinstance(key, bool)
    if hasattr(key, "requires_grad"):  # a proxy, or a handle of a proxy
        dtype: Any = dtypes.to_dtype(key.dtype)
        return len(key.shape) == 0 and dtype not in _MASKS and dtypes.is_exact_dtype(dtype)
    return hasattr(type(key), "__index__")


class _Plan:
    """A parsed key (see the module's docstring). Dimensions of the tensor are stored as indices."""

    def __init__(self, a: TensorProxy):
        self.starts = [0] * a.ndim
        self.ends = list(a.shape)
        self.steps = [1] * a.ndim
        self.dropped: list[int] = []  # dimensions indexed with an integer
        self.selected: dict[int, TensorProxy] = {}  # dimensions indexed with a 0-d tensor
        self.layout: list[int | None] = []  # for each dimension of the view: the tensor's dimension, or None
        self.picked: dict[int, TensorProxy] = {}  # index tensors, by their position in the layout
        self.mask: tuple[int, TensorProxy] | None = None  # a boolean mask, and its first position in the layout
        self.listed: list[tuple[int, int]] = []  # numbers from lists of indices, with their dimensions
        self.slices = False  # True if the slice is not the whole tensor

    def finish(self, a: TensorProxy) -> _Plan:
        """Complete the plan after the whole key is parsed."""
        bounds = zip(self.starts, self.ends, self.steps, a.shape)
        self.slices = any(t != 1 or is_unbacked(s, e) or s != 0 or e != n for s, e, t, n in bounds)
        if self.listed:
            self._check_listed(a)
        return self

    def _check_listed(self, a: TensorProxy) -> None:
        # torch does not check the indices if the result is empty.
        rest = [n for i, n in enumerate(self.basic_shape()) if i not in self.picked]
        if 0 in rest or any(0 in index.shape for index in self.picked.values()):
            return
        for i, dim in self.listed:
            n = a.shape[dim]
            if not -n <= i < n:
                raise IndexError(f"index {i} is out of bounds for dimension {dim} with size {n}")

    def sliced_shape(self) -> tuple[int, ...]:
        """Return the shape after the slice."""
        return tuple([-(-(e - s) // t) for s, e, t in zip(self.starts, self.ends, self.steps)])

    def basic_shape(self) -> tuple[int, ...]:
        """Return the shape of the view."""
        sizes = self.sliced_shape()
        return tuple([1 if d is None else sizes[d] for d in self.layout])


# -- parsing a key ----------------------------------------------------------------------------------------------------
def _as_tuple(key: Any) -> tuple[Any, ...]:
    if isinstance(key, tuple):
        if any(type(k).__module__ == "numpy" for k in key):
            return tuple([k.tolist() if type(k).__module__ == "numpy" else k for k in key])
        return key
    if type(key).__module__ == "numpy":
        return (key.tolist(),)
    # torch treats a short list as a tuple if it contains tensors, sequences or slices.
    nested = (TensorProxy, list, tuple, range, slice)
    if isinstance(key, list) and len(key) < 32 and any(k is None or k is ... or isinstance(k, nested) for k in key):
        return tuple(key)
    return (key,)


def _consumes(k: Any) -> int:
    """Return the number of dimensions that one item of the key indexes."""
    kind = type(k)
    if kind is slice or kind is int:
        return 1
    if k is None or k is Ellipsis or isinstance(k, bool):
        return 0
    if isinstance(k, TensorProxy) and k.dtype in _MASKS:
        return k.ndim
    if isinstance(k, (list, tuple)) and _is_mask_list(k):
        return len(_list_shape(k))
    return 1


def _plan(a: TensorProxy, key: Any, *, write: bool = False) -> _Plan:
    items = _as_tuple(key)
    spans = [_consumes(k) for k in items]
    consumed = sum(spans)
    if consumed > a.ndim:
        _refuse_too_many(a, items)
    plan = _Plan(a)
    dim = 0
    for at, k in enumerate(items):
        if k is None:
            plan.layout.append(None)
        elif k is Ellipsis:
            after = min(dim + a.ndim - consumed, a.ndim)
            plan.layout += range(dim, after)
            dim = after
        elif isinstance(k, bool):
            plan.picked[len(plan.layout)] = _positions([0] if k else [], a)
            plan.layout.append(None)
        else:
            if dim + spans[at] > a.ndim:
                raise IndexError(f"too many indices for tensor of dimension {a.ndim}")
            dim += _take_in(plan, a, dim, k, at, write)
    plan.layout += range(dim, a.ndim)
    return plan.finish(a)


def _refuse_too_many(a: TensorProxy, items: tuple[Any, ...]) -> NoReturn:
    if a.ndim == 0 and len(items) == 1 and isinstance(items[0], slice):
        _bounds(items[0], 0)
        raise IndexError("slice() cannot be applied to a 0-dim tensor.")
    if a.ndim == 0 and len(items) == 1 and is_basic_index(items[0]):
        raise IndexError("invalid index of a 0-dim tensor: it has no dimensions. Use the tensor itself, or tensor[...]")
    raise IndexError(f"too many indices for tensor of dimension {a.ndim}")


def _take_in(plan: _Plan, a: TensorProxy, dim: int, k: Any, at: int, write: bool) -> int:
    """Add an item of the key, which starts at dimension `dim`, to the plan; return how many dimensions it indexes."""
    if isinstance(k, slice):
        plan.starts[dim], plan.ends[dim], plan.steps[dim] = _bounds(k, a.shape[dim])
        plan.layout.append(dim)
    elif isinstance(k, TensorProxy):
        return _take_tensor(plan, a, dim, k, at, write)
    elif isinstance(k, (list, tuple, range)):
        return _take_list(plan, a, dim, list(k), at)
    elif hasattr(type(k), "__index__"):
        i = index(k)
        n = a.shape[dim]
        for low, relation, high in ((i, "<", n), (-n, "<=", i)):
            demand(
                low, relation, high, lambda: f"index {i} is out of bounds for dimension {dim} with size {n}", IndexError
            )
        plan.starts[dim] = i.position(n) if is_unbacked(i) else i + n if i < 0 else i
        plan.ends[dim] = plan.starts[dim] + 1
        plan.dropped.append(dim)
    else:
        kind = type(k).__name__
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices "
            f"(got {kind})"
        )
    return 1


def _bounds(k: slice, n: int) -> tuple[int, int, int]:
    for x in (k.start, k.stop, k.step):
        if x is None or type(x) is int:
            continue
        if isinstance(x, TensorProxy):
            raise TracingError(
                f"a slice with the tensor {x.name} as a bound has a data-dependent size, which is not known while "
                "tracing. Pass the bound as a Python number, or index with a tensor (a[start + torch.arange(length)])"
            )
        if not hasattr(type(x), "__index__"):
            raise TypeError("slice indices must be integers or None or have an __index__ method")
    step = 1 if k.step is None else index(k.step)
    if step <= 0:
        raise ValueError("slice step cannot be zero" if step == 0 else "step must be greater than zero")
    start = 0 if k.start is None else _within(index(k.start), n)
    stop = n if k.stop is None else _within(index(k.stop), n)
    if is_unbacked(start, stop):
        return start, greater(start, stop), step
    return start, stop if start <= stop else start, step


def _within(x: int, n: int) -> int:
    """Return `x` as a slice bound for `n` elements: add `n` if it is negative, then clamp to 0 and `n`."""
    if is_unbacked(x):
        return x.within(n)  # type: ignore[attr-defined, no-any-return]
    if is_unbacked(n):
        return n.bounds_slice(x)  # type: ignore[attr-defined, no-any-return]
    if x < 0:
        x = x + n
        return x if x >= 0 else 0
    return x if x <= n else n


def _take_tensor(plan: _Plan, a: TensorProxy, dim: int, k: TensorProxy, at: int, write: bool) -> int:
    if k.dtype in _MASKS:
        _check_mask_shape(k.shape, a, dim)
        if not write:
            _refuse_mask(k)
        if plan.mask is not None:
            raise TracingError(
                "a write with two boolean masks has a data-dependent number of elements, which is not known while "
                "tracing: combine the masks into one (mask1[:, None] & mask2), or use torch.where"
            )
        plan.mask = (len(plan.layout), k)
        plan.layout += range(dim, dim + k.ndim)
        return k.ndim
    check(
        dtypes.is_exact_dtype(k.dtype),
        lambda: "tensors used as indices must be long, int, byte or bool tensors",
        IndexError,
    )
    k = _on_device(k, a)
    if k.ndim == 0:
        # torch treats a 0-d index tensor like an integer: the dimension is removed without advanced indexing.
        plan.selected[dim] = maybe_convert_to_dtype(k, dtypes.int64)
    else:
        plan.picked[len(plan.layout)] = k
        plan.layout.append(dim)
    return 1


def _refuse_mask(mask: TensorProxy) -> NoReturn:
    raise TracingError(
        f"indexing with the boolean mask {mask.name} has a data-dependent size, the number of its true elements, which "
        "is not known while tracing. Keep the shape instead: torch.where(mask, a, other), a.masked_fill(~mask, value), "
        "or (a * mask).sum() for a reduction. Or move this part out of the traced function"
    )


def _check_mask_shape(mask: Sequence[int], a: TensorProxy, dim: int) -> None:
    for i, n in enumerate(mask):
        if n != a.shape[dim + i]:
            raise IndexError(
                f"The shape of the mask {list(mask)} at index {i} does not match the shape of the indexed tensor "
                f"{list(a.shape)} at index {dim + i}"
            )


def _on_device(index: TensorProxy, a: TensorProxy) -> TensorProxy:
    # torch moves index tensors from the CPU to the device of the tensor.
    return index if index.device is a.device or index.device.type != "cpu" else prims.device_put(index, a.device)


# -- lists in a key ---------------------------------------------------------------------------------------------------
def _positions(values: Any, a: TensorProxy) -> TensorProxy:
    return prims.tensor_from_sequence(values, device=a.device, dtype=dtypes.int64)


def _list_shape(k: Any) -> tuple[int, ...]:
    return (len(k), *_list_shape(k[0])) if isinstance(k, (list, tuple)) and k else (0,) if k in ([], ()) else ()


def _leaves(k: Any) -> list[Any]:
    return [x for i in k for x in _leaves(i)] if isinstance(k, (list, tuple, range)) else [k]


def _is_mask_list(k: Any) -> bool:
    leaves = _leaves(k)
    return bool(leaves) and all(isinstance(x, bool) for x in leaves)


def _take_list(plan: _Plan, a: TensorProxy, dim: int, k: list[Any], at: int) -> int:
    leaves = _leaves(k)
    if any(isinstance(x, TensorProxy) for x in leaves):
        return _take_tensor(plan, a, dim, _stacked(k, a), at, False)
    if _is_mask_list(k):
        shape = _list_shape(k)
        _check_mask_shape(shape, a, dim)
        found = [_unravel(i, shape) for i, x in enumerate(leaves) if x]
        for d in range(len(shape)):
            plan.picked[len(plan.layout)] = _positions([where[d] for where in found], a)
            plan.layout.append(dim + d)
        return len(shape)
    for x in leaves:
        if not is_number(x):
            raise IndexError(f"a list used as an index must contain integers or booleans, not {type(x).__name__}")
        plan.listed.append((int(number_value(x)), dim))
    plan.picked[len(plan.layout)] = _positions(_integers(k), a)
    plan.layout.append(dim)
    return 1


def _unravel(i: int, shape: Sequence[int]) -> tuple[int, ...]:
    out: list[int] = []
    for n in reversed(shape):
        out.append(i % n)
        i //= n
    return tuple(reversed(out))


def _integers(k: Any) -> Any:
    return [_integers(i) for i in k] if isinstance(k, (list, tuple, range)) else int(number_value(k))


def _stacked(k: Any, a: TensorProxy) -> TensorProxy:
    """Convert a list that contains tensors to one index tensor."""
    if isinstance(k, (list, tuple, range)):
        return stack([_stacked(i, a) for i in k])
    return maybe_convert_to_dtype(k, dtypes.int64) if isinstance(k, TensorProxy) else _positions(_integers(k), a)


# -- reading ----------------------------------------------------------------------------------------------------------
def _per_dimension(tensors: dict[int, TensorProxy]) -> tuple[TensorProxy | None, ...]:
    return tuple([tensors.get(d) for d in range(max(tensors) + 1)])


def _strides(plan: _Plan) -> tuple[int, ...] | None:
    return None if all(t == 1 for t in plan.steps) else tuple(plan.steps)


def _sliced(a: TensorProxy, plan: _Plan) -> TensorProxy:
    return prims.slice(a, tuple(plan.starts), tuple(plan.ends), _strides(plan)) if plan.slices else a


def _basic(a: TensorProxy, plan: _Plan) -> TensorProxy:
    """Apply basic indexing."""
    x = _sliced(a, plan)
    if plan.selected:
        x = prims.index(x, _per_dimension(plan.selected))
    if plan.dropped:
        left = [d for d in range(a.ndim) if d not in plan.selected]
        x = prims.squeeze(x, tuple([left.index(d) for d in plan.dropped]))
    if None in plan.layout:
        kept = [i for i, d in enumerate(plan.layout) if d is not None]
        x = prims.broadcast_in_dim(x, list(plan.basic_shape()), kept)
    return x


@clangop(method_name="getitem")
def getitem(a: TensorProxy, key: Any) -> TensorProxy:
    """Compute `a[key]`, as torch does."""
    plan = _plan(a, key)
    x = _basic(a, plan)
    return prims.index(x, _per_dimension(plan.picked)) if plan.picked else x


# -- writing ----------------------------------------------------------------------------------------------------------
@clangop()
def setitem(a: TensorProxy, key: Any, value: Any, accumulate: bool = False) -> TensorProxy:
    """Return `a` after `a[key] = value`. With `accumulate`, add `value`; a repeated index adds all its values."""
    plan = _plan(a, key, write=True)
    if plan.mask is not None:
        _check_same_dtype(a, value)
        new = _write_masked(_basic(a, plan), plan, value, accumulate)
    elif plan.picked:
        _check_same_dtype(a, value)
        indices = _per_dimension(plan.picked)
        x = _basic(a, plan)
        shape, _, _ = indexed_shape(x, indices)
        new = prims.index_put(x, indices, _value(value, a, shape), accumulate)
    else:
        new = _value(value, a, plan.basic_shape())
        new = _basic(a, plan) + new if accumulate else new
    return _put_back(a, plan, new)


def _put_back(a: TensorProxy, plan: _Plan, new: TensorProxy) -> TensorProxy:
    """Return `a` with the elements of its view (basic indexing) replaced by `new`."""
    shape = plan.sliced_shape()
    if plan.selected:
        new = reshape(new, tuple([n for d, n in enumerate(shape) if d not in plan.selected]))
        new = prims.index_put(_sliced(a, plan), _per_dimension(plan.selected), new, False)
    new = reshape(new, shape)
    if not plan.slices:
        return new
    return prims.slice_scatter(a, new, tuple(plan.starts), tuple(plan.ends), _strides(plan))


def _check_same_dtype(a: TensorProxy, value: Any) -> None:
    # torch converts the value of a write with advanced indexing only if it is a 0-d tensor.
    check(
        not isinstance(value, TensorProxy) or value.dtype is a.dtype or value.ndim == 0,
        lambda: (
            f"Index put requires the source and destination dtypes match, got {a.dtype} for the destination and "
            f"{value.dtype} for the source."
        ),
    )


def _value(value: Any, a: TensorProxy, shape: tuple[int, ...]) -> TensorProxy:
    """Convert `value` to a tensor of `shape` with the dtype of `a`."""
    if not isinstance(value, TensorProxy):
        if not is_number(value):
            raise TypeError(f"can't assign a {type(value).__name__} to a tensor of {a.dtype}")
        return prims.full(shape, _number(value, a.dtype), device=a.device, dtype=a.dtype)
    value = maybe_convert_to_dtype(value, a.dtype)
    if value.device is not a.device and value.ndim == 0:
        value = prims.device_put(value, a.device)
    extra = value.ndim - len(shape)
    if extra > 0 and all(n == 1 for n in value.shape[:extra]):
        value = reshape(value, value.shape[extra:])
    if same_shape(value.shape, shape):
        return value
    pairs = zip(reversed(value.shape), reversed(shape))
    fits = value.ndim <= len(shape) and all(is_one(n) or is_same_size(n, m) for n, m in pairs)
    check(
        fits,
        lambda: (
            f"shape mismatch: value tensor of shape {list(value.shape)} cannot be broadcast to indexing result of "
            f"shape {list(shape)}"
        ),
    )
    return expand(value, shape)


def _number(value: Any, dtype: dtypes.dtype) -> Any:
    check(
        dtypes.category(number_type(value)) < dtypes.COMPLEX or dtype.category == dtypes.COMPLEX,
        lambda: f"value cannot be converted to type {dtype} without overflow",
    )
    return converted(number_value(value), dtypes.dtype_to_numbertype(dtype))


def _write_masked(x: TensorProxy, plan: _Plan, value: Any, accumulate: bool) -> TensorProxy:
    """Return `x` with `value` written where the mask is true; the mask is broadcast over its missing dimensions."""
    assert plan.mask is not None
    if plan.picked:
        raise TracingError(
            "a write with a boolean mask and indices has a data-dependent number of elements, which is not known "
            "while tracing: use torch.where with a mask of the whole shape"
        )
    at, mask = plan.mask
    after = x.shape[at + mask.ndim :]
    where = mask if mask.dtype is dtypes.bool8 else maybe_convert_to_dtype(mask, dtypes.bool8)
    where = prims.broadcast_in_dim(where, list(x.shape), tuple(range(at, at + mask.ndim)))
    if not isinstance(value, TensorProxy):
        value = _number(value, x.dtype)
    else:
        value = maybe_convert_to_dtype(value, x.dtype)
        value = _spread_over_mask(x, mask, at, after, value)
    return prims.where(where, x + value if accumulate else value, x)


def _spread_over_mask(
    x: TensorProxy, mask: TensorProxy, at: int, after: tuple[int, ...], value: TensorProxy
) -> TensorProxy:
    """Return `value`, the operand of `x[mask] = value`, as a tensor of the shape of `x`."""
    # In x[mask], one dimension replaces the dimensions of the mask; `line` is the index of that dimension in `value`.
    extra = value.ndim - (at + 1 + len(after))
    if extra > 0 and all(n == 1 for n in value.shape[:extra]):
        value = reshape(value, value.shape[extra:])
    line = value.ndim - len(after) - 1
    if line >= 0 and value.shape[line] != 1:
        value = _one_for_each(mask, value, line)
    elif line >= 0:
        value = reshape(value, (*value.shape[:line], *(1,) * mask.ndim, *value.shape[line + 1 :]))
    shape = compute_broadcast_shape(value.shape, x.shape)
    check(
        shape == x.shape,
        lambda: f"shape mismatch: value tensor of shape {list(value.shape)} cannot be broadcast to indexing result",
    )
    return expand(value, x.shape)


def _one_for_each(mask: TensorProxy, value: TensorProxy, line: int) -> TensorProxy:
    """Distribute the elements of dimension `line` of `value` over the true elements of the mask, in order."""
    n = value.shape[line]
    flat = reshape(maybe_convert_to_dtype(mask, dtypes.bool8), (-1,))
    order = prims.cumsum(maybe_convert_to_dtype(flat, dtypes.int64), 0) - 1
    order = maybe_convert_to_dtype(flat, dtypes.int64) * order  # where the mask is false, any valid index suffices
    if n == 0:
        return prims.full(
            (*value.shape[:line], *mask.shape, *value.shape[line + 1 :]), 0, device=value.device, dtype=value.dtype
        )
    dealt = prims.take(value, line, order)
    return reshape(dealt, (*value.shape[:line], *mask.shape, *value.shape[line + 1 :]))


# -- along one dimension ----------------------------------------------------------------------------------------------
@clangop()
def take(a: TensorProxy, indices: TensorProxy, dim: int = 0) -> TensorProxy:
    """Return the slices of `a` along `dim` at the positions in the vector `indices`."""
    return prims.take(a, dim, indices)


@clangop()
def take_along_axis(a: TensorProxy, indices: TensorProxy, dim: int) -> TensorProxy:
    """Return the elements of `a` at `indices` along `dim`; the other dimensions broadcast."""
    dim = canonicalize_dim(a.ndim, dim)
    check(
        a.ndim == indices.ndim,
        lambda: (
            "torch.take_along_dim(): input and indices should have the same number of dimensions, but got "
            f"{a.ndim} dimensions for input, and {indices.ndim} dimensions for indices"
        ),
    )
    if a.ndim:
        ours = compute_broadcast_shape((*a.shape[:dim], 1, *a.shape[dim + 1 :]), indices.shape)
        theirs = compute_broadcast_shape((*indices.shape[:dim], 1, *indices.shape[dim + 1 :]), a.shape)
        indices = expand(indices, (*ours[:dim], indices.shape[dim], *ours[dim + 1 :]))
        a = expand(a, (*theirs[:dim], a.shape[dim], *theirs[dim + 1 :]))
        indices = prims.where(indices < 0, indices + a.shape[dim], indices)  # negative ones count from the end
    return prims.gather(a, dim, indices)
