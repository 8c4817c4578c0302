# SPDX-License-Identifier: Apache-2.0
"""Data-dependent values: numbers read off tensors (`.item()`), and results whose sizes depend on values.

Such a number is a symbolic one without a hint (`core/symint/symbols.py`): it can be computed with, given to operations,
stored and returned; where the program has to know it to go on, that is an error with the user's line. A data-dependent
size is such a number too, read off the result. All data-dependent sizes come from a few functions of torch: `nonzero`,
`unique`, `unique_consecutive`, `bincount` and `repeat_interleave`; a boolean mask is the positions of its `True`s.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.base.fallback import fall_back
from thunder.capture.dispatch.opaque_operations import RESULTS, opaque_symbol
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.tracer import Tracer, needs_grad, tensors_in, user_line
from thunder.core import prims
from thunder.core.dtypes import float32, float64, int64, is_inexact_dtype
from thunder.core.errors import DataDependentError
from thunder.core.locations import is_ours
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.state import state
from thunder.core.symbol import BoundSymbol, proxies_in
from thunder.core.symint.numbers import SymbolicNumber, is_unbacked, text_of
from thunder.passes.dce import has_effect

__all__ = [
    "HANDLERS",
    "asks_for_value",
    "number_checks",
    "number_in",
    "positions",
    "run",
    "unknown_size",
    "with_numbers",
    "with_sizes",
]

# Functions of torch, and what they give in a traced program; NotImplemented where torch's own answer is known.
HANDLERS: dict[Any, Callable[..., Any]] = {}
# So many numbers are read off one tensor.
MAX_NUMBERS = 1024


def _handles(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a handler. What it calls is traced, as it is given handles where the program gives real tensors."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(handler)
        def of_handles(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
            args = tuple([tracer.handle_of(x) if isinstance(x, torch.Tensor) else x for x in args])
            if kwargs:
                kwargs = {k: tracer.handle_of(x) if isinstance(x, torch.Tensor) else x for k, x in kwargs.items()}
            return handler(tracer, *args, **kwargs)

        for fn in functions:
            HANDLERS[fn] = of_handles
        return handler

    return register


def asks_for_value(what: str, *values: Proxy) -> DataDependentError:
    """The error where the program asks for a value that it cannot go on without."""
    return DataDependentError(
        f"the program asks for the value of a tensor ({what}), which is not known while tracing. Ways out: compute "
        "with tensors (torch.where, masks) or choose with torch.cond; read a number with .item() where it is only "
        "computed with; pass the number as an argument; call thunder.jit on the parts before and after this line; or "
        "put the line into a function that stays Python (thunder.disable)",
        asked=tuple([value.name for value in values]),
    )


# -- numbers ----------------------------------------------------------------------------------------------------------
@_handles(torch.Tensor.item)
def _item(tracer: Tracer, x: Any) -> Any:
    value = aliasing.read(tracer.handle_of(x))
    if math.prod(value.shape) != 1:
        raise RuntimeError(f"a Tensor with {math.prod(value.shape)} elements cannot be converted to Scalar")
    return _number_in(tracer, value)


def _number_in(tracer: Tracer, value: TensorProxy) -> Any:
    """The element of a tensor; that of `t + 1` is one more than that of `t`, and a constant is known."""
    made_by = tracer.producer(value)
    if made_by is not None and made_by.sym.name == "full" and value.dtype is int64 and type(made_by.args[1]) is int:
        return made_by.args[1]  # what torch gives of integers alone: torch.div(8, 2, rounding_mode="trunc")
    if made_by is not None and made_by.sym.name in ("add", "sub") and value.dtype is int64 and not made_by.kwargs:
        a, b, *rest = made_by.args
        if isinstance(a, TensorProxy) and a.dtype is int64 and a.shape == value.shape and type(b) is int and not rest:
            return _number_in(tracer, a) + (b if made_by.sym.name == "add" else -b)
    return _known(tracer, _once(tracer, "item", value, lambda: prims.item(value)))


def _known(tracer: Tracer, number: NumberProxy) -> Any:
    """What the program is given of a number; where inputs tell it, that is found out."""
    if tracer.derived_scalars is not None:
        tracer.derived_scalars.resolve(number.symbol)
    return tracer.wrap(number)


@_handles(torch.Tensor.tolist)
def _tolist(tracer: Tracer, x: Any) -> Any:
    if x.dim() == 0:
        return _item(tracer, x)
    count = math.prod(aliasing.read(tracer.handle_of(x)).shape)
    if is_unbacked(count) or count > MAX_NUMBERS:
        raise asks_for_value(f".tolist() of {text_of(count)} elements: at most {MAX_NUMBERS} are read as numbers")
    if _is_empty(x):
        return _nested(x.shape, iter(()))
    if x.dim() > 1:
        numbers = iter(_tolist(tracer, torch.Tensor.reshape(x, -1)))
        return _nested(x.shape, numbers)
    value = aliasing.read(tracer.handle_of(x))
    return [_known(tracer, number) for number in _once(tracer, "items", value, lambda: prims.items(value))]


def _nested(shape: Sequence[int], numbers: Iterator[Any]) -> Any:
    """Lists in lists of numbers, of which there are as many as a tensor of that shape has."""
    return [_nested(shape[1:], numbers) for _ in range(shape[0])] if shape else next(numbers)


def _once(tracer: Tracer, name: str, value: TensorProxy, make: Callable[[], Any]) -> Any:
    """What is asked of a value twice, and at both places runs or does not, is one thing."""
    scope = tracer.trace.scopes[-1]
    key = name, _meaning(tracer, value), id(scope)
    if key not in tracer.unknown:
        with tracer.recording():
            tracer.unknown[key] = make(), scope  # of which no other has the id while it is there
    return tracer.unknown[key][0]


def _meaning(tracer: Tracer, value: TensorProxy) -> Any:
    """Stands for how a value is computed: two equal masks have the same true elements."""
    made = {name: bsym for scope in tracer.trace.scopes for bsym in scope for name in bsym.out_names}

    def of(p: Any, depth: int) -> Any:
        bsym = made.get(p.name)
        if bsym is None or depth == 0 or has_effect(bsym) or len(bsym.out_names) != 1:
            return p.name
        return (bsym.sym.id, *[_written(a, lambda q: of(q, depth - 1)) for a in (bsym.args, bsym.kwargs)])

    return of(value, 6)


def _written(x: Any, of: Callable[[Any], Any]) -> Any:
    if isinstance(x, Proxy):
        return of(x)
    if isinstance(x, (tuple, list)):
        return tuple([_written(i, of) for i in x])
    if isinstance(x, dict):
        return tuple([(k, _written(v, of)) for k, v in x.items()])
    return f"{type(x).__name__} {text_of(x) if isinstance(x, SymbolicNumber) else x!r}"


def number_checks() -> list[tuple[Any, str, Any]]:
    """`torch._check` and `torch._check_is_size`, with which programs say what holds of numbers."""
    check, is_size = torch._check, torch._check_is_size

    def traced(condition: Any, message: Any = None) -> Any:
        if isinstance(state.frontend, Tracer):
            return _checked(state.frontend, check, condition, message)
        return check(condition, message)

    def traced_is_size(i: Any, *args: Any, **kwargs: Any) -> Any:
        return traced(i >= 0) if state.frontend is not None else is_size(i, *args, **kwargs)

    def tensors_too(name: str, original: Any) -> Any:
        def traced_all(condition: Any, message: Any = None) -> Any:
            if not isinstance(state.frontend, Tracer) or not isinstance(condition, torch.Tensor):
                return original(condition, message)
            held = torch.all(condition).item()
            with state.frontend.recording():
                text = "Expected every element to be true" if message is None else str(message())
                return prims.check_number(held, "==", True, text)

        return torch, name, traced_all

    owners = [(torch, "_check", traced), (torch, "_check_is_size", traced_is_size)]
    names = [name for name in ("_check_tensor_all",) if hasattr(torch, name)]
    return owners + [tensors_too(name, getattr(torch, name)) for name in names]


def _checked(tracer: Tracer, original: Callable[..., Any], condition: Any, message: Any) -> Any:
    """What is said is relied on from there, and checked when the program runs."""
    if not is_unbacked(condition) or condition.__class__ is not bool:
        return original(condition, message)
    truth: Any = condition
    told = truth.constraint
    with tracer.recording():
        text = f"Expected {told.text()} to be true" if message is None else str(message())
        prims.check_number(told.left, told.relation, told.right, text)
        if told.relation != "!=" and all(issubclass(x.__class__, int) for x in (told.left, told.right)):
            truth.symbols.assume(told.left, told.relation, told.right)
    return None


# Where torch checks values that programs give it, and raises an error where they are wrong.
_CHECKS = {
    ("distribution.py", "__init__"), ("distribution.py", "_validate_sample"), ("uniform.py", "__init__"),
    ("geometric.py", "__init__"),
}  # fmt: skip
_DISTRIBUTIONS = os.path.join(os.path.dirname(torch.__file__), "distributions")
_CONSTRAINTS = os.path.join(_DISTRIBUTIONS, "constraints.py")
_ASKS = "_all_true_or_runtime_assert"  # through which the checks ask from torch 2.15 on


def holds_where_it_runs(tracer: Tracer, condition: Any) -> bool:
    """Whether a branch is a check of a distribution's (`validate_args`): then it is made when the program runs."""
    frame: Any = sys._getframe(1)
    while is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    while frame.f_code.co_filename == _CONSTRAINTS or frame.f_code.co_name == _ASKS:  # constraints ask others
        frame = frame.f_back
    folder, file = os.path.split(frame.f_code.co_filename)
    if folder != _DISTRIBUTIONS or (file, frame.f_code.co_name) not in _CHECKS:
        return False
    held = (condition if condition.dtype is torch.bool else condition != 0).item()
    name = type(frame.f_locals.get("self")).__name__
    with tracer.recording():
        text = f"Expected values of the distribution {name} to satisfy its constraints, at {user_line()}"
        prims.check_number(held, "==", True, text, "ValueError")
    return True


