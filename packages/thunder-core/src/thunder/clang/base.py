# SPDX-License-Identifier: Apache-2.0
"""The declaration of operations of the core language, with helpers for broadcasting and type conversion.

A clang operation is a plain function that calls primitives. Inside another operation, it is not recorded itself: a
trace shows operations of the user's language (e.g. `thunder.torch`) and, as their decompositions, primitives. A clang
operation is recorded as a symbol if user code calls it directly, or outside a trace with tensors.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from thunder.core import dtypes, prims
from thunder.core.errors import DataDependentError, check
from thunder.core.langctx import LanguageContext, langctx, register_langctx
from thunder.core.prims.elementwise_base import Elementwise, each_elementwise
from thunder.core.promotion import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_type_promotion
from thunder.core.proxies import NumberProxy, TensorProxy, number_type, number_value
from thunder.core.state import state
from thunder.core.symbol import BoundSymbol, OpTags, Symbol, proxies_in
from thunder.core.symint.numbers import SymbolicNumber, always, converted, is_unbacked, same_shape

__all__ = [
    "clang_ops",
    "clangop",
    "compute_broadcast_shape",
    "demand",
    "elementwise_binary",
    "elementwise_functions",
    "elementwise_unary",
    "expand",
    "is_one",
    "is_same_size",
    "maybe_broadcast",
    "maybe_convert_to_dtype",
]

F = TypeVar("F", bound=Callable[..., Any])

clangctx = register_langctx(LanguageContext("clang"))
clang_ops: dict[str, Callable[..., Any]] = {}
# The operations of the core language that are generated from the declarations of elementwise operations.
elementwise_functions: dict[str, Callable[..., Any]] = {}


def clangop(*, method_name: str | None = None) -> Callable[[F], F]:
    """Declare an operation of the core language; `method_name` also makes it a method or operator of proxies."""

    def declare(fn: F) -> F:
        @functools.wraps(fn)
        def operation(*args: Any, **kwargs: Any) -> Any:
            if state.frontend is None and (state.trace is not None or not _are_tensors(args)):
                return fn(*args, **kwargs)
            return _symbol_of(fn)(*args, **kwargs)

        clang_ops[fn.__name__] = operation
        if method_name is not None:
            clangctx.add_method(method_name, operation)
        return operation  # type: ignore[return-value]

    return declare


def _are_tensors(args: Sequence[Any]) -> bool:
    """Check whether the arguments of a call outside a trace include tensors."""
    return any(isinstance(a, torch.Tensor) for a in args)


@functools.cache
def _symbol_of(fn: Callable[..., Any]) -> Symbol:
    """Return the symbol that is recorded if user code calls a clang operation."""

    @functools.wraps(fn)
    def meta(*args: Any, **kwargs: Any) -> Any:
        out = fn(*args, **kwargs)
        # Clone views: the program must not be able to write to the input through a result.
        assert state.trace is not None
        views = {name for op in state.trace.scopes[-1] if OpTags.VIEW_OP in op.sym.tags for name in op.out_names}
        if isinstance(out, TensorProxy):
            return prims.clone(out) if out.name in views else out
        return type(out)(prims.clone(x) if x.name in views else x for x in out) if proxies_in(out) else out

    module = "thunder.clang" if fn.__module__.startswith("thunder.clang") else None
    return Symbol(fn.__name__, langctx(clangctx)(meta), id=f"clang.{fn.__name__}", module=module)


_RELATIONS = {"<": operator.lt, "<=": operator.le, "==": operator.eq, ">=": operator.ge}


def demand(
    left: Any, relation: str, right: Any, message: Callable[[], str], exception_type: type[Exception] = RuntimeError
) -> None:
    """Raise an error unless `left <relation> right` is true; for unbacked numbers, record a check in the program."""
    if is_unbacked(left, right):
        # Unlike comparisons in meta functions, `always` does not assume that unbacked sizes are at least 2.
        found = always(left, relation, right)
        if found is None:
            _check_when_it_runs(left, relation, right, message())
            return
    else:
        found = bool(_RELATIONS[relation](left, right))
    check(found, message, exception_type)


def _check_when_it_runs(left: Any, relation: str, right: Any, message: str) -> None:
    """Record a check of `left <relation> right`, and assume that it is true in the rest of the trace."""
    trace = state.trace
    if trace is not None and len(trace.scopes) == 2:
        # Recorded before the operation, not in its decomposition: an executor may replace the whole decomposition.
        trace.scopes[0].append(
            BoundSymbol(prims.check_number, (left, relation, right, message), {}, None, (), state.source)
        )
    else:
        prims.check_number(left, relation, right, message)
    known: Any = left if isinstance(left, SymbolicNumber) else right
    known.symbols.assume(left, relation, right)


def is_same_size(n: Any, m: Any) -> bool:
    """Check whether two sizes are equal. If the result is data-dependent, require equality by a check at run time."""
    if not is_unbacked(n, m):
        return bool(n == m)
    try:
        return bool(n == m)
    except DataDependentError:
        demand(n, "==", m, lambda: f"data-dependent sizes must be equal here: {n} and {m}, at {state.source}")
        return True


def is_one(n: Any) -> bool:
    """Check whether a size is 1. Unbacked sizes are assumed to differ from 1."""
    if not is_unbacked(n):
        return bool(n == 1)
    try:
        return bool(n == 1)
    except DataDependentError:
        return False


def compute_broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape to which all of `shapes` broadcast, or raise torch's error."""
    rank = max(map(len, shapes))
    out = [1] * rank
    for shape in shapes:
        for i, n in enumerate(reversed(shape), start=1):
            if is_one(n) or is_same_size(n, out[-i]):
                continue
            if not is_one(out[-i]):
                raise RuntimeError(
                    f"The size of tensor a ({out[-i]}) must match the size of tensor b ({n}) at non-singleton "
                    f"dimension {rank - i}"
                )
            out[-i] = n
    return tuple(out)


