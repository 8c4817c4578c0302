# SPDX-License-Identifier: Apache-2.0
"""Python numbers from tensors: `.item()`, `int(t)`, a branch on a tensor, and `torch.equal`.

These numbers are data-dependent: symbolic numbers without a hint (`core/symint/symbols.py`). User code may compute with
them, pass them to operations, store them and return them. If Python needs the value itself, e.g. for a branch, thunder
raises an error with the line of user code.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.base.fallback import fall_back
from thunder.capture.base.user_lines import user_line
from thunder.capture.dispatch.registry import handles, methods
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.tracer import Tracer
from thunder.core import prims
from thunder.core.dtypes import int64
from thunder.core.errors import DataDependentError
from thunder.core.locations import is_ours
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.state import state
from thunder.core.symint.numbers import SymbolicNumber, is_unbacked, text_of
from thunder.passes.dce import has_effect
from thunder.torch import private

__all__ = [
    "asks_for_value",
    "call_with_numbers",
    "convert_natively",
    "is_empty",
    "known",
    "known_number",
    "number_checks",
    "number_in",
    "once",
]

# Maximum number of elements that `.tolist()` reads from one tensor.
MAX_NUMBERS = 1024


def asks_for_value(what: str, *values: Proxy) -> DataDependentError:
    """Return the error for Python code that needs a data-dependent value, e.g. for a branch."""
    return DataDependentError(
        f"the program needs the value of a tensor ({what}), which is not known while tracing. To avoid this, compute "
        "with tensors (torch.where, masks), select a branch with torch.cond, pass the number as an argument, call "
        "thunder.jit on the parts before and after this line, or move the line into a function that stays Python "
        "(thunder.disable). A number that is only an operand can be read with .item()",
        asked=tuple([value.name for value in values]),
    )


# -- one number -------------------------------------------------------------------------------------------------------
@handles(torch.Tensor.item, traced=True)
def _item(tracer: Tracer, x: Any) -> Any:
    value = aliasing.read(tracer.handle_of(x))
    if math.prod(value.shape) != 1:
        raise RuntimeError(f"a Tensor with {math.prod(value.shape)} elements cannot be converted to Scalar")
    return _number_in(tracer, value)


def _number_in(tracer: Tracer, value: TensorProxy) -> Any:
    """Return the element of the tensor `value` as a number.

    The element of `t + 1` is computed from the element of `t`, so that thunder can compare the two numbers. The element
    of an integer constant is a plain int.
    """
    made_by = tracer.producer(value)
    if made_by is not None and made_by.sym.name == "full" and value.dtype is int64 and type(made_by.args[1]) is int:
        return made_by.args[1]  # e.g. torch.div(8, 2, rounding_mode="trunc"), which has no tensor arguments
    if made_by is not None and made_by.sym.name in ("add", "sub") and value.dtype is int64 and not made_by.kwargs:
        a, b, *rest = made_by.args
        if isinstance(a, TensorProxy) and a.dtype is int64 and a.shape == value.shape and type(b) is int and not rest:
            return _number_in(tracer, a) + (b if made_by.sym.name == "add" else -b)
    return known(tracer, once(tracer, "item", value, lambda: prims.item(value)))


def known(tracer: Tracer, number: NumberProxy) -> Any:
    """Return the number for user code. If it derives from inputs, compute its value for this call."""
    if tracer.derived_scalars is not None:
        tracer.derived_scalars.resolve(number.symbol)
    return tracer.wrap(number)


def number_in(tracer: Tracer, x: Any) -> Any:
    """Return the number in `x` if it is a tensor, else `x`."""
    return _item(tracer, x) if isinstance(x, torch.Tensor) else x


def call_with_numbers(
    tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with numbers in place of tensors without dimensions, for a call that converts such tensors.

    E.g. torch converts the k of `torch.topk(x, k)`. The first argument is converted only if it is the only such tensor,
    and `func` is not a method: `torch.eye(n)`.
    """
    found = False

    def number(x: Any) -> Any:
        nonlocal found
        if isinstance(x, torch.Tensor) and not x.dim() and not x.requires_grad:
            found = True
            return _item(tracer, x)
        return type(x)([number(i) for i in x]) if type(x) in (tuple, list) else x

    rest, named = tuple(map(number, args[1:])), {name: x if name == "out" else number(x) for name, x in kwargs.items()}
    is_method = getattr(torch.Tensor, getattr(func, "__name__", ""), None) is func
    return (*(args[:1] if found or is_method else map(number, args[:1])), *rest), named


def known_number(tracer: Tracer, x: Any) -> Any:
    """Return the element of a tensor if it is known while tracing (`packed_sequences.py`), else None."""
    return tracer.unknown.get(("number", aliasing.read(x).name)) if isinstance(x, Handle) else None


# -- several numbers --------------------------------------------------------------------------------------------------
@handles(torch.Tensor.tolist, traced=True)
def _tolist(tracer: Tracer, x: Any) -> Any:
    if x.dim() == 0:
        return _item(tracer, x)
    if is_unbacked(*aliasing.read(tracer.handle_of(x)).shape):
        x = torch.Tensor.reshape(x, [operator.index(n) for n in x.shape])  # its sizes are decisions
    count = math.prod(aliasing.read(tracer.handle_of(x)).shape)
    if count > MAX_NUMBERS:
        raise asks_for_value(f".tolist() of {text_of(count)} elements, but thunder reads at most {MAX_NUMBERS}")
    if is_empty(x):
        return _nested(x.shape, iter(()))
    if x.dim() > 1:
        numbers = iter(_tolist(tracer, torch.Tensor.reshape(x, -1)))
        return _nested(x.shape, numbers)
    value = aliasing.read(tracer.handle_of(x))
    return [known(tracer, number) for number in once(tracer, "items", value, lambda: prims.items(value))]


