# SPDX-License-Identifier: Apache-2.0
"""Comparing gradients: the same call on the same leaves, backward through torch and through a jitted function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

import thunder
from thunder.core.samples import SampleInput
from thunder.core.trace import Trace
from thunder.tests import running
from thunder.tests.comparison import Mismatch, compare, widened

if TYPE_CHECKING:
    from thunder.tests.cases import Case

__all__ = ["compare_with_autograd", "compare_with_differences", "gradients_of", "with_leaves"]


def with_leaves(sample: SampleInput) -> tuple[SampleInput, list[torch.Tensor]]:
    """The sample with every tensor that requires grad made a leaf of the same values and strides, and these leaves."""
    leaves: list[torch.Tensor] = []

    def leaf(x: torch.Tensor) -> torch.Tensor:
        if not x.requires_grad:
            return x
        leaves.append(x.detach().requires_grad_(True))
        return leaves[-1]

    return running.map_tensors(sample, leaf), leaves


def gradients_of(result: Any, leaves: Sequence[torch.Tensor], *, create_graph: bool = False) -> list[torch.Tensor]:
    """The gradients of a result with respect to leaves, under cotangents that depend on the shapes alone."""
    outputs = [x for x in running.tensors_in(result) if x.requires_grad]
    if not outputs:
        return [torch.zeros_like(x) for x in leaves]
    cotangents = [cotangent(x) for x in outputs]
    found = torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True, create_graph=create_graph)
    # No gradient and a gradient of zeros say the same.
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found)]


def cotangent(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(running.SEED)
    kind = torch.complex128 if x.is_complex() else torch.float64
    # Away from zero, so that nothing is hidden by a factor that happens to be small.
    values = torch.rand(x.shape, dtype=kind, generator=generator) + 0.5
    return values.to(device=x.device, dtype=x.dtype)


def compare_with_autograd(case: Case, sample: SampleInput) -> Trace | None:
    """Compares the gradients of a sample; gives the forward trace, or None where torch has no gradient either."""
    sample, leaves = with_leaves(sample)
    if not leaves:
        return None
    with running.same_random_numbers():
        theirs = running.reference(case.info, sample)
    try:
        expected = gradients_of(theirs, leaves)
    except (RuntimeError, NotImplementedError):
        return None  # torch has the operation and no derivative of it
    with running.same_random_numbers():
        ours, jitted = running.run_jitted(case.info, sample, case.target.executors)
    traces = thunder.last_traces(jitted)
    if running.draws_random_numbers(traces[0]) and not case.target.takes_everything:
        return traces[-1]  # other numbers, other gradients
    _compare_flags(ours, theirs)
    actual = gradients_of(ours, leaves)
    try:
        compare(actual, expected, tolerance=case.tolerance, truth=lambda: _true_gradients(case, sample, leaves))
    except Mismatch:
        # Where torch divides by zero on the way (std over `dim=()`), being right is not being wrong.
        if all(_finite(x) for x in expected) or not all(_finite(x) for x in actual):
            raise
        compare_with_differences(case, sample)
    return traces[-1]


def _finite(x: torch.Tensor) -> bool:
    return bool(torch.isfinite(x).all())


# How far inputs are moved for a difference, and how close it comes to the derivative of a smooth function.
STEP, DIFFERENCE = 1e-6, (1e-4, 1e-5)


def compare_with_differences(case: Case, sample: SampleInput) -> Trace | None:
    """Compares the gradients of a sample, in one random direction, with a difference of results in double precision."""
    sample, leaves = with_leaves(sample)
    if not leaves or any(widened(x).dtype is not x.dtype for x in leaves):
        return None
    with running.same_random_numbers():
        result, jitted = running.run_jitted(case.info, sample, case.target.executors)
    trace = thunder.last_traces(jitted)[-1]
    outputs = [i for i, x in enumerate(running.tensors_in(result)) if x.requires_grad]
    if not outputs:
        return None
    directions = [cotangent(x) - 1 for x in leaves]
    derivative = sum(_inner(g, d) for g, d in zip(gradients_of(result, leaves), directions))

    def moved(step: float) -> list[torch.Tensor]:
        by_id = {id(x): x.detach() + step * d for x, d in zip(leaves, directions)}
        there = running.map_tensors(sample, lambda x: by_id.get(id(x), x))
        with running.same_random_numbers():
            found = running.tensors_in(jitted(there.args, there.kwargs))
        return [found[i] for i in outputs]

    difference = sum(_inner(cotangent(a), a - b) / (2 * STEP) for a, b in zip(moved(STEP), moved(-STEP)))
    if not math.isclose(derivative, difference, rel_tol=DIFFERENCE[0], abs_tol=DIFFERENCE[1]):
        raise Mismatch(f"the derivative in a random direction is {derivative}, but the difference says {difference}")
    return trace


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
    # The cotangents have to be those of the narrow type, rounding included.
    cotangents = [widened(cotangent(x.detach().to(_narrow(x, leaves[0])))) for x in outputs]
    found = torch.autograd.grad(outputs, list(wide.values()), cotangents, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wide.values(), found)]


def _narrow(x: torch.Tensor, like: torch.Tensor) -> torch.dtype:
    if x.is_complex() == like.is_complex():
        return like.dtype
    return like.dtype.to_complex() if x.is_complex() else like.dtype.to_real()
