# SPDX-License-Identifier: Apache-2.0
"""Compare transforms of operators: tangents, and results for a batch of samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

import thunder
from thunder.core.samples import SampleInput
from thunder.tests import running
from thunder.tests.comparison import Mismatch, Tolerance, compare, widened
from thunder.tests.gradients import cotangent

if TYPE_CHECKING:
    from thunder.tests.cases import Case

__all__ = ["compare_batched_gradients", "compare_batches", "compare_tangents"]


# -- tangents ---------------------------------------------------------------------------------------------------------
def compare_tangents(case: Case, sample: SampleInput) -> bool:
    """Compare the tangents of a sample's results with torch's. Return False if torch has none.

    torch can compute tangents in two ways: by forward mode, and by double backward. If these differ (e.g. forward mode
    ignores no_grad), our tangents must agree with one of them.
    """
    places = [i for i, x in enumerate(_unique(sample)) if x.requires_grad]
    primals = [_unique(sample)[i].detach() for i in places]
    if not primals:
        return False
    tangents = [cotangent(x) - 1 for x in primals]
    ways = [
        found
        for way in (_forward_in_torch, _backward_twice)
        if (found := _attempt(way, _function(case, sample, places, running.reference), primals, tangents)) is not None
    ]
    if not ways:
        return False
    ours = running.jit_strictly(_function(case, sample, places, _symbol), case.target.executors)
    with running.same_random_numbers():
        _, found = thunder.jvp(ours, tuple(primals), tuple(tangents))

    def truth() -> Any:
        wide = _function(case, sample, places, running.reference, widen=True)
        moved = [widened(t) for t in tangents]
        return _attempt(_forward_in_torch, wide, [widened(x) for x in primals], moved)

    for i, expected in enumerate(ways):
        try:
            compare(found, expected, tolerance=case.tolerance, truth=truth)
            break
        except Mismatch:
            # A correct tangent passes even if torch divides by zero in an intermediate step (var over one element).
            if i == len(ways) - 1 and (all(map(_finite, expected)) or not all(map(_finite, found))):
                raise
    return True


def _finite(x: torch.Tensor) -> bool:
    return bool(torch.isfinite(x).all())


def _attempt(way: Any, fn: Any, primals: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]) -> Any:
    """Return torch's tangents, computed in one of the two ways, or None."""
    try:
        with running.same_random_numbers():
            return way(fn, primals, tangents)
    except (RuntimeError, NotImplementedError, IndexError):
        return None  # torch has no derivative of the operation


def _forward_in_torch(fn: Any, primals: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]) -> Any:
    return torch.func.jvp(fn, tuple(primals), tuple(tangents))[1]


def _backward_twice(fn: Any, primals: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]) -> Any:
    leaves = [x.detach().requires_grad_() for x in primals]
    outputs = fn(*leaves)
    arriving = [torch.zeros_like(x).requires_grad_() if x.requires_grad else None for x in outputs]
    pairs = [(x, v) for x, v in zip(outputs, arriving) if v is not None]
    if not pairs:
        return None
    ends, along = [x for x, _ in pairs], [v for _, v in pairs]
    back = torch.autograd.grad(ends, leaves, along, create_graph=True, allow_unused=True)
    moved = [(g, t) for g, t in zip(back, tangents) if g is not None and g.requires_grad]
    found: Any = [None] * len(pairs)
    if moved:
        found = torch.autograd.grad([g for g, _ in moved], along, [t for _, t in moved], allow_unused=True)
    left = iter(found)
    return tuple(
        [torch.zeros_like(x) if v is None or (t := next(left)) is None else t for x, v in zip(outputs, arriving)]
    )


# -- batches ----------------------------------------------------------------------------------------------------------
def compare_batches(case: Case, sample: SampleInput) -> int:
    """Compare `vmap` over variants of a sample with a loop over torch. Return the number of comparisons.

    First each tensor is batched separately, then all tensors together. Random operations must be rejected.
    """
    tensors = [x.detach() for x in _unique(sample)]
    if running.draws_random_numbers(running.trace_sample(case.info, sample)):
        _check_refused(_function(case, sample, range(len(tensors)), _symbol), tensors)
        return 0
    ways = 0
    for chosen in _choices(len(tensors)):
        examples = [tensors, [_variant(x) if n in chosen else x for n, x in enumerate(tensors)]]
        reference = _function(case, sample, range(len(tensors)), running.reference)
        try:
            results = [reference(*example) for example in examples]
            expected = tuple([torch.stack(parts) for parts in zip(*results)])
        except (RuntimeError, IndexError, ValueError, NotImplementedError):
            continue  # torch rejects the variant, or its results have another shape
        given = [torch.stack([e[n] for e in examples]) if n in chosen else x for n, x in enumerate(tensors)]
        ours = running.jit_strictly(_function(case, sample, range(len(tensors)), _symbol), case.target.executors)
        found = thunder.vmap(ours, in_dims=tuple([0 if n in chosen else None for n in range(len(tensors))]))(*given)
        compare(tuple(found), expected, tolerance=_tolerance(case, expected), values=case.info.has_values)
        ways += 1
    return ways


