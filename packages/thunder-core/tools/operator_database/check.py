# SPDX-License-Identifier: Apache-2.0
"""Running one call eagerly and through `thunder.jit`, and comparing the two."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.opinfo.core import DecorateInfo

import thunder
from operator_database.calls import Batch, Call
from thunder.core.pytree import tree_map
from thunder.core.symbol import OpTags
from thunder.tests import running
from thunder.tests.comparison import Mismatch, compare
from thunder.tests.gradients import cotangent

__all__ = ["EAGER", "HANDLINGS", "OPAQUE", "SYMBOLS", "check"]

# How a call was handled: by operations of thunder, with an operation by torch, or not compiled.
SYMBOLS, OPAQUE, EAGER = "symbols", "opaque", "eager"
HANDLINGS = (SYMBOLS, OPAQUE, EAGER)

# These return memory that was never initialized.
_UNINITIALIZED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")

# torch's kernels for these read memory that was never initialized: eager's results differ from call to call.
_READ_UNINITIALIZED = (("nn.functional.grid_sample", torch.bfloat16),)


class _Outcome:
    """The outcome of a run: the result, the arguments after the run and the gradients, or the exception."""

    def __init__(self, call: Call, function: Callable[..., Any]):
        self.result: Any = None
        self.error: Exception | None = None
        self.gradients: Sequence[Any] | None = None
        self.gradient_error: Exception | None = None
        self.args, self.kwargs = call.arguments()
        self.leaves = [x for x in running.tensors_in((self.args, self.kwargs)) if x.requires_grad]
        try:
            with running.same_random_numbers():
                self.result = function(*self.args, **self.kwargs)
        except Exception as error:  # any error is an outcome
            self.error = error
            return
        if call.differentiated and self.leaves:
            try:
                self.gradients = self._differentiate(call.process(self.result))
            except Exception as error:  # likewise
                self.gradient_error = error

    def _differentiate(self, result: Any) -> Sequence[Any] | None:
        outputs = [x for x in running.tensors_in(result) if x.requires_grad]
        if not outputs:
            return None
        cotangents = [cotangent(x) for x in outputs]
        return torch.autograd.grad(outputs, self.leaves, cotangents, allow_unused=True)


def check(op: Any, call: Call, *, bitwise: bool = False) -> str | None:
    """Compare a call with eager; return how it was handled, or None where both raise the same. Raise `Mismatch`.

    Return None for a `Batch` if eager raises an error in one of its calls. `bitwise` runs the call with the torch
    executor alone, and tolerates no difference.
    """
    expected = _Outcome(call, call.function)
    if isinstance(call, Batch) and (expected.error is not None or expected.gradient_error is not None):
        return None
    function = call.function

    def program(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    jitted = thunder.jit(program, executors=["torch"]) if bitwise else thunder.jit(program)
    exact = functools.cache(lambda: _Outcome(call.widened(), function))
    dtypes = {x.dtype for x in running.tensors_in((call.args, call.kwargs))}
    values = op.name not in _UNINITIALIZED and not any((op.name, dtype) in _READ_UNINITIALIZED for dtype in dtypes)
    rules = _Rules(None if bitwise else tolerances(op), values, exact)
    found = _Outcome(call, jitted)
    _compare(found, expected, rules)
    if expected.error is not None:
        return None
    handling = handling_of(jitted)
    if handling is not EAGER:  # again, by the cached program
        _compare(_Outcome(call, jitted), expected, rules)
    return handling


def handling_of(jitted: Any) -> str:
    """Return how the last call of a jitted function was handled."""
    stats = jitted._stats
    if stats.last is None:
        return EAGER
    operations = running.all_levels(stats.last.traces[0].bound_symbols)
    return OPAQUE if any(OpTags.OPAQUE_OP in bsym.sym.tags for bsym in operations) else SYMBOLS


class _Rules(NamedTuple):
    """How results are compared: with these tolerances, or by the error against double precision.

    Without tolerances, results are compared bit by bit, except for the bits of NaNs.
    """

    tolerance: Callable[[torch.dtype], tuple[float, float]] | None
    values: bool
    exact: Callable[[], _Outcome]


def tolerances(op: Any) -> Callable[[torch.dtype], tuple[float, float]]:
    """Return torch's tolerances, (rtol, atol) by dtype: the largest that the operator's tests have on the CPU."""
    own: dict[torch.dtype, list[tuple[float, float]]] = {}
    for info in op.decorators:
        if isinstance(info, DecorateInfo) and info.device_type in (None, "cpu"):
            for override in info.decorators:
                if isinstance(override, toleranceOverride):
                    for dtype, tolerance in override.d.items():
                        own.setdefault(dtype, []).append((tolerance.rtol, tolerance.atol))

    def of(dtype: torch.dtype) -> tuple[float, float]:
        rtol, atol = zip(default_tolerances(dtype), *own.get(dtype, ()))
        return max(rtol), max(atol)

    return of


def _compare(found: _Outcome, expected: _Outcome, rules: _Rules) -> None:
    _compare_errors(found.error, expected.error, "")
    if expected.error is not None:
        return
    _compare_values("", rules, found, expected, lambda each: each.result)
    _compare_values("the arguments after the call: ", rules, found, expected, lambda each: (each.args, each.kwargs))
    flags = [[x.requires_grad for x in running.tensors_in(each.result)] for each in (found, expected)]
    if flags[0] != flags[1]:
        raise Mismatch(f"the results require grad as {flags[0]} says, in torch as {flags[1]}")
    if expected.gradient_error is not None:
        if found.gradient_error is not None:  # thunder may have a gradient where torch has none
            _compare_errors(found.gradient_error, expected.gradient_error, "backward: ")
        return
    _compare_errors(found.gradient_error, None, "backward: ")
    if expected.gradients is None or found.gradients is None:
        if (expected.gradients is None) != (found.gradients is None):
            raise Mismatch("one result requires grad and the other does not")
        return
    _compare_values("gradients: ", rules, found, expected, _gradients)


def _gradients(outcome: _Outcome) -> list[torch.Tensor]:
    # No gradient is the same as a gradient of zeros.
    return [torch.zeros_like(x) if g is None else g for g, x in zip(outcome.gradients or (), outcome.leaves)]


def _compare_errors(found: Exception | None, expected: Exception | None, what: str) -> None:
    if expected is None and found is not None:
        raise Mismatch(f"{what}raises {type(found).__name__}: {found}") from found
    if expected is not None and not isinstance(found, type(expected)):
        result = "does not raise" if found is None else f"raises {type(found).__name__} ({found})"
        raise Mismatch(f"{what}{result}, torch raises {type(expected).__name__} ({expected})")


def _compare_values(
    what: str, rules: _Rules, found: _Outcome, expected: _Outcome, part: Callable[[_Outcome], Any]
) -> None:
    try:
        actual, wanted = _dense(part(found)), _dense(part(expected))
        if rules.tolerance is None:
            compare(actual, wanted, tolerance=lambda dtype: (0.0, 0.0), values=rules.values, signed_zeros=True)
        else:
            truth = lambda: _dense(part(rules.exact()))  # noqa: E731
            compare(actual, wanted, tolerance=rules.tolerance, values=rules.values, truth=truth)
        _compare_classes(part(found), part(expected))
    except Mismatch as mismatch:
        raise Mismatch(f"{what}{mismatch}") from None


def _dense(x: Any) -> Any:
    return tree_map(lambda t: _values_of(t) if isinstance(t, torch.Tensor) else t, x)


def _values_of(x: torch.Tensor) -> Any:
    """Return a tensor, or of one with another layout the values and what identifies the layout."""
    if x.is_quantized:
        return {"quantized": str(x.dtype), "values": x.dequantize()}
    return x if x.layout is torch.strided else {"layout": str(x.layout), "values": x.detach().to_dense()}


def _compare_classes(found: Any, expected: Any) -> None:
    """Compare the classes of containers, named tuples of torch's among them."""
    if type(found) is not type(expected):
        raise Mismatch(f"the result is a {type(found).__name__}, in torch a {type(expected).__name__}")
    if isinstance(expected, (tuple, list)):
        for f, e in zip(found, expected):
            _compare_classes(f, e)
