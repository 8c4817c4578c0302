# SPDX-License-Identifier: Apache-2.0
"""Rounding of stored values in half precision, for operations of the same kernel.

Kernels compute half precision in single precision. Without this rounding, a kernel would use a value as it is before it
is stored, and later kernels (e.g. those of the backward program) as it is stored. The mean of a normalization would not
be that of the values from which it is subtracted: the rounding of the sum of a convolution's result and a bias has one
direction in each channel.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy, dtypes

__all__ = ["rounding_stored"]

_MOVES = (
    prims.reshape, prims.view, prims.squeeze, prims.stride_order, prims.transpose, prims.broadcast_in_dim, prims.slice,
    prims.flip, prims.clone, prims.detach,
)  # fmt: skip
_HALF = (dtypes.float16, dtypes.bfloat16)


def rounding_stored(operations: Sequence[BoundSymbol], outputs: Sequence[TensorProxy]) -> list[BoundSymbol]:
    """Return the operations with roundings of the outputs, and of what these are views of. Others read the results."""
    made_by = {p.name: op for op in operations for p in op.flat_outs}
    stored = set()
    for p in outputs:
        name = p.name
        while name in made_by and made_by[name].sym in _MOVES:
            name = made_by[name].args[0].name
        stored.add(name)
    found: list[BoundSymbol] = []
    rounded: dict[str, TensorProxy] = {}
    for op in operations:
        found.append(op.substitute(rounded))
        if op.sym is prims.convert_element_type:  # its result is rounded
            continue
        for out in op.flat_outs:
            if isinstance(out, TensorProxy) and out.name in stored and out.dtype in _HALF:
                wide = TensorProxy(out.name, like=out, dtype=dtypes.float32)
                rounded[out.name] = result = TensorProxy(f"{out.name}_rounded", like=out)
                convert = BoundSymbol(prims.convert_element_type, (wide, out.dtype), {}, result, source=op.source)
                found.append(convert)
    return found
