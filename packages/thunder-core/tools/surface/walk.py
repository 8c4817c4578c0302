# SPDX-License-Identifier: Apache-2.0
"""Test torch's surface: call each public name through `thunder.jit`, and compare with torch.

The comparison covers results, writes to arguments, aliasing with arguments, strides, gradients of first and second
order, and the form with `out=`. It skips comparisons that torch does not support.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import thunder
from surface.derived import samples_of
from surface.names import Entry, entries
from surface.reasons import reason_of
from thunder.capture.dispatch.reshaping import VIEWS_IN_PLACE
from thunder.core.pytree import tree_map
from thunder.core.samples import SampleInput
from thunder.core.symbol import OpTags, proxies_in
from thunder.core.trace import Trace
from thunder.tests import gradients, running
from thunder.tests.comparison import Mismatch, compare, widened

__all__ = ["METADATA", "NOT", "OPAQUE", "OWN", "Finding", "examine", "walk"]

# The handling of a name: operations of thunder, (partly) opaque, evaluated while tracing, or not an operation.
OWN, OPAQUE, METADATA, NOT = "own", "opaque", "metadata", "not"

# Operations with uninitialised results.
_WITHOUT_VALUES = ("empty", "new_empty")
_SAMPLES = 4


@dataclass
class Finding:
    """The result for one name."""

    entry: Entry
    kind: str
    samples: int = 0
    gradients: int = 0
    second: int = 0
    out: int = 0
    opaque: tuple[str, ...] = ()
    failures: list[str] = field(default_factory=list)


def walk(wanted: Callable[[Entry], bool] = lambda entry: True) -> Iterator[Finding]:
    """Yield the result for each public name."""
    for entry in entries():
        if wanted(entry):
            yield examine(entry)


def examine(entry: Entry) -> Finding:
    """Call one name with its samples and compare with torch."""
    if reason_of(entry.path) is not None:
        return Finding(entry, NOT)
    finding = Finding(entry, METADATA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples_of(entry):
            if finding.samples == _SAMPLES:
                break
            expected = _eagerly(entry, sample)
            if expected is None:
                continue
            finding.samples += 1
            _check(finding, entry, sample, expected)
    if not finding.samples:
        finding.failures.append("there is no sample that torch accepts")
    return finding


@dataclass
class _Result:
    """A call's result and its arguments after the call."""

    value: Any
    given: SampleInput


def _eagerly(entry: Entry, sample: SampleInput) -> _Result | None:
    given = running.copied(sample)
    try:
        with running.same_random_numbers():
            result = _Result(_function_of(entry)(given.args, given.kwargs), given)
    except Exception:  # any error is a rejection
        return None
    # `addbmm_` may resize the tensor that it writes to. No other operation does this.
    shapes = [[x.shape for x in running.tensors_in(s)] for s in (given, sample)]
    return result if shapes[0] == shapes[1] else None


def _check(finding: Finding, entry: Entry, sample: SampleInput, expected: _Result) -> None:
    steps = (
        (_check_forward, _check_out) if _is_without_values(entry) else (_check_forward, _check_gradients, _check_out)
    )
    for step in steps:
        try:
            step(finding, entry, sample, expected)
        except Exception as error:
            what = str(error) if isinstance(error, Mismatch) else f"{type(error).__name__}: {error}"
            name = step.__name__.removeprefix("_check_")
            finding.failures.append(f"{name} of sample {finding.samples - 1}: {what}")
            return


def _is_without_values(entry: Entry) -> bool:
    return entry.name.startswith(_WITHOUT_VALUES)


# -- forward ----------------------------------------------------------------------------------------------------------
def _check_forward(finding: Finding, entry: Entry, sample: SampleInput, expected: _Result) -> None:
    given = running.copied(sample)
    jitted = thunder.jit(_function_of(entry))
    with running.same_random_numbers():
        value = jitted(given.args, given.kwargs)
    _note_kind(finding, thunder.last_traces(jitted)[0])
    values = not _is_without_values(entry)
    compare(value, expected.value, values=values)
    compare((given.args, given.kwargs), (expected.given.args, expected.given.kwargs), values=values)
    _compare_memory(value, given, expected)


