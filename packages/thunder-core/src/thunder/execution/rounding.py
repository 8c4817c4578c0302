# SPDX-License-Identifier: Apache-2.0
"""Which results in half precision a fusion rounds where it computes them: those of torch's operations.

Fusions compute half precision in single precision. If they rounded only what they store, a kernel would read a value
before it is rounded, and other kernels (e.g. those of the backward program) would read the stored value, or compute
it again from other stored values. The values would differ: a gradient would not find the maximum among the elements,
or would subtract a mean that is not theirs. (Rounding the sum of a convolution's result and a bias shifts all values
of a channel in the same direction.) Fusions therefore round the result of each of torch's operations, as eager mode
does. As in torch's kernels, the parts of an operation are not rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder import prims
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol

__all__ = ["rounded_results"]

_MOVES = (
    prims.reshape, prims.view, prims.squeeze, prims.stride_order, prims.transpose, prims.broadcast_in_dim, prims.slice,
    prims.flip, prims.clone, prims.detach,
)  # fmt: skip
_HALF = (dtypes.float16, dtypes.bfloat16)


def rounded_results(operations: Sequence[BoundSymbol], primitives: Sequence[BoundSymbol]) -> frozenset[str]:
    """Return the results of primitives that a fusion rounds to half precision where it computes them.

    `primitives` are the parts of `operations`. Results of conversions are not among them: a fusion rounds these anyway.
    """
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