def expand(a: TensorProxy, shape: Sequence[int]) -> TensorProxy:
    """Broadcast `a` to `shape`; return `a` itself if it has that shape."""
    if same_shape(a.shape, tuple(shape)):
        return a
    new = len(shape) - a.ndim
    return prims.broadcast_in_dim(a, list(shape), tuple(range(new, len(shape))))  # type: ignore[no-any-return]


def maybe_broadcast(*args: Any) -> tuple[Any, ...]:
    """Broadcast the tensors among the arguments to one shape; return numbers and None unchanged.

    A 0-d CPU tensor is moved to the device of the other tensors.
    """
    tensors = [a for a in args if isinstance(a, TensorProxy)]
    first = tensors[0].shape
    for t in tensors:
        if not same_shape(t.shape, first):
            break
    else:
        return args
    shape = compute_broadcast_shape(*[t.shape for t in tensors])
    device = next(t.device for t in tensors if t.ndim)
    out = []
    for a in args:
        if isinstance(a, TensorProxy):
            if a.ndim == 0 and a.device is not device and a.device.type == "cpu":
                a = prims.device_put(a, device)
            a = expand(a, shape)
        out.append(a)
    return tuple(out)


def maybe_convert_to_dtype(a: Any, dtype: dtypes.dtype | type) -> Any:
    """Convert a tensor or number to `dtype` if necessary; numbers are not converted to a lower category."""
    if isinstance(a, TensorProxy):
        target = dtype if type(dtype) is dtypes.dtype else dtypes.to_dtype(dtype)
        return a if a.dtype is target else prims.convert_element_type(a, target)
    if isinstance(a, (bool, int, float, complex, NumberProxy)):
        value = number_value(a)
        kind = dtypes.dtype_to_numbertype(dtype)
        known = number_type(value)
        return value if known is kind or dtypes.category(known) > dtypes.category(kind) else converted(value, kind)
    if isinstance(a, (tuple, list)):
        return type(a)(maybe_convert_to_dtype(x, dtype) for x in a)
    return a


def elementwise_unary(
    a: Any,
    *,
    prim: Callable[..., Any],
    number_fn: Callable[[Any], Any] | None = None,
    type_promotion_kind: ELEMENTWISE_TYPE_PROMOTION_KIND = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT,
) -> Any:
    """Convert a tensor to the promoted dtype and apply `prim`, or apply `number_fn` to a Python number."""
    if not isinstance(a, TensorProxy) and number_fn is not None:
        return number_fn(number_value(a))
    computation, result = elementwise_type_promotion(a, type_promotion_kind=type_promotion_kind)
    return maybe_convert_to_dtype(prim(maybe_convert_to_dtype(a, computation)), result)


def _are_plain(a: Any, b: Any) -> bool:
    """Check for the common case of two tensors of the same shape, dtype and device."""
    if type(a) is not TensorProxy or type(b) is not TensorProxy:
        return False
    return a.dtype is b.dtype and a.device is b.device and same_shape(a.shape, b.shape)


def elementwise_binary(
    a: Any,
    b: Any,
    *,
    prim: Callable[..., Any],
    number_fn: Callable[[Any, Any], Any] | None = None,
    type_promotion_kind: ELEMENTWISE_TYPE_PROMOTION_KIND = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT,
) -> Any:
    """Broadcast `a` and `b` in the promoted dtype and apply `prim`, or apply `number_fn` to two Python numbers."""
    if not isinstance(a, TensorProxy) and not isinstance(b, TensorProxy) and number_fn is not None:
        return number_fn(number_value(a), number_value(b))
    computation, result = elementwise_type_promotion(a, b, type_promotion_kind=type_promotion_kind)
    if _are_plain(a, b) and a.dtype is computation is result:
        return prim(a, b)
    a, b = maybe_broadcast(a, b)
    a, b = maybe_convert_to_dtype(a, computation), maybe_convert_to_dtype(b, computation)
    return maybe_convert_to_dtype(prim(a, b), result)


def _unary_function(op: Elementwise) -> Callable[..., Any]:
    run, number_fn, kind = op.lowering or op.prim, op.number_function, op.promotion

    def unary(a: Any) -> Any:
        return elementwise_unary(a, prim=run, number_fn=number_fn, type_promotion_kind=kind)

    return unary


def _binary_function(op: Elementwise) -> Callable[..., Any]:
    run, number_fn, kind, swapped = op.lowering or op.prim, op.number_function, op.promotion, op.swapped

    def binary(a: Any, b: Any) -> Any:
        if swapped and isinstance(b, TensorProxy) and not isinstance(a, TensorProxy):
            return elementwise_functions[swapped](b, a)  # torch accepts a number only as the second operand
        return elementwise_binary(a, b, prim=run, number_fn=number_fn, type_promotion_kind=kind)

    return binary


@each_elementwise
def _declare(op: Elementwise) -> None:
    """Create the core language's function for an elementwise operation: it promotes, broadcasts and calls `op.prim`."""
    if "clang" in op.overridden_in:
        return
    fn = _unary_function(op) if op.operands == 1 else _binary_function(op)
    fn.__name__ = fn.__qualname__ = op.language_name
    fn.__module__, fn.__doc__ = "thunder.clang", op.docstring("a", "b")
    elementwise_functions[op.language_name] = clangop(method_name=op.language_name if op.method else None)(fn)