# -- sizes ------------------------------------------------------------------------------------------------------------
def unknown_size(low: int = 0, high: Any = None) -> Any:
    """A size that only running tells."""
    from thunder.core.symint.symbols import symbols_of

    assert state.trace is not None
    known = high if isinstance(high, int) and not isinstance(high, SymbolicNumber) else None
    return symbols_of(state.trace).unbacked(int, low=low, high=known)


def _result(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        for fn in functions:
            RESULTS[fn] = rule
        return rule

    return register


def run(tracer: Tracer, func: Any, x: Any, *args: Any, differentiable: bool = False, **kwargs: Any) -> Any:
    """Runs one of torch's functions whose result's sizes are read off it."""
    value = aliasing.read(tracer.handle_of(x))

    def make() -> Any:
        given = ltorch.detach(value) if is_inexact_dtype(value.dtype) and not differentiable else value
        out = opaque_symbol(func)(given, *tracer.unwrap(args), **tracer.unwrap(kwargs))
        seen: set[str] = set()
        for p in proxies_in(out):
            for dim, size in enumerate(getattr(p, "shape", ())):
                leaf = size.leaves[0] if isinstance(size, SymbolicNumber) and size.hint is None else None
                if leaf is not None and leaf.name not in seen:
                    seen.add(leaf.name)
                    tracer.trace.record(BoundSymbol(prims.size, (p, dim), {}, leaf, (), state.source))
                    if tracer.derived_scalars is not None:
                        tracer.derived_scalars.resolve(size)
        return out

    plain = not any(isinstance(a, torch.Tensor) for a in (*args, *kwargs.values()))
    grad = differentiable and torch.is_grad_enabled() and any(map(needs_grad, tensors_in(x, args, kwargs)))
    with tracer.recording():
        made = _once(tracer, f"{func.__name__} {args} {kwargs}", value, make) if plain else make()
        return tracer.wrap(made, requires_grad=grad)


@_result(torch.nonzero)
def _nonzero_result(input: TensorProxy) -> Any:
    return TensorProxy(like=input, shape=(unknown_size(0, math.prod(input.shape)), input.ndim), dtype=int64)


def _refuse_out(name: str, out: Any) -> None:
    if out is not None:
        fall_back(f"{name} is given an out= for a result of unknown size")


def _is_empty(x: Any) -> bool:
    return any(n == 0 for n in x.shape if not isinstance(n, SymbolicNumber))


@_handles(torch.nonzero, torch.Tensor.nonzero)
def _nonzero(tracer: Tracer, input: Any, *, as_tuple: bool = False, out: Any = None) -> Any:
    _refuse_out("nonzero", out)
    if as_tuple and input.dim() == 0:
        input = input.unsqueeze(0)
    if _is_empty(input):
        return NotImplemented
    found = run(tracer, torch.nonzero, input if input.dtype is torch.bool else torch.ne(input, 0))
    return torch.unbind(found, 1) if as_tuple else found


@_handles(torch.argwhere, torch.Tensor.argwhere)
def _argwhere(tracer: Tracer, input: Any) -> Any:
    return _nonzero(tracer, input)


@_handles(torch.where)
def _where(tracer: Tracer, condition: Any, *others: Any, **named: Any) -> Any:
    return NotImplemented if others or named else torch.nonzero(condition, as_tuple=True)


def _is_mask(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype is torch.bool and x.dim() > 0 and not _is_empty(x)


def positions(tracer: Tracer, key: Any) -> Any:
    """An index with the positions of the true elements in place of each boolean mask; None where it has none."""
    items = key if isinstance(key, tuple) else (key,)
    if not any(map(_is_mask, items)):
        return None
    return tuple([i for item in items for i in (_nonzero(tracer, item, as_tuple=True) if _is_mask(item) else (item,))])


def with_numbers(tracer: Tracer, key: Any) -> Any:
    """An index with the numbers that its slices are bounded by in place of tensors of one element."""
    items = key if isinstance(key, tuple) else (key,)
    bounds = [b for item in items if isinstance(item, slice) for b in (item.start, item.stop, item.step)]
    if not any(isinstance(b, torch.Tensor) for b in bounds):
        return key

    def plain(item: Any) -> Any:
        if not isinstance(item, slice):
            return item
        return slice(*[number_in(tracer, b) for b in (item.start, item.stop, item.step)])

    return tuple(map(plain, key)) if isinstance(key, tuple) else plain(key)


def number_in(tracer: Tracer, x: Any) -> Any:
    """The number in a tensor; anything else is itself."""
    return _item(tracer, x) if isinstance(x, torch.Tensor) else x


def with_sizes(func: Any) -> Callable[..., Any]:
    """The handler of a function that may be given numbers in tensors of one element."""

    def handler(tracer: Tracer, x: Any, *sizes: Any, **kwargs: Any) -> Any:
        if not _has_tensor((sizes, (*kwargs.values(),))):
            return NotImplemented
        named = {k: plain(tracer, v) for k, v in kwargs.items()}
        return func(tracer.handle_of(x), *plain(tracer, sizes), **named)

    def plain(tracer: Tracer, x: Any) -> Any:
        return type(x)(plain(tracer, i) for i in x) if type(x) in (tuple, list) else number_in(tracer, x)

    return handler


def _has_tensor(x: Any) -> bool:
    return any(map(_has_tensor, x)) if type(x) in (tuple, list) else isinstance(x, torch.Tensor)


_METHODS = ("reshape", "expand", "repeat", "narrow", "unflatten", "new_zeros", "new_ones", "new_empty")
for _function in (*[getattr(torch.Tensor, name) for name in _METHODS], torch.reshape, torch.narrow, torch.unflatten):
    HANDLERS[_function] = with_sizes(_function)


@_handles(torch.arange)
def _arange(tracer: Tracer, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    if not any(isinstance(x, torch.Tensor) for x in (*args, *kwargs.values())):
        return NotImplemented
    _refuse_out("arange", out)
    numbers = {k: number_in(tracer, x) for k, x in kwargs.items()}
    return tracer.call_symbol(ltorch.arange, tuple([number_in(tracer, x) for x in args]), numbers)


@_handles(torch.equal, torch.Tensor.equal)
def _equal(tracer: Tracer, input: Any, other: Any) -> Any:
    if input.dtype is not other.dtype:
        return NotImplemented
    if input.shape != other.shape:
        return False
    return _whether_all(tracer, ltorch.eq, input, other)


@_handles(torch.allclose, torch.Tensor.allclose)
def _allclose(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    return _whether_all(tracer, ltorch.isclose, *args, **kwargs)


def _whether_all(tracer: Tracer, compare: Any, *args: Any, **kwargs: Any) -> Any:
    return _item(tracer, tracer.call_symbol(ltorch.all, (tracer.call_symbol(compare, args, kwargs),), {}))


@_handles(torch.Tensor.__getitem__)
def _getitem(tracer: Tracer, x: Any, key: Any) -> Any:
    plain = with_numbers(tracer, key)
    if plain is not key:
        return torch.Tensor.__getitem__(tracer.handle_of(x), plain)
    found = positions(tracer, key)
    if found is None:
        from thunder.capture.dispatch.packed_sequences import first_of

        first = first_of(tracer, x, key)
        return NotImplemented if first is None else first
    _check_masks(x, key)
    return torch.Tensor.__getitem__(x, found)


def _check_masks(x: Any, key: Any) -> None:
    at = 0
    for item in key if isinstance(key, tuple) else (key,):
        if item is Ellipsis:
            return
        if _is_mask(item):
            for i, n in enumerate(item.shape):
                if at + i >= x.dim() or x.shape[at + i] != n:
                    raise IndexError(
                        f"The shape of the mask {list(item.shape)} at index {i} does not match the shape of the "
                        f"indexed tensor {list(x.shape)} at index {at + i}"
                    )
        at += item.dim() if _is_mask(item) else item is not None


@_handles(torch.masked_select, torch.Tensor.masked_select)
def _masked_select(tracer: Tracer, input: Any, mask: Any, *, out: Any = None) -> Any:
    _refuse_out("masked_select", out)
    input, mask = torch.broadcast_tensors(input, mask)
    return NotImplemented if not _is_mask(mask) else _getitem(tracer, input, mask)


def _unique_result(
    input: TensorProxy, return_inverse: bool, return_counts: bool, dim: int | None, inverse: tuple[Any, ...]
) -> Any:
    n = unknown_size(1, math.prod(input.shape) if dim is None else input.shape[dim])
    shape = (n,) if dim is None else tuple([n if i == dim % input.ndim else m for i, m in enumerate(input.shape)])
    out = [TensorProxy(like=input, shape=shape, requires_grad=True)]
    if return_inverse:
        out.append(TensorProxy(like=input, shape=inverse, dtype=int64))
    if return_counts:
        out.append(TensorProxy(like=input, shape=(n,), dtype=int64))
    return out[0] if len(out) == 1 else tuple(out)


@_result(torch.unique)
def _unique_shapes(
    input: TensorProxy, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    inverse = input.shape if dim is None else (input.shape[dim],)
    return _unique_result(input, return_inverse, return_counts, dim, inverse)


@_result(torch.unique_consecutive)
def _unique_consecutive_shapes(
    input: TensorProxy, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    inverse = input.shape if dim is None else (input.shape[dim],)
    return _unique_result(input, return_inverse, return_counts, dim, inverse)


@_handles(torch.unique, torch.Tensor.unique)
def _unique(tracer: Tracer, input: Any, *args: Any, **kwargs: Any) -> Any:
    if _is_empty(input):
        return NotImplemented
    return run(tracer, torch.unique, input, *args, differentiable=True, **kwargs)  # in torch an error in backward


@_handles(torch.unique_consecutive, torch.Tensor.unique_consecutive)
def _unique_consecutive(tracer: Tracer, input: Any, *args: Any, **kwargs: Any) -> Any:
    if _is_empty(input):
        return NotImplemented
    return run(tracer, torch.unique_consecutive, input, *args, differentiable=True, **kwargs)  # likewise


@_result(torch.bincount)
def _bincount_result(input: TensorProxy, weights: TensorProxy | None = None, minlength: int = 0) -> Any:
    kind = int64 if weights is None else weights.dtype if weights.dtype is float32 else float64
    return TensorProxy(like=input, shape=(unknown_size(minlength),), dtype=kind, requires_grad=True)


@_handles(torch.bincount, torch.Tensor.bincount)
def _bincount(tracer: Tracer, input: Any, weights: Any = None, minlength: int = 0) -> Any:
    return run(tracer, torch.bincount, input, weights, minlength, differentiable=True)  # likewise


@_result(torch.repeat_interleave)
def _repeated_result(repeats: TensorProxy, *, output_size: Any = None) -> Any:
    return TensorProxy(like=repeats, shape=(unknown_size() if output_size is None else output_size,), dtype=int64)


@_handles(torch.repeat_interleave, torch.Tensor.repeat_interleave)
def _repeat_interleave(
    tracer: Tracer, input: Any, repeats: Any = None, dim: Any = None, *, output_size: Any = None
) -> Any:
    counts = input if repeats is None else repeats
    if not isinstance(counts, torch.Tensor) or output_size is not None or _is_empty(counts):
        return NotImplemented
    if repeats is None:
        return run(tracer, torch.repeat_interleave, input)
    if dim is None:
        input, dim = input.reshape(-1), 0
    counts = counts.reshape(-1)
    if counts.shape[0] == 1:
        counts = counts.expand(input.shape[dim])
    elif counts.shape[0] != input.shape[dim]:
        raise RuntimeError("repeats must have the same size as input along dim")
    return torch.index_select(input, dim, run(tracer, torch.repeat_interleave, counts))