def _tolerance(case: Case, expected: Sequence[torch.Tensor]) -> Callable[[torch.dtype], Tolerance]:
    """Return the tolerance for batched operators.

    A batched product adds in another order, so errors are relative to the largest element. That shows only for
    operators that do not exist in double precision.
    """
    largest = max([float(x.abs().max()) for x in expected if x.dtype is torch.float32 and x.numel()], default=0.0)

    def tolerance(dtype: torch.dtype) -> Tolerance:
        rtol, atol = case.tolerance(dtype)
        of_largest = 1e-6 * largest if dtype is torch.float32 and math.isfinite(largest) else 0.0
        return rtol, max(atol, of_largest)

    return tolerance


def _variant(x: torch.Tensor) -> torch.Tensor:
    """Permute the values of a tensor (torch cannot generate all dtypes)."""
    try:
        return x.flip(tuple(range(x.dim())))
    except NotImplementedError:
        return x


def _check_refused(fn: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> None:
    batched = [torch.stack([x, x]) for x in tensors]
    try:
        drawing = running.jit_strictly(lambda _, *tensors: fn(*tensors), None)
        thunder.vmap(drawing)(torch.zeros(2), *batched)
    except RuntimeError as error:
        if "randomness error mode" in str(error) or "vmap: we do not yet support" in str(error):  # as torch.vmap does
            return
        raise
    raise Mismatch("vmap does not reject its random numbers, although randomness= is not given")


def compare_batched_gradients(case: Case, sample: SampleInput) -> bool:
    """Compare the gradient for each example of a batch with a loop over torch. Return False if torch has no gradient.

    This tests both orders: gradients of examples, and the gradient of a batched function.
    """
    if running.draws_random_numbers(running.trace_sample(case.info, sample)):
        return False  # random numbers would differ between examples
    tensors = [x.detach() for x in _unique(sample)]
    wrt = tuple([i for i, x in enumerate(_unique(sample)) if x.requires_grad])
    examples = [tensors, [_variant(x) for x in tensors]]

    def number(call: Callable[..., Any]) -> Callable[..., Any]:
        fn = _function(case, sample, range(len(tensors)), call)
        return lambda *given: sum((x * x).sum() for x in fn(*given) if x.is_floating_point())

    try:
        gradients = [_gradient_in_torch(number(running.reference), wrt, example) for example in examples]
    except (RuntimeError, IndexError, ValueError, NotImplementedError, TypeError, AttributeError):
        return False
    if None in gradients:
        return False  # e.g. torch writes in place
    expected = tuple([torch.stack(parts) for parts in zip(*gradients)])
    batch = [torch.stack(parts) for parts in zip(*examples)]
    jitted = running.jit_strictly(number(_symbol), case.target.executors)
    together = thunder.vmap(jitted)
    for ours in (thunder.vmap(thunder.grad(jitted, wrt)), thunder.grad(lambda *given: together(*given).sum(), wrt)):
        found = ours(*batch)
        try:
            compare(found, expected, tolerance=_tolerance(case, expected))
        except Mismatch:
            if all(map(_finite, expected)) or not all(map(_finite, found)):
                raise
    return True


def _gradient_in_torch(fn: Callable[..., Any], wrt: Sequence[int], example: Sequence[torch.Tensor]) -> Any:
    """Return the gradients for one example, or None.

    They come from autograd, which sometimes differs from `torch.func.grad`.

    (With `torch.func.grad`, the gradient of `max` is a product with a mask, so a NaN cotangent makes all elements NaN.)
    """
    leaves = [x.clone().requires_grad_(i in wrt) for i, x in enumerate(example)]
    result = fn(*leaves)
    if not result.requires_grad:
        return None
    wanted = [leaves[i] for i in wrt]
    found = torch.autograd.grad(result, wanted, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found)]


def _choices(n: int) -> Iterator[set[int]]:
    if n:
        yield set(range(n))
    if n > 1:
        yield from ({i} for i in range(n))


# -- operators as functions of tensors --------------------------------------------------------------------------------
def _unique(sample: SampleInput) -> list[torch.Tensor]:
    return list({id(x): x for x in running.tensors_in(sample)}.values())


def _symbol(info: Any, sample: SampleInput) -> Any:
    return info.symbol(*sample.args, **sample.kwargs)


def _function(
    case: Case, sample: SampleInput, places: Sequence[int], call: Callable[..., Any], *, widen: bool = False
) -> Callable[..., Any]:
    """Return the operator as a function of some of the sample's tensors. The function returns a tuple of tensors."""
    tensors = _unique(sample)

    def of_tensors(*given: Any) -> Any:
        values = dict(zip(places, given))

        def value(x: torch.Tensor) -> Any:
            i = next((i for i, known in enumerate(tensors) if known is x), None)
            if i in values:
                return values[i]
            return widened(x) if widen and (x.is_floating_point() or x.is_complex()) else x.detach()

        found = running.tensors_in(call(case.info, running.map_tensors(sample, value)))
        return tuple(found)

    return of_tensors
