# SPDX-License-Identifier: Apache-2.0
"""Compare gradients of a call: torch and a jitted function differentiate it with respect to the same leaf tensors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

import thunder
from thunder.core.errors import ThunderError
from thunder.core.pytree import tree_map
from thunder.core.samples import SampleInput
from thunder.core.trace import Trace
from thunder.core.transforms import grad
from thunder.tests import running
from thunder.tests.comparison import Mismatch, compare, default_tolerance, widened

if TYPE_CHECKING:
    from thunder.tests.cases import Case

__all__ = [
    "compare_second_order",
    "compare_with_autograd",
    "compare_with_differences",
    "gradients_of",
    "is_derivative_in_torch",
    "with_leaves",
]


def with_leaves(sample: SampleInput) -> tuple[SampleInput, list[torch.Tensor]]:
    """Return the sample with equal leaf tensors in place of tensors that require grad, and these leaf tensors.

    Strides stay the same.
    """
    leaves: list[torch.Tensor] = []

    def leaf(x: torch.Tensor) -> torch.Tensor:
        if not x.requires_grad:
            return x
        leaves.append(x.detach().requires_grad_(True))
        return leaves[-1]

    return running.map_tensors(sample, leaf), leaves


def gradients_of(result: Any, leaves: Sequence[torch.Tensor], *, create_graph: bool = False) -> list[torch.Tensor]:
    """Return the gradients of a result with respect to leaf tensors. The cotangents depend only on shapes."""
    outputs = [x for x in running.tensors_in(result) if x.requires_grad]
    if not outputs:
        return [torch.zeros_like(x) for x in leaves]
    cotangents = [cotangent(x) for x in outputs]
    found = torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True, create_graph=create_graph)
    # A missing gradient equals a gradient of zeros.
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found)]


def cotangent(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(running.SEED)
    kind = torch.complex128 if x.is_complex() else torch.float64
    # Cotangents are not close to zero, so that no error is hidden by a small factor.
    values = torch.rand(x.shape, dtype=kind, generator=generator) + 0.5
    return values.to(device=x.device, dtype=x.dtype)


def compare_with_autograd(case: Case, sample: SampleInput) -> Trace | None:
    """Compare the gradients of a sample. Return the forward trace, or None if torch has no gradient."""
    sample, leaves = with_leaves(sample)
    if not leaves:
        return None
    with running.same_random_numbers():
        theirs = running.reference(case.info, sample)
    try:
        expected = gradients_of(theirs, leaves)
    except (RuntimeError, NotImplementedError):
        return None  # torch has no derivative of the operation
    with running.same_random_numbers():
        ours, jitted = running.run_jitted(case.info, sample, case.target.executors)
    traces = thunder.last_traces(jitted)
    if running.draws_random_numbers(traces[0]) and not case.target.takes_everything:
        return traces[-1]  # other random numbers would give other gradients
    _compare_flags(ours, theirs)
    actual = gradients_of(ours, leaves)
    try:
        compare(actual, expected, tolerance=case.tolerance, truth=lambda: _true_gradients(case, sample, leaves))
    except Mismatch:
        # A correct gradient passes even if torch divides by zero in an intermediate step (std over `dim=()`).
        if all(_finite(x) for x in expected) or not all(_finite(x) for x in actual):
            raise
        compare_with_differences(case, sample)
    return traces[-1]


def _finite(x: torch.Tensor) -> bool:
    return bool(torch.isfinite(x).all())


# The step of a finite difference, and its accuracy as the derivative of a smooth function.
STEP, DIFFERENCE = 1e-6, (1e-4, 1e-5)


def compare_with_differences(case: Case, sample: SampleInput) -> Trace | None:
    """Compare the gradients of a sample with a finite difference in double precision, in one random direction."""
    sample, leaves = with_leaves(sample)
    if not leaves or any(widened(x).dtype is not x.dtype for x in leaves):
        return None
    with running.same_random_numbers():
        result, jitted = running.run_jitted(case.info, sample, case.target.executors)
    trace: Trace = thunder.last_traces(jitted)[-1]
    told = _derivative_and_difference(sample, leaves, result, lambda s: jitted(s.args, s.kwargs))
    if told is None:
        return None
    if not math.isclose(*told, rel_tol=DIFFERENCE[0], abs_tol=DIFFERENCE[1]):
        raise Mismatch(f"the derivative in a random direction is {told[0]}, but the difference is {told[1]}")
    return trace


def is_derivative_in_torch(case: Case, sample: SampleInput) -> bool:
    """Check whether torch's gradient of a sample is the derivative.

    Some gradients are conventions (padding rows, kinks).
    """
    sample, leaves = with_leaves(sample)
    try:
        with running.same_random_numbers():
            result = running.reference(case.info, sample)
        told = _derivative_and_difference(sample, leaves, result, functools.partial(running.reference, case.info))
    except (RuntimeError, NotImplementedError):
        return False
    return told is not None and math.isclose(*told, rel_tol=DIFFERENCE[0], abs_tol=DIFFERENCE[1])


def _derivative_and_difference(
    sample: SampleInput, leaves: Sequence[torch.Tensor], result: Any, call: Callable[[SampleInput], Any]
) -> tuple[float, float] | None:
    """Return the derivative in one random direction, computed from the gradients and as a finite difference."""
    outputs = [i for i, x in enumerate(running.tensors_in(result)) if x.requires_grad]
    if not outputs:
        return None
    directions = [cotangent(x) - 1 for x in leaves]
    derivative = sum(_inner(g, d) for g, d in zip(gradients_of(result, leaves), directions))

    def moved(step: float) -> list[torch.Tensor]:
        by_id = {id(x): x.detach() + step * d for x, d in zip(leaves, directions)}
        there = running.map_tensors(sample, lambda x: by_id.get(id(x), x))
        with running.same_random_numbers():
            found = running.tensors_in(call(there))
        return [found[i] for i in outputs]

    difference = sum(_inner(cotangent(a), a - b) / (2 * STEP) for a, b in zip(moved(STEP), moved(-STEP)))
    return derivative, difference


# -- second order -----------------------------------------------------------------------------------------------------
def compare_second_order(
    program: Callable[..., Any], sample: SampleInput, *, executors: Sequence[Any] = (),
    tolerance: Any = default_tolerance,
    reference: Callable[[SampleInput], Any] | None = None,
) -> bool:  # fmt: skip
    """Compare the gradients of a nonlinear function of a program's gradients with the gradients of autograd.

    `program` accepts the sample's arguments (a tuple) and keyword arguments (a dict). Tensors to differentiate with
    respect to require grad. `reference` computes the same in torch if the program cannot run in torch. Return False if
    torch has no such gradients.
    """

    def scalar_of(result: Any) -> Any:
        found = [x for x in running.tensors_in(result) if x.is_floating_point() or x.is_complex()]
        parts = [(torch.view_as_real(x) if x.is_complex() else x).sin().sum() for x in found]
        return sum(parts[1:], parts[0])

    sample, leaves = with_leaves(sample)
    constant = [not x.requires_grad for x in running.tensors_in(sample)]

    def scalar(args: Any, kwargs: Any) -> Any:
        # The transform differentiates with respect to every input, but torch only with respect to inputs that require
        # grad.
        each = iter(constant)
        args, kwargs = tree_map(
            lambda x: (x.detach() if next(each) else x) if isinstance(x, torch.Tensor) else x, (args, kwargs)
        )
        return scalar_of(program(args, kwargs))

    try:
        with running.same_random_numbers():
            result = scalar(sample.args, sample.kwargs) if reference is None else scalar_of(reference(sample))
        first = torch.autograd.grad(result, leaves, create_graph=True, allow_unused=True)
        flowing = [g for g in first if g is not None and g.requires_grad]
        second = torch.autograd.grad(flowing, leaves, [torch.ones_like(g) for g in flowing], allow_unused=True)
    except Exception:  # torch has no second derivative of the operation
        return False
    by_id = {id(x): torch.zeros_like(x) if g is None else g for x, g in zip(leaves, second)}
    # The transform differentiates with respect to every floating point tensor, including repeated tensors.
    given = [x for x in running.tensors_in(sample) if x.is_floating_point() or x.is_complex()]
    plain = running.map_tensors(sample, lambda x: x.detach())
    try:
        with running.same_random_numbers():
            jitted = running.jit_strictly(scalar, executors or None)
            found = list(grad(grad(jitted))(plain.args, plain.kwargs))
    except ThunderError as error:
        if "nothing to differentiate" not in str(error):
            raise
        found = [torch.zeros_like(x) for x in given]  # the transform's error in this case
    actual: dict[int, torch.Tensor] = {}
    for x, g in zip(given, found):
        actual[id(x)] = actual[id(x)] + g if id(x) in actual else g
    for key, expected in by_id.items():
        # A finite gradient passes even if torch divides by zero in an intermediate step.
        wanted = torch.where(torch.isfinite(expected), expected, actual[key].to(expected.dtype))
        compare(actual[key], wanted, tolerance=tolerance)
    return True


def _inner(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.conj() * b).real.sum()) if a.is_complex() or b.is_complex() else float((a * b).sum())


def _compare_flags(ours: Any, theirs: Any) -> None:
    for i, (a, e) in enumerate(zip(running.tensors_in(ours), running.tensors_in(theirs))):
        if a.requires_grad is not e.requires_grad:
            raise Mismatch(f"requires_grad of result {i} is {a.requires_grad}, but should be {e.requires_grad}")


def _true_gradients(case: Case, sample: SampleInput, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    wide = {id(x): widened(x.detach()).requires_grad_(True) for x in leaves}

    def widen(x: torch.Tensor) -> torch.Tensor:
        if id(x) in wide:
            return wide[id(x)]
        return widened(x) if x.is_floating_point() or x.is_complex() else x

    with running.same_random_numbers():
        result = running.reference(case.info, running.map_tensors(sample, widen))
    outputs = [x for x in running.tensors_in(result) if x.requires_grad]
    # The cotangents must have the values of the narrow dtype, including rounding.
    cotangents = [widened(cotangent(x.detach().to(_narrow(x, leaves[0])))) for x in outputs]
    found = torch.autograd.grad(outputs, list(wide.values()), cotangents, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wide.values(), found)]


def _narrow(x: torch.Tensor, like: torch.Tensor) -> torch.dtype:
    if x.is_complex() == like.is_complex():
        return like.dtype
    return like.dtype.to_complex() if x.is_complex() else like.dtype.to_real()
