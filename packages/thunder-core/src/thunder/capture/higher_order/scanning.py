# SPDX-License-Identifier: Apache-2.0
"""`associative_scan` inside a traced program: running combinations along a dimension, as operations of the program.

Neighbours are combined in pairs, and so are the results, until one is left: n elements take about 2 log2(n) steps,
whose number depends on the shape only. The gradient follows from these operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.capture.dispatch.registry import handles
from thunder.capture.tensors.tracer import Tracer

__all__: list[str] = []

Combine = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


# Torch's function of this name calls the operation for pointwise functions, with the dimension moved to the front. For
# others, it computes the scan by itself.
@handles(torch.ops.higher_order.associative_scan, traced=True)
def _associative_scan(
    tracer: Tracer, combine_fn: Callable[..., Any], xs: Sequence[Any], additional_inputs: Sequence[Any] = ()
) -> Any:
    """Return the running combinations of `xs` along their first dimension."""

    def combine(left: Sequence[Any], right: Sequence[Any]) -> Sequence[Any]:
        return combine_fn(*left, *right, *additional_inputs)  # type: ignore[no-any-return]

    return tuple(_running(combine, [*xs]))


def _running(combine: Combine, xs: Sequence[Any]) -> Sequence[Any]:
    count = xs[0].shape[0]
    if count < 2:
        return xs
    odd = _running(combine, combine([x[:-1:2] for x in xs], [x[1::2] for x in xs]))  # of positions 1, 3, 5, …
    even = [x[:1] for x in xs]
    if count > 2:
        following = combine([x[: (count - 1) // 2] for x in odd], [x[2::2] for x in xs])
        even = [torch.cat((first, x)) for first, x in zip(even, following)]
    return [_interleaved(x, y) for x, y in zip(even, odd)]


def _interleaved(even: Any, odd: Any) -> Any:
    pairs = torch.stack((even[: odd.shape[0]], odd), 1).flatten(0, 1)
    return pairs if even.shape[0] == odd.shape[0] else torch.cat((pairs, even[-1:]))