def _nested(shape: Sequence[int], numbers: Iterator[Any]) -> Any:
    """Arrange the next numbers of an iterator in nested lists of the given shape."""
    return [_nested(shape[1:], numbers) for _ in range(shape[0])] if shape else next(numbers)


def is_empty(x: Any) -> bool:
    return any(n == 0 for n in x.shape if not isinstance(n, SymbolicNumber))


# -- reading the same value twice -------------------------------------------------------------------------------------
def once(tracer: Tracer, name: str, value: TensorProxy, make: Callable[[], Any]) -> Any:
    """Return the result of `make`, computed once per scope for equal values.

    Two reads of the same value in one scope therefore return the same symbolic number.
    """
    scope = tracer.trace.scopes[-1]
    key = name, _meaning(tracer, value), id(scope)
    if key not in tracer.unknown:
        with tracer.recording():
            tracer.unknown[key] = make(), scope  # keeps the scope alive, so that its id stays unique
    return tracer.unknown[key][0]


def _meaning(tracer: Tracer, value: TensorProxy) -> Any:
    """Return a key for how a value is computed. Two masks with equal keys have the same true elements."""

    def of(p: Any, depth: int) -> Any:
        bsym = tracer.producer(p)
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


# -- Python's own conversions -----------------------------------------------------------------------------------------
# Python's conversions of a number that derives from inputs.
_NATIVE: dict[str, Callable[[Any], Any]] = {
    "a branch on it": bool, "in": bool, "int()": int, "float()": float,
    "complex()": complex, "its use as an index or a count": int,
}  # fmt: skip


def convert_natively(what: str, tracer: Tracer, x: Any) -> Any:
    """Return the result of a Python conversion of the tensor `x`, or raise if it is data-dependent."""
    number = known_number(tracer, x)
    if number is not None and what == "int()":
        return int(number)
    if what == "a branch on it" and _holds_where_it_runs(tracer, x):
        return True
    if what in _NATIVE and x.numel() == 1 and (tracer.derived_scalars or tracer.decisions) is not None:
        number = number_in(tracer, x)
        if tracer.decisions is not None or not is_unbacked(number):  # it derives from inputs
            return _NATIVE[what](number)
    raise asks_for_value(what, aliasing.read(tracer.handle_of(x)))


def _conversion(what: str) -> Callable[..., Any]:
    def handler(tracer: Tracer, x: Any, *args: Any) -> Any:
        count = math.prod(aliasing.read(tracer.handle_of(x)).shape)
        if type(count) is int and (count != 1 or (what.startswith("its use") and x.is_floating_point())):
            zeros = torch.zeros(x.shape, dtype=x.dtype, device="cpu")  # whatever the values are, torch raises an error
            return (operator.index if what.startswith("its use") else _NATIVE.get(what, complex))(zeros)
        return convert_natively(what, tracer, x)

    return handler


for _name, _what in (("__bool__", "a branch on it"), ("is_nonzero", "a branch on it"), ("__int__", "int()"),
                     ("__float__", "float()"), ("__complex__", "complex()"),
                     ("__index__", "its use as an index or a count")):  # fmt: skip
    handles(getattr(torch.Tensor, _name))(_conversion(_what))
handles(torch.is_nonzero)(_conversion("a branch on it"))


def _left_to_python(what: str) -> Callable[..., Any]:
    def handler(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
        fall_back(f"the program passes a tensor to {what}")

    return handler


for _name, _what in (("__array__", "a function of NumPy"), ("__dlpack__", "another library")):
    handles(*methods(_name))(_left_to_python(_what))


# -- comparisons of whole tensors -------------------------------------------------------------------------------------
@handles(torch.Tensor.__contains__)
def _contains(tracer: Tracer, x: Any, element: Any) -> Any:
    found = tracer.call_symbol(ltorch.any, (tracer.call_symbol(ltorch.eq, (x, element), {}),), {})
    return convert_natively("in", tracer, found)


@handles(torch.equal, torch.Tensor.equal, traced=True)
def _equal(tracer: Tracer, input: Any, other: Any) -> Any:
    if input.dtype is not other.dtype:
        return NotImplemented
    if input.shape != other.shape:
        return False
    return _whether_all(tracer, ltorch.eq, input, other)


@handles(torch.allclose, torch.Tensor.allclose, traced=True)
def _allclose(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    return _whether_all(tracer, ltorch.isclose, *args, **kwargs)


def _whether_all(tracer: Tracer, compare: Any, *args: Any, **kwargs: Any) -> Any:
    return _item(tracer, tracer.call_symbol(ltorch.all, (tracer.call_symbol(compare, args, kwargs),), {}))


# -- checks -----------------------------------------------------------------------------------------------------------
def number_checks() -> list[tuple[Any, str, Any]]:
    """Return replacements of `torch._check` and `torch._check_is_size`, which state facts about numbers."""
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
    """Assume a data-dependent `condition` from here on, and record a check of it. Call `original` for other values."""
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


def _holds_where_it_runs(tracer: Tracer, condition: Any) -> bool:
    """Record a run-time check and return True if a branch validates the arguments of a distribution (`validate_args`).

    Return False for any other branch.
    """
    distribution = private.distribution_that_checks(is_ours)
    if distribution is None:
        return False
    held = (condition if condition.dtype is torch.bool else condition != 0).item()
    with tracer.recording():
        text = f"Expected values of the distribution {distribution} to satisfy its constraints, at {user_line()}"
        prims.check_number(held, "==", True, text, "ValueError")
    return True
