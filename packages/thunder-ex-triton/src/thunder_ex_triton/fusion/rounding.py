# SPDX-License-Identifier: Apache-2.0
"""Which results in half precision a kernel rounds where it computes them: those of torch's operations.

Kernels compute half precision in single precision. Without this rounding, a kernel would read a value as it is before
it is stored, and other kernels (e.g. those of the backward program) as it is stored, or computed anew from stored
values. A gradient would then not find the maximum among the elements, or subtract the mean of other values: rounding
the sum of a convolution's result and a bias shifts all values of a channel in the same direction. The parts of an
operation are not rounded, as in torch's kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy, dtypes

__all__ = ["rounded_results"]

_MOVES = (
    prims.reshape, prims.view, prims.squeeze, prims.stride_order, prims.transpose, prims.broadcast_in_dim, prims.slice,
    prims.flip, prims.clone, prims.detach,
)  # fmt: skip
_HALF = (dtypes.float16, dtypes.bfloat16)


def rounded_results(operations: Sequence[BoundSymbol], primitives: Sequence[BoundSymbol]) -> frozenset[str]:
    """Return the results of primitives that are rounded. `primitives` are the parts of `operations`."""
    made_by = {p.name: op for op in primitives for p in op.flat_outs}
    found = set()
    for op in operations:
        for p in op.flat_outs:
            if isinstance(p, TensorProxy) and p.dtype in _HALF:
                name = p.name
                while name in made_by and made_by[name].sym in _MOVES:
                    name = made_by[name].args[0].name
                if name in made_by and made_by[name].sym is not prims.convert_element_type:
                    found.add(name)
    return frozenset(found)