def _function_of(entry: Entry) -> Callable[..., Any]:
    call = entry.call
    if entry.name in VIEWS_IN_PLACE:  # not possible on a tensor of the caller

        def on_copy(args: Any, kwargs: Any) -> Any:
            return call(args[0].clone(), *args[1:], **kwargs)

        return on_copy

    def program(args: Any, kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return program


def _note_kind(finding: Finding, trace: Trace) -> None:
    if finding.samples > 1:  # the simplest sample determines the category
        return
    found = [bsym for bsym in running.all_levels(trace.bound_symbols) if OpTags.OPAQUE_OP in bsym.sym.tags]
    if found:
        finding.kind = OPAQUE
        finding.opaque = tuple(dict.fromkeys(bsym.sym.name for bsym in found))
    elif running.operations(trace) or finding.entry.is_in_place or _gives_tensors(trace):
        finding.kind = OWN


def _gives_tensors(trace: Trace) -> bool:
    return bool(proxies_in(trace.output))


def _compare_memory(value: Any, given: SampleInput, expected: _Result) -> None:
    ours, theirs = running.tensors_in(value), running.tensors_in(expected.value)
    for i, (a, e) in enumerate(zip(ours, theirs)):
        if e.layout is not torch.strided or not e.numel():
            continue
        found = [running.share_memory(a, x) for x in running.tensors_in(given)]
        wanted = [running.share_memory(e, x) for x in running.tensors_in(expected.given)]
        if found != wanted:
            raise Mismatch(f"result {i} shares memory with the arguments as in {found}, but in torch as in {wanted}")
        strides = [[s for s, n in zip(t.stride(), t.shape) if n > 1] for t in (a, e)]
        if strides[0] != strides[1]:
            raise Mismatch(f"result {i} of shape {tuple(a.shape)} has strides {a.stride()}, but in torch {e.stride()}")


# -- gradients --------------------------------------------------------------------------------------------------------
def _check_gradients(finding: Finding, entry: Entry, sample: SampleInput, expected: _Result) -> None:
    if entry.path in _WRONG_GRADIENT or not any(_is_inexact(x) for x in running.tensors_in(expected.value)):
        return
    sample = running.map_tensors(running.copied(sample), lambda x: x.requires_grad_(_is_inexact(x)))
    program = _on_copies(_function_of(entry))
    try:
        theirs, leaves = _with_leaves(program, sample)
        first = gradients.gradients_of(theirs, leaves, create_graph=True)
    except Exception:  # torch has no derivative of the operation
        return
    if not leaves or not any(x.requires_grad for x in running.tensors_in(theirs)):
        return
    jitted = thunder.jit(program)
    ours, our_leaves = _with_leaves(jitted, sample)
    gradients._compare_flags(ours, theirs)
    finding.gradients += 1
    compare(gradients.gradients_of(ours, our_leaves), [g.detach() for g in first], tolerance=_loosely)
    if entry.path not in _WRONG_SECOND:
        # Use double precision, because the sine of a large result amplifies rounding errors.
        wide = running.map_tensors(sample, lambda x: widened(x.detach()).requires_grad_() if _is_inexact(x) else x)
        finding.second += gradients.compare_second_order(program, wide, tolerance=_loosely)


def _is_inexact(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def _on_copies(program: Callable[..., Any]) -> Callable[..., Any]:
    """Run the program on copies of its arguments.

    The copies are not leaf tensors, so in-place writes have a gradient too.
    """

    def copying(args: Any, kwargs: Any) -> Any:
        args, kwargs = tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, (args, kwargs))
        return program(args, kwargs)

    return copying


def _with_leaves(program: Callable[..., Any], sample: SampleInput) -> tuple[Any, list[torch.Tensor]]:
    sample, leaves = gradients.with_leaves(sample)
    with running.same_random_numbers():
        return program(sample.args, sample.kwargs), leaves


def _loosely(dtype: torch.dtype) -> tuple[float, float]:
    return (1e-3, 1e-4) if dtype in (torch.float32, torch.complex64) else (1e-6, 1e-6)


# torch's gradient is wrong for these. The gradient of `as_strided_scatter`'s input is zero where the input is kept,
# instead of where it is overwritten. The gradient of `logical_not_` and similar functions is the identity's. The second
# gradient of an embedding does not scale by frequency.
_WRONG_GRADIENT = ("torch.as_strided_scatter", "torch.Tensor.as_strided_scatter",
                   *(f"torch.Tensor.logical_{op}_" for op in ("not", "and", "or", "xor")))  # fmt: skip
_WRONG_SECOND = ("torch.nn.functional.embedding",)


# Python functions of torch that do not pass `out` to a function mode or subclass. Also functions whose result has a
# data-dependent size: the tensor given as `out` would need to have this size.
_LOSE_OUT = ("torch.chain_matmul", "torch.range", "torch.nonzero", "torch.masked_select")


# -- out= -------------------------------------------------------------------------------------------------------------
def _check_out(finding: Finding, entry: Entry, sample: SampleInput, expected: _Result) -> None:
    """Check the form that writes its result into existing tensors, if torch has it."""
    if entry.namespace == "torch.Tensor" or not _is_tensors(expected.value) or entry.path in _LOSE_OUT:
        return
    results = []
    jitted = thunder.jit(lambda args, kwargs: entry.call(*args, **kwargs))
    calls: tuple[Any, Any] = (entry.call, jitted)
    for call in calls:
        given = running.copied(sample)
        out = tree_map(torch.zeros_like, expected.value) if type(expected.value) is list else _zeros_of(expected.value)
        try:
            with running.same_random_numbers():
                if call is entry.call:
                    value = call(*given.args, **{**given.kwargs, "out": out})
                else:
                    value = call(given.args, {**given.kwargs, "out": out})
        except Exception:
            if call is entry.call:
                return  # torch has no such form
            raise
        results.append((value, out))
    (theirs, their_out), (ours, our_out) = results
    finding.out += 1
    values = not _is_without_values(entry)
    compare(our_out, their_out, values=values)
    compare(ours, theirs, values=values)
    identical = [[a is b for b in running.tensors_in(o)] for r, o in results for a in running.tensors_in(r)]
    if identical[: len(identical) // 2] != identical[len(identical) // 2 :]:
        raise Mismatch("the returned tensor is not the tensor given as out")


def _is_tensors(value: Any) -> bool:
    found = value if isinstance(value, (tuple, list)) else (value,)
    return bool(found) and all(isinstance(x, torch.Tensor) for x in found)


def _zeros_of(value: Any) -> Any:
    return tuple(map(torch.zeros_like, value)) if isinstance(value, tuple) else torch.zeros_like(value)
