# SPDX-License-Identifier: Apache-2.0
"""Count the floating-point operations and the bytes of an operation from its metadata.

An operation without a decomposition counts by its kind: matrix products and convolutions two for each product,
reductions one for each element that they read, and elementwise operations one for each element that they write. Bytes
are those of the distinct inputs and of the results, so that a fusion counts no value that stays inside it.
"""

from __future__ import annotations

import math

from thunder.core.nbytes import bytes_of, known_shape
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.execution.excerpt import distinct

__all__ = ["bytes_moved", "flops_of"]


def bytes_moved(op: BoundSymbol) -> int:
    """Return the bytes that an operation reads and writes, if it reads each input once. Views move none."""
    if all(OpTags.VIEW_OP in part.sym.tags for part in op.subsymbols or [op]):
        return 0
    made = [p for p in distinct(op.flat_outs) if p.name in op.out_names]
    return sum(map(bytes_of, (*distinct(op.flat_args), *made)))


def flops_of(op: BoundSymbol) -> int:
    """Return the number of floating-point operations."""
    if op.subsymbols:
        return sum(map(flops_of, op.subsymbols))
    inputs = [p for p in op.flat_args if isinstance(p, TensorProxy)]
    outputs = [p for p in op.flat_outs if isinstance(p, TensorProxy)]
    if not outputs:
        return 0
    written = math.prod(known_shape(outputs[0]))
    if op.sym.name.startswith("convolution") and len(inputs) > 1:
        weight = known_shape(inputs[1])
        return 2 * written * math.prod(weight[1:])
    if OpTags.MATMUL_OP in op.sym.tags and inputs:
        return 2 * written * known_shape(inputs[0])[-1]
    if OpTags.REDUCTION_OP in op.sym.tags and inputs:
        return math.prod(known_shape(inputs[0]))
    return written if OpTags.ELEMENTWISE_OP in op.sym.tags else 0
